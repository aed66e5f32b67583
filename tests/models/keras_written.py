"""Keras goes on with what fanwise writes: a model that Keras has trained is trained further by fanwise and saved as the
same kind of file. Keras loads it, computes what fanwise does, and has the optimizer that the command chose.

Usage: python keras_written.py FANWISE        (needs keras, jax and h5py; FANWISE_TURN chooses a kind of file, `all` has both)
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pathlib
import subprocess
import sys
import tempfile

import h5py
import keras
import numpy as np
from keras import layers as L


def model():
    x = keras.Input((6, 6, 2), name="x")
    y = L.Conv2D(4, 3, padding="same")(x)
    y = L.BatchNormalization()(y)
    y = L.SpatialDropout2D(0.2)(L.ReLU()(y))
    y = keras.Sequential([keras.Input((6, 6, 4)), L.Flatten(), L.Dense(5, "tanh", trainable=False), L.Dropout(0.1)], name="head")(y)
    return keras.Model(x, L.Dense(3, name="y", kernel_regularizer="l2")(y))


def fanwise(binary, *words):
    done = subprocess.run([str(word) for word in (binary, *words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{words[0]}: {done.stderr}")
    return done.stderr


def check(binary, folder, form):
    keras.utils.clear_session()
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(64, 6, 6, 2)).astype("float32"), rng.normal(size=(64, 3)).astype("float32")
    before = model()
    before.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
    before.fit(x, y, epochs=2, verbose=0)
    first, second, data, out = (folder / name for name in (f"a.{form}", f"b.{form}", "data.npz", "out.npz"))
    before.save(first)
    np.savez(data, x=x, y=y)
    said = fanwise(binary, "fit", first, "--data", data, "--loss", "mse", "--optimizer", "sgd", "--learning-rate", "0.05", "--epochs", "2", "--batch", "16", "--gpus", "2", "--target", "cpu", "--save", second)
    # What restricts learning is told.
    assert "regularizers or constraints of the file: y/kernel" in said, said
    after = keras.saving.load_model(second)
    changed = {v.path.split("/")[-2] + "/" + v.path.split("/")[-1]: not np.array_equal(v, w) for v, w in zip(before.weights, after.weights)}
    frozen = [w for w in after.weights if "dense" in w.path and w.shape[-1] == 5]
    assert len(frozen) == 2, [w.path for w in after.weights]
    for v, w in zip(before.weights, after.weights):
        is_frozen = v.shape[-1] == 5
        assert np.array_equal(v, w) == is_frozen, f"{form}: {v.path} is {'changed' if is_frozen else 'as it was'} ({changed})"
    # The command chose another optimizer, which has taken eight steps: so says the file.
    assert isinstance(after.optimizer, keras.optimizers.SGD)
    if form == "h5":
        # On JAX Keras does not make the optimizer of such a file ready, whoever wrote it: its state is looked at in the file.
        with h5py.File(second) as f:
            names = list(f["optimizer_weights"].attrs["weight_names"])
            assert len(names) == 2 and f["optimizer_weights"][names[0]][()] == 8, names
        after.compile(keras.optimizers.SGD(0.05), "mse")
    else:
        assert int(after.optimizer.iterations) == 8 and abs(float(after.optimizer.learning_rate) - 0.05) < 1e-7
    np.savez(data, x=x[:7])
    fanwise(binary, "run", second, "--gpus", "3", "--target", "cpu", "--inputs", data, "--outputs", out)
    with np.load(out) as found:
        expected = after.predict(x[:7], verbose=0)
        assert np.abs(found["y"] - expected).max() <= 1e-4 * np.abs(expected).max(), form
    losses = after.fit(x, y, epochs=3, verbose=0, shuffle=False).history["loss"]
    # What is dropped is random.
    assert np.isfinite(losses).all() and max(losses) < 1.5, losses
    print(f"{form}: Keras goes on, with losses {losses}")


if __name__ == "__main__":
    given = os.environ.get("FANWISE_TURN", "all")
    for form in ("keras", "h5") if given == "all" else (("keras", "h5")[int(given) % 2],):
        with tempfile.TemporaryDirectory() as folder:
            check(sys.argv[1], pathlib.Path(folder), form)
