"""Exports small PyTorch models with random weights and a dynamic batch to ONNX, by both exporters.

Usage: python export_torch.py FOLDER        (needs torch and onnxscript, which the test suite does not)
"""

import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.na = nn.BatchNorm2d(channels)
        self.b = nn.Conv2d(channels, channels, 3, padding=1)
        self.nb = nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


class ConvNet(nn.Module):
    """Convolution, BatchNorm, residual blocks, pools, a view by the batch size, a classifier."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.pool = nn.MaxPool2d(3, 2, 1, ceil_mode=True)
        self.head = nn.Linear(8 * 9 * 9, 10)

    def forward(self, image):
        x = self.pool(self.blocks(F.silu(self.norm(self.stem(image)))))
        return F.softmax(self.head(x.view(x.size(0), -1)), dim=1)


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.three = nn.Conv2d(3, 6, 3, padding=1)
        self.five = nn.Conv2d(3, 2, 5, padding=2)
        self.down = nn.Conv2d(15, 8, 3, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, image):
        pooled = F.avg_pool2d(image, 3, stride=1, padding=1, count_include_pad=False)
        x = torch.cat([self.one(image), self.three(image), self.five(image), pooled], dim=1)
        x = F.hardswish(self.down(F.leaky_relu(x, 0.1)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Separable(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3, bias=False)
        self.point = nn.Conv2d(6, 12, 1)
        self.norm = nn.BatchNorm2d(12)
        self.grouped = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=4)
        self.head = nn.Linear(12, 4)

    def forward(self, image):
        x = F.relu6(self.norm(self.point(self.depth(image))))
        x = self.grouped(x)
        n, c, h, w = x.shape
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(x.mean(dim=(2, 3)))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Sigmoid())

    def forward(self, left, right):
        a, b = self.tower(left), self.tower(right)
        return F.cosine_similarity(a, b, dim=1), torch.abs(a - b)


class MultiIo(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(5, 8)
        self.out = nn.Linear(16, 3)

    def forward(self, words, features):
        pooled = self.a(self.embed(words)).max(dim=1).values
        joined = torch.cat([pooled, torch.exp(-self.b(features) ** 2)], dim=-1)
        return self.out(joined), joined.sum(dim=1, keepdim=True), words + 1


class Conv1d3d(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(4, 6, 5, padding=2, padding_mode="reflect")
        self.three = nn.Conv3d(1, 3, 3, padding=1)

    def forward(self, sound, scan):
        return F.gelu(self.one(sound)), F.max_pool3d(self.three(scan), 2)


def models():
    g = torch.Generator().manual_seed(7)
    rand = lambda *s: torch.randn(*s, generator=g)
    yield "convnet", ConvNet(), {"image": rand(2, 3, 32, 32)}
    yield "inception", Inception(), {"image": rand(2, 3, 17, 17)}
    yield "separable", Separable(), {"image": rand(2, 3, 16, 16)}
    yield "siamese", Siamese(), {"left": rand(2, 6), "right": rand(2, 6)}
    yield "multi_io", MultiIo(), {"words": torch.randint(0, 20, (2, 7)), "features": rand(2, 5)}
    yield "conv_1d_3d", Conv1d3d(), {"sound": rand(2, 4, 20), "scan": rand(2, 1, 6, 6, 6)}


def randomise(model):
    """Gives the statistics of BatchNorm values that matter."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    for name, model, inputs in models():
        model.eval()
        randomise(model)
        args, names = tuple(inputs.values()), list(inputs)
        for exporter in ("script", "dynamo"):
            path = str(folder / f"torch_{exporter}_{name}.onnx")
            try:
                if exporter == "script":
                    axes = {n: {0: "batch"} for n in names}
                    torch.onnx.export(model, args, path, input_names=names, dynamic_axes=axes, dynamo=False)
                else:
                    batch = torch.export.Dim("batch")
                    shapes = tuple({0: batch} for _ in names)
                    torch.onnx.export(
                        model, args, path, input_names=names, dynamic_shapes=shapes, dynamo=True, external_data=False
                    )
                print("exported", path)
            except Exception as error:  # an exporter's own limits are reported, not ours
                print("not exported", path, type(error).__name__, str(error)[:200])


main()
