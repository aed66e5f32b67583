"""Which outputs of a traced module have gradients, and for what."""

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten

# Operators whose results have no gradients for what they take.
_CUT = {
    _aten.detach.default,
    *(_aten.zeros_like.default, _aten.ones_like.default, _aten.full_like.default),
    *(_aten.empty_like.default, _aten.rand_like.default, _aten.randn_like.default),
    *(_aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default),
    _aten.new_empty.default,
}


def reach(program: Any, names: dict[str, str]) -> list[frozenset[str]]:
    """For each output what gradients of it reach, of the tensors that `names` has by the names
    that the program has for them."""
    return _walked(program, names, lambda node: node.target not in _CUT and _is_continuous(node))


def operands(program: Any, names: dict[str, str]) -> list[frozenset[str]]:
    """For each output what it is computed from."""
    return _walked(program, names, lambda _: True)


def _walked(
    program: Any, names: dict[str, str], passes: Callable[[fx.Node], bool]
) -> list[frozenset[str]]:
    sources = list(names)
    # What reaches a node: sets, as the bits of numbers.
    found: dict[fx.Node, int] = {}
    outputs: list[int] = []
    for node in program.graph.nodes:
        if node.op == "output":
            outputs = [found[value] for value in node.args[0]]
        elif node.op == "placeholder":
            found[node] = 1 << sources.index(node.name) if node.name in names else 0
        else:
            of = (found[operand] for operand in node.all_input_nodes)
            found[node] = reduce(or_, of, 0) if passes(node) else 0
    return [
        frozenset(name for at, name in enumerate(names.values()) if bits >> at & 1)
        for bits in outputs
    ]


def _is_continuous(node: fx.Node) -> bool:
    """Whether what a node gives has gradients; what gives several tensors may."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()
