"""Batches of data as the inputs of programs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import tensor
from .._fanwise import Tensor

# The element types of programs that NumPy has.
_TYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "u64": np.uint64,
    "u32": np.uint32,
    "u16": np.uint16,
    "u8": np.uint8,
    "bool": np.bool_,
}

# A port: its name, and its type with sizes of which those of the batch are `None`.
Port = tuple[str, tuple[str, Sequence[int | None]]]


def host(array: Any) -> np.ndarray:
    """An array in host memory."""
    if isinstance(array, np.ndarray):
        return array
    from keras import ops

    return np.asarray(ops.convert_to_numpy(array))


def flat(data: Any, names: Sequence[str], what: str) -> list[Any]:
    """The arrays of a structure in the order of these names."""
    from keras import tree

    if isinstance(data, dict):
        missing = [name for name in names if name not in data]
        if not missing:
            return [data[name] for name in names]
        raise ValueError(f"{what} lacks {missing}; it has {list(data)}")
    arrays: list[Any] = tree.flatten(data)
    if len(arrays) != len(names):
        raise ValueError(f"{what} has {len(arrays)} arrays; {len(names)} are expected: {names}")
    return arrays


def fitted(array: Any, port: Port) -> Tensor:
    """An array as the input `port` takes it: an axis of size 1 at the end comes or goes."""
    name, (dtype, dims) = port
    given = host(array)
    if given.ndim == len(dims) + 1 and given.shape[-1] == 1:
        given = given[..., 0]
    elif given.ndim == len(dims) - 1 and dims[-1] in (1, None):
        given = given[..., None]
    fits = given.ndim == len(dims) and all(
        size is None or size == own for own, size in zip(given.shape, dims)
    )
    if not fits:
        shown = ["N" if size is None else size for size in dims]
        raise ValueError(f"`{name}` has the shape {list(given.shape)}; expected is {shown}")
    kind = _TYPES.get(dtype)
    return tensor(given if kind is None or given.dtype == kind else given.astype(kind))


def zeros(port: Port, batch: int) -> Tensor:
    """Zeros as an input takes them."""
    dtype, dims = port[1]
    return tensor(np.zeros([batch if size is None else size for size in dims], _TYPES[dtype]))
