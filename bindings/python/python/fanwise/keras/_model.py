"""A model of Keras on several devices."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._graph import Graph
from . import _engine, _fit
from ._engine import Engine


class ParallelModel:
    """A template on several devices, with the methods of a model of Keras.

    It shares the template's weights: what one of them learns or is given, the other has. What it
    does not do itself is done by the template: layers, weights, files, summaries.
    """

    def __init__(self, template: Any, options: dict[str, Any], *, reproducible: bool) -> None:
        self._settings = (options, reproducible)
        self._engine = Engine(template, options, reproducible=reproducible)

    @property
    def template(self) -> Any:
        """The model that was replicated."""
        return self._engine.template

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_engine" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.template, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.template(*args, **kwargs)

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs; of outputs of one name each has a number."""
        names = list(getattr(self.template, "output_names", self._engine.outputs))
        numbers = dict.fromkeys(names, 0)
        unique = []
        for name in names:
            numbers[name] += 1
            unique.append(f"{name}_{numbers[name]}" if names.count(name) > 1 else name)
        return unique

    @property
    def stop_training(self) -> bool:
        """Whether a callback ends the training."""
        return bool(self.template.stop_training)

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self.template.stop_training = value

    @property
    def trainable(self) -> bool:
        """Whether the template is trained."""
        return bool(self.template.trainable)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.template.trainable = value

    @property
    def weight_copies(self) -> int:
        """The tensors that were copied between the template and the devices so far."""
        return self._engine.store.copied

    @property
    def graph(self) -> Graph:
        """The replicated graph of the template's inference, as it is now."""
        options = {**self._settings[0]}
        return Graph(_engine.loaded(self.template)[0], options)

    def pop_layer(self) -> Any:
        """Removes the last layer of a sequential template."""
        layer = self.template.pop()
        options, reproducible = self._settings
        self._engine = Engine(self.template, options, reproducible=reproducible)
        return layer

    # Training.

    def compile(self, optimizer: Any = "rmsprop", loss: Any = None, **settings: Any) -> None:
        """Says how the model is trained: Keras' arguments. The template is compiled with them too,
        so that callbacks and files have the optimizer."""
        settings = {name: value for name, value in settings.items() if value is not None}
        for old in ("sample_weight_mode", "target_tensors"):
            if old in settings:
                raise ValueError(f"`{old}` is no argument of `compile` any more")
        self.template.compile(optimizer=optimizer, loss=loss, **settings)
        self.compiled()

    def compiled(self) -> None:
        """Takes over what the template was compiled with."""
        self._engine.compile()

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> Any:
        """Trains for some epochs: Keras' arguments, and Keras' history."""
        given = dict(locals())
        self._require("fit")
        data = {name: given.pop(name) for name in ("x", "y", "sample_weight")}
        del given["self"]
        return _fit.fit(self._engine, data, given)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """The loss and the metrics of data."""
        self._require("evaluate")
        logs = _fit.evaluate(
            self._engine,
            {"x": x, "y": y, "sample_weight": sample_weight},
            batch_size=batch_size,
            verbose=verbose,
            steps=steps,
            callbacks=callbacks,
        )
        return self._told(logs, return_dict)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """The outputs for data, in the structure that the template's have."""
        found = _fit.predict(
            self._engine,
            x,
            batch_size=batch_size,
            verbose=verbose,
            steps=steps,
            callbacks=callbacks,
        )
        return self._packed(found)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """One step of training; the numbers of the batch."""
        self._require("train_on_batch")
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError("`sample_weight` and `class_weight` exclude each other")
            sample_weight = _by_class(y, class_weight)
        x, y, sample_weight = _arrays((x, y, sample_weight))
        self._engine.reset()
        logs = self._engine.step(x, y, sample_weight, train=True)
        self._engine.settle()
        return self._told(_fit.flat(logs), return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """The loss and the metrics of a batch."""
        self._require("test_on_batch")
        x, y, sample_weight = _arrays((x, y, sample_weight))
        self._engine.reset()
        logs = self._engine.step(x, y, sample_weight, train=False)
        return self._told(_fit.flat(logs), return_dict)

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs for a batch."""
        return self._packed(self._engine.predict(x))

    def reset_metrics(self) -> None:
        """The numbers of losses and metrics begin anew."""
        self._engine.reset()

    # The old names.

    def fit_generator(self, generator: Any, steps_per_epoch: int | None = None, **kw: Any) -> Any:
        """`fit`."""
        return self.fit(generator, steps_per_epoch=steps_per_epoch, **_current(kw))

    def evaluate_generator(self, generator: Any, steps: int | None = None, **kw: Any) -> Any:
        """`evaluate`."""
        return self.evaluate(generator, steps=steps, **_current(kw))

    def predict_generator(self, generator: Any, steps: int | None = None, **kw: Any) -> Any:
        """`predict`."""
        return self.predict(generator, steps=steps, **_current(kw))

    def predict_proba(self, x: Any, batch_size: int = 32, verbose: Any = 0) -> Any:
        """`predict`."""
        return self.predict(x, batch_size=batch_size, verbose=verbose)

    def predict_classes(self, x: Any, batch_size: int = 32, verbose: Any = 0) -> np.ndarray:
        """The class of each row: the largest of several outputs, or one that is above a half."""
        found: np.ndarray = self.predict(x, batch_size=batch_size, verbose=verbose)
        if found.shape[-1] > 1:
            found = found.argmax(axis=-1)
        else:
            found = (found > 0.5).astype("int32")
        return found

    def save(self, filepath: str | os.PathLike[str], **settings: Any) -> None:
        """Saves the template, with the trained weights and the optimizer."""
        self.template.save(filepath, **settings)

    def _require(self, method: str) -> None:
        self.template._assert_compile_called(method)

    def _told(self, logs: dict[str, Any], return_dict: bool) -> Any:
        return logs if return_dict else self.template._flatten_metrics_in_order(logs)

    def _packed(self, outputs: list[np.ndarray]) -> Any:
        from keras import tree

        structure = getattr(self.template, "_outputs_struct", None)
        if structure is None:
            return outputs[0]
        return tree.pack_sequence_as(structure, outputs)

    def __repr__(self) -> str:
        return f"<fanwise.keras.ParallelModel of {self.template.name}>"


def _arrays(data: Any) -> Any:
    """Structures of arrays, with floats in the type that Keras computes in."""
    from keras import backend, tree

    def one(array: Any) -> np.ndarray:
        from ._feed import host

        found = host(array)
        return found.astype(backend.floatx()) if found.dtype.kind == "f" else found

    return tree.map_structure(lambda array: None if array is None else one(array), data)


def _by_class(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    from keras.src.trainers.data_adapters import data_adapter_utils

    return np.asarray(data_adapter_utils.class_weight_to_sample_weights(y, class_weight))


def _current(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those of queues and processes, which Keras no longer has."""
    old = ("max_queue_size", "workers", "use_multiprocessing", "pickle_safe", "max_q_size")
    return {name: value for name, value in settings.items() if name not in old}
