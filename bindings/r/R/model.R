# Models: replication, construction, parts, files.

multi_gpu_model <- function(model, gpus = NULL, cpu_merge = TRUE, cpu_relocation = FALSE, ...) {
  if (length(gpus) > 1) {
    gpus <- as.list(gpus)
  }
  told(modules$fanwise$multi_gpu_model(
    model,
    gpus = as_argument(gpus),
    cpu_merge = cpu_merge,
    cpu_relocation = cpu_relocation,
    ...
  ))
}

keras_model <- function(inputs, outputs = NULL, ...) {
  modules$keras$Model(inputs = inputs, outputs = outputs, ...)
}

keras_model_sequential <- function(layers = NULL, name = NULL, input_shape = NULL, ...) {
  layers <- if (is.list(layers) || is.null(layers)) layers else list(layers)
  if (!is.null(input_shape)) {
    layers <- c(list(layer_input(input_shape, ...)), layers)
  }
  modules$keras$Sequential(layers, name = name)
}

get_config <- function(object) object$get_config()

get_layer <- function(object, name = NULL, index = NULL) {
  # The first layer of R has the index 1.
  if (!is.null(index) && index < 1) {
    stop("the first layer has the index 1", call. = FALSE)
  }
  object$get_layer(name = name, index = if (is.null(index)) NULL else as.integer(index) - 1L)
}

pop_layer <- function(object) {
  if (inherits(object, MODELS[[2]])) object$pop_layer() else object$pop()
  invisible(object)
}

count_params <- function(object) object$count_params()

summary_model <- function(object, ...) {
  object$summary(print_fn = function(line, ...) cat(line, "\n", sep = ""), ...)
  invisible(object)
}

save_model_hdf5 <- function(object, filepath, overwrite = TRUE, include_optimizer = TRUE) {
  check_free(filepath, overwrite)
  told(object$save(path.expand(filepath), include_optimizer = include_optimizer))
  invisible(TRUE)
}

load_model_hdf5 <- function(filepath, custom_objects = NULL, compile = TRUE) {
  told(modules$keras$models$load_model(
    path.expand(filepath),
    custom_objects = custom_objects,
    compile = compile
  ))
}

# The ending by which Keras knows its own files of weights.
ENDING <- ".weights.h5"

save_model_weights_hdf5 <- function(object, filepath, overwrite = TRUE) {
  check_free(filepath, overwrite)
  path <- tempfile("weights", tmpdir = dirname(path.expand(filepath)), fileext = ENDING)
  on.exit(unlink(path))
  told(object$save_weights(path))
  if (!file.rename(path, path.expand(filepath))) {
    stop("cannot write ", filepath, call. = FALSE)
  }
  invisible(TRUE)
}

load_model_weights_hdf5 <- function(object, filepath) {
  path <- normalizePath(filepath, mustWork = TRUE)
  file <- reticulate::import("h5py")$File(path, "r")
  is_current <- !is.null(file$get("layers"))
  file$close()
  if (is_current && !endsWith(path, ENDING)) {
    link <- tempfile("weights", fileext = ENDING)
    on.exit(unlink(link))
    file.symlink(path, link)
    path <- link
  }
  told(object$load_weights(path))
  invisible(object)
}

check_free <- function(filepath, overwrite) {
  if (!overwrite && file.exists(filepath)) {
    stop(filepath, " exists; `overwrite = TRUE` replaces it", call. = FALSE)
  }
}

# The devices of TensorFlow's scripts. Keras places what a scope makes; the host holds the weights
# of a model that is replicated, whatever the device of its scope is.
tf <- list(device = function(device_name) {
  structure(list(name = device_name), class = "fanwise_device")
})

with.fanwise_device <- function(data, expr, ...) {
  scope <- modules$keras$device("cpu:0")
  scope$`__enter__`()
  on.exit(scope$`__exit__`(NULL, NULL, NULL))
  if (!grepl("cpu", data$name, ignore.case = TRUE)) {
    message("weights made in the scope of ", data$name, " are in the memory of the host")
  }
  force(expr)
}
