"""What a few operators of PyTorch are in ONNX, where its exporter has a form of them that does not
train: draws, and statistics of the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir
import torch
from onnxscript import opset18

# Traced values have any type.
op: Any = opset18

# Operators that draw anew in each run, with the argument that says how likely; those without, and
# others, draw nothing only where it is 0.
DRAWS = {
    "aten.native_dropout.default": "p",
    "aten.bernoulli.p": "p",
    "aten.scaled_dot_product_attention.default": "dropout_p",
}
STILL = {"aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input"}


# What gives its operand, and here lets no gradient pass: nothing else has operands that are not
# optional.
CUT = "OptionalGetElement"

# Arguments that PyTorch's exporter ignores, with what they are where that changes nothing.
IGNORED: dict[str, dict[str, tuple[Any, ...]]] = {
    "aten.avg_pool2d.default": {"divisor_override": (None,)},
    "aten.avg_pool3d.default": {"divisor_override": (None,)},
    "aten.embedding.default": {"scale_grad_by_freq": (False,)},
    "aten.embedding_bag.default": {"scale_grad_by_freq": (False,)},
    "aten.embedding_bag.padding_idx": {"scale_grad_by_freq": (False,), "padding_idx": (None, -1)},
    "aten.upsample_linear1d.default": {"scales": (None,)},
    "aten.upsample_bilinear2d.default": {"scales_h": (None,), "scales_w": (None,)},
    "aten.upsample_bicubic2d.default": {"scales_h": (None,), "scales_w": (None,)},
    "aten._upsample_bilinear2d_aa.default": {"scales_h": (None,), "scales_w": (None,)},
    "aten._upsample_bicubic2d_aa.default": {"scales_h": (None,), "scales_w": (None,)},
}


def ignored(node: Any) -> str | None:
    """An argument of a node that would be ignored."""
    if node.op != "call_function":
        return None
    if str(node.target) == "aten.instance_norm.default" and _argument(node, "use_input_stats"):
        # PyTorch does not say that it changes them.
        return None if _argument(node, "running_mean") is None else "running_mean"
    found = IGNORED.get(str(node.target), {})
    return next((name for name, v in found.items() if _argument(node, name) not in v), None)


def draws(node: Any) -> bool:
    """Whether a node draws numbers."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    if str(node.target) in STILL:
        return bool(_argument(node, "dropout") > 0 and _argument(node, "train"))
    return str(node.target) not in DRAWS or _argument(node, DRAWS[str(node.target)]) > 0


def _argument(node: Any, name: str) -> Any:
    """An argument of a node, or what stands for it."""
    arguments = node.target._schema.arguments
    at, argument = next((i, a) for i, a in enumerate(arguments) if a.name == name)
    return node.args[at] if at < len(node.args) else node.kwargs.get(name, argument.default_value)


def table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The translations, by operator."""
    aten = torch.ops.aten
    return {
        aten.native_dropout.default: _dropout,
        aten.bernoulli.p: _bernoulli,
        aten._native_batch_norm_legit_functional.default: _batch_norm,
        aten._native_batch_norm_legit.no_stats: _batch_norm_without_statistics,
        aten.split.Tensor: _split,
        aten.split_with_sizes.default: _split_with_sizes,
        aten.unbind.int: _unbind,
        aten.detach.default: _detach,
        aten.embedding.default: _embedding,
        aten.amax.default: _largest,
        aten.amin.default: _least,
        aten.hardtanh.default: _hardtanh,
        aten.relu6.default: _relu6,
        aten.clamp.default: _clamp,
        aten.clamp.Tensor: _clamp,
        aten.clamp_min.default: _clamp,
        aten.clamp_min.Tensor: _clamp,
        aten.clamp_max.default: _clamp_max,
        aten.clamp_max.Tensor: _clamp_max,
    }


def _number(value: float, like: Any) -> Any:
    # An attribute `value_float` has the digits of float32 only.
    exact = onnx_ir.tensor(float(value), onnx_ir.DataType.DOUBLE)
    return op.CastLike(op.Constant(value=exact), like)


def _dropped(x: Any, rate: float) -> Any:
    """What dropout leaves, and its mask. A rate above 0 says that programs of the model drop."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout at a rate of {rate}")
    return op.Dropout(x, op.Constant(value_float=float(rate)))


def _dropout(x: Any, p: float, train: bool = True) -> Any:
    return _dropped(x, p if train else 0)


def _bernoulli(x: Any, p: float = 0.5) -> Any:
    """1 with probability `p`: what dropout leaves of ones, without its scale."""
    ones = op.Expand(_number(1, x), op.Shape(x))
    return op.Mul(_dropped(ones, 1 - p)[0], _number(p, x)) if p < 1 else ones


def _scaled(x: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Scale and bias, of which a layer without has ones and zeros."""
    channels = op.Shape(x, start=1, end=2)
    weight = op.Expand(_number(1, x), channels) if weight is None else weight
    return weight, op.Expand(_number(0, x), channels) if bias is None else bias


def _statistics(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """The batch normalized by its own statistics, its means, and its biased variances."""
    weight, bias = _scaled(x, weight, bias)
    zeros = op.Mul(bias, _number(0, x))
    # Without momentum the new running statistics are those of the batch.
    y, mean, var = op.BatchNormalization(
        x, weight, bias, zeros, zeros, epsilon=eps, momentum=0.0, training_mode=1
    )
    return y, mean, var


def _batch_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not training:
        weight, bias = _scaled(x, weight, bias)
        y = op.BatchNormalization(x, weight, bias, running_mean, running_var, epsilon=eps)
        return y, running_mean, running_var, op.Identity(running_mean), op.Identity(running_var)
    y, mean, var = _statistics(x, weight, bias, eps)
    # The running variance takes in the unbiased one: that of n elements times n / (n - 1).
    size = op.Div(op.Size(x), op.Size(running_mean))
    n = op.CastLike(size, running_var)
    less = op.CastLike(op.Sub(size, op.Constant(value_int=1)), running_var)
    unbiased = op.Div(op.Mul(var, n), less)
    new_mean = _moved(running_mean, mean, momentum)
    return y, mean, var, new_mean, _moved(running_var, unbiased, momentum)


def _moved(running: Any, new: Any, momentum: float) -> Any:
    kept = op.Mul(running, _number(1 - momentum, running))
    return op.Add(kept, op.Mul(new, _number(momentum, running)))


def _batch_norm_without_statistics(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    return _statistics(x, weight, bias, eps)


# Lists of tensors, for which the exporter has sequences, and extremes of all elements.


def _split(x: Any, size: int, dim: int = 0) -> Any:
    whole = _size(x, dim)
    return _split_with_sizes(x, [min(size, whole - at) for at in range(0, whole, size)], dim)


def _split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    if len(sizes) > 1 and len(set(sizes)) == 1:
        return op.Split(x, axis=dim, num_outputs=len(sizes))
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    cuts = [(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    return [op.Slice(x, _ints(start), _ints(end), _ints(dim)) for start, end in cuts]


def _unbind(x: Any, dim: int = 0) -> Any:
    return [op.Gather(x, op.Constant(value_int=at), axis=dim) for at in range(_size(x, dim))]


def _detach(x: Any) -> Any:
    return getattr(op, CUT)(x)


def _embedding(
    table: Any,
    places: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    found = op.Gather(table, places)
    if padding_idx < 0:
        return found
    # The entry of the padding gets no gradient.
    padding = op.Equal(op.Unsqueeze(places, _ints(-1)), op.Constant(value_int=padding_idx))
    return op.Where(padding, op.Gather(_detach(table), places), found)


def _largest(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return op.ReduceMax(x, _ints(*dim) if dim else None, keepdims=int(keepdim))


def _least(x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    return op.ReduceMin(x, _ints(*dim) if dim else None, keepdims=int(keepdim))


def _ints(*values: int) -> Any:
    return op.Constant(value_ints=list(values))


def _size(x: Any, dim: int) -> int:
    size = x.shape[dim]
    if isinstance(size, int):
        return size
    raise ValueError("a list of the rows of the batch")


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    return _clamp(x, min_val, max_val)


def _relu6(x: Any) -> Any:
    return _clamp(x, 0, 6)


def _clamp_max(x: Any, max: Any) -> Any:
    return _clamp(x, None, max)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    """At the bounds gradients are those of the bounds, where `Clip` gives them to `x`.

    NaN is not beside a bound. A bound of a declared type would leave numbers of another one to
    PyTorch's own translation.
    """
    if min is not None:
        low = _bound(min, x)
        x = op.Where(op.LessOrEqual(x, low), low, x)
    if max is not None:
        high = _bound(max, x)
        x = op.Where(op.GreaterOrEqual(x, high), high, x)
    return x


def _bound(value: Any, like: Any) -> Any:
    if isinstance(value, float):
        return _number(value, like)
    return op.CastLike(op.Constant(value_int=value) if isinstance(value, int) else value, like)
