"""Compares fanwise with Keras on JAX: each group of layers is a model with an output for each configuration, with random
weights, saved in a form of file that its place in the list gives. Seven rows on one device and on three: values within 1e-4
of each output's largest, and the same bits on both.

Usage: python keras_layers.py FANWISE [GROUP|APPLICATION ...]        (needs keras, jax and h5py)

Without names: a sixth of the groups and one of the small models of `keras.applications`, by the number FANWISE_TURN; all
groups where that is `all`.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import importlib
import inspect
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import h5py
import keras
import ml_dtypes  # NumPy knows the name `bfloat16` by it.
import numpy as np
from keras import layers as L
from keras import ops as O
from keras_functions import GROUPS, each, group

ROWS = 7
DEVICES = (1, 3)
TOLERANCE = 1e-4
FORMS = ("keras", "h5", "json")


def randomise(model, seed=5):
    """Other weights than those that would hide what is computed."""
    rng = np.random.default_rng(seed)
    for variable in model.weights:
        shape, name = variable.shape, variable.path.rsplit("/", 1)[-1]
        value = rng.normal(scale=0.5, size=shape)
        if "variance" in name or name in ("gamma", "scale"):
            value = 1 + 0.3 * np.abs(value)
        elif len(shape) > 1:
            value /= max(1.0, np.sqrt(np.prod(shape[:-1]) / 4))
        if np.issubdtype(np.dtype(variable.dtype) if variable.dtype != "bfloat16" else np.float32, np.integer):
            continue
        variable.assign(value.astype("float32"))
    for layer in model._flatten_layers():
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()


def named(tensor):
    """The name of an input: that of its layer."""
    return tensor._keras_history.operation.name


def draw(model, seed=3):
    rng = np.random.default_rng(seed)
    feed = {}
    for tensor in model.inputs:
        shape = [ROWS] + [5 if size is None else size for size in tensor.shape[1:]]
        if tensor.dtype == "bool":
            feed[named(tensor)] = rng.normal(size=shape) > 0
        elif np.issubdtype(np.dtype(tensor.dtype), np.integer):
            feed[named(tensor)] = rng.integers(0, 6, shape).astype(tensor.dtype)
        else:
            feed[named(tensor)] = rng.normal(size=shape).astype(tensor.dtype)
    return feed


def run(fanwise, folder, model, feed, form):
    """The outputs on each number of devices."""
    path = folder / {"keras": "m.keras", "h5": "m.h5", "json": "m.json"}[form]
    more = list(getattr(model, "options", []))
    if hasattr(model, "legacy"):
        path = folder / "m.h5"
        with h5py.File(path, "w") as file:
            file.attrs["model_config"], file.attrs["keras_version"] = model.legacy, "2.13.1"
            file.create_group("model_weights").attrs["layer_names"] = [b"x"]
            file["model_weights"].create_group("x").attrs["weight_names"] = np.array([], "S1")
    elif form == "json":
        path.write_text(model.to_json())
        model.save_weights(folder / "m.weights.h5")
        more += ["--params", folder / "m.weights.h5"]
    else:
        model.save(path)
    np.savez(folder / "in.npz", **feed)
    found = []
    for devices in DEVICES:
        out = folder / f"out{devices}.npz"
        words = [fanwise, "run", path, "--gpus", str(devices), "--target", "cpu", "--inputs", folder / "in.npz", "--outputs", out, *more]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{model.name} ({form}): {done.stderr}")
        with np.load(out) as arrays:
            found.append({name: plain(arrays[name]) for name in arrays.files})
    return found


def plain(array):
    """An array whose elements NumPy knows: it reads `bfloat16` as two bytes."""
    array = array.view("bfloat16") if array.dtype.kind == "V" else array
    return array.astype("float32") if array.dtype.itemsize == 2 else array


def compare(fanwise, model, form, feed=None):
    """The largest difference of an output, relative to its largest value."""
    feed = feed or draw(model)
    expected = model([feed[named(tensor)] for tensor in model.inputs], training=False)
    expected = [plain(np.asarray(O.convert_to_numpy(value))) for value in keras.tree.flatten(expected)]
    with tempfile.TemporaryDirectory() as folder:
        one, three = run(fanwise, pathlib.Path(folder), model, feed, form)
    worst = 0.0
    assert len(one) == len(expected), f"{model.name}: {sorted(one)} for {len(expected)} outputs"
    for name, value in zip(names(model), expected):
        assert np.array_equal(one[name], three[name], equal_nan=True), f"{model.name}: {name} differs on three devices"
        assert one[name].shape == value.shape, f"{model.name}: {name} is {one[name].shape}, not {value.shape}"
        assert np.array_equal(np.isnan(one[name]), np.isnan(value)), f"{model.name}: {name} has other NaN"
        assert one[name].dtype == value.dtype, f"{model.name}: {name} is of {one[name].dtype}, not {value.dtype}"
        finite = np.isfinite(value)
        if value.dtype.kind in "biu" or not finite.all():
            whole = ~finite if value.dtype.kind == "f" else ...
            assert np.array_equal(one[name][whole], value[whole], equal_nan=True), f"{model.name}: {name} differs"
        if value.dtype.kind in "biu":
            continue
        size = np.abs(value[finite]).max(initial=0.0)
        difference = np.abs(one[name][finite].astype("float64") - value[finite]).max(initial=0.0) / max(size, 1e-30)
        is_half = any(layer.compute_dtype != "float32" for layer in model.layers)
        tolerance = 2e-2 if is_half else TOLERANCE
        assert difference <= tolerance, f"{model.name} ({form}): {name} differs by {difference:.2g} of the largest"
        worst = max(worst, difference)
    return worst


def names(model):
    """The names of outputs: those of their layers, with the next number that makes a name of its own."""
    used, found = {}, []
    for tensor in model.outputs:
        layer = tensor._keras_history.operation.name
        count = used.get(layer, 0)
        while (name := f"{layer}_{count}" if count else layer) in found:
            count += 1
        used[layer] = count + 1
        found.append(name)
    return found


# The models of `keras.applications`, each at its least size of images.
APPLICATIONS = {
    "MobileNet": 32, "MobileNetV2": 32, "MobileNetV3Small": 32, "EfficientNetB0": 32, "NASNetMobile": 32, "EfficientNetV2B0": 32,
    "MobileNetV3Large": 32, "Xception": 71, "VGG16": 32, "VGG19": 32, "ResNet50": 32, "ResNet101": 32, "ResNet152": 32, "ResNet50V2": 32, "ResNet101V2": 32,
    "ResNet152V2": 32, "InceptionV3": 75, "InceptionResNetV2": 75, "DenseNet121": 32, "DenseNet169": 32, "DenseNet201": 32, "NASNetLarge": 32,
    "EfficientNetB1": 32, "EfficientNetB2": 32, "EfficientNetB3": 32, "EfficientNetB4": 32, "EfficientNetB5": 32, "EfficientNetB6": 32, "EfficientNetB7": 32,
    "EfficientNetV2B1": 32, "EfficientNetV2B2": 32, "EfficientNetV2B3": 32, "EfficientNetV2S": 32, "EfficientNetV2M": 32, "EfficientNetV2L": 32,
    "ConvNeXtTiny": 32, "ConvNeXtSmall": 32, "ConvNeXtBase": 32, "ConvNeXtLarge": 32, "ConvNeXtXLarge": 32,
}
SMALL = 6

# The groups that Keras does not save as `.h5`: it cannot copy the configuration of some of their layers.
NO_H5 = ("preparation", "pieces")

# Those of which only archives say that layers stand at several places.
ARCHIVES = ("sharing",)

def application(name):
    size = APPLICATIONS[name]
    return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=11)


@group
def core():
    x, n = keras.Input((6,), name="x"), keras.Input((4,), dtype="int32", name="n")
    s = keras.Input((3, 4, 6), name="s")
    outputs = each(x, [L.Dense(5), L.Dense(5, use_bias=False, activation="relu"), L.Identity(), L.Dense(3, "softmax")])
    outputs += each(s, [L.Dense(5, activation="tanh"), L.EinsumDense("abcd,de->abce", output_shape=(None, None, 5), bias_axes="e"),
                        L.EinsumDense("abcd,cde->abe", output_shape=(None, 5)), L.EinsumDense("...d,de->...e", output_shape=7, activation="gelu", bias_axes="e"),
                        L.ActivityRegularization(l2=0.1), L.EinsumDense("abcd,dfe->abcfe", output_shape=(None, None, 2, 5), bias_axes="fe")])
    outputs += each(n, [L.Embedding(9, 5), L.Embedding(9, 3, mask_zero=True)])
    return keras.Model([x, n, s], outputs)


@group
def activations():
    x, image = keras.Input((6,), name="x"), keras.Input((4, 4, 6), name="image")
    words = ["relu", "relu6", "leaky_relu", "elu", "selu", "celu", "softplus", "softsign", "silu", "gelu", "tanh", "sigmoid", "exponential",
             "hard_sigmoid", "hard_silu", "hard_tanh", "hard_shrink", "soft_shrink", "mish", "linear", "softmax", "log_softmax",
             "log_sigmoid", "tanh_shrink", "squareplus", "sparse_plus", "sparse_sigmoid", "glu"]
    outputs = [L.Activation(word)(x) for word in words]
    outputs += each(image, [L.ReLU(), L.ReLU(max_value=1.0), L.ReLU(max_value=1.5, negative_slope=0.1, threshold=0.2), L.LeakyReLU(0.2), L.ELU(0.7), L.PReLU(),
                            L.PReLU(shared_axes=[1, 2]), L.Softmax(), L.Softmax(axis=1), L.Softmax(axis=[1, 2]), L.Activation("softmax")])
    y = L.Conv2D(5, 3)(image)
    outputs += [L.Softmax()(y), L.PReLU()(y), L.Conv2D(4, 1, activation="softmax")(y), L.Dense(4, activation=L.LeakyReLU(0.3))(x)]
    return keras.Model([x, image], outputs)


@group
def convolutions():
    line, image, cube = keras.Input((9, 4), name="line"), keras.Input((8, 9, 4), name="image"), keras.Input((5, 6, 5, 4), name="cube")
    outputs = each(line, [L.Conv1D(6, 3), L.Conv1D(6, 3, padding="same", strides=2), L.Conv1D(6, 3, padding="causal", dilation_rate=2), L.DepthwiseConv1D(3, depth_multiplier=2),
                          L.SeparableConv1D(5, 3, padding="same"), L.Conv1DTranspose(5, 3, strides=2), L.Conv1DTranspose(5, 4, strides=3, padding="same", output_padding=1)])
    outputs += each(image, [L.Conv2D(6, 3, activation="relu"), L.Conv2D(6, (3, 2), strides=(2, 1), padding="same"), L.Conv2D(6, 3, groups=2, use_bias=False), L.Conv2D(6, 3, dilation_rate=2, padding="same"),
                            L.DepthwiseConv2D(3, strides=2, padding="same"), L.DepthwiseConv2D((2, 3), depth_multiplier=3, activation="tanh"), L.SeparableConv2D(5, 3, depth_multiplier=2, strides=2),
                            L.Conv2DTranspose(5, 3, strides=2, padding="same"), L.Conv2DTranspose(5, (2, 3), strides=(3, 2)), L.Conv2DTranspose(5, 3, strides=2, padding="same", output_padding=1),
                            L.Conv2DTranspose(5, 3, dilation_rate=2), L.Conv2DTranspose(5, 2, strides=4, padding="same"), L.Conv2D(3, 5, strides=3, padding="same")])
    outputs += each(cube, [L.Conv3D(5, 2, padding="same"), L.Conv3D(5, (2, 3, 1), strides=2), L.Conv3DTranspose(5, 3, strides=2, padding="same"), L.Conv3DTranspose(3, 2)])
    return keras.Model([line, image, cube], outputs)


@group
def channels_first():
    # JAX on CPUs convolves both orders.
    image = keras.Input((4, 8, 9), name="image")
    f = dict(data_format="channels_first")
    outputs = each(image, [L.Conv2D(6, 3, **f), L.DepthwiseConv2D(3, padding="same", **f), L.SeparableConv2D(5, 3, **f), L.Conv2DTranspose(5, 3, strides=2, padding="same", **f),
                           L.MaxPooling2D(2, **f), L.AveragePooling2D(3, padding="same", **f), L.GlobalAveragePooling2D(**f), L.GlobalMaxPooling2D(keepdims=True, **f),
                           L.ZeroPadding2D(1, **f), L.UpSampling2D(2, **f), L.Cropping2D(1, **f), L.BatchNormalization(axis=1), L.Flatten(**f), L.SpatialDropout2D(0.5, **f)])
    return keras.Model(image, outputs)


@group
def pools():
    line, image, cube = keras.Input((9, 4), name="line"), keras.Input((8, 9, 4), name="image"), keras.Input((5, 6, 4, 3), name="cube")
    outputs = each(line, [L.MaxPooling1D(2), L.AveragePooling1D(3, strides=2, padding="same"), L.GlobalAveragePooling1D(), L.GlobalMaxPooling1D(keepdims=True), L.AdaptiveAveragePooling1D(4), L.AdaptiveMaxPooling1D(3)])
    outputs += each(image, [L.MaxPooling2D(3, strides=2, padding="same"), L.MaxPooling2D((2, 3)), L.AveragePooling2D(2), L.AveragePooling2D(3, strides=1, padding="same"),
                            L.GlobalAveragePooling2D(), L.GlobalAveragePooling2D(keepdims=True), L.GlobalMaxPooling2D(), L.AdaptiveAveragePooling2D((3, 4)), L.AdaptiveMaxPooling2D(3)])
    outputs += each(cube, [L.MaxPooling3D(2), L.AveragePooling3D(2, padding="same"), L.GlobalAveragePooling3D(), L.GlobalMaxPooling3D(), L.AdaptiveAveragePooling3D(2)])
    return keras.Model([line, image, cube], outputs)


@group
def norms():
    x, image = keras.Input((6,), name="x"), keras.Input((4, 5, 6), name="image")
    outputs = each(x, [L.BatchNormalization(), L.BatchNormalization(center=False, scale=False), L.LayerNormalization(), L.UnitNormalization(), L.RMSNormalization(), L.GroupNormalization(3)])
    outputs += each(image, [L.BatchNormalization(scale=False), L.BatchNormalization(axis=1, epsilon=0.1), L.BatchNormalization(axis=2), L.LayerNormalization(axis=[1, 2, 3]), L.LayerNormalization(axis=1),
                            L.LayerNormalization(center=False), L.LayerNormalization(scale=False), L.GroupNormalization(2), L.GroupNormalization(-1, center=False), L.GroupNormalization(2, axis=1),
                            L.UnitNormalization(axis=[1, 2]), L.RMSNormalization(epsilon=0.1), L.LayerNormalization(rms_scaling=True)])
    y = L.Conv2D(4, 3)(image)
    outputs += each(y, [L.BatchNormalization(), L.GroupNormalization(2), L.LayerNormalization(), L.SpectralNormalization(L.Conv2D(3, 2)), L.BatchNormalization(trainable=False)])
    return keras.Model([x, image], outputs)


@group
def merging():
    a, b, c = (keras.Input((4, 5), name=name) for name in "abc")
    row, image = keras.Input((5,), name="row"), keras.Input((6, 6, 3), name="image")
    outputs = [layer([a, b, c]) for layer in (L.Add(), L.Multiply(), L.Maximum(), L.Minimum(), L.Average(), L.Concatenate(), L.Concatenate(axis=1))]
    outputs += [L.Subtract()([a, b]), L.Dot(axes=2)([a, b]), L.Dot(axes=(1, 1), normalize=True)([a, b]), L.Dot(axes=1)([row, row]), L.Dot(axes=(1, 2))([row, a]), L.Add()([a, row])]
    y, z = L.Conv2D(4, 3, padding="same")(image), L.Conv2D(4, 3, padding="same")(image)
    outputs += [L.Add()([y, z]), L.Concatenate()([y, image, z]), L.Multiply()([y, L.GlobalAveragePooling2D(keepdims=True)(z)]), L.Multiply()([y, L.Reshape((1, 1, 4))(L.GlobalMaxPooling2D()(z))]), L.Concatenate(axis=1)([y, z])]
    return keras.Model([a, b, c, row, image], outputs)


@group
def reshaping():
    x, image, line, cube = keras.Input((12,), name="x"), keras.Input((6, 4, 3), name="image"), keras.Input((6, 3), name="line"), keras.Input((3, 4, 5, 2), name="cube")
    outputs = each(x, [L.Reshape((3, 4)), L.Reshape((2, -1)), L.RepeatVector(3), L.Flatten()])
    outputs += each(image, [L.Permute((3, 1, 2)), L.Flatten(), L.Cropping2D(1), L.Cropping2D(((1, 2), (0, 1))), L.ZeroPadding2D((1, 2)), L.ZeroPadding2D(((1, 0), (2, 1))), L.UpSampling2D(2),
                            L.UpSampling2D((2, 3), interpolation="bilinear"), L.UpSampling2D(2, interpolation="bicubic")])
    outputs += each(line, [L.Cropping1D((1, 2)), L.ZeroPadding1D(2), L.UpSampling1D(3)])
    outputs += each(cube, [L.Cropping3D(1), L.ZeroPadding3D((1, 0, 2)), L.UpSampling3D((2, 1, 2))])
    return keras.Model([x, image, line, cube], outputs)


@group
def recurrent():
    x, state = keras.Input((6, 4), name="x"), keras.Input((3,), name="state")
    s = dict(return_sequences=True)
    outputs = each(x, [L.SimpleRNN(3), L.SimpleRNN(3, activation="relu", **s), L.LSTM(3), L.LSTM(3, use_bias=False, go_backwards=True, **s), L.LSTM(3, recurrent_activation="hard_sigmoid", activation="elu"),
                       L.GRU(3), L.GRU(3, reset_after=False, **s), L.GRU(3, use_bias=False), L.GRU(3, activation="gelu", **s), L.LSTM(3, activation="gelu"), L.GRU(3, activation="silu", reset_after=False), L.SimpleRNN(3, activation="gelu", use_bias=False)])
    outputs += [L.LSTM(3)(x, initial_state=[state, state]), L.GRU(3, **s)(x, initial_state=[state])]
    outputs += list(L.LSTM(3, return_state=True)(x)) + list(L.GRU(3, return_state=True, **s)(x))
    outputs += each(x, [L.Bidirectional(L.LSTM(3)), L.Bidirectional(L.GRU(3, **s), merge_mode="sum"), L.Bidirectional(L.SimpleRNN(3), merge_mode="mul"), L.Bidirectional(L.LSTM(3, **s), merge_mode="ave")])
    outputs += list(L.Bidirectional(L.GRU(2, **s), merge_mode=None)(x))
    outputs += each(x, [L.RNN(L.LSTMCell(3)), L.RNN(L.GRUCell(3), **s), L.RNN([L.LSTMCell(3), L.GRUCell(4)], **s), L.RNN(L.SimpleRNNCell(3), go_backwards=True)])
    outputs += each(x, [L.TimeDistributed(L.Dense(3)), L.TimeDistributed(keras.Sequential([L.Dense(4, "relu"), L.Dense(2)]))])
    return keras.Model([x, state], outputs)


@group
def conv_lstm():
    line, video = keras.Input((3, 6, 2), name="line"), keras.Input((3, 5, 5, 2), name="video")
    outputs = each(line, [L.ConvLSTM1D(3, 3), L.ConvLSTM1D(3, 3, padding="same", return_sequences=True)])
    outputs += each(video, [L.ConvLSTM2D(3, 3, padding="same"), L.ConvLSTM2D(2, 2, strides=2, return_sequences=True, use_bias=False), L.ConvLSTM2D(2, 3, go_backwards=True, recurrent_activation="hard_sigmoid")])
    outputs += [L.TimeDistributed(L.Conv2D(3, 3))(video), L.TimeDistributed(L.MaxPooling2D())(video), L.Bidirectional(L.ConvLSTM2D(2, 3, return_sequences=True))(video)]
    return keras.Model([line, video], outputs)


@group
def masks():
    n, x = keras.Input((6,), dtype="int32", name="n"), keras.Input((6, 4), name="x")
    e = L.Embedding(7, 4, mask_zero=True)(n)
    m = L.Masking(0.0)(L.ReLU()(L.Dense(3)(x)))
    s = dict(return_sequences=True)
    outputs = [e, m]
    for y in (e, m):
        outputs += each(y, [L.LSTM(3), L.LSTM(3, **s), L.GRU(3, go_backwards=True, **s), L.SimpleRNN(3), L.Bidirectional(L.GRU(3, **s)), L.Bidirectional(L.LSTM(2)), L.GlobalAveragePooling1D(), L.LSTM(3, activation="gelu", **s)])
        outputs += [L.GlobalAveragePooling1D()(L.Dropout(0.3)(L.Dense(3)(y))), L.LSTM(2)(L.LSTM(3, **s)(y)), L.TimeDistributed(L.Dense(2))(y), L.RNN(L.GRUCell(3))(y)]
        outputs += list(L.LSTM(3, return_state=True, **s)(y))
        # These take the mask off their operands, which others would then not see.
        own = [L.Rescaling(1.0)(y) for _ in range(3)]
        outputs += [L.MultiHeadAttention(2, 3)(own[0], own[0]), L.MultiHeadAttention(2, 3, dropout=0.1)(own[1], own[1], use_causal_mask=True), L.Attention()([y, y]), L.AdditiveAttention()([y, y]), L.GroupQueryAttention(3, 4, 2)(own[2], own[2])]
    outputs += [L.GlobalAveragePooling1D()(L.Concatenate()([e, L.Dense(2)(e)])), L.GlobalAveragePooling1D()(L.Add()([e, L.Dense(4)(e)])), L.GlobalAveragePooling1D()(L.Concatenate(axis=1)([e, e])), L.Softmax(axis=1)(L.Dense(1)(e), mask=n[..., None] > 2)]
    return keras.Model([n, x], outputs)


@group
def masked_states():
    """States of masked sequences, layers that lose a mask, and functions of integers."""
    n, h = keras.Input((5,), dtype="int32", name="n"), keras.Input((3,), name="h")
    i, x = keras.Input((4,), dtype="int32", name="i"), keras.Input((6,), name="x")
    e, s = L.Embedding(7, 4, mask_zero=True)(n), dict(return_state=True)
    # Beside a state the mask of the sequence is not passed on.
    outputs = [*L.GRU(3, return_sequences=True, **s)(e, initial_state=[h]), *L.LSTM(3, **s)(e, initial_state=[h, h])]
    # The result of a masked step is 0, the state is not.
    outputs += L.RNN(L.GRUCell(3), zero_output_for_mask=True, **s)(e)
    outputs += L.RNN(L.LSTMCell(3, activation="gelu"), zero_output_for_mask=True, return_sequences=True, **s)(e)
    outputs += [*L.Bidirectional(L.LSTM(3, return_sequences=True, **s))(e), *L.Bidirectional(L.GRU(3, **s))(e)]
    outputs += [L.LSTM(2)(L.EinsumDense("abc,cd->abd", output_shape=(None, 3))(e))]
    # A tensor that has the type already is the result itself, with its mask.
    outputs += [L.LSTM(2)(O.cast(e, "float32")), L.LSTM(2)(O.convert_to_tensor(e)), L.LSTM(2)(O.cast(O.cast(e, "float16"), "float32"))]
    outputs += [L.Average()([i, i]), keras.ops.mean(i, axis=1), keras.ops.var(i, axis=1), keras.ops.cast(keras.ops.any(i, 1), "float32"), keras.ops.cast(keras.ops.all(i, 1), "float32")]
    outputs += [keras.ops.log1p(x * 1e-6), keras.ops.log1p(keras.ops.abs(x) * 1e6), keras.ops.round(x * 3)]
    return keras.Model([n, h, i, x], outputs)


@group
def merged_masks():
    """Merging layers of masked tensors: the mask rules of Keras, which leave masked steps of an operand out."""
    n, m, x = keras.Input((5,), dtype="int32", name="n"), keras.Input((5,), dtype="int32", name="m"), keras.Input((5, 4), name="x")
    a, b = L.Embedding(6, 4, mask_zero=True)(n), L.Embedding(6, 4, mask_zero=True)(m)
    c = L.Dense(4)(a)  # with the mask of `a`
    outputs = [layer(list(tensors)) for layer in (L.Multiply(), L.Maximum(), L.Minimum()) for tensors in ((a, b), (a, c), (a, x), (x, b), (b, x, a), (c, b, a))]
    outputs += [L.LSTM(3)(layer([a, b])) for layer in (L.Multiply(), L.Maximum(), L.Minimum())]
    return keras.Model([n, m, x], [*outputs, L.LSTM(3)(L.Reshape((5, 4))(a)), L.LSTM(3)(L.Reshape((5, -1))(a))])


@group
def promotions():
    """Tensors of several element types."""
    x, i = keras.Input((4, 3), name="x"), keras.Input((4, 3), dtype="int32", name="i")
    u, s, b = keras.Input((4, 3), dtype="uint8", name="u"), keras.Input((4, 3), dtype="int8", name="s"), keras.Input((4, 3), dtype="bool", name="b")
    outputs = [layer([one, other]) for layer in (L.Add(), L.Multiply(), L.Maximum(), L.Average(), L.Concatenate()) for one, other in ((i, x), (b, i), (u, s))]
    outputs += [f(one, other) for f in (O.add, O.multiply, O.minimum, O.greater) for one, other in ((i, x), (b, b), (b, u), (u, s), (s, i))]
    outputs += [O.divide(i, b + 1), O.square(b), O.abs(b), O.sum(b, 1), O.sum(u, 1), O.sum(s, 1), O.max(b, 1), O.clip(b, 0, 1), O.stack([b, i, x]), O.where(b, i, x), O.subtract(u, 1.5), b + 1]
    outputs += [L.Activation("relu6")(i), L.ReLU(6.0)(i), L.ReLU()(i), L.MaxPooling1D(2)(i), L.GlobalMaxPooling1D()(i), L.AdaptiveMaxPooling1D(3)(i), L.AveragePooling1D(2)(i)]
    return keras.Model([x, i, u, s, b], outputs)


@group
def attention():
    q, v, k = keras.Input((5, 6), name="q"), keras.Input((4, 6), name="v"), keras.Input((4, 6), name="k")
    allowed = keras.Input((5, 4), dtype="bool", name="allowed")
    outputs = [L.MultiHeadAttention(2, 3)(q, v), L.MultiHeadAttention(2, 3, value_dim=4, output_shape=5, dropout=0.1)(q, v, k), L.MultiHeadAttention(3, 2, use_bias=False)(q, q, use_causal_mask=True),
               L.MultiHeadAttention(2, 3)(q, v, attention_mask=allowed), *L.MultiHeadAttention(2, 3, dropout=0.2)(q, v, return_attention_scores=True),
               L.GroupQueryAttention(3, 4, 2)(q, v), L.GroupQueryAttention(3, 4, 2, use_bias=False)(q, q, use_causal_mask=True),
               L.Attention()([q, v]), L.Attention(use_scale=True, score_mode="concat")([q, v, k]), L.Attention(use_scale=True)([q, q], use_causal_mask=True), L.AdditiveAttention()([q, v]), L.AdditiveAttention(use_scale=False)([q, v, k])]
    lines, mask, one = keras.Input((2, 3, 6), name="lines"), keras.Input((5,), dtype="bool", name="mask"), keras.Input((4,), dtype="bool", name="one")
    outputs += [L.MultiHeadAttention(2, 3, use_gate=True, value_dim=4, dropout=0.1)(q, v), L.MultiHeadAttention(2, 3, use_gate=True)(q, v), L.MultiHeadAttention(2, 3, sliding_window=2)(q, q, use_causal_mask=True), L.MultiHeadAttention(2, 3, flash_attention=False)(q, v, k, value_mask=one, key_mask=one),
                L.MultiHeadAttention(2, 3, attention_axes=(2,))(lines, lines), L.MultiHeadAttention(2, 3, attention_axes=-2, use_gate=True, dropout=0.1)(lines, lines), *L.MultiHeadAttention(2, 3)(lines, lines, return_attention_scores=True), L.MultiHeadAttention(2, 3, attention_axes=[1])(q, v, query_mask=mask),
                L.GroupQueryAttention(3, 4, 2, use_gate=True, dropout=0.2)(q, v, query_mask=mask, value_mask=one), L.GroupQueryAttention(3, 4, 2, sliding_window=1)(q, v), L.GroupQueryAttention(3, 4, 1)(q, q, attention_mask=None, use_causal_mask=True)]
    outputs += [L.Attention()([q, v], mask=[mask, one], use_causal_mask=True), L.Attention(score_mode="concat", dropout=0.5)([q, v], mask=[None, one]), L.AdditiveAttention()([q, v], mask=[mask, None]), *L.Attention()([q, L.Masking()(v)], return_attention_scores=True)]
    return keras.Model([q, v, k, allowed, lines, mask, one], outputs)


@group
def preparation():
    x, image, n, small = keras.Input((6,), name="x"), keras.Input((8, 10, 3), name="image"), keras.Input((4,), dtype="int32", name="n"), keras.Input((1,), dtype="int32", name="small")
    adapted = L.Normalization()
    adapted.adapt(np.random.default_rng(1).normal(2, 3, (50, 6)))
    outputs = each(x, [adapted, L.Normalization(mean=[1.0] * 6, variance=[2.0] * 6), L.Normalization(mean=3.0, variance=4.0, axis=None, invert=True), L.Rescaling(1 / 127.5, -1), L.Discretization([-1.0, 0.0, 0.7]), L.Discretization([-1.0, 0.0, 0.7], output_mode="one_hot"), L.Discretization([-1.0, 0.5], output_mode="multi_hot"), L.Discretization([-1.0, 0.5], output_mode="count"),
                       L.Dropout(0.5), L.GaussianNoise(0.3), L.GaussianDropout(0.4), L.AlphaDropout(0.3)])
    outputs += each(image, [L.Rescaling([1.0, 2.0, 3.0], [0.5, 0.0, 1.0]), L.Resizing(5, 6), L.Resizing(12, 15), L.Resizing(7, 9, interpolation="nearest"), L.Resizing(12, 14, interpolation="bicubic"), L.Resizing(6, 6, crop_to_aspect_ratio=True), L.Resizing(6, 6, pad_to_aspect_ratio=True, fill_value=2.0), L.Resizing(4, 9, pad_to_aspect_ratio=True), L.CenterCrop(12, 9), L.CenterCrop(4, 11),
                            L.CenterCrop(4, 5), L.RandomFlip(), L.RandomRotation(0.2), L.RandomZoom(0.2), L.RandomTranslation(0.1, 0.1), L.RandomContrast(0.2), L.RandomBrightness(0.2), L.RandomCrop(4, 4), L.SpatialDropout2D(0.3)])
    outputs += [L.CategoryEncoding(6)(n), L.CategoryEncoding(6, output_mode="count")(n), L.CategoryEncoding(6, output_mode="one_hot")(small)]
    return keras.Model([x, image, n, small], outputs)


@group
def tensorflow():
    """Operators of TensorFlow as models of tf.keras 2 have them, beside the same functions of `keras.ops`. They have no weights."""
    x, y, n = keras.Input((4, 6), name="x"), keras.Input((4, 6), name="y"), keras.Input((4,), dtype="int32", name="n")
    other, one, both = ["y", 0, 0], [["x", 0, 0, {}]], lambda more: [[["x", 0, 0, more], ["y", 0, 0, more]]]
    key = [{"start": None, "stop": None, "step": None}, {"start": 1, "stop": 3, "step": None}, None, 2]
    table = [
        ("math.minimum", [["x", 0, 0, {"y": other, "name": None}]], O.minimum(x, y)), ("math.pow", [["x", 0, 0, {"y": 2.0}]], x**2), ("math.subtract", [["_CONSTANT_VALUE", -1, 1.0, {"y": ["x", 0, 0]}]], 1.0 - x),
        ("math.floormod", [["x", 0, 0, {"y": other}]], O.mod(x, y)), ("linalg.matmul", [["x", 0, 0, {"b": ["turned", 0, 0]}]], O.matmul(x, O.transpose(y, (0, 2, 1)))), ("math.greater", [["x", 0, 0, {"y": 0.5}]], x > 0.5),
        ("concat", both({"axis": 1}), O.concatenate([x, y], 1)), ("stack", both({"axis": 1}), O.stack([x, y], 1)), ("reshape", [["x", 0, 0, {"shape": [-1, 24]}]], O.reshape(x, (-1, 24))), ("transpose", [["x", 0, 0, {"perm": [0, 2, 1]}]], O.transpose(x, (0, 2, 1))),
        ("math.reduce_sum", [["x", 0, 0, {"axis": [1, 2]}]], O.sum(x, (1, 2))), ("math.reduce_mean", [["x", 0, 0, {"axis": -1, "keepdims": True}]], O.mean(x, -1, keepdims=True)), ("math.reduce_max", [["x", 0, 0, {"axis": 1}]], O.max(x, 1)), ("math.reduce_std", [["x", 0, 0, {"axis": 1}]], O.std(x, 1)),
        ("nn.softmax", [["x", 0, 0, {"axis": 1}]], O.softmax(x, 1)), ("nn.leaky_relu", [["x", 0, 0, {"alpha": 0.3}]], O.leaky_relu(x, 0.3)), ("nn.relu", one, O.relu(x)), ("math.exp", one, O.exp(x)), ("cast", [["n", 0, 0, {"dtype": "float32"}]], O.cast(n, "float32")),
        ("expand_dims", [["x", 0, 0, {"axis": 1}]], O.expand_dims(x, 1)), ("clip_by_value", [["x", 0, 0, {"clip_value_min": -0.5, "clip_value_max": 1.0}]], O.clip(x, -0.5, 1.0)), ("tile", [["x", 0, 0, {"multiples": [1, 2, 1]}]], O.tile(x, (1, 2, 1))),
        ("split", [["x", 0, 0, {"num_or_size_splits": [2, 4], "axis": 2}]], O.split(x, [2], axis=2)[0]), ("unstack", [["x", 0, 0, {"axis": 1}]], x[:, 0]), ("one_hot", [["n", 0, 0, {"depth": 4}]], O.one_hot(n, 4)), ("pad", [["x", 0, 0, {"paddings": [[0, 0], [1, 0], [0, 2]]}]], O.pad(x, ((0, 0), (1, 0), (0, 2)))),
        ("__operators__.getitem", [["x", 0, 0, {"slice_spec": key}]], x[:, 1:3, None, 2]),
    ]
    def legacy(name, function, calls):
        kind = "SlicingOpLambda" if "getitem" in function else "TFOpLambda"
        return {"class_name": kind, "name": name, "config": {"name": name, "trainable": True, "dtype": "float32", "function": function}, "inbound_nodes": calls}
    inputs = [{"class_name": "InputLayer", "name": t.name, "config": {"batch_input_shape": list(t.shape), "dtype": t.dtype, "name": t.name}, "inbound_nodes": []} for t in (x, y, n)]
    layers = [*inputs, legacy("turned", "transpose", [["y", 0, 0, {"perm": [0, 2, 1]}]])] + [legacy(f"layer_{i}", *row[:2]) for i, row in enumerate(table)]
    outputs = [L.Identity(name=f"layer_{i}")(row[2]) for i, row in enumerate(table)]
    model = keras.Model([x, y, n], outputs)
    config = {"name": "m", "layers": layers, "input_layers": [[t.name, 0, 0] for t in (x, y, n)], "output_layers": [[f"layer_{i}", 0, 0] for i in range(len(table))]}
    model.legacy = json.dumps({"class_name": "Functional", "config": config})
    return model


@group
def structures():
    """Nested models, shared layers, several inputs and outputs, models called twice, frozen parts."""
    a, b = keras.Input((8, 8, 3), name="a"), keras.Input((8, 8, 3), name="b")
    i = keras.Input((8, 8, 3))
    y = L.BatchNormalization()(L.Conv2D(4, 3, activation="relu")(i))
    tower = keras.Model(i, [L.GlobalAveragePooling2D()(y), L.GlobalMaxPooling2D()(y)], name="tower")
    head = keras.Sequential([keras.Input((4,)), L.Dense(5, "relu"), keras.Sequential([L.Dense(3)], name="deep")], name="head")
    lazy = keras.Sequential([L.Dense(2, trainable=False), L.BatchNormalization()], name="lazy")
    (a1, a2), (b1, b2) = tower(a), tower(b)
    shared = L.Dense(4, name="shared")
    d = keras.Input((4,), name="d")
    named = keras.Model({"p": keras.Input((4,), name="p"), "q": keras.Input((4,), name="q")}, None) if False else None
    outputs = [head(a1), head(b1), shared(a2), shared(shared(b2)), L.Subtract(name="difference")([head(a1), head(b1)]), lazy(d), shared(d), tower(L.ReLU()(a))[1]]
    return keras.Model([a, b, d], outputs)


@group
def sharing():
    """Layers that stand in the model and then in wrappers; the reverse is what Keras itself cannot load."""
    x, s = keras.Input((4,), name="x"), keras.Input((3, 4), name="s")
    dense, norm, line = L.Dense(4, activation="tanh"), L.BatchNormalization(), L.LSTM(3, return_sequences=True)
    outputs = [dense(x), norm(x), line(s), L.TimeDistributed(dense)(s), L.TimeDistributed(norm)(s), L.Bidirectional(line)(s)]
    return keras.Model([x, s], [*outputs, L.TimeDistributed(L.TimeDistributed(dense))(O.reshape(s, (-1, 1, 3, 4)))])


@group
def mixed():
    """Half precision: of what is computed, and of variables."""
    x = keras.Input((6, 6, 3), name="x")
    policy = dict(dtype="mixed_bfloat16")
    y = L.Conv2D(4, 3, **policy)(x)
    y = L.BatchNormalization(**policy)(y)
    outputs = [L.Dense(3, dtype="float32")(L.GlobalAveragePooling2D(**policy)(y)), L.Dense(3, dtype="float16")(L.Flatten()(x)), L.Dense(3, dtype="bfloat16")(L.Flatten()(x)), L.Dense(3, dtype="float32")(L.LSTM(3, dtype="mixed_float16")(L.Reshape((6, 18))(x)))]
    return keras.Model(x, outputs)


@group
def open_sizes():
    n, image = keras.Input((None,), dtype="int32", name="n"), keras.Input((None, None, 3), name="image")
    e = L.Embedding(7, 4, mask_zero=True)(n)
    return keras.Model([n, image], [L.LSTM(3)(e), L.Dense(2)(L.Bidirectional(L.GRU(3, return_sequences=True))(e)), L.GlobalMaxPooling2D()(L.Conv2D(4, 3, padding="same", strides=2)(image))])


def unlisted():
    """What the installed Keras has and `docs/keras.md` neither reads nor refuses: classes of layers, and functions that models record."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "keras.md").read_text()
    listed = set(re.findall(r"`(\w+)`", page[page.index("## What is refused"):]))
    found = {layer.__name__ for layer in vars(L).values() if inspect.isclass(layer)}
    for name in ("core", "einops", "image", "linalg", "math", "nn", "numpy"):
        module = importlib.import_module(f"keras.src.ops.{name}")
        own = (c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__)
        found |= {c.__name__ for c in own if issubclass(c, keras.Operation)}
    return sorted(found - listed)


def main():
    fanwise, *wanted = sys.argv[1:]
    worst, failed = 0.0, []
    if missing := unlisted():
        failed.append(f"neither read nor refused: {', '.join(missing)}")
    given = os.environ.get("FANWISE_TURN", "all")
    turn = 0 if given == "all" else int(given)
    small = list(APPLICATIONS)[turn % SMALL]
    own = [name for i, name in enumerate(GROUPS) if given == "all" or i % 6 == turn % 6]
    for number, name in enumerate(wanted or [*own, small]):
        keras.utils.clear_session()
        model = GROUPS[name]() if name in GROUPS else application(name)
        randomise(model)
        form = FORMS[(number + turn) % len(FORMS)]
        form = "keras" if form == "h5" and name in NO_H5 or name in ARCHIVES else form
        try:
            difference = compare(fanwise, model, form)
            print(f"{name} ({form}): {len(model.outputs)} outputs within {difference:.1e}")
            worst = max(worst, difference)
        except (AssertionError, SystemExit) as error:
            failed.append(str(error))
            print(f"{name} ({form}): FAILED {error}")
    if failed:
        raise SystemExit(f"{len(failed)} checks failed: {failed[0]}")
    print(f"worst difference: {worst:.1e}")


if __name__ == "__main__":
    main()
