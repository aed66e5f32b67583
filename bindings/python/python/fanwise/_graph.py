"""Replicated graphs."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _fanwise, _notebook, _placement
from ._arrays import numpy, tensor


@dataclass(frozen=True)
class Compared:
    """One output of a check."""

    name: str
    type: str
    promise: str
    equal: bool
    difference: float


@dataclass(frozen=True)
class Check:
    """The outputs of one device beside those of all; true if all are as promised."""

    rows: int
    outputs: list[Compared]

    def __bool__(self) -> bool:
        return all(output.equal for output in self.outputs)


class Graph:
    """A model on its devices, proved to compute what the model does, and ready to run."""

    def __init__(self, model: _fanwise.Model, options: dict[str, Any]) -> None:
        self._model = model
        self._graph = _fanwise.replicate(model, options)
        self.target: str = options["target"]

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    @property
    def inputs(self) -> dict[str, str]:
        """The types of the inputs, by name."""
        return dict(self._model.inputs)

    @property
    def outputs(self) -> dict[str, str]:
        """The types of the outputs, by name."""
        return dict(self._model.outputs)

    @property
    def shards(self) -> list[tuple[str, str]]:
        """The devices with the formulas of their rows."""
        return self._graph.shards

    def emit(self, kind: str = "graph", *, batch: int = 32) -> str:
        """A text: `graph`, `graph:input`, `graph:repaired`, `json`, `dot`, `claims`, `explain`,
        `program`, or `memory` for a batch."""
        return self._graph.emit(kind, batch=batch)

    def claims(self) -> str:
        """The claim of every value: whether a replica has its rows, all of it, or a part."""
        return self._graph.claims()

    def explain(self) -> str:
        """What is split, repaired, merged and moved."""
        return self._graph.explain()

    def verify(self) -> str:
        """Proves again that the replicas compute what the model does; what was counted."""
        return self._graph.verify()

    def check(self, batch: int = 10, *, seed: int = 0) -> Check:
        """Runs `batch` random rows on one device and on all, and compares the outputs."""
        found = self._graph.compared(batch, seed)
        return Check(batch, [Compared(*output) for output in found])

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs for these inputs, by name."""
        given = {name: tensor(array) for name, array in inputs.items()}
        return {name: numpy(found) for name, found in self._graph.run(given).items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model as it was before replication: `.onnx`, `.fan` or `.json`."""
        self._graph.save(path)

    def __repr__(self) -> str:
        shards = ", ".join(f"{device}: {rows}" for device, rows in self.shards)
        return f"<fanwise.Graph {self.name} on {shards or 'one device'}>"

    def _repr_html_(self) -> str:
        return _notebook.html(self)

    def _repr_svg_(self) -> str:
        return _notebook.svg(self)


def load(
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    set: Mapping[str, Any] | None = None,
    batch_axis: Mapping[str, int] | None = None,
    free_batch: bool = False,
    params: str | os.PathLike[str] | None = None,
    for_training: bool = False,
    max_memory: int | None = None,
) -> _fanwise.Model:
    """Reads a model: a path, or `zoo:NAME`.

    `dims` binds sizes that the file names, `set` inputs, and `batch_axis` says which axis of an
    input carries the batch; `free_batch` makes a batch size symbolic that is fixed in the file.
    """
    settings = {
        "dims": dict(dims or {}),
        "set": {name: tensor(array) for name, array in (set or {}).items()},
        "batch_axis": dict(batch_axis or {}),
        "free_batch": free_batch,
        "params": params,
        "for_training": for_training,
        "max_memory": max_memory,
    }
    return _fanwise.load(path, settings)


def replicate(
    model: Any,
    gpus: int | Iterable[int] | None = None,
    *,
    shards: str | None = None,
    merge: str | None = None,
    weights: str | None = None,
    repair: str | None = None,
    batch_norm: str | None = None,
    target: str = "auto",
) -> Graph:
    """Replicates a model: a path, `zoo:NAME`, a `Model`, or a Keras model.

    `gpus` is a number of devices or a list of their ids; by default all GPUs, or one device where
    there is none. With `target="auto"` the devices are virtual where the machine has too few GPUs.
    """
    found = _fanwise.gpus() if target != "cpu" else 0
    ids = list(range(found)) if gpus is None else _placement.ids(gpus)
    chosen = _placement.target(target, 1 + max(ids, default=0), found)
    settings = {
        "shards": shards,
        "merge": merge,
        "weights": weights,
        "repair": repair,
        "batch_norm": batch_norm,
    }
    return Graph(_model(model), _placement.options(ids or None, chosen, **settings))


def _model(model: Any) -> _fanwise.Model:
    if isinstance(model, _fanwise.Model):
        return model
    if isinstance(model, (str, os.PathLike)):
        return load(model)
    if hasattr(model, "to_json") and hasattr(model, "variables"):
        from . import keras

        return keras.load(model)
    kind = type(model).__qualname__
    raise TypeError(f"expected a path, a fanwise.Model or a Keras model, not {kind}")
