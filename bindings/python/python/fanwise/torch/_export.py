"""Modules as models: `torch.export`, and PyTorch's own exporter to ONNX in memory."""

import contextlib
import inspect
import io
import logging
import operator
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir
import torch
from torch import nn
from torch.autograd import Function
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from .. import _fanwise
from .._arrays import tensor as fanwise_tensor
from .._errors import Error, RefusedError
from . import _translate

# The rows of the tensors that a module is traced with: no size that modules compare with.
_ROWS = 13

# The operator that an error of the exporter is about.
_TARGET = re.compile(r"(aten\.[\w.]+|aten::[\w.]+)")

# A part of a module with gradients on, or off.
_WITH_MODE = torch.ops.higher_order.wrap_with_set_grad_enabled

# Integers by their number of bytes.
_INTEGERS = {
    2: onnx_ir.DataType.INT16,
    4: onnx_ir.DataType.INT32,
    8: onnx_ir.DataType.INT64,
}

# The names of outputs, by position.
_OUTPUT = "output.{}"

# The code of an operator that is not supported.
_UNSUPPORTED = "E0102"


@dataclass(frozen=True)
class Held:
    """A parameter or buffer of a module: where the module has it."""

    owner: dict[str, Any]
    key: str

    def tensor(self) -> torch.Tensor:
        """The tensor that the module has now."""
        found: torch.Tensor = self.owner[self.key]
        return found


@dataclass(frozen=True)
class Exported:
    """A module as a model, with what it is called with and returns."""

    model: _fanwise.Model
    # The names of the inputs, in the order of the tensors among the arguments.
    inputs: list[str]
    held: dict[str, Held]
    # The outputs in their order: names, or constants.
    outputs: list[str | ConstantArgument]
    # Buffers that a call changes, with the outputs that have their new elements.
    mutated: list[tuple[str, str]]
    # The structure of what it returns.
    spec: pytree.TreeSpec
    # Whether the module draws numbers.
    draws: bool
    # Functions of the module with gradients of their own.
    functions: list[str]


def exported(
    module: nn.Module, leaves: list[Any], spec: pytree.TreeSpec, *, static: bool = False
) -> Exported:
    """The model of a module that is called with such arguments, for any number of rows; one that is
    `static` has the number of these arguments in its code."""
    with torch.inference_mode(False):
        examples = leaves if static else [_example(leaf) for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(examples, spec)
    dims = None
    if not static:
        batch = torch.export.Dim("batch")
        sizes = [_sizes(leaf, batch) for leaf in leaves]
        dims = _by_name(module, *pytree.tree_unflatten(sizes, spec))
    try:
        with _quiet(), torch.inference_mode(False), torch.enable_grad(), _functions() as functions:
            program = torch.export.export(module, args, kwargs, dynamic_shapes=dims, strict=False)
            _cut(module, program)
            program = program.run_decompositions({})
    except RefusedError:
        raise
    except Exception as error:
        raise _refused(module, f"`torch.export` cannot trace it: {_first(error)}") from error
    return _converted(module, program, functions, static=static)


def _converted(module: nn.Module, program: Any, functions: list[str], *, static: bool) -> Exported:
    """The model of an exported program of a module."""
    _check_arguments(program)
    draws = _check_draws(program)
    out_spec = program.call_spec.out_spec
    changed, returned = _flat(module, program)
    onnx = _onnx(module, program)
    graph = onnx.model.graph
    held = _held(module, graph) | {path: _find(module, path) for path in changed}
    _pass_bits(graph)
    _name(graph)
    inputs = [value for value in graph.inputs if value.name not in held]
    axes = {value.name: 0 for value in inputs if len(value.shape) > 0}
    data = onnx.model_proto.SerializeToString()
    params = {name: shared(of.tensor()) for name, of in held.items()}
    try:
        model = _fanwise.traced_model(data, params, axes, static)
    except RefusedError:
        raise
    except Error as error:
        raise _refused(module, str(error)) from error
    return Exported(
        model,
        [value.name for value in inputs],
        held,
        returned,
        [(path, _OUTPUT.format(at)) for at, path in enumerate(changed)],
        out_spec,
        draws,
        functions,
    )


def shared(tensor: torch.Tensor) -> _fanwise.Tensor:
    """The elements of a tensor, not copied where they are in host memory and in order."""
    return fanwise_tensor(tensor.detach().cpu())


def _example(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    sizes = (_ROWS, *leaf.shape[1:]) if leaf.ndim else ()
    example = torch.zeros(sizes, dtype=leaf.dtype, device=leaf.device)
    return example.requires_grad_(leaf.requires_grad)


def _sizes(leaf: Any, batch: Any) -> Any:
    return {0: batch} if isinstance(leaf, torch.Tensor) and leaf.ndim else None


def _by_name(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The sizes of arguments by the names that the module has for them."""
    if not kwargs:
        return _forward_dims(module, args)
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    given = dict(bound.arguments)
    for parameter in bound.signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(given.pop(parameter.name, {}))
    return given


def _forward_dims(module: nn.Module, args: tuple[Any, ...]) -> Any:
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    # Arguments that are gathered are one tuple.
    if kinds and kinds[0] is inspect.Parameter.VAR_POSITIONAL:
        return (args,)
    return args


@contextlib.contextmanager
def _functions() -> Iterator[list[str]]:
    """The names of functions with gradients of their own that are called meanwhile."""
    found: list[str] = []
    before = Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("torch._higher_order_ops."):
            found.append(cls.__qualname__)
        return before.__get__(None, cls)(*args, **kwargs)

    Function.apply = classmethod(apply)
    try:
        yield found
    finally:
        Function.apply = before


def _cut(module: nn.Module, program: Any) -> None:
    """Lets no gradient pass through what a module computes without."""
    for node in program.graph.find_nodes(op="call_function", target=_WITH_MODE):
        if node.args[0]:
            raise _refused(module, "it turns on gradients itself")
        for user in list(node.users):
            with program.graph.inserting_after(user):
                cut = program.graph.call_function(torch.ops.aten.detach.default, (user,))
            cut.meta.update(user.meta)
            user.replace_all_uses_with(cut, delete_user_cb=partial(operator.is_not, cut))


def _check_arguments(program: Any) -> None:
    """Fails where an operator has an argument that would be ignored."""
    for node in program.graph.nodes:
        argument = _translate.ignored(node)
        if argument is not None:
            raise RefusedError(
                f"`{node.target}`{_inside(node)}: the argument `{argument}` is not supported",
                code=_UNSUPPORTED,
                operator=str(node.target),
                layer=_place(node),
            )


def _check_draws(program: Any) -> bool:
    """Whether the module draws; fails where its draws would be the same in each call."""
    found = False
    for node in program.graph.nodes:
        if node.op != "call_function" or not _translate.draws(node):
            continue
        name = str(node.target)
        if name not in _translate.DRAWS:
            raise RefusedError(
                f"`{name}`{_inside(node)} draws numbers: only dropout, and what is made of "
                "`bernoulli`, is drawn by row",
                code=_UNSUPPORTED,
                operator=name,
                layer=_place(node),
                hints=["draw outside of the module, and give it the numbers as an input"],
            )
        found = True
    return found


def _place(node: Any) -> str:
    """The path of the submodule that a node is of."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def _inside(node: Any) -> str:
    """Where a node is, as a phrase."""
    place = _place(node)
    return f" in `{place}`" if place else ""


def _onnx(module: nn.Module, program: Any) -> Any:
    """The program in ONNX, in memory."""
    try:
        with _quiet():
            return torch.onnx.export(
                program,
                dynamo=True,
                optimize=False,
                verbose=False,
                custom_translation_table=_translate.table(),
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise _untranslated(module, error) from error


def _untranslated(module: nn.Module, error: Exception) -> RefusedError:
    """The refusal of the first operator that PyTorch's exporter does not know."""
    from torch.onnx._internal.exporter import _errors

    cause: BaseException | None = error
    while cause is not None:
        match = _TARGET.search(str(cause))
        if match and isinstance(cause, (_errors.ConversionError, _errors.DispatchError)):
            operator = match.group(1)
            return RefusedError(
                f"`{operator}` has no form in ONNX that fanwise reads",
                code=_UNSUPPORTED,
                operator=operator,
            )
        cause = cause.__cause__
    return _refused(module, f"PyTorch's exporter cannot write it: {_first(error)}")


def _held(module: nn.Module, graph: Any) -> dict[str, Held]:
    """Makes inputs of the parameters and buffers: their elements stay those of the module."""
    held: dict[str, Held] = {}
    for name in list(graph.initializers):
        try:
            of = _find(module, name)
        except (AttributeError, KeyError):
            # A constant of the code.
            continue
        held[name] = of
        value = graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)
    return held


def _find(module: nn.Module, path: str) -> Held:
    owner, _, key = path.rpartition(".")
    of = module.get_submodule(owner)
    tensors = of._parameters if key in of._parameters else of._buffers
    if tensors[key] is None:
        raise KeyError(path)
    return Held(tensors, key)


def _flat(module: nn.Module, program: Any) -> tuple[list[str], list[str | ConstantArgument]]:
    """Makes a call return tensors alone: what it makes of buffers, then what the module returns.

    Gives the names of the buffers, and names and constants that the module returns.
    """
    changed: list[str] = []
    returned: list[str | ConstantArgument] = []
    kept: list[Any] = []
    values: list[Any] = []
    (node,) = program.graph.find_nodes(op="output")
    signature = program.graph_signature
    for output, value in zip(signature.output_specs, node.args[0], strict=True):
        if output.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            raise _refused(module, f"a call changes more than buffers: {output.target}")
        if isinstance(output.arg, ConstantArgument):
            returned.append(output.arg)
            continue
        if not isinstance(output.arg, TensorArgument):
            raise _refused(module, "it returns a number that depends on the batch")
        if output.kind == OutputKind.BUFFER_MUTATION:
            changed.append(output.target)
            output.kind, output.target = OutputKind.USER_OUTPUT, None
        else:
            returned.append(_OUTPUT.format(len(kept)))
        kept.append(output)
        values.append(value)
    node.args = (tuple(values),)
    signature.output_specs[:] = kept
    whole = program.module_call_graph[0].signature
    _, whole.out_spec = pytree.tree_flatten(tuple(range(len(kept))))
    whole.outputs = [output.arg for output in kept]
    return changed, returned


def _pass_bits(graph: Any) -> None:
    """Writes what lets no gradient pass: the bits of the elements, there and back.

    The operator is newer than the others; the reader knows it in every version.
    """
    for node in [node for node in graph if node.op_type == _translate.CUT]:
        (x,), (value,) = node.inputs, node.outputs
        kind = onnx_ir.DataType(value.dtype or x.dtype)
        there = _bit_cast(
            x, _INTEGERS.get(int(kind.itemsize), kind) if kind.is_floating_point() else kind
        )
        back = _bit_cast(there.outputs[0], kind)
        back.outputs[0].shape, back.outputs[0].type = value.shape, value.type
        graph.insert_before(node, [there, back])
        value.replace_all_uses_with(back.outputs[0], replace_graph_outputs=True)
        graph.remove(node)


def _bit_cast(x: Any, to: Any) -> Any:
    attribute = onnx_ir.AttrInt64("to", int(to))
    return onnx_ir.Node("", "BitCast", [x], [attribute], num_outputs=1)


def _name(graph: Any) -> None:
    """Gives each output a name of its own: one value may be several."""
    values = list(graph.outputs)
    graph.outputs.clear()
    for at, value in enumerate(values):
        node = onnx_ir.Node("", "Identity", [value], num_outputs=1)
        (output,) = node.outputs
        output.name, output.shape, output.type = _OUTPUT.format(at), value.shape, value.type
        graph.append(node)
        graph.outputs.append(output)


def _refused(module: nn.Module, reason: str) -> RefusedError:
    name = type(module).__name__
    return RefusedError(f"{name}: {reason}", code=_UNSUPPORTED, operator=name)


def _first(error: BaseException) -> str:
    """The first lines of what an error says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch's exporters tell their progress."""
    names = ("torch.onnx", "torch.export", "torch.fx.experimental.symbolic_shapes", "onnxscript")
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
