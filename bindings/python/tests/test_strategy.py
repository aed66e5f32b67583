"""Models that are built in the scope of a `MirroredStrategy`."""

import gc
import tempfile
import unittest
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import keras
import numpy as np
from keras import layers, optimizers
from test_training import SPARSE, digits

import fanwise
from fanwise import _fanwise
from fanwise.keras import MirroredStrategy


def network(norm=False):
    keras.utils.set_random_seed(3)
    body = [layers.BatchNormalization()] if norm else []
    body = [layers.Dense(16, use_bias=not norm), *body, layers.Activation("relu")]
    return keras.Sequential([keras.Input((64,)), *body, layers.Dense(10, activation="softmax")])


class Strategy(unittest.TestCase):
    def test_training_follows_one_device(self):
        x, y = digits(150)
        settings = {"epochs": 3, "shuffle": False, "verbose": 0, "validation_data": (x, y)}
        for number, batch in ((1, 64), (2, 65), (4, 47)):
            single = network()
            strategy = MirroredStrategy([f"/cpu:{i}" for i in range(number)])
            self.assertEqual(strategy.num_replicas_in_sync, number)
            with strategy.scope():
                model = network()
            histories = []
            for one in (single, model):
                one.compile(optimizers.SGD(0.1, momentum=0.9), SPARSE, metrics=["accuracy"])
                histories.append(one.fit(x, y, batch_size=batch, **settings).history)
            self.assertEqual(histories[0].keys(), histories[1].keys())
            for name, values in histories[0].items():
                np.testing.assert_allclose(histories[1][name], values, rtol=1e-5)
            for own, theirs in zip(model.get_weights(), single.get_weights(), strict=True):
                np.testing.assert_allclose(own, theirs, atol=1e-4 * np.abs(theirs).max())
            found = model.predict(x, verbose=0)
            np.testing.assert_allclose(found, single.predict(x, verbose=0), atol=1e-5)
            np.testing.assert_allclose(
                model.evaluate(x, y, verbose=0), single.evaluate(x, y, verbose=0), rtol=1e-5
            )

    def test_batch_normalisation_is_synchronised(self):
        x, y = digits(70)
        weights = []
        for number in (1, 3):
            with MirroredStrategy([f"/cpu:{i}" for i in range(number)]).scope():
                model = network(norm=True)
                model.compile(optimizers.SGD(0.05), SPARSE)
            model.train_on_batch(x, y)
            weights.append(model.get_weights())
        for own, theirs in zip(*weights, strict=True):
            np.testing.assert_allclose(own, theirs, atol=1e-5 * np.abs(theirs).max())

    def test_what_is_built_elsewhere_is_no_part_of_it(self):
        strategy = MirroredStrategy(["/cpu:0", "/cpu:1"])
        with self.assertRaises(ZeroDivisionError), strategy.scope():
            raise ZeroDivisionError
        self.assertNotIn("fit", vars(network()))
        with strategy.scope():
            outer = network()
            with MirroredStrategy(["/cpu:0"]).scope():
                inner = network()
            again = network()
        for model in (outer, inner, again):
            self.assertIn("fit", vars(model))

    def test_scopes_are_of_their_thread(self):
        with MirroredStrategy(["/cpu:0"]).scope(), ThreadPoolExecutor(1) as other:
            self.assertNotIn("fit", other.submit(network).result().__dict__)
            self.assertIn("fit", network().__dict__)

    def test_layers_may_be_added_after_the_first_use(self):
        x, _ = digits(20)
        with MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
            model = network()
        self.assertEqual(model.predict(x, verbose=0).shape, (20, 10))
        model.add(layers.Dense(4))
        expected = keras.ops.convert_to_numpy(model(x))
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-6)

    def test_models_are_saved_and_go_on(self):
        x, y = digits(64)
        strategy = MirroredStrategy(["/cpu:0", "/cpu:1"])
        with strategy.scope():
            model = keras.Sequential([layers.Dense(10, activation="softmax")])
            model.compile("adam", SPARSE)
        model.fit(x, y, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            model.save(path)
            plain = keras.models.load_model(path)
            with strategy.scope():
                loaded = keras.models.load_model(path)
        self.assertNotIn("fit", vars(plain))
        for one in (plain, loaded):
            np.testing.assert_allclose(
                one.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5
            )
        own, theirs = (one.train_on_batch(x, y) for one in (loaded, plain))
        np.testing.assert_allclose(own, theirs, rtol=1e-5)

    def test_datasets_are_divided_by_the_batch(self):
        x, y = digits(50)
        strategy = MirroredStrategy(["/cpu:0", "/cpu:1"])
        with strategy.scope():
            model = network()
            model.compile("sgd", SPARSE)
        batches = [(x[:33], y[:33]), (x[33:], y[33:])]
        with self.assertWarnsRegex(UserWarning, "divides each batch"):
            self.assertIs(strategy.experimental_distribute_dataset(batches), batches)
        for method in (strategy.run, strategy.reduce):
            with self.assertRaisesRegex(fanwise.RefusedError, "compile"):
                method(None, None)

    def test_devices(self):
        def on(found, *args, **kwargs):
            with mock.patch.object(_fanwise, "gpus", lambda: found):
                strategy = MirroredStrategy(*args, **kwargs)
            return strategy._devices, strategy._target

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(on(4), ([0, 1, 2, 3], "cuda"))
            self.assertEqual(on(0), ([0], "cpu"))
            self.assertEqual(on(4, target="cpu"), ([0], "cpu"))
            self.assertEqual(on(4, ["/gpu:2", "GPU:0"]), ([2, 0], "cuda"))
            long = "/job:localhost/replica:0/task:0/device:GPU:1"
            self.assertEqual(on(2, [long, 0]), ([1, 0], "cuda"))
            self.assertEqual(on(0, ["cpu:0", "/cpu:1"]), ([0, 1], "cpu"))
        with self.assertWarnsRegex(UserWarning, "virtual devices"):
            self.assertEqual(on(1, ["/gpu:0", "/gpu:1"]), ([0, 1], "cpu"))
        for wrong in ([], ["/gpu:0", "GPU:0"], ["/gpu:0", "/cpu:1"], ["tpu:0"], [-1], [2.0]):
            with self.assertRaises(ValueError):
                on(8, wrong)
        for missing in (["/gpu:1"], None):
            with self.assertRaisesRegex(ValueError, "the machine has"):
                on(0, missing, target="cuda")

    def test_models_are_freed(self):
        with MirroredStrategy(["/cpu:0"]).scope():
            model = network()
        model.predict(digits(8)[0], verbose=0)
        kinds = [
            type(one).__name__ for one in gc.get_objects() if type(one).__name__ == "_Mirrored"
        ]
        count = len(kinds)
        del model
        gc.collect()
        kinds = [one for one in gc.get_objects() if type(one).__name__ == "_Mirrored"]
        self.assertLess(len(kinds), count)

    @unittest.skipUnless(keras.backend.backend() == "tensorflow", "the script is TensorFlow's")
    def test_a_script_of_tensorflow(self):
        import tensorflow as tf

        # `tf.distribute.MirroredStrategy` in the original; the rest of it has smaller numbers.
        strategy = MirroredStrategy(["/cpu:0", "/cpu:1", "/cpu:2"])
        print("Number of devices:", strategy.num_replicas_in_sync)
        batch = 8 * strategy.num_replicas_in_sync
        x, y = digits(100)
        x = x.reshape(-1, 8, 8, 1)
        train = tf.data.Dataset.from_tensor_slices((x[:80], y[:80])).shuffle(80).batch(batch)
        test = tf.data.Dataset.from_tensor_slices((x[80:], y[80:])).batch(batch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train = strategy.experimental_distribute_dataset(train)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((8, 8, 1)),
                    layers.Conv2D(16, 3, activation="relu", padding="same"),
                    layers.BatchNormalization(),
                    layers.MaxPooling2D(),
                    layers.Flatten(),
                    layers.Dense(64, activation="relu"),
                    layers.Dropout(0.25),
                    layers.Dense(10, activation="softmax"),
                ]
            )
            model.compile(loss=SPARSE, optimizer=optimizers.Adam(0.005), metrics=["accuracy"])
        watch = keras.callbacks.LearningRateScheduler(lambda epoch: 0.005 / (1 + epoch))
        history = model.fit(train, validation_data=test, epochs=5, verbose=2, callbacks=[watch])
        self.assertLess(history.history["loss"][-1], history.history["loss"][0])
        loss, accuracy = model.evaluate(test, verbose=0)
        self.assertAlmostEqual(loss, history.history["val_loss"][-1], places=4)
        self.assertGreater(accuracy, 0.1)
        self.plotted(history)

    def plotted(self, history):
        """Draws without a display."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots()
        for name, values in history.history.items():
            axes.plot(values, label=name)
        axes.legend()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "history.png"
            figure.savefig(path)
            self.assertGreater(path.stat().st_size, 1000)


if __name__ == "__main__":
    unittest.main()
