"""What `compile` was given, as the specification of a training, and the numbers that it tells."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import _compile


@dataclass
class Loss:
    """The loss and the metrics of one output."""

    output: int
    text: str
    axis: int | None
    weight: float
    metrics: list[str] = field(default_factory=list)
    weighted: list[str] = field(default_factory=list)


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
        self._read(template)

    def _read(self, template: Any) -> None:
        found: dict[int, Loss] = {}
        for path, loss, weight, _ in template._compile_loss._flat_losses:
            at = self._output(path)
            if at in found:
                raise _compile.refused("a second loss of the output", self.outputs[at])
            text, axis = _compile.loss(loss)
            found[at] = Loss(at, text, axis, 1.0 if weight is None else float(weight))
        self.loss_names = [metric.name for metric in template._compile_loss.metrics]
        # Outputs have losses in the order of the outputs, whatever that of a dict is.
        self._loss_order = list(found)
        metrics = template._compile_metrics
        if metrics is not None:
            self.metric_names = list(metrics.result())
            lists = zip(metrics._flat_metrics, metrics._flat_weighted_metrics, strict=True)
            for at, (plain, weighted) in enumerate(lists):
                texts = [_texts(plain), _texts(weighted)]
                if any(texts):
                    # An output without a loss is compared all the same; it adds nothing.
                    own = found.setdefault(at, Loss(at, "mean_squared_error", None, 0.0))
                    own.metrics, own.weighted = texts
        self.losses = [found[at] for at in sorted(found)]

    def _output(self, path: tuple[Any, ...]) -> int:
        """The number of the output that a path of a loss leads to."""
        if not path:
            return 0
        (last,) = path[-1:]
        return last if isinstance(last, int) else self.outputs.index(last)

    def spec(
        self, names: list[str], weighted: dict[int, str], masked: set[int]
    ) -> list[dict[str, Any]]:
        """The losses as the native module takes them; `names` are those of the graph's outputs."""
        return [
            {
                "output": names[loss.output],
                "loss": loss.text,
                "class_axis": loss.axis,
                "weight": loss.weight,
                "weighted": weighted.get(loss.output, ""),
                "masked": loss.output in masked,
                "metrics": loss.metrics,
                "weighted_metrics": loss.weighted,
            }
            for loss in self.losses
        ]


def _texts(metrics: Any) -> list[str]:
    return [] if metrics is None else [_compile.metric(one) for one in metrics.metrics]


class Sums:
    """Sums from which the numbers of batches are made: those of batches add up."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._rows = 0
        self._loss = 0.0
        self._metrics: list[list[np.ndarray]] | None = None

    def add(self, outputs: dict[str, np.ndarray], names: list[str], rows: int) -> None:
        """Adds the outputs of a batch."""
        self._rows += rows
        self._loss += float(outputs["loss"]) * rows
        pairs = [
            [np.asarray(outputs[f"{name}.{part}"], np.float64) for part in ("total", "count")]
            for name in names
        ]
        if self._metrics is None:
            self._metrics = pairs
        else:
            for own, new in zip(self._metrics, pairs, strict=True):
                own[0], own[1] = own[0] + new[0], own[1] + new[1]

    def logs(self) -> dict[str, float]:
        """The numbers in Keras' order."""
        told = [_told(*pair) for pair in self._metrics or []]
        compiled = self._compiled
        several = len(compiled.losses) > 1
        by_output = dict(zip((loss.output for loss in compiled.losses), told)) if several else {}
        metrics = told[len(compiled.losses) :] if several else told
        logs = {"loss": self._loss / self._rows if self._rows else 0.0}
        logs |= dict(zip(compiled.metric_names, metrics, strict=False))
        losses = [by_output[at] for at in compiled._loss_order] if several else []
        return logs | dict(zip(compiled.loss_names, losses, strict=False))


def _told(total: np.ndarray, count: np.ndarray) -> float:
    """A ratio of sums, of nothing 0; or the area under the curve of the weights of positive and
    of negative targets between one threshold and the next."""
    if total.size == 1:
        return float(total.item() / count.item()) if count.item() else 0.0
    above = [np.concatenate([[0.0], np.cumsum(part[::-1])]) for part in (total, count)]
    yes, no = (part / part[-1] if part[-1] else part for part in above)
    return float(np.sum(np.diff(no) * (yes[1:] + yes[:-1]) / 2))
