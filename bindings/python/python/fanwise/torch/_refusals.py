"""What is said of modules that are refused."""

import re
from typing import Any

from torch import nn

from .._errors import Error, RefusedError
from ._arguments import Called

# The code of an operator that is not supported.
UNSUPPORTED = "E0102"

# The operator that an error of an exporter is about.
_TARGET = re.compile(r"((?:aten|prims)\.[\w.]*\w|aten::[\w.]*\w)")

# What the number of rows would have to be for the code to be as it was traced.
_GUARD = re.compile(r"satisfy the generated guard (.*?)\.?$", re.MULTILINE)
_ROWS = re.compile(r"L\['tensors'\]\[\d+\]\.size\(\)\[0\]")

# The node that an error of the reader is about.
_NODE = re.compile(r"node `([^`]+)`")


def refused(module: nn.Module, reason: str, **where: Any) -> RefusedError:
    """The refusal of a module."""
    name = type(module).__name__
    where = {"operator": name, **where}
    return RefusedError(f"{name}: {reason}", code=UNSUPPORTED, **where)


def untraced(called: Called, error: Exception) -> Exception:
    """What to say of a module that `torch.export` cannot trace."""
    try:
        called.bound()
    except TypeError as wrong:
        return wrong
    module, text = called.module, str(error)
    guards = [_ROWS.sub("batch", guard) for guard in _GUARD.findall(text)]
    if guards:
        reason = f"its code holds only for numbers of rows with {' and '.join(guards)}"
        hint = "do without the number of rows: `x.flatten(1)` in place of `x.view(7, -1)`"
        return refused(module, reason, hints=[hint])
    if "specialized it to be a constant" in text:
        reason = "its code takes the number of rows as a number of Python"
        hint = "write `x.shape[0]` for `len(x)`, and operators on all rows for loops over them"
        return refused(module, reason, hints=[hint])
    match = _TARGET.search(text)
    where = {"operator": match.group(1)} if match else {}
    return refused(module, f"`torch.export` cannot trace it: {_first(error)}", **where)


def untranslated(module: nn.Module, error: Exception) -> RefusedError:
    """The refusal of the first operator that PyTorch's exporter does not know."""
    from torch.onnx._internal.exporter import _errors

    cause: BaseException | None = error
    while cause is not None:
        match = _TARGET.search(str(cause))
        if match and isinstance(cause, (_errors.ConversionError, _errors.DispatchError)):
            operator = match.group(1)
            return RefusedError(
                f"`{operator}` has no form in ONNX that fanwise reads",
                code=UNSUPPORTED,
                operator=operator,
            )
        cause = cause.__cause__
    return refused(module, f"PyTorch's exporter cannot write it: {_first(error)}")


def unread(module: nn.Module, graph: Any, error: Error) -> RefusedError:
    """The refusal of an operator whose form in ONNX fanwise does not read."""
    text = str(error)
    match = _NODE.search(text)
    nodes = (node for node in graph if match and node.name == match.group(1))
    # Modules by their paths, then the operator, each with its type.
    *within, last = next((_scopes(node) for node in nodes), [("", "")])
    if not last[1]:
        return refused(module, text, hints=error.hints)
    layer = Called.inside(within[-1][0]) if within else ""
    place = f" in `{layer}`" if layer else ""
    return RefusedError(
        f"`{last[1]}`{place} is not supported: {text}",
        code=error.code or UNSUPPORTED,
        operator=last[1],
        layer=layer,
        hints=error.hints or ["compute it outside of the module"],
    )


def _scopes(node: Any) -> list[tuple[str, str]]:
    """What a node is a part of, from the outside in: names, with their types."""
    scopes = node.metadata_props.get("namespace", "").split("/")
    return [(name, kind) for name, _, kind in (scope.partition(": ") for scope in scopes)]


# Colours of a terminal.
_COLOUR = re.compile(r"\x1b\[\d+m")


def _first(error: BaseException) -> str:
    """The first lines of what an error says."""
    text = _COLOUR.sub("", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__
