"""The loops around batches: `fit`, `evaluate` and `predict`, with Keras' data and callbacks."""

import functools
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ._engine import Engine, Start

# The seconds after which callbacks are told how far a loop is, and Ctrl-C can end it.
TURN = 0.05

# The bytes of arrays that are converted whole.
SMALL = 1 << 24


def _batches(**data: Any) -> Any:
    """An iterator over epochs of batches: all data that Keras takes."""
    from keras.src.trainers.epoch_iterator import EpochIterator

    return EpochIterator(**_told_apart(data))


def _told_apart(data: dict[str, Any]) -> dict[str, Any]:
    """Data that Keras takes; of any other iterable the elements are batches."""
    from keras.src.trainers import data_adapters as adapters

    x = data["x"]
    own = (
        dict,
        list,
        tuple,
        types.GeneratorType,
        adapters.data_adapter.DataAdapter,
        adapters.py_dataset_adapter.PyDataset,
    )
    is_known = (
        isinstance(x, own)
        or hasattr(x, "shape")
        or adapters.is_tf_dataset(x)
        or adapters.is_torch_dataloader(x)
        or adapters.is_grain_dataset(x)
    )
    if is_known or not hasattr(x, "__iter__"):
        return data
    return {**data, "x": _iterable(x), "shuffle": False}


def _iterable(batches: Any) -> Any:
    """An iterable of batches, which each epoch goes through from the beginning."""
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter

    class Batches(DataAdapter):  # type: ignore[misc]
        batch_size = None
        has_partial_batch = None
        partial_batch_size = None
        num_batches = len(batches) if hasattr(batches, "__len__") else None

        def get_numpy_iterator(self) -> Iterator[Any]:
            return iter(batches)

    return Batches()


def _steps(batches: Any) -> Iterator[tuple[int, int, Any]]:
    with batches.catch_stop_iteration():
        for begin, end, buffer in batches:
            for batch in buffer:
                yield begin, end, batch


def _unpacked(batch: Any) -> tuple[Any, Any, Any]:
    from keras.src.trainers.data_adapters import data_adapter_utils

    x, y, weight = data_adapter_utils.unpack_x_y_sample_weight(batch)
    return x, y, weight


def _callbacks(given: Any, template: Any, **settings: Any) -> Any:
    from keras.src.callbacks import CallbackList

    if isinstance(given, CallbackList):
        return given
    return CallbackList(given, model=template, **settings)


def _is_watched(callbacks: Any) -> bool:
    """Whether callbacks of the user are told of batches."""
    from keras.callbacks import History, ProgbarLogger

    return any(type(callback) not in (History, ProgbarLogger) for callback in callbacks.callbacks)


def fit(engine: Engine, data: dict[str, Any], settings: dict[str, Any]) -> Any:
    """Trains for some epochs; Keras' history."""
    template = engine.template
    data, validation = _validation(data, settings)
    batches = _batches(
        **data,
        batch_size=settings["batch_size"],
        steps_per_epoch=settings["steps_per_epoch"],
        shuffle=settings["shuffle"],
        class_weight=settings["class_weight"],
    )
    verbose, epochs = settings["verbose"], settings["epochs"]
    goes_on = epochs - settings["initial_epoch"] > 1 and settings["steps_per_epoch"] is None
    ends = isinstance(data["x"], Iterator) and not isinstance(data["x"], types.GeneratorType)
    if goes_on and ends:
        raise ValueError("the data end with the first epoch: give an iterable, or one epoch")
    callbacks = _callbacks(
        settings["callbacks"],
        template,
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=batches.num_batches,
    )
    template.stop_training = False
    template._initial_epoch = None
    logs: dict[str, Any] = {}
    callbacks.on_train_begin()
    first = template._initial_epoch or settings["initial_epoch"]
    try:
        for epoch in range(first, epochs):
            engine.reset()
            callbacks.on_epoch_begin(epoch)
            watched = _is_watched(callbacks)
            logs = _epoch(engine, batches, callbacks if watched or verbose else None, watched)
            engine.settle()
            if validation is not None and _is_due(epoch, settings["validation_freq"]):
                found = _validated(engine, validation, settings, callbacks)
                logs = logs | {f"val_{name}": value for name, value in found.items()}
            callbacks.on_epoch_end(epoch, logs)
            if template.stop_training:
                break
        engine.finish()
    finally:
        # The steps before one that fails, or before Ctrl-C, count.
        engine.settle()
    callbacks.on_train_end(logs)
    return template.history


def _epoch(engine: Engine, batches: Any, callbacks: Any, watched: bool) -> dict[str, Any]:
    """The steps of an epoch; without `callbacks` nobody is told of batches, which costs a step of a
    small model a third of its time."""
    logs: dict[str, Any] = {}
    start = functools.partial(engine.start_step, train=True)
    many = None if watched else functools.partial(engine.steps, train=True)
    begin = None if callbacks is None else callbacks.on_train_batch_begin
    for end, step in _started(batches, start, many, begin):
        logs = engine.finish_step(step)
        if watched:
            engine.settle()
        if callbacks is not None:
            callbacks.on_train_batch_end(end, logs)
        if engine.template.stop_training:
            break
    return dict(logs)


def _started(
    batches: Any, start: Callable[..., Any], many: Callable[..., Any] | None, begin: Any
) -> Iterator[tuple[int, Any]]:
    """What `start` gives for each batch, in order, with the number of the batch.

    If somebody watches the batches, there is no `many`. Else, where Keras cuts them out of arrays,
    what is next is started before the result of what is in front of it is waited for, and what
    `many` gives starts several at once. Other data may use the memory of a batch again.
    """
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    adapter = batches.data_adapter
    if many is None or not isinstance(adapter, ArrayDataAdapter):
        return _each(batches, start, begin)
    several = None
    if _can_be_cut(batches):
        several = many(adapter.batch_size, *_unpacked(adapter._inputs))
    if several is None:
        return _ahead(_each(batches, start, begin))
    return _ahead(_several(adapter, several, begin))


def _ahead(started: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """What was started, one late."""
    before = None
    for one in started:
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before


def _each(batches: Any, start: Callable[..., Any], begin: Any) -> Iterator[tuple[int, Any]]:
    for first, last, batch in _steps(batches):
        if begin is not None:
            begin(first)
        yield last, start(*_unpacked(batch))


def _several(adapter: Any, start: Start, begin: Any) -> Iterator[tuple[int, Any]]:
    """As many batches of arrays at once as run for about `TURN`."""
    batch, order = adapter.batch_size, _order(adapter)
    first, count, before = 0, 1, time.perf_counter()
    while first < adapter.num_batches:
        last = min(first + count, adapter.num_batches)
        if begin is not None:
            begin(first)
        yield last - 1, start(order[first * batch : last * batch], batch)
        now = time.perf_counter()
        took, before = now - before, now
        # The results of the second batch are the first that were waited for.
        if first and took < TURN / 2:
            count *= 2
        elif took > TURN:
            count = max(1, count // 2)
        first = last


def _order(adapter: Any) -> np.ndarray:
    """The numbers of the rows in the order of batches, by the draws of Keras' own iterator."""
    rows, batch = adapter._num_samples, adapter.batch_size
    if adapter._shuffle == "batch":
        firsts = range(0, rows, batch)
        parts = [np.random.permutation(min(batch, rows - at)) + at for at in firsts]
        return np.concatenate(parts)
    return np.random.permutation(rows) if adapter._shuffle else np.arange(rows)


def _can_be_cut(batches: Any) -> bool:
    """Whether batches can be cut out of arrays as programs take them. Nearly all of them take floats
    of 32 bits; other arrays, and views, may have to be converted whole, and must be small."""
    from keras import tree

    arrays = [array for array in tree.flatten(batches.data_adapter._inputs) if array is not None]
    return batches.steps_per_epoch is None and all(
        isinstance(array, np.ndarray)
        and ((array.dtype == np.float32 and array.flags.c_contiguous) or array.nbytes < SMALL)
        for array in arrays
    )


def _is_due(epoch: int, every: Any) -> bool:
    return (epoch + 1) % every == 0 if isinstance(every, int) else (epoch + 1) in every


def _validation(
    data: dict[str, Any], settings: dict[str, Any]
) -> tuple[dict[str, Any], tuple[Any, Any, Any] | None]:
    """The data to train on, and those that validate."""
    from keras.src.trainers.data_adapters import array_slicing

    given, fraction = settings["validation_data"], settings["validation_split"]
    if given is not None:
        return data, _unpacked(given)
    if not fraction:
        return data, None
    arrays = (data["x"], data["y"], data["sample_weight"])
    first, last = array_slicing.train_validation_split(arrays, validation_split=fraction)
    return dict(zip(("x", "y", "sample_weight"), first, strict=True)), last


def _validated(
    engine: Engine, data: tuple[Any, Any, Any], settings: dict[str, Any], callbacks: Any
) -> dict[str, Any]:
    given = dict(zip(("x", "y", "sample_weight"), data, strict=True))
    return evaluate(
        engine,
        given,
        batch_size=settings["validation_batch_size"] or settings["batch_size"],
        steps=settings["validation_steps"],
        callbacks=callbacks,
        verbose=0,
    )


def _of_one_pass(settings: dict[str, Any], template: Any, batches: Any) -> Any:
    """The callbacks of an evaluation or a prediction."""
    verbose = settings["verbose"]
    return _callbacks(
        settings["callbacks"],
        template,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=1,
        steps=batches.num_batches,
    )


def evaluate(engine: Engine, data: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """The loss and the metrics of all batches."""
    template = engine.template
    batches = _batches(**data, batch_size=settings["batch_size"], steps_per_epoch=settings["steps"])
    callbacks = _of_one_pass(settings, template, batches)
    template.stop_evaluating = False
    callbacks.on_test_begin()
    engine.reset()
    logs: dict[str, Any] = {}
    start = functools.partial(engine.start_step, train=False)
    many = None if _is_watched(callbacks) else functools.partial(engine.steps, train=False)
    for end, step in _started(batches, start, many, callbacks.on_test_batch_begin):
        logs = engine.finish_step(step)
        callbacks.on_test_batch_end(end, logs)
        if template.stop_evaluating:
            break
    callbacks.on_test_end(logs)
    return flat(logs)


def flat(logs: dict[str, Any]) -> dict[str, Any]:
    """Numbers as Keras gives them away: sorted by name, those of a metric that has several by
    their own names."""
    from keras.src.utils.python_utils import pythonify_logs

    return dict(pythonify_logs(logs))


def predict(engine: Engine, x: Any, **settings: Any) -> list[np.ndarray]:
    """The outputs for all batches, in order."""
    template = engine.template
    batches = _batches(x=x, batch_size=settings["batch_size"], steps_per_epoch=settings["steps"])
    callbacks = _of_one_pass(settings, template, batches)
    template.stop_predicting = False
    callbacks.on_predict_begin()
    parts: list[list[np.ndarray]] = []
    start = lambda x, *_: engine.start_prediction(x)
    many = None if _is_watched(callbacks) else lambda _, x, *rest: engine.predictions(x)
    for end, run in _started(batches, start, many, callbacks.on_predict_batch_begin):
        found = engine.predicted(run)
        parts.append(found)
        callbacks.on_predict_batch_end(end, {"outputs": found})
        if template.stop_predicting:
            break
    callbacks.on_predict_end()
    if not parts:
        raise ValueError("the data have no batch to predict")
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]
