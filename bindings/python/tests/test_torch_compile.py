"""The backend `fanwise` of `torch.compile`."""

import copy
import unittest
import warnings

import torch
from test_torch import Case, conv
from torch import nn

from fanwise.torch import DataParallel


class Diagonal(nn.Module):
    """Takes entries of which no gradient is known."""

    def forward(self, x):
        return x.diagonal()


class Compiled(Case):
    def compiled(self, module, **options):
        torch._dynamo.reset()
        options = {"gpus": 3, "target": "cpu", **options}
        return torch.compile(module, backend="fanwise", options=options)

    def test_backend_by_name(self):
        self.assertIn("fanwise", torch._dynamo.list_backends())

    def test_batches_and_training(self):
        class Baked(nn.Module):
            """Writes its number of rows into its graph."""

            def __init__(self):
                super().__init__()
                self.body = conv()
                self.added = torch.ones(5)

            def forward(self, x, factor=2):
                return {"y": self.body(x).view(x.shape[0], -1) * factor + self.added}

        module = Baked()
        other, call = copy.deepcopy(module), self.compiled(module)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for rows, factor in [(7, 2), (7, 2), (5, 2), (6, 3)]:
                x = torch.randn(rows, 3, 8, 8)
                self.same_step((module, other), call(x, factor)["y"], other(x, factor)["y"])

    def test_settings_that_it_does_not_have(self):
        for options in ({"gpu": 3}, {"reproducible": "always"}):
            with self.assertRaises(Exception) as caught:
                self.compiled(nn.Linear(3, 2), **options)(torch.ones(4, 3))
            self.assertIn(next(iter(options)), str(caught.exception))

    def test_graphs_that_are_refused_run_whole(self):
        class Mixed(nn.Module):
            def forward(self, x):
                return x.cumsum(0)

        x = torch.randn(7, 3)
        call = self.compiled(Mixed(), repair="none")
        with self.assertWarnsRegex(UserWarning, "runs whole.*R0"):
            found = call(x)
        self.assertTrue(torch.equal(found, x.cumsum(0)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(x)

    def test_gradients_that_are_refused_run_whole(self):
        module = nn.Sequential(nn.Linear(6, 6), Diagonal())
        other, x = copy.deepcopy(module), torch.randn(7, 6)
        call = self.compiled(module)
        with self.assertWarnsRegex(UserWarning, "runs whole.*gradient"):
            found = call(x)
        self.same_step((module, other), found, other(x))

    def test_tensors_without_the_batch_run_whole(self):
        table = torch.randn(9, 3)
        torch._dynamo.reset()
        options = {"gpus": 3, "target": "cpu"}
        call = torch.compile(lambda x: x @ table.T, backend="fanwise", options=options)
        x = torch.randn(7, 3)
        with self.assertWarnsRegex(UserWarning, "runs whole.*first axis"):
            self.near(call(x), x @ table.T)

    def test_a_wrapper_that_is_traced_is_its_module(self):
        torch._dynamo.reset()
        inner = DataParallel(nn.Linear(6, 4), gpus=3, target="cpu")
        module, x = nn.Sequential(inner, nn.ReLU()), torch.randn(7, 6)
        traced = [torch.export.export(module, (x,), strict=strict) for strict in (False, True)]
        for call in (*(of.module() for of in traced), torch.compile(module, backend="eager")):
            self.near(call(x), module(x))
        self.assertEqual(len(inner._engine.calls), 1)


if __name__ == "__main__":
    unittest.main()
