# Python's modules, and values that go to and come from Python.

# Modules are imported when they are used first.
modules <- new.env(parent = emptyenv())

# The classes of Python that models have.
MODELS <- c("keras.src.models.model.Model", "fanwise.keras._model.ParallelModel")

.onLoad <- function(libname, pkgname) {
  modules$keras <- reticulate::import("keras", delay_load = TRUE)
  modules$fanwise <- reticulate::import("fanwise.keras", delay_load = TRUE)
  modules$numpy <- reticulate::import("numpy", convert = FALSE, delay_load = TRUE)
  for (class in MODELS) {
    registerS3method("predict", class, predict_model, envir = asNamespace("stats"))
    registerS3method("summary", class, summary_model, envir = baseenv())
  }
}

is_python <- function(x) inherits(x, "python.builtin.object")

# Data of a model as Keras takes it: numbers of R as floats of Keras' type, vectors with one axis,
# rows behind one another in memory. Structures keep their names.
as_data <- function(x) {
  if (is.null(x) || is_python(x)) {
    return(x)
  }
  if (is.data.frame(x)) {
    x <- as.matrix(x)
  } else if (is.list(x)) {
    return(lapply(x, as_data))
  }
  if (is.null(dim(x))) {
    x <- as.array(x)
  }
  # A missing number is one of floats.
  if ((is.integer(x) || is.logical(x)) && anyNA(x)) {
    storage.mode(x) <- "double"
  }
  dtype <- if (is.double(x)) modules$keras$backend$floatx() else NULL
  modules$numpy$array(reticulate::r_to_py(x), dtype = dtype, order = "C")
}

# Arguments of Keras: whole numbers of R are doubles, which Python does not take for counts.
as_argument <- function(x) {
  if (is.double(x) && all(is.finite(x)) && all(x == trunc(x)) && all(abs(x) < 2^31)) {
    storage.mode(x) <- "integer"
  }
  if (is.list(x) && !is.object(x)) lapply(x, as_argument) else x
}

# A shape, which is a tuple of Python; `NULL` and `NA` in a list are open sizes.
as_shape <- function(x) {
  if (is.null(x) || is_python(x)) {
    return(x)
  }
  sizes <- lapply(x, function(size) if (is.null(size) || is.na(size)) NULL else as.integer(size))
  reticulate::tuple(sizes)
}

# The fields of Keras that hold shapes.
SHAPES <- c("shape", "input_shape", "batch_shape", "target_shape")

as_arguments <- function(arguments) {
  names <- names(arguments)
  for (i in seq_along(arguments)) {
    value <- arguments[[i]]
    is_shape <- !is.null(names) && names[[i]] %in% SHAPES
    value <- if (is_shape) as_shape(value) else as_argument(value)
    arguments[i] <- list(value)
  }
  arguments
}

# A function of R that gives the next `list(x, y)`, or `NULL` at the end, as a generator of Python.
as_generator <- function(generator) {
  if (is_python(generator)) {
    return(generator)
  }
  if (!is.function(generator)) {
    stop("`generator` is a function without arguments, or an object of Python", call. = FALSE)
  }
  batches <- reticulate::py_iterator(function() {
    # reticulate would end the data where the function fails.
    batch <- tryCatch(generator(), error = conditionMessage)
    if (is.character(batch)) {
      return(batch)
    }
    if (is.null(batch)) NULL else do.call(reticulate::tuple, lapply(unname(batch), as_data))
  })
  # Keras knows generators by their type.
  reticulate::py_run_string(GENERATOR, local = TRUE)$batches_of(batches)
}

GENERATOR <- "
def batches_of(batches):
    for batch in batches:
        if isinstance(batch, str):
            raise RuntimeError('the generator failed: ' + batch)
        yield batch
"

# The numbers of a step or an evaluation, with their names.
as_numbers <- function(logs) unlist(logs)

# A call of Python, whose warnings are warnings of R when it has ended.
told <- function(call) {
  caught <- reticulate::py_run_string(CAUGHT, local = TRUE)$Caught()
  on.exit(for (text in as.character(caught$end())) warning(text, call. = FALSE))
  call
}

CAUGHT <- "
class Caught:
    def __init__(self):
        import warnings
        self.module, self.shown, self.texts = warnings, warnings.showwarning, []
        warnings.showwarning = lambda message, *rest, **more: self.texts.append(str(message))

    def end(self):
        self.module.showwarning = self.shown
        return self.texts
"
