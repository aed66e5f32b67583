"""`fit` for three epochs on digits beside Keras' own: optimizers, batches, devices, weights, masks."""

import itertools
import os
import unittest
from unittest import mock

import keras
import numpy as np
from keras import layers, losses, optimizers
from test_training import digits, unless_tensorflow
from turns import TURN, in_turn

from fanwise.keras import ParallelModel, _engine

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.05, momentum=0.9),
    "rmsprop": lambda: optimizers.RMSprop(0.001),
    "adam": lambda: optimizers.Adam(0.001),
    "adamw": lambda: optimizers.AdamW(0.001, weight_decay=0.01),
}
BATCHES = (64, 65)
DEVICES = range(1, 9)


def plain(rows):
    x, y = digits(rows)
    hidden = layers.Dense(24, activation="tanh")
    model = keras.Sequential([keras.Input((64,)), hidden, layers.Dense(10, activation="softmax")])
    return model, x, y, {"loss": "sparse_categorical_crossentropy"}, {}


def sample_weights(rows):
    model, x, y, compiled, _ = plain(rows)
    return model, x, y, compiled, {"sample_weight": np.random.default_rng(1).random(len(x))}


def class_weights(rows):
    model, x, y, compiled, _ = plain(rows)
    return model, x, y, compiled, {"class_weight": {0: 2.0, 3: 0.5, 7: 0.0}}


def masks(rows):
    """A class for each line of a digit; empty lines do not count."""
    x, y = digits(rows)
    x, y = x.reshape(-1, 8, 8), np.repeat(y[:, None], 8, axis=1)
    x[::3, 5:] = 0
    inputs = keras.Input((8, 8))
    hidden = layers.Dense(12, activation="tanh")(layers.Masking()(inputs))
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(hidden))
    return model, x, y, {"loss": "sparse_categorical_crossentropy"}, {}


def dict_losses(rows):
    x, y = digits(rows)
    inputs = keras.Input((64,))
    hidden = layers.Dense(24, activation="tanh")(inputs)
    outputs = {
        "digit": layers.Dense(10, activation="softmax", name="digit")(hidden),
        "odd": layers.Dense(1, activation="sigmoid", name="odd")(hidden),
    }
    compiled = {
        "loss": {"odd": "binary_crossentropy", "digit": losses.SparseCategoricalCrossentropy()},
        "loss_weights": {"odd": 0.3, "digit": 1.0},
    }
    targets = {"digit": y, "odd": (y % 2).astype(np.float32)[:, None]}
    return keras.Model(inputs, outputs), x, targets, compiled, {}


KINDS = (plain, sample_weights, class_weights, masks, dict_losses)


def normalised(rows):
    x, y = digits(rows)
    body = [
        layers.Dense(24, use_bias=False),
        layers.BatchNormalization(),
        layers.Activation("relu"),
    ]
    body += [layers.Dense(16, use_bias=False), layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((64,)), *body, layers.Dense(10, activation="softmax")])
    return model, x, y, {"loss": "sparse_categorical_crossentropy"}, {}


class Digits(unittest.TestCase):
    def fitted(self, make, optimizer, settings, gpus=None):
        """The losses of epochs and the weights, of Keras itself or on `gpus` devices."""
        keras.utils.set_random_seed(9)
        model, x, y, compiled, more = make(settings.pop("rows"))
        if gpus is not None:
            options = _engine.options(list(range(gpus)), "cpu")
            model = ParallelModel(model, options, reproducible=False)
        model.compile(optimizer=OPTIMIZERS[optimizer](), **compiled)
        history = model.fit(x, y, verbose=0, shuffle=False, **settings, **more)
        return history.history["loss"], model.get_weights()

    def apart(self, found, expected):
        """The largest differences of losses and of weights, relative to the largest of each."""
        (losses, weights), (theirs, their_weights) = found, expected
        loss = np.abs(np.subtract(losses, theirs) / theirs).max()
        pairs = zip(weights, their_weights, strict=True)
        return loss, max(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3) for a, b in pairs)

    def told(self, what, apart):
        if "FANWISE_TOLD" in os.environ:
            print(f"{what}: loss {apart[0]:.1e}, weights {apart[1]:.1e}", flush=True)

    def rows(self):
        return None if TURN == "all" else 200

    @unless_tensorflow("Keras weights the batches of an output's loss alike where sizes are open")
    def test_epochs_are_those_of_keras(self):
        cases = list(itertools.product(KINDS, OPTIMIZERS, BATCHES))
        # So that cases that follow each other differ in all.
        cases = [cases[(7 * at) % len(cases)] for at in range(len(cases))]
        for number, (make, optimizer, batch) in enumerate(in_turn(cases, 3)):
            settings = {"epochs": 3, "batch_size": batch, "rows": self.rows()}
            expected = self.fitted(make, optimizer, {**settings})
            at = int(TURN.replace("all", "0")) + number
            for gpus in in_turn(DEVICES, 1, most=[1 + at % 8]):
                what = f"{make.__name__}, {optimizer}, batches of {batch}, {gpus} devices"
                with self.subTest(what):
                    found = self.fitted(make, optimizer, {**settings}, gpus)
                    apart = self.apart(found, expected)
                    self.told(what, apart)
                    self.assertLessEqual(max(apart), 1e-4)

    def test_batch_normalisation_is_that_of_the_whole_batch(self):
        for optimizer, batch in in_turn(list(itertools.product(OPTIMIZERS, BATCHES)), 1):
            for gpus in in_turn(DEVICES, 1, most=[3]):
                what = f"{optimizer}, batches of {batch}, {gpus} devices"
                with self.subTest(what):
                    steps = {"epochs": 1, "batch_size": batch, "rows": 2 * batch}
                    both = [
                        self.fitted(normalised, optimizer, {**steps}, at) for at in (gpus, None)
                    ]
                    apart = self.apart(*both)
                    self.told(f"two steps of {what}", apart)
                    if optimizer == "sgd":
                        # Adaptive steps divide by the size of gradients that may be rounding.
                        self.assertLessEqual(apart[1], 1e-5)
                    epochs = {"epochs": 3, "batch_size": batch, "rows": self.rows()}
                    both = [
                        self.fitted(normalised, optimizer, {**epochs}, at) for at in (gpus, None)
                    ]
                    apart = self.apart(*both)
                    self.told(what, apart)
                    self.assertLessEqual(apart[0], 1e-2)

    @unittest.skipUnless(keras.backend.backend() == "jax", "others have float64 without a switch")
    def test_batch_normalisation_in_float64_is_that_of_keras(self):
        import jax

        kept = keras.config.floatx(), keras.config.dtype_policy()
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        try:
            # Keras computes it in float32 on JAX: a float64 beside a float32 is one there.
            widest = mock.patch("keras.src.backend.result_type", jax.numpy.promote_types)
            with widest, jax.enable_x64(True):
                steps = {"epochs": 3, "batch_size": 65, "rows": 200}
                for optimizer in ("sgd", "adam"):
                    both = [
                        self.fitted(normalised, optimizer, {**steps}, gpus) for gpus in (3, None)
                    ]
                    self.assertEqual(both[0][1][0].dtype, np.float64)
                    apart = self.apart(*both)
                    self.told(f"float64, {optimizer}", apart)
                    self.assertLessEqual(max(apart), 1e-12)
        finally:
            keras.config.set_floatx(kept[0])
            keras.config.set_dtype_policy(kept[1])


if __name__ == "__main__":
    unittest.main()
