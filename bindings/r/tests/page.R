# The example of R's page about `multi_gpu_model`, with smaller numbers.

library(fanwise)

num_samples <- 9
height <- 71
width <- 71
num_classes <- 10

with(tf$device("/cpu:0"), {
  model <- application_xception(
    weights = NULL,
    input_shape = c(height, width, 3),
    classes = num_classes
  )
})

parallel_model <- multi_gpu_model(model, gpus = 8)
parallel_model %>% compile(
  loss = "categorical_crossentropy",
  optimizer = "rmsprop"
)

x <- array(runif(num_samples * height * width * 3), dim = c(num_samples, height, width, 3))
y <- array(runif(num_samples * num_classes), dim = c(num_samples, num_classes))

before <- model$get_weights()
parallel_model %>% fit(x, y, epochs = 2, batch_size = 7, verbose = 2)
stopifnot(!identical(before[[1]], model$get_weights()[[1]]))

path <- file.path(tempdir(), "my_model.h5")
model %>% save_model_hdf5(path)

loaded <- load_model_hdf5(path)
stopifnot(identical(loaded$get_weights(), model$get_weights()))
