"""Arguments, attributes, results and layers of PyTorch modules beside eager PyTorch."""

import concurrent.futures
import copy
import dataclasses
import enum
import functools
import types
import unittest

import numpy as np
import torch
from test_torch import Case, parallel
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

import fanwise
from fanwise.torch import DataParallel


class Of(nn.Module):
    """A function of what a layer gives, and of more."""

    def __init__(self, of, *parts):
        super().__init__()
        self.linear, self.of = nn.Linear(6, 6), of
        self.parts = nn.ModuleList(parts)

    def forward(self, x, *rest, **named):
        return self.of(self, self.linear(x).tanh(), *rest, **named)


class Compared(Case):
    def same(self, module, *args, gpus=3, tolerance=1e-5, **kwargs):
        """The same results, of which the same have gradients, gradients and buffers."""
        module.zero_grad()
        other = copy.deepcopy(module)
        mine, others = (pytree.tree_map(_own, (args, kwargs)) for _ in range(2))
        found = pytree.tree_leaves(parallel(module, gpus=gpus)(*mine[0], **mine[1]))
        expected = pytree.tree_leaves(other(*others[0], **others[1]))
        self.assertEqual(len(found), len(expected))
        losses = [], []
        for one, two in zip(found, expected, strict=True):
            if not isinstance(two, torch.Tensor):
                self.assertEqual(one, two)
                continue
            self.assertEqual(one.requires_grad, two.requires_grad)
            self.near(one.double(), two.double(), tolerance)
            self.assertEqual(one.dtype, two.dtype)
            if two.requires_grad:
                losses[0].append((one * one.detach().cos()).sum())
                losses[1].append((two * two.detach().cos()).sum())
        if losses[1]:
            sum(losses[0]).backward()
            sum(losses[1]).backward()
        self.same_gradients(module, other, 5 * tolerance)
        for one, two in zip(*map(pytree.tree_leaves, (mine, others)), strict=True):
            if isinstance(two, torch.Tensor):
                self.assertEqual(one.grad is None, two.grad is None)
                if two.grad is not None:
                    self.near(one.grad, two.grad, 5 * tolerance)
        for buffer, own in zip(module.buffers(), other.buffers(), strict=True):
            self.near(buffer, own, tolerance)


def _own(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


def rows(*sizes, count=7):
    return torch.randn(count, *(sizes or (6,)), requires_grad=True)


def _wide():
    return torch.randn(7, 6, dtype=torch.float64, requires_grad=True)


class Mode(enum.Enum):
    PLUS = 1
    MINUS = 2


@dataclasses.dataclass
class Settings:
    scale: float
    more: list

    def times(self, x):
        return x * self.scale


class Listed(list):
    """It holds more than its attributes."""


class Arguments(Compared):
    def test_gathered_arguments(self):
        def of(_, x, *rest, k=None, **named):
            for one in rest:
                x = x + one
            for at, one in enumerate(named.values()):
                x = x * one + at
            return x if k is None else (x, k)

        for rest, named in [
            ((), {}),
            ((rows(), rows()), {}),
            ((), {"a": rows(), "b": rows()}),
            ((), {"b": rows(), "a": rows()}),
            ((rows(),), {"k": 3, "a": rows()}),
            ((rows(),), {"k": ["text", None]}),
        ]:
            self.same(Of(of), rows(), *rest, **named)
        with self.assertRaisesRegex(TypeError, "positional"):
            parallel(nn.Linear(6, 2))(rows(), rows())
        with self.assertRaisesRegex(TypeError, "bias"):
            parallel(nn.Linear(6, 2))(rows(), bias=rows())

    def test_constants_of_any_kind(self):
        def of(_, x, given):
            if isinstance(given, dict):
                return x * given["a"][0] + given["b"]
            if isinstance(given, np.ndarray):
                return x * torch.from_numpy(given)
            if isinstance(given, Mode):
                return x if given is Mode.PLUS else -x
            if isinstance(given, (set, frozenset)):
                return x * len(given)
            if isinstance(given, (slice, list)):
                return x[:, given]
            if isinstance(given, Settings):
                return x * given.scale + sum(given.more)
            if isinstance(given, types.SimpleNamespace):
                return x * given.scale
            return x if given is None else given(x)

        module = Of(of)
        call, x = parallel(module), rows()
        for given in [
            {"a": [2, 3], "b": 4.0},
            {"a": [3, 3], "b": 4.0},
            np.arange(6, dtype=np.float32),
            np.arange(6, dtype=np.float32) + 1,
            *(Mode.PLUS, Mode.MINUS, {1, 2}, frozenset([1, 2, 3])),
            *(slice(1, 4), slice(None, None, 2), [0, 2]),
            *(Settings(2.0, [1]), Settings(2.0, [2]), types.SimpleNamespace(scale=3)),
            *(None, torch.tanh, nn.ReLU()),
            *(functools.partial(torch.mul, other=2.0), functools.partial(torch.mul, other=5.0)),
            *(Settings(2.0, []).times, Settings(3.0, []).times),
        ]:
            self.near(call(x, given), module(x, given))
        # One that is changed is another one, and one that is equal is the same.
        settings = Settings(2.0, [1])
        count = len(call._engine.calls)
        self.near(call(x, settings), module(x, settings))
        self.assertEqual(len(call._engine.calls), count)
        settings.more.append(5)
        self.near(call(x, settings), module(x, settings))

    def test_what_cannot_be_told_from_others(self):
        module = Of(lambda _, x, given: x)
        itself = types.SimpleNamespace()
        itself.itself = itself
        for given, what in [
            (Settings(1.0, [torch.ones(7)]), "Settings.*holds a tensor"),
            (itself, "hold itself"),
            (object(), "neither a tensor nor a constant"),
            (Listed([2.0]), "neither a tensor nor a constant"),
            (np.array([object()]), "array of objects"),
        ]:
            with self.assertRaisesRegex(TypeError, what):
                parallel(module)(rows(), given)

    def test_settings_are_told_at_once(self):
        for setting in [
            *({"shards": "odd"}, {"shards": "weighted:1,2"}, {"shards": "weighted:0,0,0"}),
            *({"weights": "odd"}, {"batch_norm": "odd"}, {"batch_norm": "ghost:0"}),
            *({"repair": "odd"}, {"reproducible": "n-invariant", "batch_norm": "local"}),
        ]:
            with self.subTest(str(setting)), self.assertRaises(ValueError):
                parallel(nn.Linear(3, 2), **setting)
        with self.assertRaisesRegex(ValueError, "target.*odd"):
            DataParallel(nn.Linear(3, 2), gpus=2, target="odd")
        with self.assertRaisesRegex(TypeError, "shards=5"):
            parallel(nn.Linear(3, 2), shards=5)


class Attributes(Compared):
    def test_tensors_in_attributes(self):
        class Held(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(6, 6)
                self.scale = torch.full((6,), 2.0)
                self.learned = torch.full((6,), 3.0, requires_grad=True)
                self.listed = [torch.full((6,), 4.0), {"a": (torch.full((6,), 5.0),)}]
                self.hidden = [nn.Linear(6, 6)]

            def forward(self, x):
                x = self.hidden[0](self.linear(x)) * self.scale + self.learned * self.listed[0]
                return x + self.listed[1]["a"][0] * torch.tensor([1.0, 2, 3, 4, 5, 6])

        module = Held()
        call, x = parallel(module), rows()
        self.near(call(x), module(x))
        for change in (
            lambda: module.scale.mul_(2),
            lambda: setattr(module, "scale", torch.ones(6)),
            lambda: module.listed[0].add_(1),
            lambda: module.listed.__setitem__(0, torch.ones(6)),
            lambda: setattr(module, "listed", [torch.zeros(6), {"a": (torch.ones(6),)}]),
            lambda: module.listed[1]["a"][0].data.mul_(3),
            lambda: module.hidden[0].weight.data.mul_(3),
            lambda: module.learned.data.add_(1),
            lambda: setattr(module, "scale", 7.0),
        ):
            change()
            self.near(call(x), module(x))
        held = [module.learned, *module.hidden[0].parameters()]
        call(x).square().sum().backward()
        found = [of.grad.clone() for of in held]
        for of in held:
            of.grad = None
        module(x).square().sum().backward()
        for one, of in zip(found, held, strict=True):
            self.near(one, of.grad)

    def test_modules_that_get_their_sizes_from_a_batch(self):
        module = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
        call, x = parallel(module), rows()
        for _ in range(2):
            self.near(call(x), module(x))


class Results(Compared):
    def test_what_has_no_gradient(self):
        def of(self, x, y):
            with torch.no_grad():
                cut = x * 2
            places = x.argmax(1)
            return {
                "x": x,
                "parts": [x.detach(), torch.zeros_like(x), cut, x > 0, places],
                "input": y * 2,
                "mixed": (y * 2 + x.detach(), self.linear.bias * y, places.float()),
            }

        module = Of(of)
        for needed in (True, False):
            self.same(module, rows(), torch.randn(7, 6, requires_grad=needed))
        module.requires_grad_(False)
        self.same(module, torch.randn(7, 6), torch.randn(7, 6))
        self.same(module, torch.randn(7, 6), rows())

    def test_gradients_that_are_zeros(self):
        for of in (torch.round, torch.floor, torch.sign, lambda x: x.div(2, rounding_mode="floor")):
            self.same(Of(lambda _, x, of=of: of(x)), rows())
        self.same(Of(lambda _, x: (x.round(), x)), rows())


class Rows(Compared):
    def test_rows_that_meet(self):
        for of in (
            *(lambda x: x.roll(1, 0), lambda x: x.roll(-9, 0), lambda x: x.roll((1, 2), (0, 1))),
            *(lambda x: x[::2], lambda x: x[1:], lambda x: x[:-1], lambda x: x[-2:]),
            *(lambda x: x[1:] - x[:-1], lambda x: torch.cat([x[1:], x[:1]]), lambda x: x[:3]),
            *(lambda x: x - x.mean(0), lambda x: x.flip(0), lambda x: x[0], lambda x: x[[0, 1]]),
            *(lambda x: x.softmax(0), lambda x: x @ x.T, lambda x: x.cumsum(0), lambda x: x.std(0)),
        ):
            for count, gpus in ((7, 3), (14, 5)):
                module = Of(lambda _, x, of=of: of(x)).double()
                x = torch.randn(count, 6, dtype=torch.float64, requires_grad=True)
                self.same(module, x, gpus=gpus)

    def test_refusals_name_what_meets(self):
        def refused(of, *args, **options):
            module = nn.Sequential(Of(lambda _, x: of(x)))
            with self.assertRaises(fanwise.RefusedError) as caught:
                parallel(module, **options)(rows())
            return caught.exception

        for of in (lambda x: x.roll(1, 0), lambda x: x - x.mean(0), lambda x: x[::2]):
            error = refused(of, repair="none")
            self.assertRegex(error.code, "^R0")
            self.assertTrue(error.operator)
            self.assertTrue(error.hints)
        for of, operator in [
            (lambda x: x[x > 0], "aten.index.Tensor"),
            (lambda x: torch.linalg.det(x.view(-1, 1, 2, 3)[..., :2]), "aten.linalg_det.default"),
        ]:
            error = refused(of)
            self.assertEqual((error.operator, error.layer), (operator, "0"))
            self.assertTrue(error.hints)
        for of, reason in [
            (lambda x: x / len(x), "number of Python"),
            (lambda x: x if x.shape[0] % 2 else -x, r"\(batch % 2\)"),
        ]:
            error = refused(of)
            self.assertRegex(str(error), reason)
            self.assertTrue(error.hints)
        lengths = torch.full((7,), 2)
        loss = Of(lambda _, x, y: functional.ctc_loss(x[:, None], y, lengths[: len(y)], y[:, 0]))
        with self.assertRaisesRegex(fanwise.RefusedError, "ctc_loss|number of Python"):
            parallel(loss)(rows(), torch.ones(7, 1, dtype=torch.long))


class Layers(Compared):
    def test_cells(self):
        for name, state in [("LSTMCell", 2), ("GRUCell", 1), ("RNNCell", 1)]:
            module = getattr(nn, name)(6, 5)
            self.same(module, rows())
            given = tuple(rows(5) for _ in range(state))
            self.same(module, rows(), given if state > 1 else given[0])

    def test_recurrence_with_the_batch_behind(self):
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            part = kind(3, 5, bidirectional=True)
            module = Of(lambda of, x: of.parts[0](x.unflatten(1, (2, 3)).transpose(0, 1))[0], part)
            self.same(module, rows())

    def test_bags(self):
        places = torch.randint(10, (7, 3))
        for mode in ("sum", "mean", "max"):
            for padding in (None, 2, -1):
                self.same(nn.EmbeddingBag(10, 4, mode=mode, padding_idx=padding), places)
        bags = nn.EmbeddingBag(10, 4, mode="sum")
        self.same(bags, places, per_sample_weights=rows(3))

    def test_normalization_by_all_batches(self):
        module = nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3), nn.Tanh())
        other, call = copy.deepcopy(module), parallel(module)
        for count in (7, 5, 9):
            x = torch.randn(count, 6) * count
            self.same_step((module, other), call(x), other(x))
        call.eval(), other.eval()
        self.near(call(x), other(x))

    def test_layers_that_are_used_twice(self):
        norm, linear = nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.same(nn.Sequential(linear, norm, nn.Tanh(), norm, linear, nn.Tanh()).double(), _wide())

    def test_buffers_that_a_call_changes(self):
        """Gradients are those of what the buffers were in the call."""
        inner = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5))
        module = nn.Sequential(inner, nn.Tanh(), nn.Linear(5, 3))
        other = copy.deepcopy(module)
        for weights in ("template", "mirrored"):
            call = parallel(module, weights=weights)
            for _ in range(2):
                x = torch.randn(7, 6)
                for run, of in ((call, module), (other, other)):
                    of.zero_grad()
                    # The second call changes the buffers before the first one has its gradients.
                    (run(x).square().mean() + run(x * 2).mean()).backward()
                self.same_gradients(module, other)
                for buffer, own in zip(module.buffers(), other.buffers(), strict=True):
                    self.near(buffer, own)

    def test_losses(self):
        y, weight = torch.randint(6, (7,)), torch.arange(6.0) + 1
        y[0] = 2
        for reduction in ("mean", "sum", "none"):
            for given, settings in (
                (y, {"label_smoothing": 0.1}),
                (y, {"label_smoothing": 0.2, "weight": weight, "ignore_index": 2}),
                (torch.rand(7, 6).softmax(1), {"weight": weight}),
                (torch.rand(7, 6).softmax(1), {"label_smoothing": 0.1}),
            ):
                loss = nn.CrossEntropyLoss(reduction=reduction, **settings)
                self.same(Of(lambda of, x, y: of.parts[0](x, y), loss), rows(), given)
            loss = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=0.1)
            self.same(loss, rows(6, 4), torch.randint(6, (7, 4)))
            ranks = nn.MarginRankingLoss(0.5, reduction=reduction)
            self.same(ranks, rows(6), rows(6), torch.randint(2, (7, 6)) * 2 - 1.0)

    def test_pools_of_windows_that_differ(self):
        for axes in (1, 2, 3):
            x = rows(2, *[7, 6, 5][:axes])
            for size in (2, 3):
                self.same(getattr(nn, f"AdaptiveMaxPool{axes}d")(size), x)
                self.same(getattr(nn, f"AdaptiveAvgPool{axes}d")(size), x)
            self.same(getattr(nn, f"AdaptiveMaxPool{axes}d")(3, return_indices=True), x)

    def test_functions(self):
        for of in (
            *(lambda x: x.median(1)[0], lambda x: x.median(1), lambda x: x.kthvalue(2, 1)[0]),
            lambda x: torch.where(x > 1, torch.nan, x).kthvalue(1, 1)[0],
            *(lambda x: torch.hstack([x, x]), lambda x: torch.dstack([x, x])),
            *(lambda x: torch.fmax(x, -x), lambda x: torch.fmin(x, x * 2)),
            *(lambda x: torch.var_mean(x, 1), lambda x: x.aminmax(), lambda x: x.roll(2, 1)),
            lambda x: functional.rrelu(x, training=False),
            lambda x: functional.scaled_dot_product_attention(*[x.unflatten(1, (2, 3))] * 3),
        ):
            self.same(Of(lambda _, x, of=of: of(x)), rows())


class Threads(Case):
    def test_first_calls(self):
        """Modules are traced while others, and copies of themselves, run."""
        torch.manual_seed(2)
        x = rows().detach()
        made = [
            nn.Sequential(nn.Linear(6, 8 + at), nn.BatchNorm1d(8 + at), nn.GELU())
            for at in range(5)
        ]
        expected = [self.loss(copy.deepcopy(module).eval(), x) for module in made]
        own = [parallel(module.eval()) for module in made]
        self.loss(own[0], x)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda at: self.loss(own[at % 5], x), range(60)))
        for at, (loss, gradient) in enumerate(found):
            self.near(loss, expected[at % 5][0])
            self.near(gradient, expected[at % 5][1])

    @staticmethod
    def loss(module, x):
        """A loss, and its gradient for the input."""
        x = x.clone().requires_grad_()
        loss = module(x).square().mean()
        (gradient,) = torch.autograd.grad(loss, x)
        return loss.detach(), gradient


if __name__ == "__main__":
    unittest.main()
