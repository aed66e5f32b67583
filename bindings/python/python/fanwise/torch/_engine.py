"""Calls of a module on its devices."""

from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import ConstantArgument
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from .._errors import Error
from ._arguments import key as argument_key
from ._export import LEAST, exported
from ._held import TRACING
from ._program import Call

# The input that has the number by which dropout drops.
_DRAW = "draw"
_DRAWS = 1 << 62


class Engine:
    """A module on its devices: programs are prepared when they run first."""

    def __init__(
        self,
        module: nn.Module,
        options: dict[str, Any],
        *,
        reproducible: bool,
        compiled: bool = False,
        static: bool = False,
    ) -> None:
        self.calls: dict[Any, Call] = {}
        self._module = module
        self._options = options
        self._reproducible = reproducible
        # Whether gradients that are refused have to be so before anything runs.
        self._compiled = compiled
        # Whether the module was written for one number of rows.
        self._static = static

    @property
    def copied(self) -> int:
        """How often the elements of a parameter were copied."""
        return sum(program.copied for call in self.calls.values() for program in call.programs)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module returns for these arguments."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        rows = _rows(tensors)
        call = self._call(leaves, spec) if rows >= LEAST[0] else None
        if call is None or rows < call.exported.least:
            with TRACING:
                return self._module(*args, **kwargs)
        return self.run(call, tensors)

    def run(self, call: Call, tensors: list[torch.Tensor]) -> Any:
        """What the module returns for these tensors."""
        found = self._outputs(call, tensors)
        of = call.exported
        with torch.no_grad():
            for buffer, name in of.mutated:
                of.held[buffer].tensor().copy_(found[name])
        outputs = [
            output.value if isinstance(output, ConstantArgument) else found[output]
            for output in of.outputs
        ]
        return pytree.tree_unflatten(outputs, of.spec)

    def _outputs(self, call: Call, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs by name, with a gradient where PyTorch records it."""
        of = call.exported
        arrays = dict(zip(of.inputs, tensors, strict=True))
        if of.draws:
            # By PyTorch's generator: `torch.manual_seed` repeats what is dropped.
            arrays[_DRAW] = torch.randint(_DRAWS, ())
        params = {name: held.tensor() for name, held in of.held.items()}
        given = {**arrays, **params}
        wanted = [name for name, tensor in given.items() if tensor.requires_grad]
        differentiable = call.differentiable(wanted) if torch.is_grad_enabled() else []
        if not differentiable:
            return call.forward().run(arrays)
        if self._compiled:
            call.backward(differentiable, wanted)
        names = call.forward().outputs
        fixed = [name for name in names if name not in differentiable]
        found = _Function.apply(call, names, fixed, list(arrays), list(params), *given.values())
        return dict(zip(names, found, strict=True))

    def _call(self, leaves: list[Any], spec: pytree.TreeSpec) -> Call | None:
        """The call for such arguments; none where the module has no sizes before it is called."""
        with TRACING:
            return self._prepared(leaves, spec)

    def _prepared(self, leaves: list[Any], spec: pytree.TreeSpec) -> Call | None:
        numbers: dict[int, int] = {}
        modes = tuple(_mode(module, numbers) for module in self._module.modules())
        cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        key = modes, spec, tuple(map(argument_key, leaves)), cast
        call = self.calls.get(key)
        if call is None or not call.fits():
            if any(map(is_lazy, (*self._module.parameters(), *self._module.buffers()))):
                return None
            of = exported(self._module, leaves, spec, static=self._static)
            call = Call(of, self._options, reproducible=self._reproducible)
            self.calls[key] = call
        return call


def _mode(module: nn.Module, numbers: dict[int, int]) -> Any:
    """What tells that a submodule computes otherwise than when it was traced. Its tensors have
    `numbers`: those that are one have one."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    held = (*module._parameters.items(), *module._buffers.items())
    tensors = [
        (name, numbers.setdefault(id(tensor), len(numbers)))
        for name, tensor in held
        if tensor is not None
    ]
    return module, module.training, hooks, tuple(tensors)


def _rows(tensors: list[torch.Tensor]) -> int:
    """The number of rows of a batch."""
    counts = {tensor.shape[0] for tensor in tensors if tensor.ndim}
    if len(counts) != 1:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors) or "no tensor"
        text = f"the first axis of every tensor is that of the batch; found {shapes}"
        hint = "tensors that all rows share are for the module to have, as buffers or attributes"
        raise Error(text, code="E0501", hints=[hint])
    return counts.pop()


class _Function(torch.autograd.Function):
    """The programs of a call as one step of PyTorch's autograd."""

    @staticmethod
    def forward(ctx: Any, call: Call, names: list[str], *rest: Any) -> tuple[torch.Tensor, ...]:
        fixed, inputs, params, *tensors = rest
        ctx.call, ctx.names, ctx.inputs, ctx.params = call, names, inputs, params
        ctx.set_materialize_grads(False)
        # What the call itself changes has no part in gradients.
        changed = {name for name, _ in call.exported.mutated}
        ctx.saved = [name for name in [*inputs, *params] if name not in changed]
        given = dict(zip([*inputs, *params], tensors))
        ctx.save_for_backward(*(given[name] for name in ctx.saved))
        ctx.before = {name: given[name].clone() for name in call.exported.before}
        found = call.forward().run(dict(zip(inputs, tensors)))
        ctx.mark_non_differentiable(*(found[name] for name in fixed))
        return tuple(found[name] for name in names)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        # Fails where somebody changed one of them.
        given = dict(zip(ctx.saved, ctx.saved_tensors, strict=True))
        all_names = [*ctx.inputs, *ctx.params]
        needed = zip(all_names, ctx.needs_input_grad[5:], strict=True)
        wanted = [name for name, is_needed in needed if is_needed]
        of = {name: g for name, g in zip(ctx.names, gradients, strict=True) if g is not None}
        arrays = {name: given[name] for name in ctx.inputs}
        arrays |= {f"{name}.gradient": gradient for name, gradient in of.items()}
        found = ctx.call.backward(of, wanted).run(arrays, ctx.before) if of else {}
        # A gradient that is 0 everywhere is not computed.
        for name in ctx.call.reached(of).intersection(wanted):
            if f"{name}.gradient" not in found:
                found[f"{name}.gradient"] = torch.zeros_like(given[name])
        return *[None] * 5, *(found.get(f"{name}.gradient") for name in all_names)
