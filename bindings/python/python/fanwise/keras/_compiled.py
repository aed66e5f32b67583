"""What `compile` was given, as the specification of a training, and the numbers that it tells."""

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _compile, _hosted
from ._trace import Cost


@dataclass
class Loss:
    """The loss and the metrics of one output."""

    output: int
    text: str
    axis: int | None
    weight: float
    metrics: list[str] = field(default_factory=list)
    weighted: list[str] = field(default_factory=list)
    # The number of the cost that was traced, if this is one.
    cost: int | None = None


class Compiled:
    """The losses, metrics and names of a compiled template.

    Keras itself resolves what was given: strings, nested structures, which accuracy is meant.
    """

    def __init__(self, template: Any, outputs: list[str]) -> None:
        self.outputs = outputs
        self.losses: list[Loss] = []
        # The names of the numbers of a batch in Keras' order: losses of outputs come last.
        self.metric_names: list[str] = []
        self.loss_names: list[str] = []
        # What was written in Python, as functions that give costs.
        self.costs: list[Cost] = []
        self.hosted = _hosted.Hosted(template._compile_metrics)
        self._read(template)

    def _read(self, template: Any) -> None:
        # Those that are only told come last.
        found: dict[tuple[bool, int], Loss] = {}
        for path, loss, weight, _ in template._compile_loss._flat_losses:
            at = self._output(path)
            if (False, at) in found:
                raise _compile.refused("a second loss of the output", self.outputs[at])
            found[False, at] = self._loss(loss, at, 1.0 if weight is None else float(weight))
        self.loss_names = [metric.name for metric in template._compile_loss.metrics]
        # Outputs have losses in the order of the outputs, whatever that of a dict is.
        self._loss_order = list(found.values())
        metrics = template._compile_metrics
        own: list[tuple[Loss, bool, int] | Any] = []
        if metrics is not None:
            self.metric_names = list(metrics.result())
            lists = zip(metrics._flat_metrics, metrics._flat_weighted_metrics, strict=True)
            # Weighted ones come behind all others, as in Keras.
            for kind, all_of in enumerate(zip(*lists, strict=True)):
                for at, given in enumerate(all_of):
                    for one in [] if given is None else given.metrics:
                        own.append(self._metric(one, at, found, bool(kind)))
        self.losses = [found[at] for at in sorted(found)]
        # Of each metric: its number among those that programs tell, or itself where Keras counts.
        self._metric_order = [self._place(*one) if type(one) is tuple else one for one in own]

    def _loss(self, loss: Any, at: int, weight: float) -> Loss:
        """The loss of an output."""
        made = _compile.loss(loss, at)
        if isinstance(made, Cost):
            return Loss(at, _compile.COSTS, None, weight, cost=self._cost(made))
        return Loss(at, *made, weight)

    def _cost(self, cost: Cost) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def _metric(
        self, metric: Any, at: int, found: dict[tuple[bool, int], Loss], weighted: bool
    ) -> tuple[Loss, bool, int] | Any:
        """Where a metric of an output is: beside which loss, in which of its lists, and where; or
        the metric, if Keras itself counts it."""
        made = _compile.metric(metric, at)
        if made is None:
            self.hosted.add(metric, at, weighted=weighted)
            return metric
        if isinstance(made, Cost):
            # It is the metric of an output of its own, which adds nothing to the loss.
            cost = self._cost(made)
            beside = found[True, len(self.outputs) + cost] = Loss(at, _compile.COSTS, None, 0.0)
            beside.cost, text = cost, _compile.COSTS
        else:
            text, own = made, found.get((False, at))
            if own is None or own.cost is not None:
                # An output without a loss is compared all the same; it adds nothing.
                kind = "sparse_categorical_crossentropy" if "sparse" in text else "mse"
                own = found.setdefault((True, at), Loss(at, kind, None, 0.0))
            beside = own
        texts = beside.weighted if weighted else beside.metrics
        texts.append(text)
        return beside, weighted, len(texts) - 1

    def _place(self, beside: Loss, weighted: bool, at: int) -> int:
        """The number of a metric among those that programs tell: losses come first if there are
        several, then the metrics of each, then the weighted ones of each."""
        before = self.losses[: next(i for i, one in enumerate(self.losses) if one is beside)]
        place = len(self.losses) if len(self.losses) > 1 else 0
        if weighted:
            place += sum(len(one.metrics) for one in self.losses)
        return place + sum(len(one.weighted if weighted else one.metrics) for one in before) + at

    def _output(self, path: tuple[Any, ...]) -> int:
        """The number of the output that a path of a loss leads to."""
        if not path:
            return 0
        (last,) = path[-1:]
        return last if isinstance(last, int) else self.outputs.index(last)

    def spec(self, names: list[str], weighted: dict[int, str]) -> list[dict[str, Any]]:
        """The losses as the native module takes them; `names` are those of the graph's outputs, the
        costs behind the model's."""
        count = len(names) - len(self.costs)
        return [
            {
                "output": names[loss.output if loss.cost is None else count + loss.cost],
                "loss": loss.text,
                "class_axis": loss.axis,
                "weight": loss.weight,
                "weighted": weighted.get(loss.output, ""),
                "metrics": loss.metrics,
                "weighted_metrics": loss.weighted,
            }
            for loss in self.losses
        ]


class Sums:
    """Sums from which the numbers of batches are made: those of batches add up."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._rows = 0
        self._loss = 0.0
        self._metrics: list[list[np.ndarray]] | None = None

    def add(self, outputs: dict[str, np.ndarray], names: list[str], rows: list[int]) -> None:
        """Adds the outputs of batches, which lie on the first axis."""
        self._rows += sum(rows)
        for loss, own in zip(outputs["loss"].tolist(), rows, strict=True):
            self._loss += loss * own
        parts = [[outputs[f"{name}.{part}"] for part in ("total", "count")] for name in names]
        if self._metrics is None:
            self._metrics = [[np.zeros(part.shape[1:]) for part in pair] for pair in parts]
        for sums, pair in zip(self._metrics, parts, strict=True):
            for at, part in enumerate(pair):
                # In the order of the batches, however many come at once.
                sums[at] = functools.reduce(np.add, part.astype(np.float64), sums[at])

    def logs(self) -> dict[str, Any]:
        """The numbers in Keras' order; a metric may have several, by name."""
        told = [_told(*pair) for pair in self._metrics or []]
        compiled = self._compiled
        logs = {"loss": self._loss / self._rows if self._rows else 0.0}
        if self._metrics is not None:
            for name, of in zip(compiled.metric_names, compiled._metric_order, strict=True):
                logs[name] = told[of] if isinstance(of, int) else _hosted.told(of)
        if told and len(compiled.losses) > 1 and compiled.loss_names:
            by_loss = {id(loss): one for loss, one in zip(compiled.losses, told, strict=False)}
            losses = [by_loss[id(loss)] for loss in compiled._loss_order]
            logs |= dict(zip(compiled.loss_names, losses, strict=True))
        return logs


def _told(total: np.ndarray, count: np.ndarray) -> float:
    """A ratio of sums, of nothing 0; or the area under the curve of the weights of positive and
    of negative targets between one threshold and the next."""
    if total.size == 1:
        return float(total.item() / count.item()) if count.item() else 0.0
    above = [np.concatenate([[0.0], np.cumsum(part[::-1])]) for part in (total, count)]
    yes, no = (part / part[-1] if part[-1] else part for part in above)
    return float(np.sum(np.diff(no) * (yes[1:] + yes[:-1]) / 2))
