"""Metrics that Keras counts on the host: a user's own, and those that have no counterpart."""

import unittest

import keras
import numpy as np
from keras import layers, metrics, ops
from turns import a_third as load_tests  # noqa: F401

from fanwise.keras import multi_gpu_model


class Hits(metrics.Metric):
    """The rows of each class that were found, with a state that is no sum over rows."""

    def __init__(self, name="hits", **settings):
        super().__init__(name=name, **settings)
        self.found = self.add_weight(shape=(3, 3), initializer="zeros", name="found")
        self.fading = self.add_weight(shape=(), initializer="zeros", name="fading")

    def update_state(self, y_true, y_pred, sample_weight=None):
        classes = ops.one_hot(ops.cast(ops.squeeze(y_true, -1), "int32"), 3)
        if sample_weight is not None:
            classes = classes * ops.reshape(ops.cast(sample_weight, self.dtype), (-1, 1))
        self.found.assign_add(ops.matmul(ops.transpose(classes), y_pred))
        self.fading.assign(self.fading * 0.5 + ops.sum(classes))

    def result(self):
        return ops.trace(self.found + 0.0) / (self.fading + 1.0)


class Several(Hits):
    def result(self):
        return {f"{self.name}_sum": ops.sum(self.found + 0.0), "a_last": self.fading + 0.0}


class Twice(metrics.MeanSquaredError):
    """Looks like a stock metric, and is none."""

    def result(self):
        return super().result() * 2.0


def data(rows=70):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return x, rng.integers(0, 3, (rows, 1)), rng.random(rows).astype(np.float32)


def classes():
    body = [layers.Dense(5, activation="tanh"), layers.Dense(3, activation="softmax")]
    return keras.Sequential([keras.Input((4,)), *body])


def two():
    x = keras.Input((4,))
    y = layers.Dense(5, activation="tanh")(x)
    kind = layers.Dense(3, activation="softmax", name="kind")(y)
    return keras.Model(x, [kind, layers.Dense(1, activation="sigmoid", name="odd")(y)])


class Metrics(unittest.TestCase):
    def both(self, make, compiled, *data, **fitted):
        """Trains and evaluates Keras' own model and its twin on three devices."""
        keras.utils.set_random_seed(3)
        own, other = make(), make()
        other.set_weights(own.get_weights())
        # Where sizes are open, Keras on TensorFlow weights the batches of an output's loss alike.
        even = keras.backend.backend() == "tensorflow" and len(own.outputs) > 1
        sizes = [35, 35, 70] if even else [32, 33, 32]
        found = []
        for model in (own, multi_gpu_model(other, 3, target="cpu")):
            model.compile(**compiled())
            fit, named, listed = ({"verbose": 0, "batch_size": size} for size in sizes)
            history = model.fit(*data, shuffle=False, **fit, **fitted)
            numbers = model.evaluate(*data[:2], return_dict=True, **named)
            found.append((history.history, numbers, model.evaluate(*data[:2], **listed)))
        for ours, keras_own in zip(found[1], found[0], strict=True):
            if isinstance(keras_own, dict):
                self.assertEqual(list(keras_own), list(ours))
                ours, keras_own = list(ours.values()), list(keras_own.values())
            for a, b in zip(ours, keras_own, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        return found[1]

    def test_a_users_own_metric_is_that_of_keras(self):
        x, y, weights = data()
        history, *_ = self.both(
            classes,
            lambda: {
                "optimizer": "sgd",
                "loss": "sparse_categorical_crossentropy",
                "metrics": [Hits(), "accuracy", Several(name="more")],
                "weighted_metrics": [Hits()],
            },
            x,
            y,
            sample_weight=weights,
            validation_split=0.2,
            epochs=2,
        )
        self.assertIn("val_more_sum", history)
        self.assertNotEqual(history["hits"], history["weighted_hits"])

    def test_classes_and_outputs_have_weights(self):
        x, y, weights = data()

        def compiled():
            return {"loss": "sparse_categorical_crossentropy", "weighted_metrics": [Hits()]}

        self.both(classes, compiled, x, y, class_weight={0: 1.0, 1: 3.0, 2: 0.5})

        def apart():
            own = {"kind": "sparse_categorical_crossentropy", "odd": "binary_crossentropy"}
            given = {"kind": [Hits()], "odd": [metrics.BinaryIoU(name="iou"), "accuracy"]}
            return {"loss": own, "weighted_metrics": given}

        self.both(two, apart, x, [y, y % 2], sample_weight=[weights, weights[::-1]])

    def test_metrics_without_a_counterpart_are_those_of_keras(self):
        x, y, _ = data()

        def compiled():
            own = {"kind": "sparse_categorical_crossentropy", "odd": "binary_crossentropy"}
            odd = [
                metrics.AUC(curve="PR", name="area"),
                metrics.Precision(thresholds=[0.2, 0.5], name="several"),
                metrics.F1Score(threshold=0.5, average="micro", name="f1"),
                metrics.CosineSimilarity(name="cosine"),
                metrics.PrecisionAtRecall(0.6, name="at_recall"),
                metrics.RootMeanSquaredError(name="root"),
                metrics.R2Score(name="r2"),
                Twice(name="twice"),
                metrics.MeanSquaredError(name="once"),
                metrics.Accuracy(name="equal"),
            ]
            return {"loss": own, "metrics": {"kind": [Hits()], "odd": odd}}

        odd = (y % 2).astype(np.float32)
        history, *_ = self.both(two, compiled, x, {"kind": y, "odd": odd}, epochs=2)
        np.testing.assert_allclose(
            history["odd_twice"], 2 * np.array(history["odd_once"]), rtol=1e-6
        )

    def test_a_metric_of_an_output_without_a_loss(self):
        x, y, _ = data()

        def compiled():
            loss = {"kind": None, "odd": "binary_crossentropy"}
            return {"loss": loss, "metrics": {"kind": [Hits()], "odd": ["accuracy"]}}

        self.both(two, compiled, x, {"kind": y, "odd": y % 2})

    def test_several_outputs_have_numbers_under_their_names(self):
        x, y, weights = data()
        targets = [y, (y % 2).astype(np.float32)]
        sparse, far = "sparse_categorical_accuracy", lambda y, p: ops.abs(y - p)[..., 0]
        for metric, weighted in (
            ([[sparse], ["mae"]], [[sparse], ["mae"]]),
            ([[], [metrics.R2Score]], [["accuracy"], []]),
            ([["accuracy"], [far]], [["accuracy"], ["mae"]]),
        ):

            def compiled(metric=metric, weighted=weighted):
                loss = ["sparse_categorical_crossentropy", "mse"]
                own = [[of() if isinstance(of, type) else of for of in each] for each in metric]
                return {"loss": loss, "metrics": own, "weighted_metrics": weighted}

            self.both(two, compiled, x, targets, sample_weight=[weights, weights])

    def test_stock_metrics_of_pairs_and_of_ignored_classes(self):
        x, y, _ = data()

        def compiled():
            sparse = metrics.SparseCategoricalCrossentropy(ignore_class=1, name="rest")
            pairs = [metrics.PearsonCorrelation(), metrics.ConcordanceCorrelation()]
            loss = {"kind": "sparse_categorical_crossentropy", "odd": "mse"}
            return {"loss": loss, "metrics": {"kind": [sparse], "odd": pairs}}

        self.both(two, compiled, x, {"kind": y, "odd": (y % 2).astype(np.float32)})

    def test_masks_reach_metrics_in_evaluation(self):
        rng = np.random.default_rng(2)
        x = rng.normal(size=(20, 5, 2)).astype(np.float32)
        x[:, 3:] = 0.0
        y = rng.normal(size=(20, 5, 1)).astype(np.float32)
        found = []
        keras.utils.set_random_seed(3)
        body = [layers.Masking(), layers.LSTM(3, return_sequences=True), layers.Dense(1)]
        own = keras.Sequential([keras.Input((5, 2)), *body])
        for model in (own, multi_gpu_model(own, 3, target="cpu")):
            model.compile(loss="mse", metrics=[Twice(name="twice"), "mse"])
            found.append(model.evaluate(x, y, verbose=0, batch_size=7))
        np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
        self.assertAlmostEqual(found[1][1], 2 * found[1][2], places=5)

    def test_the_state_is_that_of_the_last_pass(self):
        x, y, _ = data()
        metric = Hits()
        parallel = multi_gpu_model(classes(), 2, target="cpu")
        parallel.compile(loss="sparse_categorical_crossentropy", metrics=[metric])
        for _ in range(2):
            numbers = parallel.evaluate(x, y, verbose=0, return_dict=True)
            self.assertAlmostEqual(numbers["hits"], float(metric.result()), places=6)
        self.assertAlmostEqual(float(ops.sum(metric.found + 0.0)), 70.0, places=3)
        first = parallel.test_on_batch(x, y, return_dict=True)
        self.assertEqual(list(first), ["hits", "loss"])


if __name__ == "__main__":
    unittest.main()
