"""Devices: which there are, and which a request names."""

import operator
import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import _fanwise


def target(asked: str, wanted: int, found: int | None = None) -> str:
    """Where `wanted` devices run: `cuda` where there are as many GPUs, else `cpu`."""
    if asked == "auto":
        found = _fanwise.gpus() if found is None else found
        return "cuda" if 0 < wanted <= found else "cpu"
    return asked


# The most devices of a model.
_MOST = 1 << 16


def ids(gpus: int | Iterable[int]) -> list[int]:
    """The numbers of the devices that `gpus` counts or names."""
    if isinstance(gpus, Iterable):
        numbers = [operator.index(gpu) for gpu in gpus]
    else:
        # One more than what is refused: of a number without sense no list is made.
        numbers = list(range(min(operator.index(gpus), _MOST + 1)))
    if not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers):
        raise ValueError(f"gpus={gpus!r}: name each GPU once, from 0 on, or a number of at least 1")
    if len(numbers) > _MOST:
        raise ValueError(f"gpus={gpus!r}: at most {_MOST} devices")
    return numbers


def options(
    devices: list[int] | None, target: str, *, reproducible: bool = False, **settings: Any
) -> dict[str, Any]:
    """The settings as the native module takes them; fails where one is wrong."""
    given = {
        "devices": devices,
        "shards": "remainder-last",
        "merge": "cpu",
        "weights": "mirrored" if target == "cuda" else "template",
        "repair": "auto",
        "batch_norm": None,
        "target": target,
        "toolkits": _toolkits() if target == "cuda" else [],
        "cache": _cache(),
    }
    for name, value in settings.items():
        if value is not None:
            if not isinstance(value, str):
                raise TypeError(f"{name}={value!r}: expected a str")
            given[name] = value
    _fanwise.check_options(given, reproducible)
    return given


def _toolkits() -> list[Path]:
    """Folders that may have the compiler of kernels: of toolkits, then of Python packages."""
    named = [os.environ.get(name) for name in ("FANWISE_NVRTC", "CUDA_HOME", "CUDA_PATH")]
    folders = [Path(name) for name in [*named, "/usr/local/cuda", *sys.path] if name]
    return [folder for folder in folders if folder.is_dir()]


def _cache() -> Path | None:
    """The folder of compiled kernels; none where the user has no home."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(named) if named else Path.home() / ".cache") / "fanwise"
    except RuntimeError:
        return None


def is_reproducible(asked: str | None) -> bool:
    """Whether training gives the same bits on any number of devices."""
    if asked not in (None, "n-invariant"):
        raise ValueError(f"`reproducible` cannot be {asked!r}: write 'n-invariant'")
    return asked is not None


def warn_of_virtual(found: int, wanted: int) -> None:
    """Tells the caller of the package that virtual devices are used."""
    warnings.warn(
        f"this machine has {found} GPUs; {wanted} virtual devices on the CPU take their place",
        stacklevel=_outside(),
    )


def _outside() -> int:
    """How far up the stack the caller of the package is."""
    frame, level = sys._getframe(1), 1
    package = os.path.dirname(__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level
