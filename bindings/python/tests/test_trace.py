"""Losses, metrics, layers and models that a user wrote, beside Keras' own training of them."""

import unittest

import keras
import numpy as np
from keras import layers, losses, ops
from turns import a_third as load_tests  # noqa: F401

import fanwise
from fanwise.keras import multi_gpu_model

ROWS = 22


def data(*shape, seed=5):
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype(np.float32)


def one_hot(classes=3):
    return np.eye(classes, dtype=np.float32)[np.arange(ROWS) % classes]


class Affine(layers.Layer):
    """A layer with variables, one of which is not trained, and a branch for training."""

    def __init__(self, units, **settings):
        super().__init__(**settings)
        self.units = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), name="w")
        self.parts = [self.add_weight(shape=(self.units,), name=f"b{i}") for i in range(2)]
        self.shift = self.add_weight(
            shape=(self.units,), name="shift", trainable=False, initializer="ones"
        )

    def call(self, x, training=False):
        y = ops.matmul(x, ops.square(self.w) + self.w) + self.parts[0] * self.shift
        return y * 1.5 if training else y + 0.5 * self.parts[1]


class Block(layers.Layer):
    """A layer of layers, of its own and of Keras, that passes masks on."""

    def __init__(self, units, **settings):
        super().__init__(**settings)
        self.inner = layers.Dense(units, activation="relu", name="inner")
        self.affine = Affine(units, name="affine")
        self.norm = layers.LayerNormalization(name="norm")
        self.supports_masking = True

    def build(self, shape):
        self.inner.build(shape)
        self.affine.build((*shape[:-1], self.inner.units))
        self.norm.build((*shape[:-1], self.inner.units))

    def compute_output_shape(self, shape):
        return (*shape[:-1], self.inner.units)

    def call(self, x, training=None):
        y = self.inner(x)
        return self.norm(y + self.affine(y, training=training))


class Table(layers.Layer):
    """An embedding of one's own, with a number for each place."""

    def build(self, shape):
        self.words = self.add_weight(shape=(9, 4), name="words")
        self.places = self.add_weight(shape=(shape[-1], 4), name="places")

    def call(self, x):
        found = ops.take(self.words, x, axis=0)
        return found + ops.take(self.places, ops.arange(x.shape[-1]), axis=0)


class Kept(layers.Layer):
    """A layer that reads its mask and gives another."""

    def call(self, x, mask=None):
        if mask is None:
            return x
        return x * ops.cast(ops.expand_dims(mask, -1), x.dtype)

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else ops.logical_not(mask)


@keras.saving.register_keras_serializable("tests")
class Cell(layers.Layer):
    """A cell of one state, which does something else in training."""

    def __init__(self, units, **settings):
        super().__init__(**settings)
        self.units = self.state_size = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")

    def call(self, x, states, training=False):
        sums = ops.matmul(x, self.kernel) + ops.matmul(states[0], self.recurrent)
        y = ops.tanh(sums) * (1.1 if training else 1.0)
        return y, [y]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Counting(Cell):
    """A cell of two states, which begins with one of its own."""

    def __init__(self, units, **settings):
        super().__init__(units, **settings)
        self.state_size, self.output_size = [units, units], units

    def call(self, x, states):
        y, _ = super().call(x, states)
        count = states[1] * 0.5 + y
        return y + count, [y, count]

    def get_initial_state(self, batch_size=None):
        return [ops.ones((batch_size, self.units)) * 0.3, ops.zeros((batch_size, self.units))]


class Whole(keras.Model):
    """A subclass of `Model` with a `call` of its own."""

    def __init__(self):
        super().__init__(name="whole")
        self.first, self.second = Block(5, name="first"), layers.Dense(3, name="second")

    def call(self, x, training=None):
        return ops.softmax(self.second(self.first(x, training=training)))


def small():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])


def functional(*body, shape=(4,), last="softmax"):
    x = y = keras.Input(shape)
    for layer in body:
        y = layer(y)
    return keras.Model(x, layers.Dense(3, activation=last, name="last")(y))


def squares(y, p):
    return ops.mean(ops.square(y - p) * ops.exp(p), axis=-1)


class Signed(losses.Loss):
    def call(self, y, p):
        return ops.sum((y - p) * ops.abs(y - p), axis=-1)


def gap(y, p):
    return ops.sqrt(ops.sum(ops.square(y - p), axis=-1))


class Traced(unittest.TestCase):
    def beside(self, make, x, y, loss="mse", gpus=3, batch=8, **settings):
        """Trains a model and its twin; both are the same before and behind."""
        keras.utils.set_random_seed(3)
        own = make()
        keras.utils.set_random_seed(3)
        other = make()
        for model in (own, other):
            if not model.built:
                model(x)
        other.set_weights(own.get_weights())
        parallel = multi_gpu_model(other, gpus, target="cpu")
        self.close(own.predict(x, verbose=0), parallel.predict(x, verbose=0))
        given = {k: settings.pop(k) for k in ("metrics", "weighted_metrics") if k in settings}
        for model in (own, parallel):
            metrics = {k: make_metrics() for k, make_metrics in given.items()}
            model.compile(optimizer=keras.optimizers.SGD(0.05, 0.9), loss=loss, **metrics)
        fit = {"epochs": 2, "batch_size": batch, "shuffle": False, "verbose": 0, **settings}
        wanted, found = own.fit(x, y, **fit).history, parallel.fit(x, y, **fit).history
        self.assertEqual(list(wanted), list(found))
        for name, values in wanted.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
        for a, b in zip(own.get_weights(), other.get_weights(), strict=True):
            self.close(a, b)
        self.close(own.predict(x, verbose=0), parallel.predict(x, verbose=0))
        return parallel

    def close(self, wanted, found):
        if isinstance(wanted, list):
            for one, other in zip(wanted, found, strict=True):
                self.close(one, other)
            return
        bound = 1e-4 * max(1e-3, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)

    def test_losses(self):
        for loss in (squares, Signed(), losses.Dice(axis=-1), losses.Tversky(axis=-1)):
            with self.subTest(loss=loss):
                self.beside(small, data(4), one_hot(), loss)
        weight = np.linspace(0, 2, ROWS).astype(np.float32)
        self.beside(small, data(4), one_hot(), squares, sample_weight=weight)

    def test_a_loss_that_takes_numbers_of_classes(self):
        classes = one_hot().argmax(axis=-1)

        def make():
            x = keras.Input((4,))
            return keras.Model(x, layers.Dense(one_hot().shape[-1], activation="softmax")(x))

        self.beside(make, data(4), classes, losses.CategoricalGeneralizedCrossEntropy(0.5))

    def test_a_loss_of_the_whole_batch(self):
        self.beside(small, data(4), one_hot(), losses.Dice())

    def test_losses_of_steps_with_masks(self):
        def make():
            x = keras.Input((6, 4))
            return keras.Model(x, layers.Dense(3)(layers.Masking()(x)))

        x = data(6, 4)
        x[::2, 3:] = 0
        self.beside(make, x, data(6, 3), squares)

    def test_metrics(self):
        self.beside(
            small,
            data(4),
            one_hot(),
            "categorical_crossentropy",
            metrics=lambda: [gap, "accuracy", squares],
            weighted_metrics=lambda: [gap],
            sample_weight=np.linspace(0, 2, ROWS).astype(np.float32),
        )

    def test_losses_and_metrics_of_several_outputs(self):
        def make():
            x = keras.Input((4,))
            return keras.Model(x, [layers.Dense(3, name="a")(x), layers.Dense(2, name="b")(x)])

        given = {"a": [gap, "mae"], "b": [squares]}
        y = [one_hot(), data(2)]
        self.beside(make, data(4), y, {"a": squares, "b": "mse"}, metrics=lambda: given)

    def test_layers(self):
        for name, body in {
            "variables": lambda: [Affine(5)],
            "layers": lambda: [Block(5), layers.BatchNormalization(), Block(5)],
            "lambda": lambda: [layers.Lambda(lambda x: ops.tanh(x) * 2.0), layers.Dense(4)],
            "nested": lambda: [keras.Sequential([keras.Input((4,)), Block(5)]), layers.Dense(4)],
        }.items():
            with self.subTest(name):
                self.beside(lambda body=body: functional(*body()), data(4), one_hot())

    def test_a_shared_layer(self):
        def make():
            x, shared = keras.Input((4,)), Affine(4)
            return keras.Model(x, shared(shared(x)))

        self.beside(make, data(4) * 0.1, data(4) * 0.1, epochs=1)

    def test_masks(self):
        for name, body in {
            "passed": lambda: [layers.Masking(), Block(4), layers.LSTM(5)],
            "changed": lambda: [layers.Masking(), Kept(), layers.GRU(5)],
        }.items():
            x = data(6, 4)
            x[::2, 3:] = 0
            x[:, 5] = 0
            with self.subTest(name):
                self.beside(lambda body=body: functional(*body(), shape=(6, 4)), x, one_hot())

    def test_models(self):
        parallel = self.beside(Whole, data(4), one_hot(), "categorical_crossentropy")
        self.assertEqual(parallel.template.name, "whole")

    def test_bits_are_the_same_on_any_number_of_devices(self):
        keras.utils.set_random_seed(1)
        model, x = functional(Block(5)), data(4)
        found = [multi_gpu_model(model, n, target="cpu").predict(x, verbose=0) for n in (2, 3, 8)]
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)

    def test_the_template_stays_as_it_was(self):
        keras.utils.set_random_seed(1)
        model, x = functional(Block(5)), data(4)
        before = model.get_config()
        calls = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
        parallel = multi_gpu_model(model, 2, target="cpu")
        parallel.compile(loss=squares, metrics=[gap])
        parallel.fit(x, one_hot(), verbose=0)
        self.assertEqual(calls, [len(layer._inbound_nodes) for layer in model._flatten_layers()])
        self.assertEqual(before, model.get_config())

    def test_a_table_is_read_at_places(self):
        def make():
            x = keras.Input((5,), dtype="int32")
            return keras.Model(x, layers.Dense(3)(layers.Flatten()(Table()(x))))

        words = np.random.default_rng(2).integers(0, 9, (ROWS, 5)).astype(np.int32)
        self.beside(make, words, one_hot())

    def test_wrappers_of_keras_hold_code(self):
        x = data(5, 4)
        x[3:9, 2:4] = 0.0
        x[:4, 0] = 0.0
        masked = layers.Masking
        for name, body in {
            "each step": lambda x: layers.TimeDistributed(Block(3))(x),
            "each masked step": lambda x: layers.TimeDistributed(Block(3))(masked()(x)),
            "cell": lambda x: layers.RNN(Cell(3), go_backwards=True)(x),
            "states": lambda x: layers.RNN(Counting(3), return_state=True)(x)[2],
            "given state": lambda x: layers.RNN(Cell(4))(x, initial_state=x[:, 1]),
            "cells": lambda x: layers.RNN([Cell(3), layers.LSTMCell(2)])(x),
            "masked": lambda x: layers.RNN(Counting(3), return_sequences=True)(masked()(x)),
            "zeros": lambda x: layers.RNN(
                Cell(3), return_sequences=True, go_backwards=True, zero_output_for_mask=True
            )(masked()(x)),
            "unrolled": lambda x: layers.RNN(Cell(3), unroll=True)(masked()(x)),
            "both ways": lambda x: layers.Bidirectional(layers.RNN(Cell(3)))(masked()(x)),
            "pipeline": lambda x: layers.Pipeline([Affine(3), layers.Rescaling(2.0)])(x),
        }.items():

            def make(body=body):
                first = keras.Input((5, 4))
                return keras.Model(first, layers.Dense(3)(layers.Flatten()(body(first))))

            with self.subTest(name):
                self.beside(make, x, one_hot())

    def test_what_cannot_be_traced_is_refused_by_name(self):
        class Random(layers.Layer):
            def __init__(self, **settings):
                super().__init__(**settings)
                self.seeds = keras.random.SeedGenerator(1)

            def call(self, x):
                return x + keras.random.normal((4,), seed=self.seeds)

        class Adds(layers.Layer):
            def call(self, x):
                self.add_loss(ops.sum(x))
                return x

        class Array(layers.Layer):
            def compute_output_shape(self, shape):
                return shape

            def call(self, x):
                return np.tanh(x)

        class Hidden(layers.Layer):
            def build(self, shape):
                self.w = self.add_weight(shape=(4,), name="w")
                self.get = lambda w=self.w: w

            def call(self, x):
                return x * ops.square(self.get())

        class Steps(layers.Layer):
            def build(self, shape):
                self.count = self.add_weight(shape=(), name="count", trainable=False)

            def call(self, x):
                self.count.assign(self.count + 1)
                return x

        for kind in (Random, Adds, Array, Hidden, Steps):
            with self.subTest(kind.__name__):
                model = functional(kind(name="mine"))
                with self.assertRaisesRegex(fanwise.RefusedError, "mine") as caught:
                    multi_gpu_model(model, 2, target="cpu")
                self.assertEqual(caught.exception.layer, "mine")

        def by_array(y, p):
            return np.mean(y - p)

        for settings in ({"loss": by_array}, {"loss": "mse", "metrics": [by_array]}):
            parallel = multi_gpu_model(small(), 2, target="cpu")
            parallel.compile(**settings)
            with self.assertRaisesRegex(fanwise.RefusedError, "by_array"):
                parallel.fit(data(4), one_hot(), verbose=0)


if __name__ == "__main__":
    unittest.main()
