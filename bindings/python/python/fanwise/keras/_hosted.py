"""Metrics that Keras itself counts, from the targets and the predictions of whole batches."""

from typing import Any, NamedTuple

from . import _feed


class Batch(NamedTuple):
    """What a batch gives to metrics, beside its predictions."""

    y: Any
    sample_weight: Any
    # The names of outputs in programs.
    names: list[str]


class Hosted:
    """The metrics that have no counterpart: programs give their outputs, which Keras compares."""

    def __init__(self, metrics: Any) -> None:
        self._of_all = metrics
        self._own: list[tuple[Any, int, bool]] = []

    def add(self, metric: Any, output: int, *, weighted: bool) -> None:
        """A metric of an output, in which rows count by their weights or not."""
        self._own.append((metric, output, weighted))

    @property
    def has_any(self) -> bool:
        """Whether there are any."""
        return bool(self._own)

    def outputs(self, names: list[str]) -> set[str]:
        """The names of the outputs that are compared."""
        return {names[output] for _, output, _ in self._own}

    def reset(self) -> None:
        """The numbers begin anew."""
        for metric, *_ in self._own:
            metric.reset_state()

    def update(self, found: dict[str, Any], batch: Batch) -> None:
        """Adds a batch with the outputs of its program."""
        if not self._own:
            return
        targets = _tensors(self._of_all._flatten_y(batch.y))
        weights: list[Any] = [None] * len(targets)
        if batch.sample_weight is not None:
            weights = _tensors(self._of_all._flatten_y(batch.sample_weight))
            # Weights of one output count for all, as in Keras.
            weights = weights if len(weights) >= len(targets) else weights[:1] * len(targets)
        predicted = {at: _masked(found, batch, at) for at in {at for _, at, _ in self._own}}
        for metric, at, weighted in self._own:
            if weighted:
                metric.update_state(targets[at], predicted[at], sample_weight=weights[at])
            else:
                metric.update_state(targets[at], predicted[at])


def _tensors(arrays: list[Any]) -> list[Any]:
    from keras import ops

    return [None if array is None else ops.convert_to_tensor(array) for array in arrays]


def _masked(found: dict[str, Any], batch: Batch, at: int) -> Any:
    """The prediction of an output as Keras gives it to metrics."""
    from keras import ops
    from keras.src.backend import set_keras_mask

    name = batch.names[at]
    predicted = ops.convert_to_tensor(found[f"{name}.predicted"])
    mask = found.get(f"{name}.counted")
    if mask is not None:
        set_keras_mask(predicted, ops.convert_to_tensor(mask, dtype="bool"))
    return predicted


def told(metric: Any) -> Any:
    """The result of a metric: a number, or several by name."""
    found = metric.result()
    if isinstance(found, dict):
        return {name: _number(value) for name, value in found.items()}
    return _number(found)


def _number(value: Any) -> Any:
    found = _feed.host(value)
    return float(found) if found.size == 1 else found
