"""Modules of PyTorch that are drawn at random beside eager PyTorch, over several steps."""

import copy
import random
import unittest

import torch
from test_torch import Case, parallel
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

WIDTH, SEEDS, STEPS = 8, 12, 3

# Numbers in code are rounded to float32.
TOLERANCE = 1e-6


def _overwritten(part, x):
    y = part.linear(x)
    y[:, 0] = y[:, 1] * 2
    y[:, ::2].add_(1)
    return y.clamp_(-2, 2)


def _counted(part, x):
    y = part.linear(x)
    if part.training:
        with torch.no_grad():
            part.running.mul_(0.5).add_(y.detach().mean(0), alpha=0.5)
    return y - part.running.clone() * 0.5


def _convolved(part, x):
    y = x.unflatten(1, (2, -1))
    return (y + functional.relu(part.conv(y), inplace=True)).flatten(1)


def _attended(part, x):
    y = x.view(x.shape[0], -1, 4)
    return (y + part.attention(y, y, y, need_weights=False)[0]).reshape(x.shape[0], -1)


PARTS = {
    "linear": lambda part, x: functional.gelu(part.linear(x)),
    "residual": lambda part, x: x + functional.elu(part.linear(x), inplace=True),
    "batch norm": lambda part, x: part.norm(x),
    "layer norm": lambda part, x: part.layer_norm(x),
    "overwritten": _overwritten,
    "counted": _counted,
    "convolved": _convolved,
    "attended": _attended,
    "cell": lambda part, x: part.cell(x),
    "gate": lambda part, x: part.linear(x).sigmoid() * part.held[0] + x * part.scale,
    "views": lambda part, x: part.linear(x).view(-1, 2, 4).transpose(1, 2).flatten(1).roll(1, 1),
    "split": lambda part, x: torch.cat(part.linear(x).split([3, 5], 1)[::-1], 1),
    "rolled": lambda part, x: x + x.roll(1, 0) * 0.5,
    "first": lambda part, x: x - x[:1] * 0.5,
    "centred": lambda part, x: x - x.mean(0),
    "shared softmax": lambda part, x: x * (1 + x.softmax(0)),
    "looked up": lambda part, x: x + part.table(x[:, :2].abs().long().clamp(0, 4)).sum(1),
    "masked": lambda part, x: part.linear(x).masked_fill(x > 1, 0.0),
}


class Part(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.name = draw.choice(list(PARTS))
        self.linear, self.cell = nn.Linear(WIDTH, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH, momentum=draw.choice([0.1, None]))
        self.layer_norm = draw.choice([nn.LayerNorm, nn.RMSNorm])(WIDTH)
        mode = draw.choice(["zeros", "circular", "reflect"])
        self.conv = nn.Conv1d(2, 2, 3, padding=1, padding_mode=mode)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.table = nn.Embedding(5, WIDTH, padding_idx=draw.choice([None, 1]))
        self.register_buffer("running", torch.zeros(WIDTH))
        self.scale, self.held = torch.rand(WIDTH).double(), [torch.rand(WIDTH).double()]

    def forward(self, x):
        return PARTS[self.name](self, x)


class Drawn(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.parts = nn.ModuleList(Part(draw) for _ in range(draw.randrange(2, 6)))
        if draw.random() < 0.3:
            self.parts.append(self.parts[0])
        self.last, self.results = nn.Linear(WIDTH, 3), draw.randrange(4)

    def forward(self, x, *rest, more=None, **named):
        for one in (*rest, *named.values()):
            x = x + one
        if more is not None:
            x = x * more["a"] + more["b"][0]
        for part in self.parts:
            x = part(x)
        y = self.last(x)
        found = [y, (y, x.detach()), {"y": y, "rest": [x.mean(), None, "text"]}, y.square().mean()]
        return found[self.results]


def arguments(draw, rows):
    def new(*sizes):
        wants = draw.random() < 0.5
        return torch.randn(sizes, dtype=torch.float64, requires_grad=wants)

    args = [new(rows, WIDTH) for _ in range(draw.randrange(1, 3))]
    named = {"more": {"a": new(rows, WIDTH), "b": [new(rows, 1)]}} if draw.random() < 0.5 else {}
    return args, named | ({"z": new(), "y": new(rows, WIDTH)} if draw.random() < 0.5 else {})


class Modules(Case):
    def test_steps(self):
        for seed in range(SEEDS):
            draw = random.Random(seed)
            torch.manual_seed(seed)
            module = Drawn(draw).double().train(draw.random() < 0.7)
            for parameter in draw.sample(list(module.parameters()), 3):
                parameter.requires_grad_(False)
            names = ", ".join(part.name for part in module.parts)
            options = {
                "gpus": draw.randrange(1, 6),
                "weights": draw.choice(["template", "mirrored"]),
            }
            with self.subTest(seed=seed, names=names, **options):
                self.steps(draw, module, options)

    def steps(self, draw, module, options):
        other = copy.deepcopy(module)
        call = parallel(module, shards=draw.choice(["balanced", "ceil"]), **options)
        kind = draw.choice([torch.optim.SGD, torch.optim.Adam])
        optimizers = [kind(of.parameters(), lr=0.01) for of in (module, other)]
        for _ in range(STEPS):
            args, named = arguments(draw, draw.choice([2, 3, 5, 7, 11]))
            mine = args, named
            others = pytree.tree_map(
                lambda x: x.detach().clone().requires_grad_(x.requires_grad), mine
            )
            found = pytree.tree_leaves(call(*args, **named))
            expected = pytree.tree_leaves(other(*others[0], **others[1]))
            self.backward(found, expected)
            given = zip(*map(pytree.tree_leaves, (mine, others)), strict=True)
            self.gradients([*given, *zip(module.parameters(), other.parameters(), strict=True)])
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for buffer, own in zip(module.buffers(), other.buffers(), strict=True):
                self.near(buffer, own, TOLERANCE)

    def gradients(self, pairs):
        """Beside the largest one: those before a normalization have none but rounding."""
        whole = max(float(two.grad.abs().max()) for _, two in pairs if two.grad is not None)
        for one, two in pairs:
            self.assertEqual(one.grad is None, two.grad is None)
            if two.grad is not None:
                self.assertLessEqual(
                    float((one.grad - two.grad).abs().max()), 10 * TOLERANCE * whole
                )

    def backward(self, found, expected):
        losses = [], []
        for one, two in zip(found, expected, strict=True):
            if not isinstance(two, torch.Tensor):
                self.assertEqual(one, two)
                continue
            self.near(one, two, TOLERANCE)
            self.assertEqual(one.requires_grad, two.requires_grad)
            if two.requires_grad:
                weights = torch.randn_like(two)
                losses[0].append((one * weights).sum())
                losses[1].append((two * weights).sum())
        sum(losses[0]).backward()
        sum(losses[1]).backward()


if __name__ == "__main__":
    unittest.main()
