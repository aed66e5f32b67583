"""The snippets of the page about PyTorch run, and that of the front page."""

import ast
import unittest

import test_docs
import torch


class Docs(unittest.TestCase):
    run_page = test_docs.Docs.run_page
    run_snippets = test_docs.Docs.run_snippets

    def test_front_page(self):
        _, of_torch = test_docs.snippets_of(test_docs.ROOT / "README.md")
        self.assertEqual(len(ast.parse(of_torch).body), 3, "a module gets there in three lines")
        module, x, y = torch.nn.Linear(4, 3), torch.randn(10, 4), torch.arange(10) % 3
        loss = torch.nn.functional.cross_entropy
        scope = {"module": module, "x": x, "y": y, "loss": loss}
        self.run_snippets("README.md", [of_torch], scope)
        found, module.weight.grad = module.weight.grad, None
        loss(module(x), y).backward()
        torch.testing.assert_close(found, module.weight.grad)

    def test_pytorch(self):
        self.run_page("pytorch.md")


if __name__ == "__main__":
    unittest.main()
