"""Modules of PyTorch on several devices: `DataParallel`, and the backend of `torch.compile`."""

from ._compile import fanwise
from ._module import DataParallel

__all__ = ["DataParallel", "fanwise"]
