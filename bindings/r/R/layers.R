# Layers, applications, optimizers and callbacks: those of Keras, by the names that they have in R.

# `Conv2D` is `conv_2d`, `LSTM` is `lstm`.
LAYERS <- c(
  activation = "Activation", activation_relu = "ReLU", activation_leaky_relu = "LeakyReLU",
  activation_elu = "ELU", activation_softmax = "Softmax", add = "Add", average = "Average",
  average_pooling_1d = "AveragePooling1D", average_pooling_2d = "AveragePooling2D",
  batch_normalization = "BatchNormalization", concatenate = "Concatenate", conv_1d = "Conv1D",
  conv_2d = "Conv2D", conv_2d_transpose = "Conv2DTranspose", conv_3d = "Conv3D",
  cropping_2d = "Cropping2D", dense = "Dense", depthwise_conv_2d = "DepthwiseConv2D",
  dropout = "Dropout", embedding = "Embedding", flatten = "Flatten",
  global_average_pooling_1d = "GlobalAveragePooling1D",
  global_average_pooling_2d = "GlobalAveragePooling2D",
  global_max_pooling_1d = "GlobalMaxPooling1D", global_max_pooling_2d = "GlobalMaxPooling2D",
  gru = "GRU", layer_normalization = "LayerNormalization", lstm = "LSTM", masking = "Masking",
  max_pooling_1d = "MaxPooling1D", max_pooling_2d = "MaxPooling2D", multiply = "Multiply",
  permute = "Permute", repeat_vector = "RepeatVector", rescaling = "Rescaling",
  reshape = "Reshape", separable_conv_2d = "SeparableConv2D", simple_rnn = "SimpleRNN",
  spatial_dropout_2d = "SpatialDropout2D", subtract = "Subtract",
  upsampling_2d = "UpSampling2D", zero_padding_2d = "ZeroPadding2D"
)

# A layer, applied to `object`: a sequential model gets it added, tensors go through it.
applied <- function(object, layer) {
  if (is.null(object)) {
    layer
  } else if (inherits(object, "keras.src.models.sequential.Sequential")) {
    object$add(layer)
    invisible(object)
  } else {
    layer(object)
  }
}

# An object of a class of Keras, whose counts are whole numbers.
made <- function(module, class, arguments) {
  told(do.call(module[[class]], as_arguments(arguments)))
}

layer_input <- function(shape = NULL, ...) {
  do.call(modules$keras$Input, as_arguments(list(shape = shape, ...)))
}

function_of <- function(class) {
  force(class)
  function(object = NULL, ...) {
    arguments <- list(...)
    # The shape of what a first layer gets.
    if (!is.null(arguments$input_shape)) {
      if (inherits(object, "keras.src.models.sequential.Sequential")) {
        object$add(layer_input(arguments$input_shape))
      }
      arguments$input_shape <- NULL
    }
    applied(object, made(modules$keras$layers, class, arguments))
  }
}

layer_bidirectional <- function(object = NULL, layer, ...) {
  applied(object, modules$keras$layers$Bidirectional(layer, ...))
}

layer_time_distributed <- function(object = NULL, layer, ...) {
  applied(object, modules$keras$layers$TimeDistributed(layer, ...))
}

APPLICATIONS <- c(
  densenet121 = "DenseNet121", densenet169 = "DenseNet169", densenet201 = "DenseNet201",
  efficientnet_b0 = "EfficientNetB0", efficientnet_b1 = "EfficientNetB1",
  efficientnet_b2 = "EfficientNetB2", efficientnet_b3 = "EfficientNetB3",
  efficientnet_b4 = "EfficientNetB4", efficientnet_b5 = "EfficientNetB5",
  efficientnet_b6 = "EfficientNetB6", efficientnet_b7 = "EfficientNetB7",
  inception_resnet_v2 = "InceptionResNetV2", inception_v3 = "InceptionV3",
  mobilenet = "MobileNet", mobilenet_v2 = "MobileNetV2",
  mobilenet_v3_large = "MobileNetV3Large", mobilenet_v3_small = "MobileNetV3Small",
  nasnetlarge = "NASNetLarge", nasnetmobile = "NASNetMobile", resnet101 = "ResNet101",
  resnet101_v2 = "ResNet101V2", resnet152 = "ResNet152", resnet152_v2 = "ResNet152V2",
  resnet50 = "ResNet50", resnet50_v2 = "ResNet50V2", vgg16 = "VGG16", vgg19 = "VGG19",
  xception = "Xception"
)

OPTIMIZERS <- c(
  adadelta = "Adadelta", adagrad = "Adagrad", adam = "Adam", adam_w = "AdamW",
  adamax = "Adamax", ftrl = "Ftrl", nadam = "Nadam", rmsprop = "RMSprop", sgd = "SGD"
)

CALLBACKS <- c(
  csv_logger = "CSVLogger", early_stopping = "EarlyStopping",
  learning_rate_scheduler = "LearningRateScheduler", model_checkpoint = "ModelCheckpoint",
  reduce_lr_on_plateau = "ReduceLROnPlateau", tensorboard = "TensorBoard",
  terminate_on_naan = "TerminateOnNaN"
)

# A function that makes an object of a class in a module of Keras.
maker <- function(module, class) {
  force(module)
  force(class)
  function(...) made(modules$keras[[module]], class, list(...))
}

# The settings of optimizers are numbers that need not be whole, also where they are.
optimizer <- function(class) {
  force(class)
  function(...) modules$keras$optimizers[[class]](...)
}

for (name in names(LAYERS)) {
  assign(paste0("layer_", name), function_of(LAYERS[[name]]))
}
for (name in names(APPLICATIONS)) {
  assign(paste0("application_", name), maker("applications", APPLICATIONS[[name]]))
}
for (name in names(OPTIMIZERS)) {
  assign(paste0("optimizer_", name), optimizer(OPTIMIZERS[[name]]))
}
for (name in names(CALLBACKS)) {
  assign(paste0("callback_", name), maker("callbacks", CALLBACKS[[name]]))
}
rm(name)

to_categorical <- function(y, num_classes = NULL) {
  modules$keras$utils$to_categorical(as_data(y), as_argument(num_classes))
}
