# Every function of the package, against the template itself.

library(fanwise)

set.seed(7)
rows <- 23
x <- matrix(runif(rows * 6), rows)
classes <- sample(0:2, rows, replace = TRUE)
y <- to_categorical(classes, 3)

near <- function(a, b, within = 1e-5) {
  stopifnot(identical(dim(a), dim(b)), max(abs(a - b)) <= within * max(abs(b)))
}
fails <- function(expression, ...) {
  message <- tryCatch({
    expression
    "no error"
  }, error = conditionMessage)
  for (part in c(...)) {
    if (!grepl(part, message, fixed = TRUE)) stop("`", part, "` is not in: ", message)
  }
}

network <- function() {
  model <- keras_model_sequential()
  model %>%
    layer_dense(units = 8, input_shape = c(6)) %>%
    layer_activation("relu") %>%
    layer_dense(3, activation = "softmax", name = "last")
  model
}

# Two models with the same weights: one is replicated, one is trained by Keras.
model <- network()
twin <- network()
twin$set_weights(model$get_weights())
said <- tryCatch(multi_gpu_model(model, gpus = c(0, 1)), warning = conditionMessage)
stopifnot(grepl("virtual devices", said))
parallel <- suppressWarnings(multi_gpu_model(model, gpus = c(0, 1)))
near(predict(parallel, x), predict(twin, x))
near(parallel %>% predict_on_batch(x), predict(twin, x))
near(parallel %>% predict_proba(x), predict(twin, x))
stopifnot(identical(predict_classes(parallel, x), max.col(predict(twin, x), "first") - 1L))

for (one in list(parallel, twin)) {
  one %>% compile(
    optimizer = optimizer_sgd(learning_rate = 0.5, momentum = 0),
    loss = "categorical_crossentropy",
    metrics = c("accuracy")
  )
}
sizes <- list(x = x, y = y, batch_size = 5, epochs = 3, shuffle = FALSE, verbose = 0)
more <- list(
  validation_data = list(x, y),
  sample_weight = runif(rows),
  class_weight = NULL,
  callbacks = list(callback_early_stopping(monitor = "val_loss", patience = 5))
)
history <- do.call(fit, c(list(parallel), sizes, more))
expected <- do.call(fit, c(list(twin), sizes, more))
stopifnot(identical(names(history$metrics), c("accuracy", "loss", "val_accuracy", "val_loss")))
near(as.data.frame(history)$loss, as.data.frame(expected)$loss)
near(as.data.frame(history)$val_accuracy, as.data.frame(expected)$val_accuracy)
for (i in seq_along(twin$get_weights())) near(model$get_weights()[[i]], twin$get_weights()[[i]])
print(history)
pdf(NULL)
plot(history)

found <- parallel %>% evaluate(x, y, batch_size = 5, verbose = 0)
expected <- twin %>% evaluate(x, y, batch_size = 5, verbose = 0)
near(found[["loss"]], expected[["loss"]])
near(found[["accuracy"]], expected[["accuracy"]])
near(
  (parallel %>% test_on_batch(x, y))[["loss"]],
  (twin %>% test_on_batch(x, y))[["loss"]]
)
step <- parallel %>% train_on_batch(x, y, class_weight = list("0" = 1, "1" = 2, "2" = 0.5))
expected <- twin %>% train_on_batch(x, y, class_weight = list("0" = 1, "1" = 2, "2" = 0.5))
near(step[["loss"]], expected[["loss"]])

# Generators of R.
batches <- function() {
  at <- 0
  function() {
    at <<- at %% 4 + 1
    part <- seq(5 * at - 4, 5 * at)
    list(x[part, ], y[part, ])
  }
}
parallel %>% fit_generator(batches(), steps_per_epoch = 4, epochs = 2, verbose = 0)
twin %>% fit_generator(batches(), steps_per_epoch = 4, epochs = 2, verbose = 0)
near(model$get_weights()[[1]], twin$get_weights()[[1]])
near(
  (parallel %>% evaluate_generator(batches(), 4))[["loss"]],
  (twin %>% evaluate_generator(batches(), 4))[["loss"]]
)
near(parallel %>% predict_generator(batches(), 4), twin %>% predict_generator(batches(), 4))

# Parts and files.
stopifnot(
  parallel %>% count_params() == 83,
  get_layer(parallel, "last")$name == "last",
  get_layer(parallel, index = 1)$name == model$layers[[1]]$name,
  is.list(get_config(parallel)),
  any(grepl("last", capture.output(summary(parallel))))
)
folder <- tempdir()
weights <- file.path(folder, "my_weights.h5")
parallel %>% save_model_weights_hdf5(weights)
fails(save_model_weights_hdf5(parallel, weights, overwrite = FALSE), "overwrite")
copy <- network()
copy %>% load_model_weights_hdf5(weights)
stopifnot(identical(copy$get_weights(), model$get_weights()))
whole <- file.path(folder, "my_model.keras")
parallel %>% save_model_hdf5(whole)
near(predict(load_model_hdf5(whole), x), predict(model, x))
fails(load_model_weights_hdf5(copy, file.path(folder, "missing.h5")), "missing.h5")

# A model with two inputs, and data by names.
left <- layer_input(shape = c(6), name = "left")
right <- layer_input(shape = c(4), name = "right")
joined <- list(left %>% layer_dense(4), right) %>% layer_add() %>% layer_dense(1)
two <- keras_model(inputs = list(left, right), outputs = joined)
data <- list(left = x, right = x[, 1:4])
parallel_two <- suppressWarnings(multi_gpu_model(two, gpus = 3, target = "cpu"))
near(predict(parallel_two, data), predict(two, data))

twin %>% pop_layer()
stopifnot(length(twin$layers) == 2)

# What is wrong is said in the words of Keras.
fails(multi_gpu_model(model, gpus = 1), "gpus >= 2", "gpus=1")
fails(multi_gpu_model(model, gpus = c(0, 9), target = "cuda"), "gpus=[0, 9]", "/gpu:9")
fails(multi_gpu_model(model, gpus = 2.5), "2.5")
fails(fit_generator(parallel, 7, steps_per_epoch = 1), "generator")
made <- batches()
calls <- 0
breaks <- function() {
  calls <<- calls + 1
  if (calls == 2) stop("no more of these") else made()
}
fails(fit_generator(parallel, breaks, steps_per_epoch = 3, verbose = 0), "no more of these")
fails(fit(parallel, x, y, class_weight = list(1, 2, 3), verbose = 0), "name the class weights")
fails(get_layer(model, index = 0), "index 1")
stopifnot(with(tf$device("/cpu:0"), 1 + 1) == 2)
