"""Modules as models: `torch.export`, and PyTorch's own exporter to ONNX in memory."""

import contextlib
import io
import logging
import operator
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir
import torch
from torch import nn
from torch.autograd import Function
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from .. import _fanwise
from .._arrays import tensor as fanwise_tensor
from .._errors import Error, RefusedError
from . import _decompose, _translate
from ._arguments import Called
from ._held import Held, held
from ._reach import operands, reach
from ._refusals import UNSUPPORTED, refused, unread, untraced, untranslated

# The rows of the tensors that a module is traced with: no size that modules compare with.
_ROWS = 13

# How many rows there are at least, from the first number on that a module can be traced with:
# PyTorch traces a batch of no or one row, and parts of it of one, apart from all others.
LEAST = (2, 4, 12)

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
    # Those of them that what it returns is computed from.
    before: frozenset[str]
    # The structure of what it returns.
    spec: pytree.TreeSpec
    # By output, the inputs and what is held that it has gradients for.
    reach: dict[str, frozenset[str]]
    # Whether the module draws numbers.
    draws: bool
    # Functions of the module with gradients of their own.
    functions: list[str]
    # The rows that it is for, at least.
    least: int


def exported(
    module: nn.Module, leaves: list[Any], spec: pytree.TreeSpec, *, static: bool = False
) -> Exported:
    """The model of a module that is called with such arguments, for any number of rows; one that is
    `static` has the number of these arguments in its code."""
    called = Called(module, leaves, spec)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    with (
        _quiet(),
        _decompose.substituted(),
        torch.inference_mode(False),
        torch.enable_grad(),
        _functions() as functions,
    ):
        program, least = _traced(called, tensors, static=static)
        _cut(module, program)
        _drop_unused(program)
        own = held(called, program)
        try:
            program = program.run_decompositions(_decompose.table())
        except Exception as error:
            raise untraced(called, error) from error
    return _converted(called, program, own, functions, static=static, least=least)


def _traced(
    called: Called,
    tensors: list[torch.Tensor],
    *,
    static: bool,
    numbers: Sequence[int] = LEAST,
) -> tuple[torch.export.ExportedProgram, int]:
    """The exported program, and the number of rows that it is for, at least: of `numbers`."""
    least, *more = numbers
    given = tuple(tensors if static else map(_example, tensors))
    batch = torch.export.Dim("batch", min=least)
    sizes = tuple({0: batch} if tensor.ndim else None for tensor in tensors)
    dims = None if static else (sizes,)
    try:
        return torch.export.export(called, given, dynamic_shapes=dims, strict=False), least
    except Exception as error:
        # A part of the batch may be larger than a row only where there are more rows.
        if static or not more or "Constraints violated" not in str(error):
            raise untraced(called, error) from error
    return _traced(called, tensors, static=static, numbers=more)


def _converted(
    called: Called,
    program: Any,
    own: dict[str, Held],
    functions: list[str],
    *,
    static: bool,
    least: int,
) -> Exported:
    """The model of an exported program of a module."""
    module = called.module
    _check_arguments(program)
    draws = _check_draws(program)
    out_spec = program.call_spec.out_spec
    changed, returned = _flat(module, program)
    onnx = _onnx(module, program)
    graph = onnx.model.graph
    _take(graph, own)
    _pass_bits(graph)
    _name(graph)
    own = {Called.inside(name): of for name, of in own.items()}
    inputs = [value for value in graph.inputs if value.name not in own]
    names = _names(program, [value.name for value in inputs])
    at = len(changed)
    outputs = [_OUTPUT.format(i) for i in range(at, len(graph.outputs))]
    used = frozenset[str]().union(*operands(program, names)[at:])
    changed = [Called.inside(path) for path in changed]
    axes = {value.name: 0 for value in inputs if len(value.shape) > 0}
    data = onnx.model_proto.SerializeToString()
    params = {name: shared(of.tensor()) for name, of in own.items()}
    try:
        model = _fanwise.traced_model(data, params, axes, static)
    except Error as error:
        raise unread(module, graph, error) from error
    return Exported(
        model,
        [value.name for value in inputs],
        own,
        returned,
        [(path, _OUTPUT.format(at)) for at, path in enumerate(changed)],
        used.intersection(changed),
        out_spec,
        dict(zip(outputs, reach(program, names)[at:], strict=True)),
        draws,
        functions,
        least,
    )


def shared(tensor: torch.Tensor) -> _fanwise.Tensor:
    """The elements of a tensor, not copied where they are in host memory and in order."""
    return fanwise_tensor(tensor.detach().cpu())


def _example(leaf: torch.Tensor) -> torch.Tensor:
    sizes = (_ROWS, *leaf.shape[1:]) if leaf.ndim else ()
    example = torch.zeros(sizes, dtype=leaf.dtype, device=leaf.device)
    return example.requires_grad_(leaf.requires_grad)


@contextlib.contextmanager
def _functions() -> Iterator[list[str]]:
    """The names of functions with gradients of their own that this thread calls meanwhile."""
    found: list[str] = []
    own, before = threading.get_ident(), Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        is_own = threading.get_ident() == own
        if is_own and not cls.__module__.startswith("torch._higher_order_ops."):
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
            raise refused(module, "it turns on gradients itself")
        for user in list(node.users):
            with program.graph.inserting_after(user):
                cut = program.graph.call_function(torch.ops.aten.detach.default, (user,))
            cut.meta.update(user.meta)
            user.replace_all_uses_with(cut, delete_user_cb=partial(operator.is_not, cut))


def _drop_unused(program: Any) -> None:
    """Takes out parameters and buffers without a use: the other names of a module that is used
    twice, with which PyTorch does not decompose a buffer that changes."""
    specs = program.graph_signature.input_specs
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    of = {spec.arg.name: spec for spec in specs if spec.kind in kinds}
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name in of and not node.users:
            specs.remove(of[node.name])
            program.graph.erase_node(node)


def _check_arguments(program: Any) -> None:
    """Fails where an operator has an argument that would be ignored."""
    for node in program.graph.nodes:
        argument = _translate.ignored(node)
        if argument is not None:
            raise RefusedError(
                f"`{node.target}`{_inside(node)}: the argument `{argument}` is not supported",
                code=UNSUPPORTED,
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
                code=UNSUPPORTED,
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
    return Called.inside(str(paths[-1])) if paths else ""


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
        raise untranslated(module, error) from error


def _take(graph: Any, own: dict[str, Held]) -> None:
    """Makes inputs of what the module has: the elements stay the module's."""
    for name in [name for name in graph.initializers if name in own]:
        value = graph.initializers.pop(name)
        value.const_value, value.name = None, Called.inside(name)
        graph.inputs.append(value)


def _names(program: Any, inputs: list[str]) -> dict[str, str]:
    """What an exported program has for what its placeholders are."""
    given = iter(inputs)
    specs = program.graph_signature.input_specs
    own = InputKind.USER_INPUT
    return {
        spec.arg.name: next(given) if spec.kind == own else Called.inside(spec.target)
        for spec in specs
    }


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
            raise refused(module, f"a call changes more than buffers: {output.target}")
        if isinstance(output.arg, ConstantArgument):
            returned.append(output.arg)
            continue
        if not isinstance(output.arg, TensorArgument):
            raise refused(module, "it returns a number that depends on the batch")
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
