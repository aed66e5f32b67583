"""The backend of `torch.compile`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx, nn

from .. import _placement
from .._errors import Error
from ._engine import Engine
from ._module import devices


def fanwise(
    graph: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Runs a graph on several devices: the backend `fanwise` of `torch.compile`.

    `options` are the arguments of `DataParallel`. A graph that may not be split runs whole, on one
    device; a warning says why.
    """
    settings = dict(options or {})
    reproducible = _placement.is_reproducible(settings.get("reproducible"))
    chosen = _chosen(**{name: _fixed(value) for name, value in settings.items()})
    lifted = _Lifted(graph, inputs)
    engine = Engine(
        lifted,
        chosen,
        reproducible=reproducible,
        compiled=True,
        static=lifted.is_static,
    )
    return _Compiled(graph, lifted, engine)


@cache
def _chosen(
    gpus: int | tuple[int, ...] | None = None,
    target: str = "auto",
    *,
    shards: str | None = None,
    weights: str | None = None,
    batch_norm: str | None = None,
    repair: str | None = None,
    reproducible: str | None = None,
) -> dict[str, Any]:
    """The settings of the devices; a function has many graphs, and one warning."""
    own = {"shards": shards, "weights": weights, "batch_norm": batch_norm, "repair": repair}
    is_reproducible = _placement.is_reproducible(reproducible)
    return devices(gpus, target, reproducible=is_reproducible, **own)


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _Compiled:
    """A graph on its devices; whole from the first call on that is refused."""

    def __init__(self, graph: fx.GraphModule, lifted: "_Lifted", engine: Engine) -> None:
        self._run: Callable[..., Any] = self._split
        self._graph, self._lifted, self._engine = graph, lifted, engine

    def __call__(self, *inputs: Any) -> Any:
        return self._run(*inputs)

    def _split(self, *inputs: Any) -> Any:
        try:
            return self._engine(self._lifted.given(inputs), {})
        except Error as error:
            # What a run itself refuses has changed nothing yet.
            self._run = _whole(self._graph, error)
            return self._run(*inputs)


def _whole(graph: fx.GraphModule, error: Error) -> Callable[..., Any]:
    warnings.warn(f"the graph runs whole, on one device: {error}", stacklevel=2)
    return graph.forward


class _Lifted(nn.Module):
    """A graph that holds its parameters and buffers, and takes its other inputs."""

    def __init__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.graph = graph
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        # The names of what is held, and the tensors and axes of sizes, by position.
        self._held: dict[int, str] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._rest: list[int] = []
        places = {_source(node).name: at for at, node in enumerate(nodes)}
        for at, (node, value) in enumerate(zip(nodes, inputs, strict=True)):
            source = _source(node)
            base = places.get(getattr(getattr(source, "base", None), "name", ""))
            if isinstance(value, torch.Tensor) and source.guard_source.is_unspecialized_nn_module():
                self._held[at] = f"held_{at}"
            elif isinstance(value, torch.SymInt) and base is not None:
                self._sizes[at] = base, source.idx
            else:
                self._rest.append(at)
        self._hold(inputs)

    @property
    def is_static(self) -> bool:
        """Whether the graph was made for one number of rows."""
        return not any(axis == 0 for _, axis in self._sizes.values())

    def given(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The inputs that it takes; the others it holds from now on."""
        self._hold(inputs)
        return tuple(inputs[at] for at in self._rest)

    def forward(self, *rest: Any) -> Any:
        """What the graph returns."""
        given = dict(zip(self._rest, rest, strict=True))
        given |= {at: getattr(self, name) for at, name in self._held.items()}
        given |= {at: given[base].shape[axis] for at, (base, axis) in self._sizes.items()}
        return self.graph(*(given[at] for at in range(len(given))))

    def _hold(self, inputs: Sequence[Any]) -> None:
        for at, name in self._held.items():
            tensor = inputs[at]
            if isinstance(tensor, nn.Parameter):
                self._parameters[name] = tensor
            else:
                self._buffers[name] = tensor


def _source(node: Any) -> Any:
    """Where the compiled function has what an input of its graph is."""
    return node._dynamo_source
