"""Training of tf.keras 2 goes on from its files, and tf.keras goes on from what is written."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tf_keras
from tf_keras import layers
from tf_keras import optimizers as new
from tf_keras.optimizers import legacy

OPTIMIZERS = [
    lambda: new.SGD(0.05),
    lambda: new.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda: new.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.8),
    lambda: new.RMSprop(0.01, momentum=0.8, centered=True),
    lambda: new.Adam(0.01, amsgrad=True, clipnorm=1.0),
    lambda: new.AdamW(0.01, weight_decay=0.02),
    lambda: new.Adagrad(0.05),
    lambda: new.Adadelta(0.5),
    lambda: new.Adamax(0.01),
    lambda: new.Ftrl(0.05),
    lambda: new.Lion(0.002),
    lambda: legacy.SGD(0.05, momentum=0.9, decay=0.01),
    lambda: legacy.RMSprop(0.01, momentum=0.8),
    lambda: legacy.Adam(0.01),
    lambda: legacy.Adagrad(0.05),
    lambda: legacy.Adadelta(0.5),
    lambda: legacy.Adamax(0.01),
    lambda: legacy.Ftrl(0.05),
]

BATCH, ROWS = 16, 75


def data():
    rng = np.random.default_rng(3)
    return rng.normal(size=(ROWS, 6)).astype("float32"), rng.integers(0, 3, ROWS)


def model(optimizer):
    tf_keras.backend.clear_session()
    tf_keras.utils.set_random_seed(5)
    hidden = layers.Dense(8, "tanh", kernel_regularizer="l2", input_shape=(6,))
    made = tf_keras.Sequential([hidden, layers.Dense(3, "softmax")])
    made.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def fit(of, epochs=1):
    x, y = data()
    return of.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def fanwise(folder, first, second):
    """The loss of an epoch of the command line, which goes on with one file and writes another."""
    x, y = data()
    np.savez(folder / "data.npz", x=x, y=y)
    words = ["fit", first, "--data", folder / "data.npz", "--batch", BATCH, "--shuffle", "false"]
    words += ["--gpus", 3, "--target", "cpu", "--save", second, "--format", "json"]
    run = [sys.executable, "-m", "fanwise", *map(str, words)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "anew" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[0])["loss"]


def state(optimizer):
    variables = optimizer.variables
    return [v.numpy() for v in (variables() if callable(variables) else variables)]


class TfKeras(unittest.TestCase):
    def same(self, found, expected):
        for a, b in zip(found, expected, strict=True):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            np.testing.assert_allclose(a, b, atol=1e-4 * max(np.abs(b).max(), 1e-3))

    def test_training_goes_on_in_both_directions(self):
        with tempfile.TemporaryDirectory() as folder:
            for make in OPTIMIZERS:
                for form in ("h5", "keras"):
                    kind = type(make())
                    if form == "keras" and issubclass(kind, legacy.Optimizer):
                        # tf.keras writes no state of these.
                        continue
                    with self.subTest(f"{kind.__module__}.{kind.__name__} in .{form}"):
                        self.goes_on(Path(folder), make, form)

    def goes_on(self, folder, make, form):
        first, second = folder / f"a.{form}", folder / f"b.{form}"
        begun = model(make())
        fit(begun, 2)
        begun.save(first)
        going = tf_keras.models.load_model(first)
        (expected,) = fit(going)
        found = fanwise(folder, first, second)
        self.assertLess(abs(found - expected), 1e-4 * expected)
        after = tf_keras.models.load_model(second)
        self.same(after.get_weights(), going.get_weights())
        if type(going.optimizer) is not new.SGD or going.optimizer.momentum:
            self.same(state(after.optimizer), state(going.optimizer))
        (expected,) = fit(going)
        self.assertLess(abs(fit(after)[0] - expected), 1e-4 * expected)


if __name__ == "__main__":
    unittest.main()
