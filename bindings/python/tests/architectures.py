"""Architectures of Keras: those of `keras.applications`, and one of each kind that people write."""

import keras
import numpy as np
from keras import applications, layers, ops

# A network of each family, with its least size of images.
FAMILIES = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}

# Those that take the least time.
SMALL = (
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "EfficientNetB0",
    "ResNet50",
    "ConvNeXtTiny",
)


def application(name):
    size = FAMILIES[name]
    make = getattr(applications, name)
    return make(weights=None, input_shape=(size, size, 3), classes=11, classifier_activation=None)


def lstm():
    x = keras.Input((9, 5))
    y = layers.LSTM(8, return_sequences=True, go_backwards=True)(x)
    return keras.Model(x, layers.Dense(4)(layers.LSTM(6, activation="relu")(y)))


def bidirectional_gru():
    x = keras.Input((8, 4))
    y = layers.Masking()(x)
    y = layers.Bidirectional(layers.GRU(5, return_sequences=True), merge_mode="sum")(y)
    return keras.Model(x, layers.Dense(3)(layers.Bidirectional(layers.GRU(4))(y)))


def transformer():
    tokens = keras.Input((10,), dtype="int32", name="tokens")
    places = keras.Input((10,), dtype="int32", name="places")
    x = layers.add(
        [layers.Embedding(20, 16, mask_zero=True)(tokens), layers.Embedding(10, 16)(places)]
    )
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.add([x, layers.MultiHeadAttention(4, 4)(y, y)])
        y = layers.Dense(32, activation="gelu")(layers.LayerNormalization(epsilon=1e-6)(x))
        x = layers.add([x, layers.Dropout(0.1)(layers.Dense(16)(y))])
    return keras.Model([tokens, places], layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def siamese():
    a, b = keras.Input((12,), name="a"), keras.Input((12,), name="b")
    twin = keras.Sequential([keras.Input((12,)), layers.Dense(8, activation="tanh")], name="twin")
    distance = ops.sqrt(ops.sum(ops.square(twin(a) - twin(b)), axis=-1, keepdims=True) + 1e-6)
    return keras.Model([a, b], layers.Dense(1, activation="sigmoid")(distance))


def nested():
    def block(width, name):
        x = keras.Input((width,))
        y = layers.BatchNormalization()(layers.Dense(width, activation="relu")(x))
        return keras.Model(x, layers.add([x, y]), name=name)

    inner = keras.Sequential([keras.Input((6,)), block(6, "a"), block(6, "b")], name="inner")
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(5)(inner(block(6, "first")(inner(x)))))


def several():
    image = keras.Input((8, 8, 2), name="image")
    numbers = keras.Input((5,), name="numbers")
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="relu")(image))
    y = layers.concatenate([x, layers.Dense(7)(numbers)])
    classes = layers.Dense(4, activation="softmax", name="classes")(y)
    return keras.Model(
        {"image": image, "numbers": numbers},
        {"classes": classes, "value": layers.Dense(1, name="value")(y)},
    )


def u_net():
    x = keras.Input((16, 16, 3))
    left, y = [], x
    for width in (4, 8):
        y = layers.Conv2D(width, 3, padding="same", activation="relu")(y)
        left.append(y)
        y = layers.MaxPooling2D()(layers.BatchNormalization()(y))
    y = layers.Conv2D(16, 3, padding="same", activation="relu")(y)
    for width, other in ((8, left[1]), (4, left[0])):
        y = layers.Conv2DTranspose(width, 2, strides=2, padding="same")(y)
        y = layers.Conv2D(width, 3, padding="same", activation="relu")(
            layers.concatenate([y, other])
        )
    return keras.Model(x, layers.Conv2D(2, 1)(y))


def autoencoder():
    """A variational one: what it draws in training is 0 in inference, as in Keras."""
    x = keras.Input((8, 8, 1))
    y = layers.Flatten()(layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x))
    mean, log_variance = layers.Dense(3, name="mean")(y), layers.Dense(3, name="log_variance")(y)
    noise = layers.GaussianNoise(1.0)(ops.zeros_like(mean))
    code = mean + ops.exp(0.5 * log_variance) * noise
    y = layers.Reshape((4, 4, 4))(layers.Dense(64, activation="relu")(code))
    y = layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid")(y)
    return keras.Model(x, [y, mean, log_variance])


WRITTEN = (
    lstm,
    bidirectional_gru,
    transformer,
    siamese,
    nested,
    several,
    u_net,
    autoencoder,
)


def stirred(make, *arguments):
    """A model whose weights that begin as zeros and ones are other numbers, as after training.

    Where a deep network loses its inputs, the statistics of batch normalisation are those of rows."""
    keras.utils.set_random_seed(11)
    model = make(*arguments)
    rng = np.random.default_rng(12)
    weights = []
    for variable in model.weights:
        value = np.asarray(variable.numpy())
        if value.size and (value == value.flat[0]).all():
            value = value + rng.uniform(-0.1, 0.1, value.shape)
        weights.append(value.astype(variable.dtype))
    model.set_weights(weights)
    given = list(rows(model, 9).values())
    given = given if len(given) > 1 else given[0]
    found = np.asarray(keras.ops.convert_to_numpy(keras.tree.flatten(model(given))[0]))
    if np.abs(found - found[:1]).max() < 1e-5 * np.abs(found).max():
        norms = [x for x in model._flatten_layers() if isinstance(x, layers.BatchNormalization)]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 0.0
        model(given, training=True)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return model


def rows(model, count, seed=13):
    """Rows for each input, by its name: with zeros at the end of what may be masked."""
    rng = np.random.default_rng(seed)
    # Networks that scale bytes themselves would see no difference between small numbers.
    scales = (layers.Rescaling, layers.Normalization)
    largest = 100 if any(isinstance(layer, scales) for layer in model.layers) else 1
    found = {}
    for tensor in model.inputs:
        name, shape = tensor._keras_history.operation.name, (count, *tensor.shape[1:])
        if tensor.dtype == "int32":
            found[name] = rng.integers(0, 10, shape).astype(np.int32)
        else:
            found[name] = largest * rng.standard_normal(shape, np.float32)
            if len(shape) == 3:
                found[name][:, -2:] = 0
    return found
