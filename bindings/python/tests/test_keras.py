"""Live models of Keras on several devices: prediction, shared weights, the template's methods."""

import tempfile
import unittest
from pathlib import Path

import keras
import numpy as np
from keras import layers

import fanwise
from fanwise.keras import multi_gpu_model, to_multi_gpu


def dense():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, activation="relu", name="first"),
            layers.Dense(3, activation="softmax", name="last"),
        ]
    )


def convolution():
    keras.utils.set_random_seed(4)
    x = keras.Input((8, 8, 3))
    y = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    y = layers.BatchNormalization()(y)
    y = layers.add([y, layers.SeparableConv2D(4, 3, padding="same")(y)])
    y = layers.GlobalAveragePooling2D()(layers.MaxPooling2D()(y))
    return keras.Model(x, layers.Dense(2)(layers.Dropout(0.5)(y)))


def siamese():
    keras.utils.set_random_seed(5)
    nested = keras.Sequential([keras.Input((4,)), layers.Dense(3)], name="nested")
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    left, right = nested(a), nested(b)
    return keras.Model([a, b], [layers.add([left, right], name="add"), left, right])


def recurrent():
    keras.utils.set_random_seed(6)
    x = keras.Input((5,), dtype="int32")
    y = layers.Embedding(7, 4, mask_zero=True)(x)
    y = layers.Bidirectional(layers.GRU(3, return_sequences=True))(y)
    return keras.Model(x, layers.LSTM(2)(y))


class Prediction(unittest.TestCase):
    def same(self, model, *inputs):
        x = list(inputs) if len(inputs) > 1 else inputs[0]
        expected = model(x)
        first = None
        for gpus in (2, 3, 8):
            parallel = multi_gpu_model(model, gpus, target="cpu")
            found = parallel.predict(x, batch_size=7, verbose=0)
            pairs = list(zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True))
            for own, theirs in pairs:
                theirs = keras.ops.convert_to_numpy(theirs)
                self.assertLessEqual(np.abs(own - theirs).max(), 1e-4 * np.abs(theirs).max())
            bits = [own.tobytes() for own, _ in pairs]
            self.assertEqual(bits, first or bits)
            first = bits

    def test_outputs_are_those_of_keras_on_any_number_of_devices(self):
        rng = np.random.default_rng(1)
        self.same(dense(), rng.standard_normal((7, 6), np.float32))
        self.same(convolution(), rng.standard_normal((7, 8, 8, 3), np.float32))
        self.same(siamese(), *rng.standard_normal((2, 7, 4), np.float32))
        self.same(recurrent(), rng.integers(0, 7, (7, 5)).astype(np.int32))

    def test_structures_of_inputs_and_outputs_are_kept(self):
        model = siamese()
        parallel = multi_gpu_model(model, 2, target="cpu")
        a, b = np.random.default_rng(2).standard_normal((2, 5, 4), np.float32)
        by_order = parallel.predict_on_batch([a, b])
        by_name = parallel.predict_on_batch({"b": b, "a": a})
        self.assertIsInstance(by_order, list)
        for one, other in zip(by_order, by_name, strict=True):
            np.testing.assert_array_equal(one, other)
        self.assertEqual(parallel.output_names, ["add", "nested_1", "nested_2"])
        with self.assertRaisesRegex(ValueError, "the data has 1 arrays"):
            parallel.predict_on_batch([a])
        with self.assertRaisesRegex(ValueError, "expected is"):
            parallel.predict_on_batch([a[:, :2], b])


class Sharing(unittest.TestCase):
    def setUp(self):
        self.model = dense()
        self.parallel = multi_gpu_model(self.model, 3, target="cpu")
        rng = np.random.default_rng(1)
        self.x = rng.standard_normal((10, 6), np.float32)
        self.y = keras.utils.to_categorical(rng.integers(0, 3, 10), 3)

    def close(self):
        own, theirs = (m.predict_on_batch(self.x) for m in (self.parallel, self.model))
        np.testing.assert_allclose(own, np.asarray(theirs), atol=1e-6)

    def test_both_have_the_values_that_one_gets(self):
        self.close()
        self.model.set_weights([weight * 2 for weight in self.model.get_weights()])
        self.close()
        self.parallel.set_weights([weight + 1 for weight in self.model.get_weights()])
        self.close()
        self.parallel.compile("sgd", "categorical_crossentropy")
        before = self.model.get_weights()
        self.parallel.train_on_batch(self.x, self.y)
        self.assertGreater(np.abs(self.model.get_weights()[0] - before[0]).max(), 0)
        self.close()
        self.model.get_layer("last").bias.assign([1.0, 2.0, 3.0])
        self.parallel.train_on_batch(self.x, self.y)
        self.assertGreater(self.model.get_weights()[-1][2], 2.5)
        self.close()

    def test_two_parallel_models_share_one_template(self):
        other = multi_gpu_model(self.model, 2, target="cpu")
        self.parallel.compile("sgd", "categorical_crossentropy")
        for _ in range(2):
            self.parallel.train_on_batch(self.x, self.y)
            own, theirs = (m.predict_on_batch(self.x) for m in (self.parallel, other))
            np.testing.assert_array_equal(own, theirs)

    def test_weights_are_copied_only_when_they_changed(self):
        self.parallel.predict_on_batch(self.x)
        before = self.parallel.weight_copies
        for _ in range(3):
            self.parallel.predict_on_batch(self.x)
        self.assertEqual(self.parallel.weight_copies, before)
        self.model.get_layer("last").bias.assign([1.0, 2.0, 3.0])
        self.parallel.predict_on_batch(self.x)
        self.assertEqual(self.parallel.weight_copies, before + 1)
        if keras.backend.backend() == "tensorflow":
            # Its graphs read variables by themselves: the template is kept up to date.
            return
        self.parallel.compile("adam", "categorical_crossentropy")
        self.parallel.train_on_batch(self.x, self.y)
        before = self.parallel.weight_copies
        for _ in range(5):
            self.parallel.train_on_batch(self.x, self.y)
        self.parallel.fit(self.x, self.y, batch_size=4, epochs=3, verbose=0)
        self.assertEqual(self.parallel.weight_copies, before)
        self.model.get_weights()
        self.assertGreater(self.parallel.weight_copies, before)

    def test_the_template_does_what_is_not_parallel(self):
        parallel, model = self.parallel, self.model
        self.assertIs(parallel.get_layer("last"), model.get_layer("last"))
        self.assertEqual(parallel.count_params(), model.count_params())
        self.assertEqual([*map(id, parallel.layers)], [*map(id, model.layers)])
        self.assertEqual(parallel.get_config(), model.get_config())
        lines = []
        parallel.summary(print_fn=lines.append)
        self.assertIn("first", "".join(lines))
        self.assertTrue(parallel.graph.check(5))
        with self.assertRaises(AttributeError):
            parallel.no_such_method()

    def test_the_last_layer_is_removed(self):
        layer = self.parallel.pop_layer()
        self.assertEqual(layer.name, "last")
        self.assertEqual(self.parallel.predict_on_batch(self.x).shape, (10, 5))
        self.close()

    def test_files_are_those_of_the_template(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            self.parallel.compile("adam", "categorical_crossentropy")
            self.parallel.fit(self.x, self.y, verbose=0)
            self.parallel.save(path)
            loaded = keras.saving.load_model(path)
            for own, theirs in zip(self.model.get_weights(), loaded.get_weights(), strict=True):
                np.testing.assert_array_equal(own, theirs)
            self.assertEqual(int(loaded.optimizer.iterations), 1)
            for own, theirs in zip(
                self.model.optimizer.variables, loaded.optimizer.variables, strict=True
            ):
                np.testing.assert_array_equal(own.numpy(), theirs.numpy())
            # What Keras loaded goes on as what was saved.
            again = multi_gpu_model(loaded, 2, target="cpu")
            for model in (self.parallel, again):
                model.train_on_batch(self.x, self.y)
            np.testing.assert_allclose(loaded.get_weights()[0], self.model.get_weights()[0], 1e-6)
            weights = Path(folder) / "own.weights.h5"
            self.parallel.save_weights(weights)
            self.model.set_weights([weight * 0 for weight in self.model.get_weights()])
            self.parallel.load_weights(weights)
            np.testing.assert_array_equal(
                loaded.get_weights()[0].shape, self.model.get_weights()[0].shape
            )
            self.close()

    def test_a_live_model_is_replicated_as_a_graph(self):
        graph = fanwise.replicate(self.model, 3, target="cpu")
        (found,) = graph.run({next(iter(graph.inputs)): self.x}).values()
        np.testing.assert_array_equal(found, self.parallel.predict_on_batch(self.x))
        second = to_multi_gpu(self.model, n_gpus=2, target="cpu")
        np.testing.assert_array_equal(found, second.predict(self.x, verbose=0))

    def test_what_has_no_counterpart_is_refused_by_name(self):
        random = keras.random.normal
        draws = layers.Lambda(lambda x: x + random((2,)), output_shape=(2,), name="odd")
        model = keras.Sequential([keras.Input((3, 2)), layers.TimeDistributed(draws)])
        with self.assertRaises(fanwise.RefusedError) as caught:
            multi_gpu_model(model, 2, target="cpu")
        error = caught.exception
        self.assertEqual((error.operator, error.layer), ("Lambda", "odd"))
        self.assertTrue(error.hints)


if __name__ == "__main__":
    unittest.main()
