"""Training beside Keras' own: the same numbers, callbacks, data and files."""

import importlib.util
import unittest
from itertools import pairwise
from pathlib import Path

import keras
import numpy as np
from keras import constraints, layers, losses, metrics, optimizers, regularizers

import fanwise
from fanwise.keras import multi_gpu_model


def unless_tensorflow(reason):
    """Skips a test where Keras itself does something else on TensorFlow."""
    return unittest.skipIf(keras.backend.backend() == "tensorflow", reason)


def digits(rows=200):
    # Only the data: the packages that scikit-learn itself needs are not installed.
    package = Path(importlib.util.find_spec("sklearn").origin).parent
    table = np.loadtxt(package / "datasets/data/digits.csv.gz", delimiter=",", max_rows=rows)
    return (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(int)


def dense(norm=False):
    keras.utils.set_random_seed(3)
    body = [layers.Dense(16, use_bias=not norm, kernel_regularizer=regularizers.L2(0.01))]
    body += [layers.BatchNormalization()] if norm else []
    body += [layers.Activation("relu"), layers.Dense(10, activation="softmax")]
    return keras.Sequential([keras.Input((64,)), *body])


def linear():
    keras.utils.set_random_seed(3)
    last = layers.Dense(10, activation="softmax", kernel_constraint=constraints.MaxNorm(0.9))
    return keras.Sequential([keras.Input((64,)), last])


def two_heads():
    keras.utils.set_random_seed(4)
    x = keras.Input((64,), name="x")
    y = layers.Dense(12, activation="tanh")(x)
    return keras.Model(
        x,
        [
            layers.Dense(10, activation="softmax", name="digit")(y),
            layers.Dense(1, activation="sigmoid", name="odd")(y),
        ],
    )


class Recorder(keras.callbacks.Callback):
    """Writes down what is called, with which numbers."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            calls = self.calls

            def record(*arguments, **more):
                arguments = [*arguments, *more.values()]
                logs = [list(a) if isinstance(a, dict) else a for a in arguments]
                calls.append((name, *logs))

            return record
        return super().__getattribute__(name)


class Training(unittest.TestCase):
    def twins(self, make, gpus=3, **settings):
        """A model of Keras, and its twin with the same weights on several devices."""
        own, other = make(), make()
        other.set_weights(own.get_weights())
        return own, multi_gpu_model(other, gpus, target="cpu", **settings)

    def same(self, own, parallel, tolerance=1e-4):
        for a, b in zip(own.get_weights(), parallel.get_weights(), strict=True):
            np.testing.assert_allclose(b, a, atol=tolerance * max(1.0, np.abs(a).max()))

    def fit_both(self, pair, compiled, *data, tolerance=1e-4, **fitted):
        found = []
        for model in pair:
            model.compile(**compiled())
            history = model.fit(*data, verbose=0, shuffle=False, **fitted)
            found.append(history.history)
        self.assertEqual(list(found[0]), list(found[1]))
        for name, numbers in found[0].items():
            np.testing.assert_allclose(found[1][name], numbers, rtol=tolerance, atol=1e-6)
        self.same(*pair, tolerance=tolerance)

    def test_epochs_are_those_of_keras(self):
        x, y = digits(333)

        def compiled():
            return {
                "optimizer": optimizers.SGD(0.05, momentum=0.9),
                "loss": "sparse_categorical_crossentropy",
                "metrics": ["accuracy", metrics.SparseTopKCategoricalAccuracy(3)],
                "weighted_metrics": ["accuracy"],
            }

        weights = np.random.default_rng(1).random(333)
        more = {"epochs": 3, "batch_size": 65, "validation_split": 0.2}
        self.fit_both(self.twins(dense), compiled, x, y, sample_weight=weights, **more)

    def test_constraints_hold_after_each_step(self):
        def make():
            keras.utils.set_random_seed(6)
            own = [
                constraints.MaxNorm(0.5, axis=[0, 1]),
                constraints.MinMaxNorm(0.1, 0.4, rate=0.5),
            ]
            hidden = layers.Dense(
                8, activation="relu", kernel_constraint=own[0], bias_constraint="non_neg"
            )
            out = layers.Dense(1, activation="sigmoid", kernel_constraint=own[1])
            return keras.Sequential([keras.Input((64,)), hidden, out])

        x, y = digits()
        y = (y % 2).astype(np.float32)[:, None]
        focal = losses.BinaryFocalCrossentropy(apply_class_balancing=True, gamma=0)
        for optimizer in (optimizers.Ftrl(0.1), optimizers.Lamb(0.01)):
            config = optimizer.get_config()
            kind = type(optimizer)
            self.fit_both(
                self.twins(make),
                lambda kind=kind, config=config: {
                    "optimizer": kind.from_config(config),
                    "loss": focal,
                },
                x,
                y,
                epochs=2,
                batch_size=64,
            )

    def test_class_zero_can_be_ignored(self):
        x, y = digits()
        loss = losses.SparseCategoricalCrossentropy(ignore_class=0)
        self.fit_both(self.twins(dense), lambda: {"optimizer": "sgd", "loss": loss}, x, y)

    def test_classes_have_weights(self):
        x, y = digits()
        y = keras.utils.to_categorical(y, 10)
        more = {"epochs": 2, "batch_size": 64, "class_weight": {0: 2.0, 3: 0.5}}
        loss = "categorical_crossentropy"
        self.fit_both(
            self.twins(dense), lambda: {"optimizer": "rmsprop", "loss": loss}, x, y, **more
        )

    @unless_tensorflow("Keras weights the batches of an output's loss alike where sizes are open")
    def test_several_outputs(self):
        x, y = digits()
        targets = [y, (y % 2).astype(np.float32)]

        def compiled():
            return {
                "optimizer": optimizers.AdamW(optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)),
                "loss": {"odd": losses.BinaryCrossentropy(label_smoothing=0.1), "digit": SPARSE},
                "loss_weights": {"odd": 0.3, "digit": 1.0},
                "metrics": {
                    "odd": ["accuracy", metrics.AUC(name="auc"), metrics.Recall(name="recall")]
                },
                "weighted_metrics": {"digit": ["accuracy"], "odd": ["mae"]},
            }

        weights = [np.linspace(0, 2, 200), np.linspace(1, 0, 200)]
        validation = (x[:50], [target[:50] for target in targets])
        more = {"epochs": 2, "batch_size": 64, "validation_data": validation}
        self.fit_both(self.twins(two_heads), compiled, x, targets, sample_weight=weights, **more)

    @unless_tensorflow("Keras weights the batches of an output's loss alike where sizes are open")
    def test_outputs_have_the_keys_of_a_dict(self):
        def make():
            model = two_heads()
            digit, odd = model.outputs
            return keras.Model(model.input, {"second": digit, "first": odd})

        def compiled():
            return {
                "optimizer": "sgd",
                "loss": {"second": SPARSE, "first": "binary_crossentropy"},
                "loss_weights": {"second": 0.5, "first": 2.0},
                "metrics": {"second": ["accuracy"]},
            }

        x, y = digits()
        targets = {"first": (y % 2).astype(np.float32), "second": y}
        weights = {"second": np.linspace(0, 2, 200), "first": np.linspace(1, 0, 200)}
        pair = self.twins(make)
        more = {"epochs": 2, "batch_size": 64}
        self.fit_both(pair, compiled, x, targets, sample_weight=weights, **more)
        own, theirs = (model.predict_on_batch(x[:5]) for model in pair)
        self.assertEqual(set(own), set(theirs))
        for name, found in own.items():
            np.testing.assert_allclose(found, np.asarray(theirs[name]), rtol=1e-4)

    @unless_tensorflow("Keras updates only the rows of an embedding that a batch takes")
    def test_masks_leave_out_costs(self):
        def make():
            keras.utils.set_random_seed(5)
            x = keras.Input((6,), dtype="int32")
            y = layers.Embedding(9, 3, mask_zero=True)(x)
            inner = keras.Input((6, 3))
            y = keras.Model(inner, layers.Dense(4, activation="tanh")(inner))(y)
            return keras.Model(x, layers.Dense(3, activation="softmax")(y))

        rng = np.random.default_rng(2)
        x, y = rng.integers(0, 9, (40, 6)).astype(np.int32), rng.integers(0, 3, (40, 6))
        for row, length in zip(x, rng.integers(1, 7, 40)):
            row[:length] = np.maximum(row[:length], 1)
            row[length:] = 0
        losses, numbers = [], []
        pair = self.twins(make)
        for model in pair:
            model.compile("adam", SPARSE, metrics=["accuracy"])
            history = model.fit(x, y, batch_size=13, epochs=2, shuffle=False, verbose=0)
            # On JAX, Keras loses the mask on the way from a step of training to its metrics.
            losses.append(history.history["loss"])
            numbers.append(model.evaluate(x, y, batch_size=13, verbose=0))
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
        np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-4)
        self.same(*pair)

    def test_batch_normalisation_takes_the_whole_batch(self):
        x, y = digits(128)
        own, parallel = self.twins(lambda: dense(norm=True))
        numbers = []
        for model in (own, parallel):
            model.compile(optimizers.SGD(0.01, momentum=0.9), SPARSE)
            for batch in (slice(0, 64), slice(64, 128)):
                numbers.append(model.train_on_batch(x[batch], y[batch]))
            numbers.append(model.test_on_batch(x, y))
        # Each is of its own batch, or all data.
        np.testing.assert_allclose(numbers[3:], numbers[:3], rtol=1e-4)
        self.same(own, parallel, tolerance=1e-5)

    def test_batches_that_are_started_ahead_are_those_of_single_steps(self):
        x, y = digits(60)
        own, ahead = self.twins(lambda: dense(norm=True))
        single = multi_gpu_model(own, 3, target="cpu")
        for model in (ahead, single):
            model.compile(optimizers.Adam(0.01), SPARSE, metrics=["accuracy"])
        ahead.fit(x, y, batch_size=13, epochs=2, shuffle=False, verbose=0)
        for _ in range(2):
            for first in range(0, 60, 13):
                single.train_on_batch(x[first : first + 13], y[first : first + 13])
        for one, other in zip(ahead.get_weights(), single.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        whole = ahead.predict(x, batch_size=13, verbose=0)
        parts = [single.predict_on_batch(x[first : first + 13]) for first in range(0, 60, 13)]
        np.testing.assert_array_equal(whole, np.concatenate(parts))

    def test_batches_that_are_cut_at_once_are_those_that_keras_cuts(self):
        x, y = digits(190)
        weights = np.random.default_rng(1).random(190)

        class Watching(keras.callbacks.Callback):
            """It makes each batch a step of its own."""

        rate = optimizers.schedules.ExponentialDecay(0.05, 7, 0.5)
        for shuffle, rows in ((True, 16), ("batch", 16), (False, 3)):
            own, parallel = self.twins(dense)
            found = []
            for model, seen in (
                (multi_gpu_model(own, 3, target="cpu"), [Watching()]),
                (parallel, []),
            ):
                model.compile(optimizers.SGD(rate), SPARSE, metrics=["accuracy"])
                np.random.seed(5)
                more = {"batch_size": rows, "shuffle": shuffle, "verbose": 0, "callbacks": seen}
                history = model.fit(x, y, sample_weight=weights, epochs=3, **more).history
                tested = model.evaluate(x, y, batch_size=rows, verbose=0, callbacks=seen)
                predicted = model.predict(x, batch_size=rows, verbose=0, callbacks=seen)
                found.append((history, tested, predicted, model.get_weights()))
            alone, cut = found
            self.assertEqual(alone[:2], cut[:2])
            np.testing.assert_array_equal(alone[2], cut[2])
            for a, b in zip(alone[3], cut[3], strict=True):
                np.testing.assert_array_equal(a, b)

    def test_methods_of_the_users_own_are_refused_where_they_would_count(self):
        class Own(keras.Model):
            def train_step(self, *args):
                raise NotImplementedError

        class Shown(keras.Model):
            def predict_step(self, data):
                return -super().predict_step(data)

        x, y = digits(20)
        for kind, name in ((Own, "Own.train_step"), (Shown, "Shown.predict_step")):
            plain = dense()
            model = multi_gpu_model(kind(plain.inputs, plain.outputs), 2, target="cpu")
            model.compile(optimizers.SGD(0.1), SPARSE)
            refused = model.train_on_batch if kind is Own else model.predict_on_batch
            allowed = model.predict_on_batch if kind is Own else model.train_on_batch
            allowed(*(x,) if kind is Own else (x, y))
            with self.assertRaisesRegex(fanwise.RefusedError, name):
                refused(*(x, y) if kind is Own else (x,))

    def test_large_constants_are_not_trained(self):
        constant = np.random.default_rng(2).normal(0, 0.1, (64, 20)).astype("float32")

        def make():
            keras.utils.set_random_seed(1)
            x = keras.Input((64,))
            y = layers.Dense(10, activation="softmax")(keras.ops.matmul(x, constant))
            return keras.Model(x, y)

        x, y = digits(50)

        def compiled():
            return {"optimizer": optimizers.SGD(0.1, momentum=0.9), "loss": SPARSE}

        self.fit_both(self.twins(make), compiled, x, y, epochs=2, batch_size=13)

    def test_a_batch_that_fails_ends_the_training(self):
        model = keras.Sequential([keras.Input((2,), dtype="int32"), layers.Embedding(5, 3)])
        model.add(layers.Flatten())
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        x, y = np.zeros((8, 2), "int32"), np.ones((8, 6), "float32")
        x[3] = 1000
        found = [multi_gpu_model(own, 2, target="cpu") for own in (model, other)]
        for own in found:
            own.compile(optimizers.SGD(0.1), "mse")
        with self.assertRaises(ValueError):
            found[0].fit(x, y, batch_size=2, shuffle=False, verbose=0)
        found[1].train_on_batch(x[:2], y[:2])
        np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])
        found[0].fit(x[:2], y[:2], verbose=0)
        found[1].fit(x[:2], y[:2], verbose=0)
        np.testing.assert_array_equal(model.get_weights()[0], other.get_weights()[0])

    @unless_tensorflow("weights are copied after each batch")
    def test_an_interrupted_wait_for_weights_loses_none(self):
        x, y = digits(32)
        own, parallel = self.twins(dense)
        for model in (own, parallel):
            model.compile(optimizers.SGD(0.1), SPARSE)
            model.train_on_batch(x, y)

        class Interrupted:
            """A program whose wait for its weights ends by Ctrl-C."""

            def weights(self, names):
                raise KeyboardInterrupt

        ahead = parallel._engine.store.ahead
        native, ahead.native = ahead.native, Interrupted()
        with self.assertRaises(KeyboardInterrupt):
            parallel.get_weights()
        ahead.native = native
        self.same(own, parallel)

    def test_optimizers_are_those_of_keras(self):
        x, y = digits(48)
        for make in (
            lambda: optimizers.SGD(0.1, momentum=0.5, nesterov=True, weight_decay=0.01),
            lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True, clipnorm=0.1),
            lambda: optimizers.Adam(
                0.01, amsgrad=True, epsilon=1e-3, gradient_accumulation_steps=2
            ),
            lambda: optimizers.Adagrad(0.1, global_clipnorm=0.5),
            lambda: optimizers.Adadelta(1.0, clipvalue=0.01),
            lambda: optimizers.Adamax(0.01),
            lambda: optimizers.Nadam(0.01),
            lambda: optimizers.Ftrl(0.05, l1_regularization_strength=0.01),
            lambda: optimizers.Lamb(0.01),
            lambda: optimizers.Lion(0.001, use_ema=True, ema_momentum=0.5),
        ):
            own, parallel = self.twins(linear)
            for model in (own, parallel):
                model.compile(make(), SPARSE, run_eagerly=True)
                model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
            with self.subTest(own.optimizer.name):
                self.same(own, parallel, tolerance=1e-5)
                for a, b in zip(own.optimizer.variables, parallel.optimizer.variables, strict=True):
                    np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=2e-3, atol=1e-5)

    def test_callbacks_see_the_template_in_keras_order(self):
        x, y = digits(40)
        calls = []
        for model in self.twins(linear):
            model.compile("sgd", SPARSE, metrics=["accuracy"])
            recorder = Recorder()
            more = {"validation_data": (x[:20], y[:20]), "callbacks": [recorder]}
            model.fit(x, y, batch_size=16, epochs=2, verbose=0, **more)
            model.evaluate(x, y, verbose=0, callbacks=[recorder])
            calls.append(recorder.calls)
        template = getattr(model, "template", model)
        self.assertEqual(calls[0], calls[1])
        self.assertIs(recorder.model, template)

    def test_stock_callbacks_work(self):
        x, y = digits()
        model = dense()
        parallel = multi_gpu_model(model, 2, target="cpu")
        parallel.compile(optimizers.SGD(0.5), SPARSE)
        rates = []
        watch = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate)),
            on_train_batch_end=lambda batch, logs: weights.append(model.get_weights()[0].copy()),
        )
        weights = []
        history = parallel.fit(
            x,
            y,
            epochs=20,
            verbose=0,
            validation_split=0.2,
            callbacks=[
                keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 / (1 + epoch)),
                keras.callbacks.EarlyStopping("val_loss", min_delta=10.0, patience=2),
                watch,
            ],
        )
        self.assertEqual(len(history.epoch), 3)
        np.testing.assert_allclose(rates, [0.5, 0.25, 0.5 / 3], rtol=1e-6)
        self.assertTrue(all((a != b).any() for a, b in pairwise(weights)))
        self.assertIs(parallel.history, history)

    def test_data_come_in_every_form(self):
        x, y = digits(48)

        class Parts(keras.utils.PyDataset):
            def __len__(self):
                return 3

            def __getitem__(self, index):
                rows = slice(16 * index, 16 * index + 16)
                return x[rows], y[rows]

        parts = [Parts()[index] for index in range(3)]

        class Iterable:
            def __iter__(self):
                return iter(parts)

        def endless():
            while True:
                yield from parts

        found = []
        for data, more in (
            ((x, y), {"batch_size": 16, "shuffle": False}),
            ((Parts(),), {"shuffle": False}),
            ((endless(),), {"steps_per_epoch": 3, "shuffle": False}),
            ((Iterable(),), {}),
        ):
            parallel = multi_gpu_model(dense(), 2, target="cpu")
            parallel.compile("sgd", SPARSE)
            parallel.fit(*data, verbose=0, **more)
            found.append(parallel.get_weights()[0])
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])
        parallel.fit_generator(endless(), 3, verbose=0, workers=4)
        loss = parallel.evaluate_generator(endless(), 3, verbose=0)
        self.assertAlmostEqual(loss, parallel.evaluate(x, y, verbose=0, batch_size=16), places=5)
        np.testing.assert_array_equal(
            parallel.predict_generator(Parts(), verbose=0), parallel.predict_proba(x, batch_size=16)
        )
        self.assertEqual(parallel.predict_classes(x).shape, (48,))

    def test_layers_are_frozen_after_wrapping(self):
        x, y = digits(32)
        model = dense(norm=True)
        parallel = multi_gpu_model(model, 2, target="cpu")
        model.layers[0].trainable = model.layers[1].trainable = False
        parallel.compile("sgd", SPARSE)
        before = model.get_weights()
        parallel.fit(x, y, verbose=0)
        changed = [(a != b).any() for a, b in zip(before, model.get_weights(), strict=True)]
        self.assertEqual(changed, [False] * 5 + [True, True])

    def test_devices_do_not_change_what_is_learned(self):
        def make(rate):
            keras.utils.set_random_seed(3)
            body = [layers.Dense(16, activation="relu"), layers.Dropout(rate), layers.Dense(10)]
            return keras.Sequential([keras.Input((64,)), *body, layers.Softmax()])

        x, y = digits(66)
        found = []
        for gpus, rate in ((2, 0.5), (4, 0.5), (8, 0.5), (2, 0.0)):
            own = multi_gpu_model(make(rate), gpus, target="cpu", reproducible="n-invariant")
            own.compile("adam", SPARSE)
            own.fit(x, y, batch_size=33, verbose=0, shuffle=False)
            found.append(b"".join(weight.tobytes() for weight in own.get_weights()))
        self.assertEqual(len(set(found[:3])), 1)
        self.assertNotEqual(found[3], found[0])

    def test_what_has_no_counterpart_is_refused_by_name(self):
        x, y = digits(32)
        parallel = multi_gpu_model(dense(), 2, target="cpu")
        with self.assertRaisesRegex(ValueError, "must call `compile"):
            parallel.fit(x, y)
        for name, settings in (
            ("adafactor", {"optimizer": "adafactor", "loss": SPARSE}),
            ("sum", {"loss": losses.SparseCategoricalCrossentropy(reduction="sum")}),
        ):
            parallel.compile(**settings)
            with self.assertRaisesRegex(fanwise.RefusedError, f"(?i){name}"):
                parallel.train_on_batch(x, y)


SPARSE = "sparse_categorical_crossentropy"


if __name__ == "__main__":
    unittest.main()
