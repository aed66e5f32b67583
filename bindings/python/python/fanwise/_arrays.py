"""Arrays of any framework as tensors, and tensors as arrays of NumPy."""

from typing import Any

import numpy as np

from ._fanwise import Tensor

# Names of element types whose bits NumPy holds in a type of the package `ml_dtypes`.
_FOREIGN = {"bfloat16": "bf16"}


def tensor(array: Any) -> Tensor:
    """The tensor of an array; lists and numbers become arrays of NumPy first."""
    if isinstance(array, np.ndarray):
        # The name takes longer than the rest; types of NumPy itself are of another kind.
        if array.dtype.kind == "V" and array.dtype.name in _FOREIGN:
            bits = np.asarray(array, order="C").view(np.uint16)
            return Tensor(bits, dtype=_FOREIGN[array.dtype.name])
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return Tensor(array)
    if getattr(array, "requires_grad", False):
        array = array.detach()
    if hasattr(array, "is_contiguous") and hasattr(array, "contiguous"):
        array = array.contiguous()
    if hasattr(array, "__dlpack__") or isinstance(array, (memoryview, bytes, bytearray)):
        return Tensor(array)
    return tensor(np.asarray(array))


def numpy(tensor: Tensor) -> np.ndarray:
    """The elements of a tensor, not copied."""
    array = np.asarray(tensor)
    if tensor.dtype == "bf16":
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)
    return array
