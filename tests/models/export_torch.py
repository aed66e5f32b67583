"""Exports small PyTorch models with random weights and a dynamic batch to ONNX, by both exporters.

Usage: python export_torch.py FOLDER        (needs torch and onnxscript, which the test suite does not)
"""

import pathlib
import sys

import torch
from tidy import tidy
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


class Recurrent(nn.Module):
    """Stacked recurrent layers after an embedding; `batch_first` as asked."""

    def __init__(self, kind, batch_first, **options):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.cells = kind(6, 5, num_layers=2, batch_first=batch_first, **options)
        self.head = nn.Linear(5 * (2 if options.get("bidirectional") else 1), 3)
        self.batch_first = batch_first

    def forward(self, words):
        y, state = self.cells(self.embed(words))
        last = y[:, -1] if self.batch_first else y[-1]
        hidden = state[0] if isinstance(state, tuple) else state
        return self.head(last), y, hidden


class Seq2Seq(nn.Module):
    """An encoder, a decoder that starts with the encoder's state, and attention between them."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.GRU(4, 6, batch_first=True)
        self.decoder = nn.GRU(3, 6, batch_first=True)
        self.out = nn.Linear(12, 5)

    def forward(self, source, target):
        memory, state = self.encoder(source)
        y, _ = self.decoder(target, state)
        weights = F.softmax(torch.einsum("bth,bsh->bts", y, memory) / 6**0.5, dim=-1)
        return self.out(torch.cat([y, torch.einsum("bts,bsh->bth", weights, memory)], dim=-1)), weights


class Encoder(nn.Module):
    """PyTorch's own transformer encoder with a padding mask."""

    def __init__(self, **options):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, **options)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, words, mask):
        return self.layers(self.embed(words), src_key_padding_mask=mask == 0)


class Bert(nn.Module):
    """A hand-written encoder: positions from a table, additive mask, heads by view and permute, a pooled head."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.words, self.places = nn.Embedding(20, width), nn.Embedding(32, width)
        self.register_buffer("positions", torch.arange(32).unsqueeze(0))
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.pool, self.heads = nn.Linear(width, 4), heads

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, words, mask):
        batch, length = words.size()
        x = self.norm(self.words(words) + self.places(self.positions[:, :length]))
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        added = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        weights = torch.softmax(q @ k.transpose(-1, -2) / (x.size(-1) / self.heads) ** 0.5 + added, dim=-1)
        y = (weights @ v).permute(0, 2, 1, 3).reshape(batch, length, -1)
        x = self.norm2(x + self.out(y))
        x = x + self.down(F.gelu(self.up(x), approximate="tanh"))
        return torch.tanh(self.pool(x[:, 0])), x


class Causal(nn.Module):
    """A decoder layer by `scaled_dot_product_attention`, with a causal mask and RMS norms."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 20, bias=False)
        self.scale = nn.Parameter(torch.ones(16))

    def norm(self, x):
        return self.scale * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def forward(self, words):
        x = self.embed(words)
        parts = self.qkv(self.norm(x)).view(x.size(0), x.size(1), 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.out(self.norm(x + y.transpose(1, 2).reshape(x.shape)))


class Patches(nn.Module):
    """Image patches, a class token expanded to the batch, positions, one encoder layer."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 17, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu")
        self.head = nn.Linear(16, 5)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], dim=1) + self.places
        return self.head(self.layer(x)[:, 0])


class UNet(nn.Module):
    """Down and up again: group and instance norms, transposed convolution, resizing, pixel shuffle, PReLU."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.c = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(16, 16, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.groups, self.instance = nn.GroupNorm(4, 16), nn.InstanceNorm2d(8, affine=True)
        self.act, self.mix = nn.PReLU(16), nn.Conv2d(32, 16, 1)
        self.last = nn.Conv2d(24, 8, 3, padding=1)

    def forward(self, image):
        a = F.relu(self.instance(self.a(image)))
        b = self.act(self.groups(self.b(a)))
        x = self.mix(torch.cat([b, self.up(self.c(b))], dim=1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = F.pixel_shuffle(self.last(torch.cat([x, a], dim=1)), 2)
        return torch.sigmoid(x), F.interpolate(image, size=(8, 8), mode="nearest")


class Indexing(nn.Module):
    """The operators that pick, place, sort and count within a sample."""

    def forward(self, x, index):
        values, places = x.topk(3, dim=1)
        picked = torch.gather(x, 1, index)
        placed = torch.zeros_like(x).scatter(1, index, picked)
        hot = F.one_hot(index, 9).to(x.dtype)
        lower = torch.tril(x.unsqueeze(1) * x.unsqueeze(2))
        return values, places, placed, hot, torch.cumsum(x, dim=1), lower, x.argmin(dim=1), torch.flip(x, [1])


def models():
    """Name, model, example inputs and, where it is not 0, the axis of the batch."""
    g = torch.Generator().manual_seed(7)
    rand = lambda *s: torch.randn(*s, generator=g)
    yield "convnet", ConvNet(), {"image": rand(2, 3, 32, 32)}
    yield "inception", Inception(), {"image": rand(2, 3, 17, 17)}
    yield "separable", Separable(), {"image": rand(2, 3, 16, 16)}
    yield "siamese", Siamese(), {"left": rand(2, 6), "right": rand(2, 6)}
    yield "multi_io", MultiIo(), {"words": torch.randint(0, 20, (2, 7)), "features": rand(2, 5)}
    yield "conv_1d_3d", Conv1d3d(), {"sound": rand(2, 4, 20), "scan": rand(2, 1, 6, 6, 6)}
    words = torch.randint(0, 20, (2, 7))
    yield "lstm", Recurrent(nn.LSTM, True, bidirectional=True), {"words": words}
    yield "lstm_time_major", Recurrent(nn.LSTM, False), {"words": words.T.contiguous()}, 1
    yield "gru", Recurrent(nn.GRU, True), {"words": words}
    yield "gru_time_major", Recurrent(nn.GRU, False, bidirectional=True), {"words": words.T.contiguous()}, 1
    yield "rnn", Recurrent(nn.RNN, True, nonlinearity="relu"), {"words": words}
    yield "seq2seq", Seq2Seq(), {"source": rand(2, 6, 4), "target": rand(2, 5, 3)}
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    yield "encoder", Encoder(), {"words": words, "mask": mask}
    yield "encoder_gelu", Encoder(norm_first=True, activation="gelu"), {"words": words, "mask": mask}
    yield "bert", Bert(), {"words": words, "mask": mask}
    yield "causal", Causal(), {"words": words}
    yield "patches", Patches(), {"image": rand(2, 3, 16, 16)}
    yield "unet", UNet(), {"image": rand(2, 3, 16, 16)}
    yield "indexing", Indexing(), {"x": rand(2, 9), "index": torch.randint(0, 9, (2, 4))}


def randomise(model):
    """Gives the statistics and the scales of normalisations values that matter."""
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    for name, model, inputs, *axis in models():
        axis = axis[0] if axis else 0
        model.eval()
        randomise(model)
        args, names = tuple(inputs.values()), list(inputs)
        for exporter in ("script", "dynamo"):
            path = str(folder / f"torch_{exporter}_{name}.onnx")
            try:
                if exporter == "script":
                    axes = {n: {axis: "batch"} for n in names}
                    torch.onnx.export(model, args, path, input_names=names, dynamic_axes=axes, dynamo=False)
                else:
                    batch = torch.export.Dim("batch")
                    shapes = tuple({axis: batch} for _ in names)
                    torch.onnx.export(
                        model, args, path, input_names=names, dynamic_shapes=shapes, dynamo=True, external_data=False
                    )
                tidy(path)
                print("exported", path)
            except Exception as error:  # an exporter's own limits are reported, not ours
                print("not exported", path, type(error).__name__, str(error)[:200])


main()
