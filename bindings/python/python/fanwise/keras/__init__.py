"""Models of Keras 3 on several devices: `multi_gpu_model` and `MirroredStrategy`."""

from collections.abc import Sequence
from typing import Any

from .. import _placement
from .._fanwise import Model
from ._devices import choose
from ._model import ParallelModel
from ._strategy import MirroredStrategy

__all__ = ["MirroredStrategy", "ParallelModel", "load", "multi_gpu_model", "to_multi_gpu"]


def multi_gpu_model(
    model: Any,
    gpus: int | Sequence[int] | None = None,
    cpu_merge: bool = True,
    cpu_relocation: bool = False,
    *,
    shards: str | None = None,
    weights: str | None = None,
    batch_norm: str | None = None,
    target: str = "auto",
    reproducible: str | None = None,
) -> ParallelModel:
    """Replicates a model of Keras on several devices.

    `gpus` is a number of devices, a list of their ids, or all of the machine. Outputs are merged
    on the CPU, or with `cpu_merge=False` on the first device. `cpu_relocation` keeps the weights on
    the CPU; they stay those of the model.

    `shards` divides the rows: `remainder-last`, `balanced`, `ceil`, `weighted:3,1`. `weights` says
    where they are held: `template`, `cpu`, `mirrored`. `batch_norm` takes the statistics of the
    whole batch (`sync`), of a device's rows (`local`), or of groups (`ghost:4`). `target` is `cuda`,
    `cpu` for virtual devices, or `auto`: GPUs where there are as many as asked for.
    `reproducible="n-invariant"` trains the same bits on 1, 2, 4 and 8 devices.
    """
    from . import _engine

    invariant = _placement.is_reproducible(reproducible)
    ids, chosen = choose(gpus, target)
    options = _engine.options(
        ids,
        chosen,
        shards=shards,
        merge=None if cpu_merge else "gpu",
        weights=weights or ("cpu" if cpu_relocation else None),
        batch_norm=batch_norm,
    )
    return ParallelModel(model, options, reproducible=invariant)


def to_multi_gpu(model: Any, n_gpus: int = 2, **settings: Any) -> ParallelModel:
    """Replicates a model of Keras on `n_gpus` devices: `multi_gpu_model`."""
    return multi_gpu_model(model, n_gpus, **settings)


def load(model: Any) -> Model:
    """A live model of Keras as a model of fanwise, with the weights that it has now."""
    from . import _engine

    return _engine.loaded(model)[0]
