"""Programs of a traced module, and the parameters that they share with it."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from .. import _fanwise
from .._errors import RefusedError
from ._export import Exported, shared
from ._held import Held


class Program:
    """A program whose parameters are those of the module."""

    def __init__(self, native: _fanwise.Program, held: Mapping[str, Held], *, host: bool) -> None:
        self.inputs = {name for name, _ in native.inputs}
        self.outputs = [name for name, _ in native.outputs]
        # The parameters that were given anew, and those of them whose elements were copied.
        self.given = self.copied = 0
        self._native = native
        # The parameters that a run reads where they are; of others the program has copies.
        self._shared = native.shared if host else set[str]()
        own = (name for name, _ in native.params)
        self._params = [(name, held[name]) for name in own if name in held]
        # Each parameter as it was when the program got it.
        self._seen = {name: self._stamp(name, of.tensor()) for name, of in self._params}

    def run(
        self,
        arrays: Mapping[str, torch.Tensor],
        before: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """The outputs for these inputs, by name, where the first input is; with tensors that the
        module had `before` in place of those that it has now."""
        self._refresh(before or {})
        device = next(iter(arrays.values())).device
        given = {name: shared(a) for name, a in arrays.items() if name in self.inputs}
        found = self._native.run(given)
        return {name: from_dlpack(found[name]).to(device) for name in self.outputs}

    def _refresh(self, before: Mapping[str, torch.Tensor]) -> None:
        """Gives the program the parameters that changed since it got them."""
        given = {}
        for name, of in self._params:
            tensor = before[name] if name in before else of.tensor()
            stamp = self._stamp(name, tensor)
            if stamp != self._seen[name]:
                self._seen[name] = stamp
                given[name] = shared(tensor)
                self.copied += not self._is_shared(name, tensor)
        if given:
            self._native.set_weights(given)
            self.given += len(given)

    def _is_shared(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether the program reads the memory of the tensor itself."""
        return name in self._shared and tensor.device.type == "cpu" and tensor.is_contiguous()

    def _stamp(self, name: str, tensor: torch.Tensor) -> tuple[int, ...]:
        """What tells that the program lacks elements of the tensor.

        Those that it copied may change without a new version: through `.data`.
        """
        if self._is_shared(name, tensor):
            return (tensor.data_ptr(),)
        return tensor.data_ptr(), tensor._version, _fanwise.fingerprint(shared(tensor))


class Call:
    """A module as it is called with arguments of one structure and one set of types."""

    def __init__(self, exported: Exported, options: dict[str, Any], *, reproducible: bool) -> None:
        self.exported = exported
        self._options = options
        self._reproducible = reproducible
        self._types = [(of, of.type()) for of in exported.held.values()]
        self._programs: dict[tuple[frozenset[str], frozenset[str]], Program] = {}

    @property
    def programs(self) -> list[Program]:
        """Those that are prepared."""
        return list(self._programs.values())

    def fits(self) -> bool:
        """Whether the parameters have the types that they were traced with."""
        return all(of.type() == ty for of, ty in self._types)

    def forward(self) -> Program:
        """The program of the outputs."""
        return self._program(frozenset(), frozenset())

    def differentiable(self, wanted: Iterable[str]) -> list[str]:
        """The outputs that have gradients for any of `wanted`."""
        names = frozenset(wanted)
        return [name for name, of in self.exported.reach.items() if not names.isdisjoint(of)]

    def reached(self, of: Iterable[str]) -> frozenset[str]:
        """What gradients of these outputs reach."""
        return frozenset[str]().union(*(self.exported.reach[name] for name in of))

    def backward(self, of: Collection[str], wanted: Iterable[str]) -> Program:
        """The program of these gradients, for those of the outputs `of`."""
        if self.exported.functions:
            name = self.exported.functions[0]
            raise RefusedError(
                f"`{name}` has a gradient of its own, which is code of Python",
                code="E0102",
                operator=name,
            )
        return self._program(frozenset(of), self.reached(of).intersection(wanted))

    def _program(self, of: frozenset[str], wanted: frozenset[str]) -> Program:
        key = of, wanted
        if key not in self._programs:
            model, options = self.exported.model, self._options
            native = _fanwise.traced_program(
                model, set(of), set(wanted), options, self._reproducible
            )
            host = options["target"] == "cpu"
            self._programs[key] = Program(native, self.exported.held, host=host)
        return self._programs[key]
