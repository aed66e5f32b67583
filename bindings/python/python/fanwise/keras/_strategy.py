"""`MirroredStrategy`: models that are replicated because of the scope that they were built in."""

import functools
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .. import _fanwise, _placement
from . import _compile, _engine
from ._devices import exist
from ._model import ParallelModel

# The methods of a model that run on the devices, beside `compile`.
_METHODS = (
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
    "reset_metrics",
)

# A device as TensorFlow writes it: `/gpu:1`, `GPU:1`, `/job:localhost/replica:0/device:GPU:1`.
_DEVICE = re.compile(r"(?:.*[/:])?(gpu|cpu):(\d+)", re.IGNORECASE)

# The strategy whose scope the code runs in.
_SCOPE: ContextVar["MirroredStrategy | None"] = ContextVar("_SCOPE", default=None)


class MirroredStrategy:
    """Models that are built in its `scope()` are trained and run on several devices.

    `devices` are names such as `"/gpu:0"`, or the numbers of GPUs; without them it takes all GPUs,
    or one device on the CPU if there is none. Where GPUs are missing, virtual devices take their
    place, with a warning;
    `target="cuda"` makes that an error. The other arguments are those of `multi_gpu_model`. A batch
    is that of all devices together, and may be of any size.
    """

    def __init__(
        self,
        devices: Sequence[str | int] | None = None,
        *,
        shards: str | None = None,
        weights: str | None = None,
        batch_norm: str | None = None,
        target: str = "auto",
        reproducible: str | None = None,
    ) -> None:
        ids, self._target = _chosen(devices, target)
        self._devices = ids
        self._options = _engine.options(
            ids, self._target, shards=shards, weights=weights, batch_norm=batch_norm
        )
        self._reproducible = _placement.is_reproducible(reproducible)

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of devices."""
        return len(self._devices)

    @contextmanager
    def scope(self) -> Iterator["MirroredStrategy"]:
        """Models that are built inside belong to the strategy, wherever they are compiled."""
        _watch_models()
        outer = _SCOPE.set(self)
        try:
            yield self
        finally:
            _SCOPE.reset(outer)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """The data itself: each batch is divided when it is used. `options` has no effect."""
        warnings.warn(
            "experimental_distribute_dataset returns the dataset as it is: fanwise divides each "
            "batch itself",
            stacklevel=2,
        )
        return dataset

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Steps of one's own are not supported."""
        raise _compile.refused("the method", "run", "use `compile` and `fit`")

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Steps of one's own are not supported."""
        raise _compile.refused("the method", "reduce", "use `compile` and `fit`")

    def __repr__(self) -> str:
        kind = "GPUs" if self._target == "cuda" else "virtual devices"
        return f"<fanwise.keras.MirroredStrategy on the {kind} {self._devices}>"


@functools.cache
def _watch_models() -> None:
    """Makes models tell the strategy in whose scope they are built."""
    from keras import Model

    before = Model.__dict__["__new__"].__func__

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        model = before(cls, *args, **kwargs)
        strategy = _SCOPE.get()
        if strategy is not None:
            _Mirrored(model, strategy._options, strategy._reproducible)
        return model

    Model.__new__ = staticmethod(new)


class _Mirrored:
    """What takes the place of a model's methods: it is replicated when it is used first, and not
    before, because it may get layers until then."""

    def __init__(self, model: Any, options: dict[str, Any], reproducible: bool) -> None:
        self._model = model
        self._settings = (options, reproducible)
        self._parallel: ParallelModel | None = None
        # The layers that it has.
        self._layers: list[Any] = []
        # Beside Keras' own way of setting attributes, which does not exist yet.
        model.__dict__["compile"] = self._compile
        for name in _METHODS:
            model.__dict__[name] = functools.partial(self._call, name)

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        type(self._model).compile(self._model, *args, **kwargs)
        if self._parallel is not None:
            self._parallel.compiled()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._parallel is None or self._layers != self._model.layers:
            self._build(args[0] if args else kwargs.get("x"))
            self._layers = self._model.layers
            options, reproducible = self._settings
            self._parallel = ParallelModel(self._model, options, reproducible=reproducible)
        return getattr(self._parallel, name)(*args, **kwargs)

    def _build(self, x: Any) -> None:
        """A model without an input takes the shapes of the data."""
        from keras import tree

        if not self._model.built and hasattr(x, "shape"):
            self._model.build((None, *x.shape[1:]))
        elif not self._model.built and tree.is_nested(x):
            self._model.build(tree.map_structure(lambda array: (None, *array.shape[1:]), x))


def _chosen(devices: Any, target: str) -> tuple[list[int], str]:
    """The numbers of the devices, and where they are: `cuda` or `cpu`."""
    if target not in ("auto", "cpu", "cuda"):
        raise ValueError(f"`target` cannot be {target!r}: write 'auto', 'cpu' or 'cuda'")
    found = 0 if target == "cpu" else _fanwise.gpus()
    if devices is None:
        return (list(range(found)), "cuda") if found else _without_gpus(target)
    if isinstance(devices, (str, int)):
        devices = [devices]
    kinds, ids = zip(*map(_device, devices), strict=True) if devices else ((), ())
    if not ids or len(set(ids)) < len(ids) or len(set(kinds)) > 1:
        raise ValueError(
            f"`devices` are different devices of one kind, such as ['/gpu:0', '/gpu:1']: {devices}"
        )
    if kinds[0] == "cpu":
        return list(ids), "cpu"
    if target == "cpu" or exist(list(ids), found):
        return list(ids), "cpu" if target == "cpu" else "cuda"
    if target == "cuda":
        has = [f"/gpu:{number}" for number in range(found)]
        raise ValueError(f"the machine has the devices {[*has, '/cpu:0']}, not {devices}")
    _placement.warn_of_virtual(found, len(ids))
    return list(ids), "cpu"


def _without_gpus(target: str) -> tuple[list[int], str]:
    if target == "cuda":
        raise ValueError("the machine has no GPU")
    return [0], "cpu"


def _device(name: Any) -> tuple[str, int]:
    """The kind and the number of a device."""
    if isinstance(name, int) and not isinstance(name, bool) and name >= 0:
        return "gpu", name
    match = _DEVICE.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(f"{name!r} is no device: write '/gpu:0'")
    return match[1].lower(), int(match[2])
