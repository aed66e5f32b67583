"""What a module is called with: tensors, and what else there is among them."""

import enum
import functools
import inspect
import types
from collections.abc import Hashable, Mapping
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils import _pytree as pytree

# What has no parts that could change.
_FIXED = (
    *(int, str, bytes, range, enum.Enum, type, nn.Module),
    *(types.NoneType, types.EllipsisType, types.FunctionType, types.BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)

# The flag of classes that are written in Python.
_HEAP = 1 << 9

# How deep objects are in one another; deeper ones may hold themselves.
_DEEPEST = 32


class Called(nn.Module):
    """A module that takes the tensors among its arguments, and has the other arguments."""

    # What it has is named as the module names it, after this.
    _PREFIX = "module."

    def __init__(self, module: nn.Module, leaves: list[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.module = module
        self._given = leaves, spec

    def forward(self, *tensors: torch.Tensor) -> Any:
        """What the module returns for these tensors."""
        leaves, spec = self._given
        rest = iter(tensors)
        given = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(given, spec)
        return self.module(*args, **kwargs)

    @classmethod
    def inside(cls, path: str) -> str:
        """What the module itself calls what is at a path of this one."""
        return f"{path}.".removeprefix(cls._PREFIX).removesuffix(".")

    def bound(self) -> inspect.BoundArguments:
        """The arguments by the names that the module has for them; fails where it takes others."""
        args, kwargs = pytree.tree_unflatten(*self._given)
        return inspect.signature(self.module.forward).bind(*args, **kwargs)


def key(leaf: Any) -> Hashable:
    """What tells an argument from those that a module is traced apart for: of a tensor its type
    and sizes beside the batch, of anything else its value."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.shape[1:], leaf.ndim
    try:
        return _value(leaf, 0)
    except TypeError as error:
        name = type(leaf).__qualname__
        text = f"an argument of the type `{name}` cannot be told from others of it: {error}"
        raise TypeError(f"{text}; give tensors as arguments, or in lists and dicts") from error


def _value(leaf: Any, depth: int) -> Hashable:
    kind = type(leaf)
    if isinstance(leaf, torch.Tensor):
        raise TypeError("it holds a tensor")
    if depth > _DEEPEST:
        raise TypeError("it may hold itself")
    if isinstance(leaf, (float, complex)):
        # Zeros of both signs are equal.
        return kind, repr(leaf)
    if isinstance(leaf, _FIXED):
        return kind, leaf
    if isinstance(leaf, slice):
        return kind, *(_value(part, depth + 1) for part in (leaf.start, leaf.stop, leaf.step))
    if isinstance(leaf, (set, frozenset)):
        return kind, frozenset(_value(part, depth + 1) for part in leaf)
    if isinstance(leaf, (numpy.ndarray, numpy.generic)):
        if leaf.dtype.hasobject:
            raise TypeError("it is an array of objects")
        return kind, leaf.dtype.str, leaf.shape, leaf.tobytes()
    if isinstance(leaf, functools.partial):
        parts = (leaf.func, list(leaf.args), leaf.keywords)
        return kind, _parts(dict(enumerate(parts)), depth + 1)
    if isinstance(leaf, types.MethodType):
        return kind, leaf.__func__, _value(leaf.__self__, depth + 1)
    if isinstance(leaf, Mapping):
        return kind, _parts(leaf, depth + 1)
    if hasattr(leaf, "__dict__") and _is_plain(kind):
        return kind, _parts(vars(leaf), depth + 1)
    raise TypeError("it is neither a tensor nor a constant")


def _is_plain(kind: type) -> bool:
    """Whether all that objects of a class hold is in their attributes by name."""
    own = [of for of in kind.__mro__[:-1] if of is not types.SimpleNamespace]
    return all(of.__flags__ & _HEAP and "__slots__" not in vars(of) for of in own)


def _parts(of: Mapping[Any, Any], depth: int) -> Hashable:
    leaves, spec = pytree.tree_flatten(dict(of))
    return spec, tuple(_value(leaf, depth) for leaf in leaves)
