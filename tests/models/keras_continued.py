"""Training goes on where it stopped, in both directions: Keras trains a model and saves it; fanwise goes on by the compile
configuration and the optimizer's state of the file, and so does Keras; both compute the same. Keras loads what fanwise saves
and goes on as fanwise itself does.

Usage: python keras_continued.py FANWISE        (needs keras, jax and h5py; FANWISE_TURN chooses two of the optimizers
beside two, and one form of a file for each; `all` runs all in both)
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
from keras import optimizers as O

BATCH, DEVICES = 16, 3
ALWAYS = [
    lambda: O.SGD(0.05, momentum=0.9),
    lambda: O.Adam(O.schedules.ExponentialDecay(0.02, 7, 0.8)),
]
TURNS = [
    lambda: O.RMSprop(0.01),
    lambda: O.AdamW(0.01, weight_decay=0.02),
    lambda: O.Adam(0.01, amsgrad=True, clipnorm=1.0),
    lambda: O.RMSprop(0.01, momentum=0.8, centered=True),
    lambda: O.Adagrad(0.05),
    lambda: O.Adadelta(0.5),
    lambda: O.Adamax(0.01),
    lambda: O.Nadam(0.01),
    lambda: O.Lion(0.002),
    lambda: O.Ftrl(0.05),
    lambda: O.Lamb(0.01),
    lambda: O.SGD(O.schedules.CosineDecay(0.0, 20, warmup_target=0.1, warmup_steps=5), momentum=0.5, nesterov=True),
    lambda: O.Adam(0.01, gradient_accumulation_steps=3),
    lambda: O.SGD(O.schedules.PiecewiseConstantDecay([6, 10], [0.1, 0.05, 0.01]), momentum=0.9),
]


def rows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5 * BATCH, 6)).astype("float32")
    return x, {"a": np.eye(3, dtype="float32")[rng.integers(0, 3, len(x))], "b": rng.normal(size=(len(x), 1)).astype("float32")}


def model(optimizer):
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    x = keras.Input((6,), name="x")
    h = L.Dense(8, "tanh", name="h", kernel_regularizer="l2", kernel_constraint=keras.constraints.MaxNorm(0.9))(x)
    h = L.Dense(8, "tanh", name="kept", trainable=False, kernel_regularizer="l1")(h)
    m = keras.Model(x, {"a": L.Dense(3, "softmax", name="a", kernel_regularizer=keras.regularizers.L1L2(0.002, 0.01))(h), "b": L.Dense(1, name="b")(h)})
    loss = {"a": keras.losses.CategoricalCrossentropy(label_smoothing=0.1), "b": keras.losses.MeanSquaredError()}
    m.compile(optimizer, loss, loss_weights={"a": 1.0, "b": 0.3}, metrics={"a": ["accuracy"], "b": [keras.metrics.MeanAbsoluteError()]}, weighted_metrics={"b": [keras.metrics.MeanSquaredError()]})
    return m


def load(path):
    """A model as Keras loads it. Of an `.h5` file it builds the optimizer for no variables on JAX, whoever wrote it: the
    state is set by hand then."""
    m = keras.saving.load_model(path)
    if path.suffix == ".h5":
        m.optimizer = type(m.optimizer).from_config(m.optimizer.get_config())
        m.optimizer.build(m.trainable_variables)
        with h5py.File(path) as f:
            group = f["optimizer_weights"]
            names = [n.decode() if isinstance(n, bytes) else n for n in group.attrs["weight_names"]]
            m.optimizer.set_weights([group[n][()] for n in names])
    return m


def fit(m, epochs):
    x, y = rows()
    return m.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def fanwise(binary, data, first, second, *more):
    words = ["fit", first, "--data", data, "--batch", BATCH, "--shuffle", "false", "--gpus", DEVICES, "--target", "cpu", "--save", second, "--format", "json", *more]
    done = subprocess.run([str(w) for w in (binary, *words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{words}: {done.stderr}")
    assert "anew" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def near(found, expected, part, what):
    assert abs(found - expected) <= part * abs(expected), f"{what}: {found}, not {expected}"


def same(a, b, part, what):
    for v, w in zip(a, b, strict=True):
        v, w = np.asarray(v, "float64"), np.asarray(w, "float64")
        assert np.abs(v - w).max() <= part * max(np.abs(w).max(), 1e-3), f"{what}: {v} {w}"


def check(binary, folder, make, form):
    what = f"{make().name} in .{form}"
    x, y = rows()
    data, one = folder / "data.npz", folder / "one.npz"
    np.savez(data, x=x, **y)
    np.savez(one, x=x[:BATCH], **{k: v[:BATCH] for k, v in y.items()})
    first, second, third = (folder / f"{n}.{form}" for n in "abc")
    begun = model(make())
    fit(begun, 2)
    begun.save(first)

    # The first batch after loading, and the epoch, of Keras and of fanwise.
    going = load(first)
    batch = going.evaluate(x[:BATCH], {k: v[:BATCH] for k, v in y.items()}, verbose=0)[0]
    near(fanwise(binary, one, first, third)[0]["loss"], batch, 1e-5, f"{what}: the first batch")
    expected = fit(going, 1)
    found = fanwise(binary, data, first, second)
    near(found[0]["loss"], expected[0], 1e-4, f"{what}: the epoch")
    assert {"a_accuracy", "b_mean_absolute_error"} <= set(found[0]), found
    after = load(second)
    same(after.weights, going.weights, 1e-4, what)
    same(after.optimizer.variables, going.optimizer.variables, 1e-3, f"{what}: the optimizer")

    # And Keras goes on from what fanwise saved.
    more = fit(going, 1)[0]
    near(fit(after, 1)[0], more, 1e-4, f"{what}: Keras after fanwise")
    near(fanwise(binary, data, second, third)[0]["loss"], more, 1e-4, f"{what}: fanwise after fanwise")
    same(load(third).weights, going.weights, 1e-4, f"{what}: two epochs")

    # Without the state the weights are others: what is compared sees it.
    forgetful = keras.saving.load_model(first)
    forgetful.compile(make(), begun.loss, loss_weights={"a": 1.0, "b": 0.3})
    fit(forgetful, 1)
    try:
        same(forgetful.weights, load(second).weights, 1e-4, what)
    except AssertionError:
        return
    raise AssertionError(f"{what}: dropped state is not seen")


def other(binary, folder, form):
    """What the command chose is what the file says."""
    x, y = rows()
    data = folder / "data.npz"
    np.savez(data, x=x, **y)
    first, second = folder / f"a.{form}", folder / f"b.{form}"
    begun = model(O.Adam(0.01))
    fit(begun, 1)
    begun.save(first)
    words = ["--loss", "a=categorical_crossentropy,b=huber:delta=2", "--loss-weight", "b=0.5", "--optimizer", "sgd:momentum=0.9,nesterov=true", "--learning-rate", "0.02", "--metrics", "a=top_2_accuracy,b=mae"]
    fanwise(binary, data, first, second, *words)
    found = fanwise(binary, data, second, folder / f"c.{form}", "--metrics", "b=mae")
    after = load(second)
    assert isinstance(after.optimizer, O.SGD) and after.optimizer.nesterov and after.optimizer.momentum == 0.9
    assert int(after.optimizer.iterations) == 5 and abs(float(after.optimizer.learning_rate) - 0.02) < 1e-8
    # Keras' Huber has its delta from the file, too.
    near(found[0]["loss"], fit(after, 1)[0], 1e-4, "another objective")


def masked(binary, folder, form):
    """Costs of steps that layers mask do not count."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(5)
    rng = np.random.default_rng(2)
    x, y = rng.integers(0, 4, (BATCH, 6)), rng.integers(0, 3, (BATCH, 6))
    ids = keras.Input((6,), dtype="int32", name="x")
    steps = keras.Input((6, 3))
    inner = keras.Model(steps, L.Dense(4, "tanh")(steps))
    m = keras.Model(ids, L.Dense(3, "softmax", name="y")(inner(L.Embedding(4, 3, mask_zero=True)(ids))))
    m.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    path, data = folder / f"m.{form}", folder / "masked.npz"
    m.save(path)
    np.savez(data, x=x, y=y)
    found = fanwise(binary, data, path, folder / f"n.{form}")[0]
    loss, accuracy = m.evaluate(x, y, batch_size=BATCH, verbose=0)
    near(found["loss"], loss, 1e-5, "a masked loss")
    near(found["accuracy"], accuracy, 1e-5, "a masked accuracy")


if __name__ == "__main__":
    given = os.environ.get("FANWISE_TURN", "all")
    turn = None if given == "all" else int(given)
    chosen = ALWAYS + (TURNS if turn is None else [TURNS[(2 * turn + i) % len(TURNS)] for i in range(2)])
    for at, make in enumerate(chosen):
        forms = ["keras", "h5"] if turn is None else [("keras", "h5")[(at + turn) % 2]]
        if isinstance(make(), O.Lamb):
            # Keras does not find the class again in its own `.h5`.
            forms = ["keras"]
        for form in forms:
            with tempfile.TemporaryDirectory() as folder:
                check(sys.argv[1], pathlib.Path(folder), make, form)
            print(f"{make().name} in .{form}: goes on")
    for form in ("keras", "h5") if turn is None else (("keras", "h5")[turn % 2],):
        with tempfile.TemporaryDirectory() as folder:
            other(sys.argv[1], pathlib.Path(folder), form)
            masked(sys.argv[1], pathlib.Path(folder), form)
