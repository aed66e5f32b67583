"""Modules of PyTorch beside eager PyTorch: calls, gradients, modes, parameters, `torch.compile`."""

import copy
import pickle
import subprocess
import sys
import unittest

import torch
from torch import nn

import fanwise
from fanwise.torch import DataParallel

BATCHES = [2, 3, 7, 64]


def parallel(module, gpus=3, **options):
    return DataParallel(module, gpus=gpus, target="cpu", **options)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))


def conv(bias=False):
    """With batch normalization, in front of which a bias has no gradient but rounding."""
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(4 * 36, 5))


class Case(unittest.TestCase):
    def near(self, found, expected, tolerance=1e-5):
        self.assertEqual(found.shape, expected.shape)
        self.assertEqual(found.dtype, expected.dtype)
        largest = max(float(expected.detach().abs().max()), 1e-30) if expected.numel() else 1.0
        difference = (found.detach() - expected.detach()).abs()
        worst = float(difference.max()) / largest if expected.numel() else 0.0
        self.assertLessEqual(worst, tolerance)

    def same_gradients(self, module, other, tolerance=1e-5):
        pairs = zip(module.named_parameters(), other.parameters(), strict=True)
        for (name, parameter), expected in pairs:
            with self.subTest(name):
                self.assertEqual(parameter.grad is None, expected.grad is None)
                if expected.grad is not None:
                    self.near(parameter.grad, expected.grad, tolerance)

    def same_step(self, pair, found, expected):
        """The same results, gradients and buffers, of a loss of each."""
        module, other = pair
        self.near(found, expected)
        found.square().mean().backward()
        expected.square().mean().backward()
        self.same_gradients(module, other)
        for buffer, own in zip(module.buffers(), other.buffers(), strict=True):
            self.near(buffer, own)


class Nested(nn.Module):
    """Takes and returns what trees can hold."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, pair, *, scale=1.0, named=None, flag=True):
        a, (b, nothing) = pair["a"], pair["rest"]
        assert nothing is None
        y = self.linear(a) * scale + (b if flag else 0)
        if named is not None:
            y = y + named[0].float()
        return {"y": y, "list": [y.mean(), (y * 2, None, "text", 3)], "same": y}


class Calls(Case):
    def test_uneven_batches(self):
        module = mlp()
        for gpus in [1, 2, 3, 8]:
            call = parallel(module, gpus=gpus)
            for rows in [0, 1, *BATCHES]:
                x = torch.randn(rows, 20)
                self.near(call(x), module(x))
        # One program serves all batches.
        self.assertEqual(len(call._engine.calls), 1)

    def test_trees_of_arguments_and_results(self):
        module = Nested()
        call = parallel(module)
        for named, flag in [(None, True), ([torch.arange(7)[:, None]], False)]:
            tree = {"a": torch.randn(7, 4), "rest": (torch.randn(7, 3), None)}
            given = {"scale": 2.5, "named": named, "flag": flag}
            found, expected = call(tree, **given), module(tree, **given)
            self.near(found["y"], expected["y"])
            self.near(found["same"], expected["same"])
            self.near(found["list"][0], expected["list"][0])
            twice, *rest = found["list"][1]
            self.near(twice, expected["list"][1][0])
            self.assertEqual(rest, [None, "text", 3])

    def test_keywords_in_another_order(self):
        class Ordered(nn.Module):
            def forward(self, a, b=None, *, c):
                return a - 2 * b + 3 * c

        a, b, c = torch.randn(3, 7, 2)
        module = Ordered()
        self.near(parallel(module)(c=c, b=b, a=a), module(a, b, c=c))

    def test_other_sizes_than_the_batch(self):
        module = nn.Sequential(nn.Conv1d(2, 3, 3), nn.AdaptiveAvgPool1d(1))
        call = parallel(module)
        for length in [9, 12, 9]:
            x = torch.randn(5, 2, length)
            self.near(call(x), module(x))
        self.assertEqual(len(call._engine.calls), 2)

    def test_scalars_are_those_of_the_whole_batch(self):
        class Scalars(nn.Module):
            def forward(self, x, factor):
                return x.mean(), x.sum(), x.square().mean(1).amax(), (x * factor).std(0)

        x, factor = torch.randn(7, 3), torch.tensor(2.0)
        found, expected = parallel(Scalars())(x, factor), Scalars()(x, factor)
        for one, other in zip(found, expected, strict=True):
            self.near(one, other)

    def test_rows_that_differ(self):
        class Two(nn.Module):
            def forward(self, a, b):
                return a + b

        with self.assertRaisesRegex(ValueError, "first axis"):
            parallel(Two())(torch.zeros(3, 2), torch.zeros(4, 2))

    def test_arrays_that_are_not_in_order(self):
        module = conv().eval()
        x = torch.randn(7, 8, 8, 3).permute(0, 3, 1, 2)
        self.near(parallel(module)(x), module(x))

    def test_element_types(self):
        for dtype in [torch.float64, torch.float32]:
            module = mlp().to(dtype)
            call = parallel(module)
            x = torch.randn(7, 20, dtype=dtype)
            self.near(call(x), module(x))
        module.double()
        self.near(call(x.double()), module(x.double()))


class Refusals(Case):
    def refused(self, module, *x, **options):
        with self.assertRaises(fanwise.RefusedError) as caught:
            parallel(module, **options)(*x)
        return caught.exception

    def test_a_split_that_would_change_results(self):
        class Mixed(nn.Module):
            def forward(self, x):
                return x.cumsum(0)

        error = self.refused(Mixed(), torch.zeros(7, 3), repair="none")
        self.assertRegex(error.code, "^R0")
        self.assertTrue(error.operator)

    def test_draws_that_are_no_dropout(self):
        class Noise(nn.Module):
            def forward(self, x):
                return x + torch.randn_like(x)

        error = self.refused(nn.Sequential(Noise()), torch.zeros(7, 3))
        self.assertEqual((error.operator, error.layer), ("aten.randn_like.default", "0"))

    def test_operators_without_a_form(self):
        class Foreign(nn.Module):
            def forward(self, x):
                return torch.linalg.svd(x)[1]

        error = self.refused(Foreign(), torch.zeros(7, 3, 3))
        self.assertIn("svd", error.operator)

    def test_code_that_looks_at_numbers(self):
        class Looks(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        self.assertIn("torch.export", str(self.refused(Looks(), torch.zeros(7, 3))))

    def test_what_pytorchs_exporter_would_ignore(self):
        places = torch.zeros(7, 2, dtype=torch.long)
        error = self.refused(nn.Embedding(3, 2, scale_grad_by_freq=True), places)
        self.assertEqual(error.operator, "aten.embedding.default")
        error = self.refused(nn.InstanceNorm1d(3, track_running_stats=True), torch.randn(7, 3, 4))
        self.assertEqual(error.operator, "aten.instance_norm.default")
        self.refused(nn.Sequential(nn.AvgPool2d(2, divisor_override=3)), torch.randn(7, 3, 4, 4))

    def test_gradients_that_are_code(self):
        class Through(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

            @staticmethod
            def backward(ctx, gradient):
                return gradient

        class Rounded(nn.Module):
            def forward(self, x):
                return Through.apply(x)

        x = torch.randn(7, 3, requires_grad=True)
        found = parallel(Rounded())(x)
        self.near(found, x.round())
        with self.assertRaisesRegex(fanwise.RefusedError, "Through"):
            found.sum().backward()

    def test_arguments(self):
        for gpus in [0, -1, [], [1, 1]]:
            with self.assertRaises(ValueError):
                parallel(mlp(), gpus=gpus)
        with self.assertRaises(ValueError):
            parallel(mlp(), reproducible="always")
        with self.assertRaises(TypeError):
            parallel(lambda x: x)
        with self.assertWarnsRegex(UserWarning, "virtual devices"):
            DataParallel(mlp(), gpus=64)
        with self.assertRaisesRegex(ValueError, "GPUs"):
            DataParallel(mlp(), gpus=64, target="cuda")


class Gradients(Case):
    def test_of_parameters_and_inputs(self):
        module = mlp()
        other, call = copy.deepcopy(module), parallel(module)
        for rows in BATCHES:
            x = torch.randn(rows, 20, requires_grad=True)
            y = x.detach().clone().requires_grad_()
            call(x).square().sum().backward()
            other(y).square().sum().backward()
            self.near(x.grad, y.grad)
            # They are added to those of the batch before.
            self.same_gradients(module, other)

    def test_of_several_outputs_of_which_some_are_used(self):
        module = Nested()
        other, call = copy.deepcopy(module), parallel(module)
        tree = {"a": torch.randn(7, 4), "rest": (torch.randn(7, 3), None)}
        for run, of in [(call, module), (other, other)]:
            found = run(tree)
            (found["list"][0] * 3 + found["list"][1][0].square().sum()).backward()
            self.assertIsNotNone(of.linear.weight.grad)
        self.same_gradients(module, other)

    def test_frozen_and_unused_parameters(self):
        module = mlp()
        module.unused = nn.Parameter(torch.ones(3))
        module[0].weight.requires_grad_(False)
        other, call = copy.deepcopy(module), parallel(module)
        x = torch.randn(7, 20)
        call(x).sum().backward()
        other(x).sum().backward()
        self.same_gradients(module, other)
        module[0].weight.requires_grad_()
        other[0].weight.requires_grad_()
        call(x).sum().backward()
        other(x).sum().backward()
        self.same_gradients(module, other)

    def test_tied_parameters(self):
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Embedding(10, 6)
                self.last = nn.Linear(6, 10, bias=False)
                self.last.weight = self.first.weight

            def forward(self, x):
                return self.last(self.first(x).tanh())

        module = Tied()
        other, x = copy.deepcopy(module), torch.randint(10, (7, 3))
        parallel(module)(x).square().sum().backward()
        other(x).square().sum().backward()
        self.same_gradients(module, other)

    def test_parameters_that_are_tied_apart_or_new(self):
        module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6, bias=False))
        call, x = parallel(module), torch.randn(7, 6)
        module[1].weight = module[0].weight
        for change in (
            lambda: None,
            lambda: setattr(module[1], "weight", nn.Parameter(torch.randn(6, 6))),
            lambda: setattr(module[1], "bias", nn.Parameter(torch.ones(6))),
            lambda: setattr(module[0], "bias", None),
        ):
            change()
            other = copy.deepcopy(module)
            module.zero_grad()
            other.zero_grad()
            found, expected = call(x), other(x)
            self.near(found, expected)
            found.sum().backward()
            expected.sum().backward()
            self.same_gradients(module, other)

    def test_where_no_gradient_passes(self):
        class Cut(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(5, 4, padding_idx=2)
                self.last = nn.Linear(4, 3)

            def forward(self, x):
                y = self.last(self.table(x))
                with torch.no_grad():
                    z = y.softmax(-1) * self.last.weight.sum()
                return y * z + (y.round() - y).detach() * 3

        module = Cut()
        other, call = copy.deepcopy(module), parallel(module)
        x = torch.tensor([[0, 2, 1], [2, 2, 3]] * 4)
        with torch.no_grad():
            # It is traced with gradients all the same.
            call(x)
        found, expected = call(x), other(x)
        self.near(found, expected)
        found.square().sum().backward()
        expected.square().sum().backward()
        self.same_gradients(module, other)

    def test_at_the_bounds_of_values(self):
        class Bounded(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(3))

            def forward(self, x):
                x = x * self.scale
                bounded = [nn.functional.hardtanh(x), nn.functional.relu6(x), x.clamp(0, 1)]
                bounded += [x.clamp(min=0), x.clamp(max=1), x.clamp_min(0), x.clamp_max(1)]
                return torch.cat(bounded, 1)

        x = torch.tensor([[-1.0, 0.0, 1.0], [6.0, 0.5, -2.0], [1.0, 6.0, 7.0]])
        for dtype in (torch.float32, torch.float64):
            module = Bounded().to(dtype)
            found, other = x.clone().to(dtype).requires_grad_(), copy.deepcopy(module)
            expected = found.detach().clone().requires_grad_()
            ours, theirs = parallel(module)(found), other(expected)
            self.near(ours, theirs)
            ours.sum().backward()
            theirs.sum().backward()
            self.assertTrue(torch.equal(found.grad, expected.grad))
            self.same_gradients(module, other)

    def test_recurrent_modules_that_are_traced_again(self):
        torch.manual_seed(0)
        module = nn.LSTM(3, 4, batch_first=True)
        for length in (5, 6):
            call, other = parallel(module), copy.deepcopy(module)
            x = torch.randn(7, length, 3)
            module.zero_grad()
            call(x)[0].sum().backward()
            other(x)[0].sum().backward()
            self.same_gradients(module, other)

    def test_losses_of_the_module(self):
        class Loss(nn.Module):
            def __init__(self, loss):
                super().__init__()
                self.linear, self.loss = nn.Linear(4, 6), loss

            def forward(self, x, y):
                return self.loss(self.linear(x), y)

        x, places, numbers = torch.randn(7, 4), torch.randint(6, (7,)), torch.rand(7, 6)
        places[0] = 2
        for loss, y in [
            (nn.CrossEntropyLoss(), places),
            (nn.CrossEntropyLoss(torch.arange(6.0) + 1, ignore_index=2), places),
            (nn.MSELoss(), numbers),
            (nn.BCEWithLogitsLoss(reduction="sum"), numbers),
            (nn.KLDivLoss(reduction="batchmean"), numbers),
        ]:
            module = Loss(loss)
            other = copy.deepcopy(module)
            found, expected = parallel(module)(x, y), other(x, y)
            self.near(found, expected)
            found.backward()
            expected.backward()
            self.same_gradients(module, other)

    def test_parameters_that_change_before_the_gradients(self):
        module = mlp()
        loss = parallel(module)(torch.randn(7, 20)).sum()
        with torch.no_grad():
            module[2].weight.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_without_gradients_only_the_outputs_are_computed(self):
        call = parallel(mlp())
        x = torch.randn(7, 20)
        with torch.no_grad():
            self.assertFalse(call(x).requires_grad)
        (of,) = call._engine.calls.values()
        self.assertEqual(len(of.programs), 1)
        call(x).sum().backward()
        self.assertEqual(len(of.programs), 2)


class Modes(Case):
    def test_batch_normalization(self):
        module = conv()
        other, call = copy.deepcopy(module), parallel(module)
        for rows in BATCHES:
            x = torch.randn(rows, 3, 8, 8)
            self.same_step((module, other), call(x), other(x))
        call.eval(), other.eval()
        self.assertFalse(module[1].training)
        self.near(call(x), other(x))
        call.train(), other.train()
        # One layer alone keeps its statistics.
        module[1].eval(), other[1].eval()
        self.near(call(x), other(x))
        self.near(module[1].running_mean, other[1].running_mean)

    def test_statistics_of_each_device(self):
        module = conv()
        x = torch.randn(8, 3, 8, 8)
        expected = torch.cat([copy.deepcopy(module)(part) for part in x.split(4)])
        self.near(parallel(module, gpus=2, batch_norm="local")(x), expected)

    def test_dropout_is_drawn_by_row(self):
        module = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.25))
        x = torch.ones(64, 4, 5, 5, requires_grad=True)
        found = []
        for gpus in [1, 2, 3, 8]:
            torch.manual_seed(3)
            found.append(parallel(module, gpus=gpus)(x))
        for other in found[1:]:
            self.assertTrue(torch.equal(found[0], other))
        call = parallel(module)
        self.assertFalse(torch.equal(call(x), call(x)))
        dropped = call(x)
        dropped.sum().backward()
        # What is dropped in the outputs is so in the gradients.
        self.assertTrue(torch.equal(x.grad, dropped))
        self.assertLess(abs(float(dropped.mean()) - 1), 0.1)
        kept = dropped[dropped != 0]
        self.near(kept, torch.full_like(kept, 1 / (0.5 * 0.75)))
        call.eval()
        self.assertTrue(torch.equal(call(x), x))

    def test_dropout_in_attention(self):
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        call, x = parallel(layer), torch.randn(7, 5, 16)
        self.assertFalse(torch.equal(call(x), call(x)))
        call.eval()
        self.near(call(x), layer(x))


class Parameters(Case):
    def check(self, call, module):
        x = torch.randn(7, 20)
        self.near(call(x), module(x))

    def test_hooks_that_change_are_noticed(self):
        module = mlp()
        call, x = parallel(module), torch.randn(7, 20)
        expected = module(x)
        for factor in (2, 100):
            hook = module.register_forward_hook(lambda *of, factor=factor: of[2] * factor)
            self.near(call(x), expected * factor)
            hook.remove()

    def test_in_inference_mode(self):
        module, x = mlp(), torch.randn(7, 20)
        with torch.inference_mode():
            self.near(parallel(module)(x), module(x))

    def test_changes_of_weights_in_another_order_are_noticed(self):
        module, x = conv(bias=True).eval(), torch.randn(7, 3, 8, 8)
        call = parallel(module, weights="template")
        self.near(call(x), module(x))
        with torch.no_grad():
            for tensor in [*module.parameters(), module[1].running_mean]:
                tensor.add_(0.5)
        self.near(call(x), module(x))

    def test_changes_are_noticed(self):
        for weights in ["template", "mirrored"]:
            module = mlp()
            call = parallel(module, weights=weights)
            self.check(call, module)
            with torch.no_grad():
                module[0].weight.add_(1)
            self.check(call, module)
            module[0].bias.data.mul_(3)
            self.check(call, module)
            module[0].bias.data = torch.ones(32)
            self.check(call, module)
            module[2].weight = nn.Parameter(torch.randn(5, 32))
            self.check(call, module)
            call.load_state_dict({name: p * 2 for name, p in mlp().state_dict().items()})
            self.check(call, module)
            call.load_state_dict(mlp().state_dict(), assign=True)
            self.check(call, module)

    def test_nothing_is_copied_in_a_steady_loop(self):
        # Weights of linear layers lie in another order, and so are copies after a change; virtual devices share them.
        for weights in ["template", "mirrored"]:
            module = mlp()
            call = parallel(module, weights=weights)
            x = torch.randn(7, 20)
            call(x).sum().backward()
            before = call._engine.copied
            for _ in range(3):
                call(x).sum().backward()
            self.assertEqual(call._engine.copied, before)
            torch.optim.SGD(module.parameters(), lr=0.1).step()
            call(x)
            self.assertEqual(call._engine.copied, before + 2)

    def test_names_are_the_modules(self):
        module = conv()
        call = parallel(module)
        self.assertEqual(list(call.state_dict()), list(module.state_dict()))
        names = [name for name, _ in call.named_parameters()]
        self.assertEqual(names, [name for name, _ in module.named_parameters()])
        self.assertEqual(list(map(id, call.buffers())), list(map(id, module.buffers())))
        self.assertIs(call.module, module)
        self.assertEqual(call.double()(torch.randn(3, 3, 8, 8).double()).dtype, torch.float64)
        self.assertEqual(module[0].weight.dtype, torch.float64)

    def test_a_module_that_is_a_part_of_another_one_loads_what_that_saved(self):
        whole = nn.Sequential(parallel(conv()), nn.Linear(5, 2))
        state = {name: torch.ones_like(value) for name, value in whole.state_dict().items()}
        self.assertIn("0.0.weight", state)
        whole.load_state_dict(state)
        self.assertTrue(all(bool((p == 1).all()) for p in whole.parameters()))

    def test_a_module_that_is_changed(self):
        module = mlp()
        call, x = parallel(module), torch.randn(7, 20)
        self.near(call(x), module(x))
        module[2] = nn.Linear(32, 6)
        self.near(call(x), module(x))
        module[1].register_forward_hook(lambda of, given, found: found * 2)
        self.near(call(x), module(x))
        module[1].factor = 3
        module[0].forward = lambda x: nn.functional.linear(x, module[0].weight) * module[1].factor
        call.retrace()
        self.near(call(x), module(x))

    def test_copies(self):
        module = mlp()
        call, x = parallel(module), torch.randn(7, 20)
        for other in [copy.deepcopy(call), pickle.loads(pickle.dumps(call))]:
            self.near(other(x), call(x))
            with torch.no_grad():
                other.module[2].bias.add_(1)
            self.near(other(x), call(x) + 1)


class Options(Case):
    def test_bits_do_not_depend_on_the_number_of_devices(self):
        x, first = torch.randn(13, 3, 8, 8), None
        for gpus in [1, 2, 4, 8]:
            module = conv()
            call = parallel(module, gpus=gpus, reproducible="n-invariant")
            found = call(x)
            found.square().mean().backward()
            tensors = [found, *(p.grad for p in module.parameters()), *module.buffers()]
            first = first or tensors
            for one, other in zip(first, tensors, strict=True):
                self.assertTrue(torch.equal(one, other))

    def test_shards(self):
        x, expected = torch.randn(13, 3, 8, 8), conv()
        expected = expected(x)
        for shards in ["balanced", "ceil", "weighted:3,1,2"]:
            self.near(parallel(conv(), shards=shards)(x), expected)


class Imports(unittest.TestCase):
    def test_the_package_alone_imports_no_pytorch(self):
        code = "import sys, fanwise; assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
