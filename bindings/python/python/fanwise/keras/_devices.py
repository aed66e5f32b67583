"""The devices that `gpus` names, checked in Keras' words."""

import operator
from typing import Any

from .. import _fanwise, _placement

# Devices where none are named and the machine has no two GPUs.
_LEAST = 2


def choose(gpus: Any, target: str) -> tuple[list[int], str]:
    """The numbers of the devices, and where they are: `cuda` or `cpu`.

    With `auto` these are GPUs where there are as many as asked for, else virtual devices.
    """
    if target not in ("auto", "cpu", "cuda"):
        raise ValueError(f"`target` cannot be {target!r}: write 'auto', 'cpu' or 'cuda'")
    found = 0 if target == "cpu" else _fanwise.gpus()
    ids, names = _ids(gpus, found, target)
    virtual = target == "cpu" or (target == "auto" and not exist(names, found))
    machine = [f"/gpu:{i}" for i in range(max([found, *[i + 1 for i in ids if i >= 0]]))]
    has = machine if virtual else machine[:found]
    wanted = [f"/gpu:{name}" for name in names]
    if min(ids) < 0 or any(wanted.count(name) > has.count(name) for name in wanted):
        raise ValueError(
            f"To call `multi_gpu_model` with `gpus={gpus}`, we expect the following devices to be "
            f"available: {['/cpu:0', *wanted]}. However this machine only has: "
            f"{[*has, '/cpu:0']}. Try reducing `gpus`."
        )
    if virtual and target == "auto":
        _placement.warn_of_virtual(found, len(ids))
    return ids, "cpu" if virtual else "cuda"


def _ids(gpus: Any, found: int, target: str) -> tuple[list[int], list[Any]]:
    """The ids as numbers, and as they were written; an id that is no number is -1."""
    if gpus is None or (isinstance(gpus, (int, list, tuple)) and not gpus):
        gpus = found if target == "cuda" or found > 1 else _LEAST
    if isinstance(gpus, (list, tuple)):
        if len(gpus) <= 1:
            # Keras' `%` takes the element out of a tuple.
            shown = gpus[0] if isinstance(gpus, tuple) else gpus
            raise ValueError(
                "For multi-gpu usage to be effective, call `multi_gpu_model` with "
                f"`len(gpus) >= 2`. Received: `gpus={shown}`"
            )
        return [_number(gpu) for gpu in gpus], list(gpus)
    count = _number(gpus, allows_truth=True)
    if count <= 1:
        shown = int(gpus) if isinstance(gpus, bool) else gpus
        raise ValueError(
            "For multi-gpu usage to be effective, call `multi_gpu_model` with `gpus >= 2`. "
            f"Received: `gpus={shown}`"
        )
    return list(range(count)), list(range(count))


def _number(value: Any, *, allows_truth: bool = False) -> int:
    """The integer that a value is; -1, which is no device, if it is none."""
    if isinstance(value, bool) and not allows_truth:
        return -1
    if getattr(value, "ndim", 0):
        return -1
    try:
        return operator.index(value)
    except TypeError:
        return -1


def exist(names: list[Any], found: int) -> bool:
    """Whether a machine with `found` GPUs has all of these."""
    return all(0 <= _number(name) < found for name in names)
