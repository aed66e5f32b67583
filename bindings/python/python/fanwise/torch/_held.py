"""The tensors that a module has: parameters, buffers, and those in attributes."""

import functools
import operator
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind

# PyTorch's exporter serves one thread at a time, and has tensors of its own in place of those of
# the module meanwhile.
TRACING = threading.RLock()


@dataclass(frozen=True)
class Held:
    """A tensor of a module: where the module has it."""

    owner: Any
    # From the owner on: names and places in dicts and lists.
    keys: tuple[Any, ...]

    def tensor(self) -> torch.Tensor:
        """The tensor that the module has now."""
        with TRACING:
            found: torch.Tensor = functools.reduce(operator.getitem, self.keys, self.owner)
        return found

    def type(self) -> tuple[torch.dtype, torch.Size] | None:
        """Its type; none where the module has no tensor there any more."""
        try:
            found = self.tensor()
        except (LookupError, TypeError):
            return None
        return (found.dtype, found.shape) if isinstance(found, torch.Tensor) else None


def held(module: nn.Module, program: Any) -> dict[str, Held]:
    """What an exported program takes from a module, by the names that the program has for it."""
    fresh = _fresh(program)
    found: dict[str, Held] = {}
    places: dict[Any, Held] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            found[spec.target] = named(module, spec.target)
        elif spec.kind == InputKind.CONSTANT_TENSOR and spec.target not in fresh:
            places = places or _places(module)
            tensor = program.constants[spec.target]
            # Of a parameter the program has the elements alone.
            at = places.get(id(tensor)) or places.get(_memory(tensor)) or Held((tensor,), (0,))
            found[spec.target] = at
    return found


def named(module: nn.Module, path: str) -> Held:
    """A parameter or buffer."""
    owner, _, key = path.rpartition(".")
    of = module.get_submodule(owner)
    return Held(of._parameters if key in of._parameters else of._buffers, (key,))


def _fresh(program: Any) -> set[str]:
    """The constants that the code makes anew in each call."""
    targets = {
        spec.arg.name: spec.target
        for spec in program.graph_signature.input_specs
        if spec.kind == InputKind.CONSTANT_TENSOR
    }
    return {
        targets[node.name]
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in targets
        and all(user.target == torch.ops.aten.lift_fresh_copy.default for user in node.users)
    }


def _memory(tensor: torch.Tensor) -> Any:
    """What tells that a tensor has the elements of another one."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _places(module: nn.Module) -> dict[Any, Held]:
    """Where a module has tensors, by their identity and memory: in attributes, in lists, tuples and
    dicts there, and what modules have that are there."""
    found: dict[Any, Held] = {}
    seen: set[int] = set()
    modules = list(module.modules())
    while modules:
        of = modules.pop()
        if id(of) not in seen:
            seen.add(id(of))
            for key, value in vars(of).items():
                modules += _visit(value, Held(vars(of), (key,)), found)
    return found


def _visit(value: Any, at: Held, found: dict[Any, Held]) -> Iterable[nn.Module]:
    """Notes the tensors in a value; gives the modules in it."""
    if isinstance(value, torch.Tensor):
        found.setdefault(id(value), at)
        if isinstance(value, nn.Parameter) and value.numel():
            found.setdefault(_memory(value), at)
    elif isinstance(value, nn.Module):
        yield from value.modules()
    elif isinstance(value, (list, tuple, Mapping)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in items:
            # One that holds itself has been seen.
            if not isinstance(part, (list, tuple, Mapping)) or len(at.keys) < _DEEPEST:
                yield from _visit(part, Held(at.owner, (*at.keys, key)), found)


# How deep lists and dicts are in one another.
_DEEPEST = 8
