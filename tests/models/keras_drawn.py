"""What training does inside the layers of a Keras file: where nothing is random the command line trains as Keras does,
and where it is any number of devices draws the same bits. What was trained is written without it.

Usage: python keras_drawn.py FANWISE        (needs keras and jax; FANWISE_TURN chooses one of two models, `all` has both)
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pathlib
import subprocess
import sys
import tempfile

import keras
import numpy as np
from keras import layers as L


def certain():
    x = keras.Input((6, 3), name="x")
    y = L.BatchNormalization(momentum=0.7)(L.Masking()(x))
    y = L.LSTM(4, activity_regularizer=keras.regularizers.L1L2(0.01, 0.02))(y)
    y = L.ActivityRegularization(l2=0.1)(y) + keras.ops.stop_gradient(L.Dense(4)(y))
    return keras.Model(x, L.Dense(2, name="y")(y))


def drawn():
    x = keras.Input((8, 8, 3), name="x")
    y = L.RandomRotation(0.1)(L.RandomTranslation(0.2, 0.2)(L.RandomFlip()(x)))
    y = L.RandomHue(0.3, value_range=(0, 1))(L.RandomBrightness(0.2, value_range=(0, 1))(y))
    y = L.GaussianNoise(0.2)(L.Conv2D(4, 3, activation="selu")(y))
    y = L.AlphaDropout(0.1)(L.GaussianDropout(0.2)(y))
    y = L.GRU(3, dropout=0.2, recurrent_dropout=0.2)(L.Reshape((6, 24))(y))
    return keras.Model(x, L.Dense(2, name="y")(y))


def fit(binary, model, data, saved, *more):
    words = ["--data", data, "--loss", "mse", "--learning-rate", "0.05", "--optimizer", "sgd", "--shuffle", "false", "--batch", "20", "--target", "cpu", "--save", saved]
    done = subprocess.run([str(word) for word in (binary, "fit", model, *words, *more)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"fit: {done.stderr}")


def check(binary, folder):
    rng = np.random.default_rng(1)
    first, data, onnx = folder / "a.keras", folder / "data.npz", folder / "a.onnx"
    given = os.environ.get("FANWISE_TURN", "all")
    makes = [(certain, (6, 3)), (drawn, (8, 8, 3))]
    for make, shape in makes if given == "all" else [makes[int(given) % 2]]:
        keras.utils.clear_session()
        x, y = rng.random((50, *shape)).astype("float32"), rng.normal(size=(50, 2)).astype("float32")
        x[::3, 2:4] = 0
        model = make()
        model.save(first)
        np.savez(data, x=x, y=y)
        found = []
        for gpus in (2, 3) if make is certain else (2, 4, 8):
            saved = folder / f"{gpus}.keras"
            exact = () if make is certain else ("--reproducible", "n-invariant")
            fit(binary, first, data, saved, "--epochs", "2", "--gpus", gpus, *exact)
            found.append(keras.saving.load_model(saved).get_weights())
        if make is certain:
            model.compile(keras.optimizers.SGD(0.05), "mse")
            model.fit(x, y, batch_size=20, epochs=2, shuffle=False, verbose=0)
            for trained in found:
                for a, b in zip(model.get_weights(), trained, strict=True):
                    assert np.abs(a - b).max() <= 1e-4 * max(1, np.abs(a).max()), np.abs(a - b).max()
        else:
            for trained in found[1:]:
                assert all(np.array_equal(a, b) for a, b in zip(found[0], trained, strict=True))
            assert any(not np.array_equal(a, b) for a, b in zip(model.get_weights(), found[0], strict=True))
            # Other formats cannot state what only training takes.
            fit(binary, first, data, onnx, "--epochs", "1")
            subprocess.run([str(binary), "check", str(onnx), "--gpus", "2", "--batch", "5"], check=True, capture_output=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check(sys.argv[1], pathlib.Path(folder))
