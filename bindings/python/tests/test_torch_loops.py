"""Loops of training beside those of eager PyTorch."""

import copy
import importlib.util
import unittest
from pathlib import Path

import numpy as np
import torch
from test_torch import Case, parallel
from torch import nn


def digits():
    # Only the data: the packages that scikit-learn itself needs are not installed.
    package = Path(importlib.util.find_spec("sklearn").origin).parent
    table = np.loadtxt(package / "datasets/data/digits.csv.gz", delimiter=",")
    x = torch.from_numpy((table[:, :-1] / 16).astype(np.float32))
    return x, torch.from_numpy(table[:, -1].astype(np.int64))


class Loops(Case):
    def losses(self, run, module, optimizer, batch):
        x, y = digits()
        make = getattr(torch.optim, optimizer)
        options = {"momentum": 0.9, "lr": 0.05} if optimizer == "SGD" else {"lr": 0.01}
        steps = make(module.parameters(), **options)
        found = []
        for _ in range(3):
            total = 0.0
            for rows in zip(x.split(batch), y.split(batch), strict=True):
                steps.zero_grad()
                loss = nn.functional.cross_entropy(run(rows[0]), rows[1])
                loss.backward()
                steps.step()
                total += float(loss.detach()) * len(rows[0])
            found.append(total / len(x))
        return found

    def test_digits(self):
        for optimizer in ["SGD", "Adam"]:
            for norm in [nn.Identity, lambda: nn.BatchNorm1d(32)]:
                torch.manual_seed(1)
                module = nn.Sequential(nn.Linear(64, 32), norm(), nn.ReLU(), nn.Linear(32, 10))
                for batch, gpus in [(64, 3), (65, 8)]:
                    own, other = copy.deepcopy(module), copy.deepcopy(module)
                    found = self.losses(parallel(own, gpus=gpus), own, optimizer, batch)
                    expected = self.losses(other, other, optimizer, batch)
                    for one, two in zip(found, expected, strict=True):
                        self.assertLess(abs(one - two), 0.01 * two)
                    self.assertLess(found[-1], found[0] / 2)


if __name__ == "__main__":
    unittest.main()
