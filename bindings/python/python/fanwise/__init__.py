"""fanwise runs one model on many devices without changing what it computes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._errors import Error, RefusedError
from ._fanwise import Model, Tensor

if TYPE_CHECKING:
    from ._graph import Check, Graph, load, replicate

__version__ = "0.1.0"
__all__ = ["Check", "Error", "Graph", "Model", "RefusedError", "Tensor", "load", "replicate"]

# What needs NumPy is imported when it is used.
_LATER = dict.fromkeys(["Check", "Graph", "load", "replicate"], "._graph")


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module 'fanwise' has no attribute '{name}'")
