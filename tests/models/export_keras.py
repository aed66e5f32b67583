"""Exports small Keras models with random weights and a dynamic batch to ONNX through tf2onnx.

Usage: python export_keras.py FOLDER        (needs tensorflow, keras and tf2onnx, which the test suite does not)
"""

import pathlib
import sys

import keras
import numpy as np
from keras import layers
from tidy import tidy


def convnet():
    image = keras.Input((32, 32, 3), name="image")
    x = layers.Conv2D(8, 3, strides=2, padding="same")(image)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU(6.0)(x)
    y = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    y = layers.BatchNormalization()(y)
    x = layers.add([x, y])
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.Dropout(0.5)(layers.Flatten()(x))
    return keras.Model(image, layers.Dense(10, activation="softmax", name="scores")(x))


def inception():
    image = keras.Input((17, 17, 3), name="image")
    a = layers.Conv2D(4, 1, activation="relu")(image)
    b = layers.Conv2D(6, 3, padding="same", activation="elu")(image)
    c = layers.AveragePooling2D(3, strides=1, padding="same")(image)
    x = layers.concatenate([a, b, c])
    x = layers.Conv2D(8, 3, strides=2)(x)
    return keras.Model(image, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))


def separable():
    image = keras.Input((16, 16, 3), name="image")
    x = layers.SeparableConv2D(8, 3, padding="same")(image)
    x = layers.BatchNormalization()(x)
    x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
    x = layers.DepthwiseConv2D(3, strides=2, activation="swish")(x)
    x = layers.Conv2D(6, 3, dilation_rate=2, activation="selu")(x)
    return keras.Model(image, layers.GlobalMaxPooling2D()(x))


def siamese():
    tower = keras.Sequential([keras.Input((6,)), layers.Dense(16, activation="tanh"), layers.Dense(8)], name="tower")
    left, right = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    a, b = tower(left), tower(right)
    return keras.Model([left, right], [layers.add([a, b]), a, b, layers.Dot(1, normalize=True)([a, b])])


def multi_io():
    words, features = keras.Input((7,), dtype="int32", name="words"), keras.Input((5,), name="features")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(20, 8)(words))
    y = layers.Dense(8, activation="sigmoid")(features)
    x = layers.concatenate([x, y])
    return keras.Model([words, features], [layers.Dense(3, name="a")(x), layers.Dense(2, activation="softplus", name="b")(x)])


def recurrent(kind, unroll=True):
    words = keras.Input((6,), dtype="int32", name="words")
    x = layers.Embedding(20, 8)(words)
    x = layers.Bidirectional(kind(5, return_sequences=True, unroll=unroll))(x)
    return keras.Model(words, [layers.Dense(3, activation="softmax")(kind(4, unroll=unroll)(x)), x])


def lstm():
    return recurrent(layers.LSTM)


def gru():
    return recurrent(layers.GRU)


def lstm_rolled():
    return recurrent(layers.LSTM, unroll=False)


def gru_rolled():
    return recurrent(layers.GRU, unroll=False)


def lstm_loop():
    """With padding masked the exporter writes a loop, which fanwise refuses by name."""
    words = keras.Input((6,), dtype="int32", name="words")
    return keras.Model(words, layers.LSTM(4)(layers.Embedding(20, 8, mask_zero=True)(words)))


def erfc():
    """The exporter writes an exact gelu with `Erfc`, which ONNX does not have and fanwise refuses by name."""
    x = keras.Input((6,), name="x")
    return keras.Model(x, layers.Dense(4, activation="gelu")(x))


def video():
    clip = keras.Input((4, 16, 16, 3), name="clip")
    x = layers.TimeDistributed(layers.Conv2D(4, 3, strides=2, activation="relu"))(clip)
    x = layers.TimeDistributed(layers.MaxPooling2D(2))(x)
    x = layers.TimeDistributed(layers.Flatten())(x)
    return keras.Model(clip, layers.Dense(5, activation="softmax")(layers.LSTM(6, unroll=True)(x)))


def attention():
    words, mask = keras.Input((7,), dtype="int32", name="words"), keras.Input((7,), dtype="int32", name="mask")
    x = layers.Embedding(20, 16)(words)
    seen = keras.ops.expand_dims(keras.ops.cast(mask, "bool"), 1)
    x = layers.LayerNormalization(epsilon=1e-6)(x + layers.MultiHeadAttention(4, 4)(x, x, attention_mask=seen))
    y = layers.Dense(16)(layers.Dense(32, activation=lambda v: keras.activations.gelu(v, approximate=True))(x))
    x = layers.LayerNormalization()(layers.add([x, y]))
    return keras.Model([words, mask], [x, layers.Dense(3)(layers.GlobalAveragePooling1D()(x))])


def unet():
    image = keras.Input((16, 16, 3), name="image")
    a = layers.GroupNormalization(4)(layers.Conv2D(8, 3, padding="same", activation="relu")(image))
    b = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(12, 3, strides=2, padding="same")(a))
    x = layers.Conv2DTranspose(8, 3, strides=2, padding="same")(b)
    x = layers.concatenate([a, x, layers.UpSampling2D(2, interpolation="bilinear")(b)])
    x = layers.UpSampling2D(2)(layers.Conv2D(4, 1)(x))
    return keras.Model(image, layers.Cropping2D(3)(x))


BUILDERS = (
    convnet, inception, separable, siamese, multi_io, lstm, gru, lstm_rolled, gru_rolled, lstm_loop, video, attention,
    unet, erfc,
)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(3)
    for build in BUILDERS:
        model = build()
        for layer in model.layers:
            if isinstance(layer, layers.BatchNormalization):
                shape = layer.get_weights()[0].shape
                low_high = [(0.5, 1.5), (-0.5, 0.5), (-0.5, 0.5), (0.5, 2.0)]
                layer.set_weights([rng.uniform(a, b, shape) for a, b in low_high])
        model([np.zeros((1, *i.shape[1:]), i.dtype) for i in model.inputs])
        path = str(folder / f"keras_{build.__name__}.onnx")
        try:
            model.export(path, format="onnx", verbose=False)
            tidy(path)
            print("exported", path)
        except Exception as error:  # an exporter's own limits are reported, not ours
            print("not exported", path, type(error).__name__, str(error)[:300])


main()
