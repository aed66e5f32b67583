"""Files of Keras 1 against Keras 3: each is written as Keras 1.2.2 lays it out (`get_config` of its layers, the shapes and the
order of their weights), and what fanwise computes of it is compared with layers of Keras 3 that hold the same numbers.

Usage: python keras1.py FANWISE        (needs keras, jax and h5py; FANWISE_TURN chooses a quarter of the files, `all` has all)
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import json
import pathlib
import subprocess
import sys
import tempfile

import h5py
import keras
import numpy as np
from keras import layers as L
from keras import ops

RNG = np.random.default_rng(7)
ROWS = 5


def draw(*shape):
    return RNG.normal(size=shape, scale=0.5).astype("float32")


def node(cls, name, weights=(), **config):
    """A layer of Keras 1, and its weights by their names."""
    config = {"name": name, "trainable": True, **config}
    return {"class_name": cls, "config": config, "weights": [(f"{name}_{end}:0", w) for end, w in weights]}


def regularized(kernel=None):
    none = {f"{which}_{kind}": None for which in "Wb" for kind in ("regularizer", "constraint")}
    return {**none, "activity_regularizer": None, "W_regularizer": kernel}


def dense(name, w, b, activation="linear", cls="Dense", **more):
    fields = {"output_dim": w.shape[-1], "init": "glorot_uniform", "activation": activation, "bias": True, "input_dim": None}
    return node(cls, name, [("W", w), ("b", b)], **fields, **regularized({"name": "L1L2Regularizer", "l1": 0.0, "l2": 0.01}), **more)


def conv(cls, name, w, b, order, mode="valid", step=(1, 1), activation="linear", **more):
    """`w` is [rows, columns, channels, filters]; Keras 1 has it in this order only where the channels come last."""
    stored = w.transpose(3, 2, 0, 1) if order == "th" else w
    fields = {"nb_filter": w.shape[3], "nb_row": w.shape[0], "nb_col": w.shape[1], "init": "glorot_uniform", "activation": activation}
    return node(cls, name, [("W", stored), ("b", b)], **fields, border_mode=mode, subsample=step, dim_ordering=order, bias=True, **regularized(), **more)


def norm(name, values, axis):
    ends = ("gamma", "beta", "running_mean", "running_std")
    return node("BatchNormalization", name, list(zip(ends, values)), epsilon=0.002, mode=0, axis=axis, momentum=0.9, gamma_regularizer=None, beta_regularizer=None)


def rnn(cls, name, gates, sequences, consume="cpu", joined=None, **more):
    """`gates` are the letters of Keras 1 with a kernel, a recurrent kernel and a bias each."""
    units = gates[0][1].shape[-1]
    weights = [(f"{part}_{letter}", w) for letter, *three in gates for part, w in zip("WUb", three)] if joined is None else joined
    ends = {f"{which}_regularizer": None for which in "WUb"}
    fields = {"output_dim": units, "init": "glorot_uniform", "inner_init": "orthogonal", "activation": "tanh", "inner_activation": "hard_sigmoid", "dropout_W": 0.1, "dropout_U": 0.0}
    how = {"return_sequences": sequences, "go_backwards": False, "stateful": False, "unroll": False, "consume_less": consume, "input_dim": None, "input_length": None}
    if cls == "LSTM":
        fields["forget_bias_init"] = "one"
    return node(cls, name, weights, **fields, **ends, **how, **more)


def merge(name, mode, axis=-1, axes=-1):
    kinds = {f"{what}_type": "raw" for what in ("mode", "output_shape", "output_mask")}
    node_ = node("Merge", name, mode=mode, concat_axis=axis, dot_axes=axes, output_shape=None, output_mask=None, arguments={}, **kinds)
    del node_["config"]["trainable"]
    return node_


def sequential(*nodes, **first):
    nodes[0]["config"].update(first)
    strip = lambda n: {"class_name": n["class_name"], "config": n["config"]}
    return {"class_name": "Sequential", "config": [strip(n) for n in nodes]}, list(nodes)


def graph(inputs, calls, outputs):
    """A `Model` of inputs as (name, shape, type), and calls as (layer, names of the layers that it takes)."""
    layers = [{"class_name": "InputLayer", "name": n, "inbound_nodes": [], "config": {"batch_input_shape": [None, *s], "input_dtype": t, "sparse": False, "name": n}} for n, s, t in inputs]
    for layer, taken in calls:
        layers.append({"class_name": layer["class_name"], "name": layer["config"]["name"], "config": layer["config"], "inbound_nodes": [[[t, 0, 0] for t in taken]]})
    ends = lambda names: [[n, 0, 0] for n in names]
    config = {"name": "model_1", "layers": layers, "input_layers": ends([n for n, _, _ in inputs]), "output_layers": ends(outputs)}
    return {"class_name": "Model", "config": config}, [layer for layer, _ in calls]


def write(path, model, nodes, compiled=None, backend=None):
    with h5py.File(path, "w") as f:
        f.attrs["keras_version"] = b"1.2.2"
        f.attrs["model_config"] = json.dumps(model).encode()
        group = f.create_group("model_weights")
        if backend:
            group.attrs["backend"] = backend.encode()
        save_weights(group, nodes)
        if compiled:
            config, state = compiled
            f.attrs["training_config"] = json.dumps(config).encode()
            group = f.create_group("optimizer_weights")
            group.attrs["weight_names"] = [n.encode() for n, _ in state]
            for name, value in state:
                group.create_dataset(name, data=value)


def save_weights(group, nodes):
    group.attrs["layer_names"] = [n["config"]["name"].encode() for n in nodes]
    for n in nodes:
        own = group.create_group(n["config"]["name"])
        own.attrs["weight_names"] = [name.encode() for name, _ in n["weights"]]
        for name, value in n["weights"]:
            own.create_dataset(name, data=value)


def fanwise(binary, *words):
    done = subprocess.run([str(word) for word in (binary, *words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{words}: {done.stderr}")
    return done


def run(binary, path, inputs, *more):
    folder = path.parent
    np.savez(folder / "in.npz", **inputs)
    fanwise(binary, "run", path, "--inputs", folder / "in.npz", "--outputs", folder / "out.npz", "--gpus", "2", "--target", "cpu", *more)
    return dict(np.load(folder / "out.npz"))


def same(found, expected, what, part=2e-5):
    expected = np.asarray(expected)
    assert found.shape == expected.shape, f"{what}: {found.shape}, not {expected.shape}"
    off = np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-3)
    assert off <= part, f"{what}: off by {off}"


def held(layer, weights, *x, **more):
    """What a layer of Keras 3 computes with these weights."""
    layer(*x, **more)
    layer.set_weights([np.asarray(w) for w in weights])
    return layer(*x, **more)


def normal(x, values, axis):
    return held(L.BatchNormalization(axis=axis, epsilon=0.002), values, x)


def images(order):
    """Padding, convolutions, pooling and a dense layer; `order` as Keras 1 calls it."""
    first = order == "th"
    axis, data = (1, "channels_first") if first else (-1, "channels_last")
    x = draw(ROWS, 2, 7, 6) if first else draw(ROWS, 7, 6, 2)
    w, b, v, c = draw(3, 2, 2, 4), draw(4), draw(2, 2, 4, 4), draw(4)
    stats = [draw(4), draw(4), draw(4), np.abs(draw(4)) + 0.1]
    s, p, sb = draw(2, 3, 4, 2), draw(1, 1, 8, 3), draw(3)
    turned = (lambda k: k.transpose(3, 2, 0, 1)) if first else (lambda k: k)
    separable = {"nb_filter": 3, "nb_row": 2, "nb_col": 3, "init": "glorot_uniform", "activation": "tanh", "border_mode": "same", "subsample": (1, 1), "depth_multiplier": 2, "dim_ordering": order, "depthwise_regularizer": None, "pointwise_regularizer": None, "b_regularizer": None, "activity_regularizer": None, "depthwise_constraint": None, "pointwise_constraint": None, "b_constraint": None, "bias": True}
    pool = {"border_mode": "valid", "strides": (2, 2), "pool_size": (2, 2), "dim_ordering": order}
    y = ops.pad(x, [(0, 0), (0, 0), (1, 0), (2, 1)] if first else [(0, 0), (1, 0), (2, 1), (0, 0)])
    y = held(L.Conv2D(4, (3, 2), strides=(1, 2), padding="same", activation="relu", data_format=data), [w, b], y)
    y = normal(y, stats, axis)
    y = held(L.Conv2D(4, 2, dilation_rate=(2, 1), data_format=data), [v, c], y)
    y = held(L.SeparableConv2D(3, (2, 3), padding="same", depth_multiplier=2, activation="tanh", data_format=data), [s, p, sb], y)
    y = L.MaxPooling2D(2, data_format=data)(L.UpSampling2D((2, 3), data_format=data)(y))
    d, db = draw(int(np.prod(y.shape[1:])), 3), draw(3)
    y = held(L.Dense(3, activation="softmax"), [d, db], ops.reshape(y, (ROWS, -1)))
    model = sequential(
        node("ZeroPadding2D", "zeropadding2d_1", padding=[1, 0, 2, 1]),
        conv("Convolution2D", "convolution2d_1", w, b, order, "same", (1, 2), "relu"),
        norm("batchnormalization_1", stats, axis),
        conv("AtrousConvolution2D", "atrous_1", v, c, order, atrous_rate=(2, 1)),
        node("SeparableConvolution2D", "separable_1", [("depthwise_kernel", turned(s)), ("pointwise_kernel", turned(p)), ("b", sb)], **separable),
        node("UpSampling2D", "upsampling2d_1", size=(2, 3)),
        node("MaxPooling2D", "maxpooling2d_1", **pool),
        node("Flatten", "flatten_1"),
        node("Dropout", "dropout_1", p=0.5),
        dense("dense_1", d, db, "softmax"),
        batch_input_shape=[None, *x.shape[1:]],
        input_dtype="float32",
    )
    return model, {"zeropadding2d_1_input": x}, {"dense_1": y}


def transposed(order, mode):
    first = order == "th"
    x = draw(ROWS, 3, 4, 5) if first else draw(ROWS, 4, 5, 3)
    # Keras 1 has the filters last in kernels of both kinds: [rows, columns, channels, filters].
    w, b = draw(3, 2, 3, 4), draw(4)
    y = held(L.Conv2DTranspose(4, (3, 2), strides=2, padding=mode, data_format="channels_first" if first else "channels_last"), [w.transpose(0, 1, 3, 2), b], x)
    layer = conv("Deconvolution2D", "deconvolution2d_1", w, b, order, mode, (2, 2), output_shape=[None, *y.shape[1:]])
    average = node("GlobalAveragePooling2D", "pool_1", dim_ordering=order)
    model = sequential(layer, average, batch_input_shape=[None, *x.shape[1:]], input_dtype="float32")
    return model, {"deconvolution2d_1_input": x}, {"pool_1": ops.mean(y, (2, 3) if first else (1, 2))}


def merged():
    a, b = draw(ROWS, 4), draw(ROWS, 4)
    b[0] *= 1e-9
    w, c = draw(4, 4), draw(4)
    h, g = [draw(4, 4), draw(4, 4), draw(4), draw(4)], [draw(3, 4, 2), draw(3, 2)]
    shared = dense("dense_1", w, c, "tanh")
    highway = node("Highway", "highway_1", list(zip(("W", "W_carry", "b", "b_carry"), h)), init="glorot_uniform", activation="tanh", bias=True, input_dim=None, **regularized())
    maxout = node("MaxoutDense", "maxout_1", list(zip("Wb", g)), output_dim=2, nb_feature=3, init="glorot_uniform", bias=True, input_dim=None, **regularized())
    modes = ["sum", "mul", "ave", "max", "concat", "dot", "cos"]
    calls = [(shared, ["a"]), (highway, ["b"]), (maxout, ["b"])]
    calls += [(merge(f"merge_{m}", m, axes=[1, 1] if m in ("dot", "cos") else -1), ["dense_1", "b"]) for m in modes]
    outputs = [f"merge_{m}" for m in modes] + ["highway_1", "maxout_1"]
    model = graph([("a", [4], "float32"), ("b", [4], "float32")], calls, outputs)
    x = np.tanh(a @ w + c)
    dot, gate = (x * b).sum(1, keepdims=True), 1 / (1 + np.exp(-(b @ h[1] + h[3])))
    # The first row is so small that what keeps the divisor from 0 counts.
    cos = dot / np.maximum(1e-7, np.sqrt((x * x).sum(1, keepdims=True) * (b * b).sum(1, keepdims=True)))
    found = [x + b, x * b, (x + b) / 2, np.maximum(x, b), np.concatenate([x, b], -1), dot, cos[:, None]]
    found += [np.tanh(b @ h[0] + h[2]) * gate + (1 - gate) * b, (np.einsum("ni,fio->nfo", b, g[0]) + g[1]).max(1)]
    return model, {"a": a, "b": b}, dict(zip(outputs, found))


def joined_branches():
    """A sequential model that begins with a `Merge` of two others."""
    a, b = draw(ROWS, 4), draw(ROWS, 3)
    v, w, u = (draw(4, 5), draw(5)), (draw(3, 5), draw(5)), (draw(10, 2), draw(2))
    left, one = sequential(dense("dense_1", *v, "relu"), batch_input_shape=[None, 4], input_dtype="float32")
    right, two = sequential(dense("dense_2", *w, "tanh"), node("Activation", "activation_1", activation="hard_sigmoid"), batch_input_shape=[None, 3], input_dtype="float32")
    join = merge("merge_1", "concat")
    join["config"]["layers"] = [left, right]
    model, rest = sequential(join, dense("dense_3", *u))
    y = np.concatenate([np.maximum(a @ v[0] + v[1], 0), np.clip(0.2 * np.tanh(b @ w[0] + w[1]) + 0.5, 0, 1)], 1) @ u[0] + u[1]
    return (model, one + two + rest), {"dense_1_input": a, "dense_2_input": b}, {"dense_3": y}


@keras.saving.register_keras_serializable()
def hard(x):
    return ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def recurrent():
    x = RNG.integers(0, 6, (ROWS, 7)).astype("int32")
    x[:, 5:] = 0
    e = draw(6, 4)
    lstm = [(k, draw(4, 3), draw(3, 3), draw(3)) for k in "icfo"]
    gru = [[(k, draw(3, 2), draw(2, 2), draw(2)) for k in "zrh"] for _ in range(2)]
    last = (draw(4, 20), draw(5, 20), draw(20))
    t = (draw(4, 4), draw(4))
    together = lambda gates, order: [np.concatenate([dict((g[0], g[1:]) for g in gates)[k][i] for k in order], -1) for i in range(3)]
    embedding = node("Embedding", "embedding_1", [("W", e)], input_dim=6, output_dim=4, init="uniform", input_length=7, mask_zero=True, activity_regularizer=None, W_regularizer=None, W_constraint=None, dropout=0.0)
    forth, back = (rnn("GRU", f"{way}_gru_1", g, True) for way, g in zip(("forward", "backward"), gru))
    inner = {"class_name": "GRU", "config": {**forth["config"], "name": "gru_1"}}
    both = node("Bidirectional", "bidirectional_1", merge_mode="concat", layer=inner)
    both["weights"] = forth["weights"] + back["weights"]
    stepwise = dense("dense_1", *t, "tanh")
    wrapped = node("TimeDistributed", "timedistributed_1", layer={"class_name": "Dense", "config": stepwise["config"]})
    wrapped["weights"] = stepwise["weights"]
    whole = rnn("LSTM", "lstm_2", [("", last[0][:, :5])], False, "gpu", list(zip("WUb", last)))
    model = graph(
        [("words", [7], "int32")],
        [(embedding, ["words"]), (rnn("LSTM", "lstm_1", lstm, True), ["embedding_1"]), (both, ["lstm_1"]), (wrapped, ["bidirectional_1"]), (whole, ["timedistributed_1"])],
        ["lstm_2"],
    )
    mask = ops.convert_to_tensor(x != 0)
    how = {"recurrent_activation": hard}
    y = held(L.LSTM(3, return_sequences=True, **how), together(lstm, "ifco"), e[x], mask=mask)
    y = held(L.Bidirectional(L.GRU(2, return_sequences=True, reset_after=False, **how)), sum((together(g, "zrh") for g in gru), []), y, mask=mask)
    y = ops.tanh(ops.matmul(y, t[0]) + t[1])
    return model, {"words": x}, {"lstm_2": held(L.LSTM(5, **how), last, y, mask=mask)}


def masks():
    """Merged sequences with masks of their own: a step counts where all masks count it, and no operand gives way."""
    a, b = (RNG.integers(0, 6, (ROWS, 7)).astype("int32") for _ in range(2))
    a[:, 5:], b[:, :2] = 0, 0
    tables, gates = [draw(6, 4), draw(6, 4)], [(k, draw(4, 3), draw(3, 3), draw(3)) for k in "icfo"]
    rest = {"init": "uniform", "input_length": 7, "mask_zero": True, "activity_regularizer": None, "W_regularizer": None, "W_constraint": None, "dropout": 0.0}
    layers = [node("Embedding", f"embedding_{i}", [("W", t)], input_dim=6, output_dim=4, **rest) for i, t in enumerate(tables)]
    calls = [(layers[0], ["a"]), (layers[1], ["b"]), (merge("merge_1", "mul"), ["embedding_0", "embedding_1"]), (rnn("LSTM", "lstm_1", gates, False), ["merge_1"])]
    model = graph([("a", [7], "int32"), ("b", [7], "int32")], calls, ["lstm_1"])
    weights = [np.concatenate([dict((g[0], g[1:]) for g in gates)[k][i] for k in "ifco"], -1) for i in range(3)]
    both = ops.convert_to_tensor((a != 0) & (b != 0))
    return model, {"a": a, "b": b}, {"lstm_1": held(L.LSTM(3, recurrent_activation=hard), weights, tables[0][a] * tables[1][b], mask=both)}


def lines(old):
    """Convolutions along one axis; before Keras 1.2 their kernels lay otherwise."""
    x, w, b, d = draw(ROWS, 9, 3), draw(4, 3, 5), draw(5), (draw(5, 2), draw(2))
    stored = w.transpose(2, 1, 0)[..., None] if old else w[:, None]
    fields = {"nb_filter": 5, "filter_length": 4, "init": "glorot_uniform", "activation": "relu", "border_mode": "same", "subsample_length": 1, "bias": True, "input_dim": 3, "input_length": 9, "atrous_rate": 2}
    model = sequential(
        node("AtrousConvolution1D", "atrous_1", [("W", stored), ("b", b)], **fields, **regularized()),
        node("AveragePooling1D", "pool_1", stride=2, pool_length=2, border_mode="valid"),
        dense("dense_1", *d, "linear", "TimeDistributedDense", input_length=None),
        node("UpSampling1D", "up_1", length=2),
        batch_input_shape=[None, 9, 3],
        input_dtype="float32",
    )
    y = held(L.Conv1D(5, 4, padding="same", dilation_rate=2, activation="relu"), [w, b], x)
    y = ops.matmul(L.AveragePooling1D(2)(y), d[0]) + d[1]
    return model, {"atrous_1_input": x}, {"up_1": ops.repeat(y, 2, axis=1)}


def volumes():
    """Convolutions of volumes and of sequences of images, with the channels first."""
    x, w, b = draw(ROWS, 2, 4, 5, 6), draw(2, 2, 3, 2, 4), draw(4)
    fields = {"nb_filter": 4, "kernel_dim1": 2, "kernel_dim2": 2, "kernel_dim3": 3, "dim_ordering": "th", "init": "glorot_uniform", "activation": "linear", "border_mode": "valid", "subsample": (1, 2, 1), "bias": True}
    whole = node("Convolution3D", "convolution3d_1", [("W", w.transpose(4, 3, 0, 1, 2)), ("b", b)], **fields, **regularized())
    gates = [(k, draw(2, 2, 2, 3), draw(2, 2, 3, 3), draw(3)) for k in "icfo"]
    stored = [(f"{part}_{k}", v.transpose(3, 2, 0, 1) if v.ndim == 4 else v) for k, *three in gates for part, v in zip("WUb", three)]
    fields = {"nb_filter": 3, "nb_row": 2, "nb_col": 2, "init": "glorot_uniform", "inner_init": "orthogonal", "forget_bias_init": "one", "activation": "tanh", "dim_ordering": "th", "border_mode": "same", "inner_activation": "hard_sigmoid", "return_sequences": False, "go_backwards": False, "stateful": False}
    steps = node("ConvLSTM2D", "convlstm2d_1", stored, **fields)
    z = draw(ROWS, 3, 2, 4, 5)
    model = graph([("x", x.shape[1:], "float32"), ("z", z.shape[1:], "float32")], [(whole, ["x"]), (steps, ["z"])], ["convolution3d_1", "convlstm2d_1"])
    y = held(L.Conv3D(4, (2, 2, 3), strides=(1, 2, 1), data_format="channels_first"), [w, b], x)
    of = dict((g[0], g[1:]) for g in gates)
    together = [np.concatenate([of[k][i] for k in "ifco"], -1) for i in range(3)]
    u = held(L.ConvLSTM2D(3, 2, padding="same", data_format="channels_first", recurrent_activation=hard), together, z)
    return model, {"x": x, "z": z}, {"convolution3d_1": y, "convlstm2d_1": u}


def activations():
    """Layers inside a sequential model without a name, and activations that learn."""
    x, w, v = draw(ROWS, 4), (draw(4, 6), draw(6)), (draw(6, 2), draw(2))
    s, t, p = [draw(6) for _ in range(4)], [draw(6), draw(6)], draw(6)
    inside, own = sequential(dense("dense_7", *w), batch_input_shape=[None, 4], input_dtype="float32")
    init = {"t_left_init": "zero", "a_left_init": "glorot_uniform", "t_right_init": "glorot_uniform", "a_right_init": "one"}
    ends = ("t_left", "a_left", "t_right", "a_right")
    rest = [
        node("SReLU", "srelu_1", list(zip(ends, s)), **init),
        node("ParametricSoftplus", "parametricsoftplus_1", list(zip(("alphas", "betas"), t)), alpha_init=0.2, beta_init=5.0),
        node("PReLU", "prelu_1", [("alphas", p)], init="zero"),
        node("LeakyReLU", "leakyrelu_1", alpha=0.1),
        node("GaussianNoise", "noise_1", sigma=0.1),
        dense("dense_2", *v),
    ]
    outer = {"class_name": "Sequential", "config": [inside] + [{k: n[k] for k in ("class_name", "config")} for n in rest]}
    nested = {"config": {"name": "sequential_4"}, "weights": own[0]["weights"]}
    y = x @ w[0] + w[1]
    left, right = s[0], s[0] + np.abs(s[2])
    above = np.clip(np.maximum(y - left, 0), 0, right - left) - s[1] * np.maximum(left - y, 0)
    y = left + above + np.maximum(y - right, 0) * s[3]
    y = np.log1p(np.exp(t[1] * y)) * t[0]
    y = np.where(y > 0, y, p * y)
    y = np.where(y > 0, y, 0.1 * y) @ v[0] + v[1]
    return (outer, [nested, *rest]), {"sequential_2_input": x}, {"dense_2": y}


def turned(nodes):
    """What Theano holds of the same convolutions: kernels turned by half a turn."""
    for n in nodes:
        if n["class_name"] in ("Convolution2D", "AtrousConvolution2D"):
            n["weights"] = [(k, w[:, :, ::-1, ::-1] if w.ndim == 4 else w) for k, w in n["weights"]]


def check(binary, folder, what, made, backend=None):
    (model, nodes), inputs, expected = made
    if backend == "theano":
        turned(nodes)
    path = folder / "model.h5"
    write(path, model, nodes, backend=backend)
    found = run(binary, path, inputs)
    assert set(found) == set(expected), f"{what}: {set(found)}, not {set(expected)}"
    for name, value in expected.items():
        same(found[name], value, f"{what}, {name}")
    if what not in ("images of Theano", "recurrent", "branches"):
        return print(f"{what}: {len(expected)} outputs")
    # The architecture and a file of the weights apart.
    (folder / "model.json").write_text(json.dumps({**model, "keras_version": "1.2.2"}))
    with h5py.File(folder / "weights.h5", "w") as f:
        if backend:
            f.attrs["backend"] = backend.encode()
        save_weights(f, nodes)
    again = run(binary, folder / "model.json", inputs, "--params", folder / "weights.h5")
    for name, value in found.items():
        assert np.array_equal(again[name], value), f"{what}, {name}: the parts differ from the whole"
    print(f"{what}: {len(expected)} outputs, and its parts")


def parts():
    """The parts of a model whose weights Keras 1 has otherwise, as Keras 3 has them: of a convolution with the channels first,
    of an LSTM and of a dense layer."""
    lstm = [draw(3, 16), draw(4, 16), draw(16)]
    return [draw(2, 2, 2, 3), draw(3), *lstm, draw(31, 1), draw(1)]


def gates(whole):
    return {k: part for k, part in zip("ifco", np.split(whole, 4, -1))}


def as_keras_1(values):
    """Values of those parts in the order and the form of Keras 1."""
    w, b, *lstm, v, c = values
    apart = [gates(part) for part in lstm]
    return [w.transpose(3, 2, 0, 1), b, *(part[k] for k in "icfo" for part in apart), v, c]


def as_keras_3(values):
    w, b, *steps, v, c = values
    of = {k: steps[3 * i : 3 * i + 3] for i, k in enumerate("icfo")}
    return [w.transpose(2, 3, 1, 0), b, *(np.concatenate([of[k][i] for k in "ifco"], -1) for i in range(3)), v, c]


def goes_on(binary, folder, class_name, settings, slots, optimizer):
    """Training goes on from the state that Keras 1 saves, and the file has the new one in the form of Keras 1."""
    values = parts()
    kinds = [[np.abs(draw(*v.shape)) * 0.01 for v in values] for _ in range(slots)]
    w, b, *lstm, v, c = values
    steps = rnn("LSTM", "lstm_1", [(k, *(gates(part)[k] for part in lstm)) for k in "icfo"], False)
    steps["config"]["dropout_W"] = 0.0
    model, nodes = graph(
        [("x", [2, 4, 4], "float32"), ("z", [5, 3], "float32")],
        [(conv("Convolution2D", "conv_1", w, b, "th", activation="tanh"), ["x"]), (node("Flatten", "flatten_1"), ["conv_1"]), (steps, ["z"]), (merge("merge_1", "concat"), ["flatten_1", "lstm_1"]), (dense("y", v, c), ["merge_1"])],
        ["y"],
    )
    state = [np.float32(7)] + sum(map(as_keras_1, kinds), [])
    names = [f"Variable{f'_{i}' if i else ''}:0" for i in range(len(state))]
    compiled = {"optimizer_config": {"class_name": class_name, "config": settings}, "loss": "mse", "metrics": ["mae"], "sample_weight_mode": None, "loss_weights": None}
    first, second, data = folder / "a.h5", folder / "b.h5", folder / "data.npz"
    write(first, model, nodes, (compiled, list(zip(names, state))))
    x, z, y = draw(48, 2, 4, 4), draw(48, 5, 3), draw(48, 1)
    np.savez(data, x=x, z=z, y=y)
    said = fanwise(binary, "fit", first, "--data", data, "--batch", "16", "--shuffle", "false", "--gpus", "3", "--target", "cpu", "--save", second, "--format", "json")
    assert "anew" not in said.stderr, said.stderr

    a, e = keras.Input((2, 4, 4)), keras.Input((5, 3))
    flat = L.Flatten(data_format="channels_last")(L.Conv2D(3, 2, activation="tanh", data_format="channels_first")(a))
    h = L.concatenate([flat, L.LSTM(4, recurrent_activation=hard)(e)])
    theirs = keras.Model([a, e], L.Dense(1, kernel_regularizer=keras.regularizers.L2(0.01))(h))
    theirs.set_weights(values)
    theirs.compile(optimizer, "mse")
    optimizer.build(theirs.trainable_variables)
    rate = optimizer.learning_rate.numpy() if hasattr(optimizer.learning_rate, "numpy") else np.asarray(optimizer.learning_rate)
    optimizer.set_weights([np.int32(7), rate, *(kind[i] for i in range(len(values)) for kind in kinds)])
    loss = theirs.fit([x, z], y, batch_size=16, shuffle=False, verbose=0).history["loss"][0]
    found = json.loads(said.stdout.splitlines()[0])["loss"]
    assert abs(found - loss) <= 1e-4 * loss, f"{class_name}: the loss is {found}, not {loss}"

    with h5py.File(second) as f:
        group = f["model_weights"]
        written = [group[n["config"]["name"]][name][()] for n in nodes for name, _ in n["weights"]]
        after = [f["optimizer_weights"][name][()] for name in names]
    for own, their in zip(as_keras_3(written), theirs.get_weights(), strict=True):
        same(own, their, f"{class_name}: a weight", 1e-4)
    assert after[0] == 10, f"{class_name}: {after[0]} steps"
    count = len(as_keras_1(values))
    own = [as_keras_3(after[1 + i * count : 1 + (i + 1) * count]) for i in range(slots)]
    theirs = [np.asarray(v) for v in optimizer.variables[2:]]
    for i in range(len(values)):
        for kind in range(slots):
            same(own[kind][i], theirs[i * slots + kind], f"{class_name}: a slot", 1e-3)
    print(f"{class_name}: goes on")


def files():
    """All files, each with its name, and in the form of Theano where a third says so."""
    for order, mode in (("th", "same"), ("tf", "valid")):
        yield f"images, {order}", images(order)
        yield f"transposed, {order}, {mode}", transposed(order, mode)
    yield "images of Theano", images("th"), "theano"
    yield "merged", merged()
    yield "branches", joined_branches()
    yield "recurrent", recurrent()
    yield "masks", masks()
    yield "lines", lines(False)
    yield "lines before 1.2", lines(True)
    yield "volumes", volumes()
    yield "activations", activations()


SGD = {"lr": 0.05, "momentum": 0.8, "decay": 0.0, "nesterov": True}
ADAM = {"lr": 0.01, "beta_1": 0.8, "beta_2": 0.99, "decay": 0.0, "epsilon": 1e-06}
OPTIMIZERS = [
    ("SGD", SGD, 1, lambda: keras.optimizers.SGD(0.05, momentum=0.8, nesterov=True)),
    ("Adam", ADAM, 2, lambda: keras.optimizers.Adam(0.01, 0.8, 0.99, 1e-6)),
]


if __name__ == "__main__":
    given = os.environ.get("FANWISE_TURN", "all")
    # Of those whose turn it is: the first, and each how many.
    own = lambda parts: slice(None) if given == "all" else slice(int(given) % parts, None, parts)
    with tempfile.TemporaryDirectory() as folder:
        folder, binary = pathlib.Path(folder), sys.argv[1]
        for file in list(files())[own(4)]:
            check(binary, folder, *file)
        for name, settings, slots, make in OPTIMIZERS[own(2)]:
            goes_on(binary, folder, name, settings, slots, make())
