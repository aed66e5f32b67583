# Training, evaluation, prediction.

compile <- function(object, optimizer = "rmsprop", loss = NULL, metrics = NULL,
                    loss_weights = NULL, weighted_metrics = NULL, ...) {
  told(object$compile(
    optimizer = optimizer,
    loss = loss,
    metrics = as_metrics(metrics),
    loss_weights = as_losses(loss_weights),
    weighted_metrics = as_metrics(weighted_metrics),
    ...
  ))
  invisible(object)
}

# Several metrics are a list, with or without names.
as_metrics <- function(metrics) if (is.null(metrics)) NULL else as.list(metrics)

as_losses <- function(weights) if (length(weights) > 1) as.list(weights) else weights

fit <- function(object, x = NULL, y = NULL, batch_size = NULL, epochs = 10, verbose = "auto",
                callbacks = NULL, validation_split = 0, validation_data = NULL, shuffle = TRUE,
                class_weight = NULL, sample_weight = NULL, initial_epoch = 0,
                steps_per_epoch = NULL, validation_steps = NULL, ...) {
  history <- told(object$fit(
    x = if (is.function(x)) as_generator(x) else as_data(x),
    y = as_data(y),
    batch_size = as_argument(batch_size),
    epochs = as_argument(epochs),
    verbose = as_argument(verbose),
    callbacks = as_callbacks(callbacks),
    validation_split = validation_split,
    validation_data = as_validation(validation_data),
    shuffle = shuffle,
    class_weight = as_classes(class_weight),
    sample_weight = as_data(sample_weight),
    initial_epoch = as_argument(initial_epoch),
    steps_per_epoch = as_argument(steps_per_epoch),
    validation_steps = as_argument(validation_steps),
    ...
  ))
  structure(
    list(params = history$params, metrics = history$history),
    class = "keras_training_history"
  )
}

fit_generator <- function(object, generator, steps_per_epoch, epochs = 1, verbose = "auto",
                          callbacks = NULL, validation_data = NULL, validation_steps = NULL,
                          class_weight = NULL, initial_epoch = 0, ...) {
  fit(
    object,
    as_generator(generator),
    steps_per_epoch = steps_per_epoch,
    epochs = epochs,
    verbose = verbose,
    callbacks = callbacks,
    validation_data = validation_data,
    validation_steps = validation_steps,
    class_weight = class_weight,
    initial_epoch = initial_epoch,
    shuffle = FALSE
  )
}

evaluate <- function(object, x = NULL, y = NULL, batch_size = NULL, verbose = "auto",
                     sample_weight = NULL, steps = NULL, ...) {
  as_numbers(told(object$evaluate(
    x = if (is.function(x)) as_generator(x) else as_data(x),
    y = as_data(y),
    batch_size = as_argument(batch_size),
    verbose = as_argument(verbose),
    sample_weight = as_data(sample_weight),
    steps = as_argument(steps),
    return_dict = TRUE,
    ...
  )))
}

evaluate_generator <- function(object, generator, steps, ...) {
  evaluate(object, as_generator(generator), steps = steps)
}

predict_model <- function(object, x, batch_size = NULL, verbose = 0, steps = NULL, ...) {
  told(object$predict(
    if (is.function(x)) as_generator(x) else as_data(x),
    batch_size = as_argument(batch_size),
    verbose = as_argument(verbose),
    steps = as_argument(steps),
    ...
  ))
}

predict_generator <- function(object, generator, steps, ...) {
  predict_model(object, as_generator(generator), steps = steps)
}

predict_proba <- function(object, x, batch_size = NULL, verbose = 0) {
  predict_model(object, x, batch_size, verbose)
}

predict_classes <- function(object, x, batch_size = NULL, verbose = 0) {
  found <- predict_model(object, x, batch_size, verbose)
  if (ncol(found) == 1) as.integer(found > 0.5) else max.col(found, "first") - 1L
}

predict_on_batch <- function(object, x) told(object$predict_on_batch(as_data(x)))

train_on_batch <- function(object, x, y, class_weight = NULL, sample_weight = NULL) {
  as_numbers(told(object$train_on_batch(
    as_data(x),
    as_data(y),
    class_weight = as_classes(class_weight),
    sample_weight = as_data(sample_weight),
    return_dict = TRUE
  )))
}

test_on_batch <- function(object, x, y, sample_weight = NULL) {
  logs <- told(object$test_on_batch(
    as_data(x),
    as_data(y),
    sample_weight = as_data(sample_weight),
    return_dict = TRUE
  ))
  as_numbers(logs)
}

as_callbacks <- function(callbacks) {
  if (is.null(callbacks) || is.list(callbacks)) callbacks else list(callbacks)
}

as_validation <- function(data) {
  if (is.null(data) || is_python(data)) {
    return(data)
  }
  if (is.function(data)) as_generator(data) else do.call(reticulate::tuple, as_data(unname(data)))
}

# `list("0" = 1, "1" = 2)`: the weights of classes by their numbers.
as_classes <- function(weights) {
  if (is.null(weights)) {
    return(NULL)
  }
  if (is.null(names(weights))) {
    stop('name the class weights by their classes: list("0" = 1, "1" = 2)', call. = FALSE)
  }
  reticulate::py_dict(as.integer(names(weights)), unname(as.list(weights)))
}

print.keras_training_history <- function(x, ...) {
  cat(x$params$epochs, "epochs; the last:\n")
  last <- vapply(x$metrics, function(values) as.numeric(values[[length(values)]]), numeric(1))
  print(last, ...)
  invisible(x)
}

as.data.frame.keras_training_history <- function(x, ...) {
  epochs <- length(x$metrics[[1]])
  data.frame(epoch = seq_len(epochs), lapply(x$metrics, as.numeric))
}

plot.keras_training_history <- function(x, ...) {
  table <- as.data.frame(x)
  names <- setdiff(names(table), "epoch")
  graphics::matplot(table$epoch, table[names], type = "b", pch = 20, lty = 1,
                    xlab = "epoch", ylab = "", ...)
  graphics::legend("topright", names, col = seq_along(names), lty = 1)
  invisible(x)
}
