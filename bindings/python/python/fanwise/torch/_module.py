"""Modules on several devices."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.nn.parameter import Parameter

from .. import _fanwise, _placement
from ._engine import Engine

# Devices where none are named and the machine has no two GPUs.
_LEAST = 2

# What calls a module. While a thread traces, PyTorch has another function in its place, for all
# threads.
_CALL = nn.Module.__call__


class DataParallel(nn.Module):
    """A module on several devices, which computes what the module does on a whole batch.

    The first axis of every tensor is that of the batch. Parameters, buffers and modes are those of
    `module`; gradients go to its parameters.

    `gpus` is a number of devices, a list of their ids, or all of the machine. `shards` divides the
    rows: `remainder-last`, `balanced`, `ceil`, `weighted:3,1`. `weights` says where parameters are
    held: `template`, `cpu`, `mirrored`. `batch_norm` takes the statistics of the whole batch
    (`sync`), of a device's rows (`local`), or of groups (`ghost:4`). `repair` allows `none`, `local`
    or `comm`. `target` is `cuda`, `cpu` for virtual devices, or `auto`: GPUs where there are as many
    as asked for. `reproducible="n-invariant"` gives the same bits on 1, 2, 4 and 8 devices.
    """

    def __init__(
        self,
        module: nn.Module,
        gpus: int | Iterable[int] | None = None,
        *,
        target: str = "auto",
        shards: str | None = None,
        weights: str | None = None,
        batch_norm: str | None = None,
        repair: str | None = None,
        reproducible: str | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected a torch.nn.Module, not {type(module).__qualname__}")
        self.module = module
        self.training = module.training
        is_reproducible = _placement.is_reproducible(reproducible)
        self._settings = (
            devices(
                gpus,
                target,
                reproducible=is_reproducible,
                shards=shards,
                weights=weights,
                batch_norm=batch_norm,
                repair=repair,
            ),
            is_reproducible,
        )
        self._engine = self._made()
        self.register_load_state_dict_pre_hook(_below)

    def _made(self) -> Engine:
        options, reproducible = self._settings
        return Engine(self.module, options, reproducible=reproducible)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _CALL(self, *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns."""
        if torch.compiler.is_dynamo_compiling() or _is_traced((args, kwargs)):
            # The one around it divides the batch.
            return self.module(*args, **kwargs)
        return self._engine(args, kwargs)

    def retrace(self) -> None:
        """Reads the code of the module again: what it finds in attributes that are no tensors, such
        as the rate of a dropout, is kept from the first call on."""
        self._engine = self._made()

    # The names of all that the module has are the module's.

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the module."""
        return self.module.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Parameter]]:
        """Those of the module."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """Those of the module."""
        return self.module.named_buffers(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_engine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._engine = self._made()


def _is_traced(given: Any) -> bool:
    """Whether this thread traces; that some thread does is what PyTorch tells."""
    return torch.compiler.is_compiling() and detect_fake_mode(given) is not None


def _below(_: nn.Module, state: dict[str, Any], prefix: str, *more: Any) -> None:
    """Of a module that this one is a part of, the state has the names of the module inside."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name.removeprefix(prefix)}"] = state.pop(name)


def devices(gpus: int | Iterable[int] | None, target: str, **settings: Any) -> dict[str, Any]:
    """The settings of the devices that `gpus` names."""
    found = 0 if target == "cpu" else _fanwise.gpus()
    if gpus is None:
        gpus = max(found, 1) if target == "cuda" or found > 1 else _LEAST
    ids = _placement.ids(gpus)
    chosen = _placement.target(target, 1 + max(ids), found)
    if chosen == "cuda" and max(ids) >= found:
        raise ValueError(f"gpus={gpus!r}: this machine has {found} GPUs")
    if chosen == "cpu" and target == "auto":
        _placement.warn_of_virtual(found, len(ids))
    return _placement.options(ids, chosen, **settings)
