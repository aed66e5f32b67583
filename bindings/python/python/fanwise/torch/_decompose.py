"""Operators and modules of PyTorch in other ones, where its exporters have no form of them, or one
that says less."""

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

_aten = torch.ops.aten

# The numbers that operators have for what is made of the elements of a loss.
_MEAN, _SUM = 1, 2

_RANK = 4


def table() -> dict[Any, Callable[..., Any]]:
    """What operators are in other ones, by operator."""
    return {
        _aten.cross_entropy_loss.default: _cross_entropy,
        _aten.margin_ranking_loss.default: _margin_ranking_loss,
        _aten.scaled_dot_product_attention.default: _attention,
        _aten.lstm_cell.default: _lstm_cell,
        _aten.gru_cell.default: _gru_cell,
        _aten.adaptive_max_pool1d.default: _adaptive_max_pool,
        _aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        _aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        _aten.adaptive_avg_pool3d.default: _adaptive_avg_pool,
        _aten._adaptive_avg_pool3d.default: _adaptive_avg_pool,
        _aten.median.default: lambda x: _median(x.flatten(), 0)[0],
        _aten.median.dim: _median,
        _aten.kthvalue.default: lambda x, k, dim=-1, keepdim=False: _least_of(
            x, k - 1, dim, keepdim
        ),
        _aten.roll.default: _roll,
        _aten.slice.Tensor: _slice,
        _aten.rrelu.default: _rrelu,
        _aten.hstack.default: lambda xs: torch.cat(xs, min(xs[0].ndim - 1, 1)),
        _aten.vstack.default: lambda xs: torch.cat([torch.atleast_2d(x) for x in xs], 0),
        _aten.dstack.default: lambda xs: torch.cat([torch.atleast_3d(x) for x in xs], 2),
        _aten.fmax.default: lambda x, y: torch.where(x.isnan(), y, _or(x, y, torch.maximum)),
        _aten.fmin.default: lambda x, y: torch.where(x.isnan(), y, _or(x, y, torch.minimum)),
    }


def _or(x: torch.Tensor, y: torch.Tensor, of: Callable[..., torch.Tensor]) -> torch.Tensor:
    return torch.where(y.isnan(), x, of(x, y))


def _cross_entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """With smoothed labels, or with probabilities in place of labels."""
    axis = min(1, x.ndim - 1)
    part = label_smoothing / x.shape[axis]
    if label_smoothing == 0 and not target.is_floating_point():
        return NotImplemented
    given = logarithms = x.log_softmax(axis)
    if weight is not None:
        logarithms = logarithms * weight.view(-1, *(1 for _ in range(x.ndim - axis - 1)))
    if target.is_floating_point():
        losses = -(logarithms * (target * (1 - label_smoothing) + part)).sum(axis)
        if reduction == _MEAN:
            return losses.mean()
        return losses.sum() if reduction == _SUM else losses
    loss = _aten.nll_loss_nd(given, target, weight, reduction, ignore_index)
    kept = target != ignore_index
    smooth = torch.where(kept, -logarithms.sum(axis), 0)
    if reduction in (_MEAN, _SUM):
        smooth = smooth.sum()
    if reduction == _MEAN:
        whole = kept if weight is None else weight[target.where(kept, 0)] * kept
        smooth = smooth / whole.sum()
    return loss * (1 - label_smoothing) + smooth * part


def _margin_ranking_loss(
    x: torch.Tensor,
    y: torch.Tensor,
    target: torch.Tensor,
    margin: float = 0.0,
    reduction: int = _MEAN,
) -> torch.Tensor:
    loss = (-target * (x - y) + margin).clamp_min(0)
    if reduction == _MEAN:
        return loss.mean()
    return loss.sum() if reduction == _SUM else loss


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """With one axis of heads."""
    if q.ndim == k.ndim == v.ndim == _RANK:
        return NotImplemented
    if q.ndim != _RANK - 1 or k.ndim != q.ndim or v.ndim != q.ndim:
        return NotImplemented
    mask = args[0] if args else kwargs.get("attn_mask")
    if mask is not None and mask.ndim == q.ndim:
        args, kwargs = args[1:], {name: of for name, of in kwargs.items() if name != "attn_mask"}
        args = (mask[:, None], *args)
    q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    found = functional.scaled_dot_product_attention(q, k, v, *args, **kwargs)
    return found.squeeze(1)


def _lstm_cell(
    x: torch.Tensor,
    state: Sequence[torch.Tensor],
    *weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    h, c = state
    own, of_state = _gates(x, h, *weights)
    i, f, g, o = (own + of_state).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_cell(x: torch.Tensor, h: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    own, of_state = (found.chunk(3, -1) for found in _gates(x, h, *weights))
    reset, update = ((own[at] + of_state[at]).sigmoid() for at in range(2))
    new = (own[2] + reset * of_state[2]).tanh()
    return (h - new) * update + new


def _gates(
    x: torch.Tensor,
    h: torch.Tensor,
    own: torch.Tensor,
    of_state: torch.Tensor,
    bias: torch.Tensor | None = None,
    bias_of_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return functional.linear(x, own, bias), functional.linear(h, of_state, bias_of_state)


def _windows(size: int, parts: int) -> list[tuple[int, int]]:
    """Where parts of an axis begin and end that cover it."""
    return [(at * size // parts, -(-(at + 1) * size // parts)) for at in range(parts)]


def _adaptive_max_pool(x: torch.Tensor, sizes: Sequence[int]) -> Any:
    whole = x.shape[-len(sizes) :]
    if all(size % parts == 0 for size, parts in zip(whole, sizes, strict=True)):
        return NotImplemented
    found = []
    axes = [_windows(size, parts) for size, parts in zip(whole, sizes, strict=True)]
    numbers = torch.arange(math.prod(whole), device=x.device).view(*whole)
    for window in itertools.product(*axes):
        cut: Any = (..., *(slice(*ends) for ends in window))
        largest, place = x[cut].flatten(-len(sizes)).max(-1)
        found.append((largest, numbers[cut].flatten()[place]))
    return tuple(torch.stack(part, -1).unflatten(-1, list(sizes)) for part in zip(*found))


def _adaptive_avg_pool(x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    for axis, parts in enumerate(sizes, x.ndim - len(sizes)):
        windows = _windows(x.shape[axis], parts)
        means = [x.narrow(axis, start, end - start).mean(axis, True) for start, end in windows]
        x = torch.cat(means, axis)
    return x


def _least_of(
    x: torch.Tensor, at: int, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The element that has a place in the order of an axis, in which NaN is the largest."""
    if not x.ndim:
        return x.clone(), torch.zeros_like(x, dtype=torch.long)
    found, places = (part.narrow(dim, at, 1) for part in x.sort(dim))
    return (found, places) if keepdim else (found.squeeze(dim), places.squeeze(dim))


def _median(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The element in the middle; where there is a NaN, it."""
    if not x.ndim:
        return _least_of(x, 0, dim)
    found, places = _least_of(x, (x.shape[dim] - 1) // 2, dim, keepdim)
    if x.is_floating_point():
        found = torch.where(x.isnan().any(dim, keepdim), torch.nan, found)
    return found, places


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    if not dims:
        return _roll(x.flatten(), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        places = torch.arange(size, device=x.device) - shift
        x = x.index_select(dim, torch.remainder(places, torch.full_like(places, size)))
    return x


def _slice(
    x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """A part of the rows, which is gathered: so it has a gradient."""
    size = x.shape[dim]
    if isinstance(size, int) or not (x.is_floating_point() or x.is_complex()):
        return NotImplemented
    first = _place(start or 0, size)
    is_whole = end is None or (isinstance(end, int) and end >= sys.maxsize)
    last = size if end is None or is_whole else _place(end, size)
    if step == 1 and isinstance(first, int) and first == 0 and last is size:
        return NotImplemented
    gap = 0 if end is None or is_whole else -end if statically_known_true(end < 0) else None
    if step == 1 and isinstance(first, int) and gap is not None:
        # The number of these is a difference; that of a range is none below 0 besides.
        places = torch.arange(size, device=x.device)[first + gap :] - gap
    else:
        places = torch.arange(first, last, step, device=x.device)
    return x.index_select(dim, places)


def _place(at: Any, size: Any) -> Any:
    """A place in an axis of an open size, of which negative ones count from the end."""
    at = at + size if statically_known_true(at < 0) else at
    if statically_known_true(at >= 0) and statically_known_true(at <= size):
        return at
    return torch.sym_min(torch.sym_max(at, 0), size)


def _rrelu(
    x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> Any:
    return NotImplemented if training else functional.leaky_relu(x, (lower + upper) / 2)


# What is lost before operators are seen.


@contextlib.contextmanager
def substituted() -> Iterator[None]:
    """Modules and functions of PyTorch that are written otherwise meanwhile."""
    norm, bag = _BatchNorm.forward, functional.embedding_bag

    def forward(self: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
        if self.momentum is None and self.training and self.running_mean is not None:
            self._check_input_dim(x)
            return _averaged(self, x)
        return norm(self, x)

    def embedding_bag(places: torch.Tensor, table: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = _bags(places, table, *args, **kwargs) if places.ndim > 1 else None
        return bag(places, table, *args, **kwargs) if found is None else found

    _BatchNorm.forward, functional.embedding_bag = forward, embedding_bag  # type: ignore
    try:
        yield
    finally:
        _BatchNorm.forward, functional.embedding_bag = norm, bag  # type: ignore


def _averaged(norm: _BatchNorm, x: torch.Tensor) -> torch.Tensor:
    """Batch normalization whose running statistics are means over all batches."""
    means = cast(torch.Tensor, norm.running_mean)
    variances = cast(torch.Tensor, norm.running_var)
    count = cast(torch.Tensor, norm.num_batches_tracked)
    count.add_(1)
    mean, var = torch.zeros_like(means), torch.zeros_like(variances)
    found = functional.batch_norm(x, mean, var, norm.weight, norm.bias, True, 1.0, norm.eps)
    for running, new in ((means, mean), (variances, var)):
        running.add_((new - running) / count.to(running.dtype))
    return found


def _bags(
    places: torch.Tensor,
    table: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor | None:
    """Sums, means or maxima of entries, of which each row has as many; none for other bags."""
    if offsets is not None or max_norm is not None or scale_grad_by_freq:
        return None
    found = functional.embedding(places, table)
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(-1)
    # A place that is none.
    padding = -1 if padding_idx is None else padding_idx % table.shape[0]
    kept = (places != padding).unsqueeze(-1)
    if mode == "max":
        largest = torch.where(kept, found, -torch.inf).max(1)[0]
        return torch.where(kept.any(1), largest, 0)
    total = torch.where(kept, found, 0).sum(1)
    return total / kept.sum(1).clamp_min(1) if mode == "mean" else total
