"""Models of torchvision, timm and `torch.nn` on three devices beside eager PyTorch."""

import copy
import gc
import unittest

import timm
import torch
import torchvision
from torch import nn

from fanwise.torch import DataParallel

ROWS, CLASSES = 7, 11


class Sequence(nn.Module):
    """An image as a sequence of patches, for a layer of sequences."""

    def __init__(self, body, width):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, x):
        found = self.body(x.reshape(x.shape[0], -1, 48))
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))


class Attended(nn.Module):
    """A decoder over an encoder, with a mask."""

    def __init__(self):
        super().__init__()
        options = {"dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
        self.inner = nn.Transformer(48, 4, 1, 1, **options)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x):
        x = x.reshape(x.shape[0], -1, 48)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.inner(x, x.flip(1), tgt_mask=mask, tgt_is_causal=True)[:, -1])


class Embedded(nn.Module):
    """Lookups by numbers made of the input, and a product of two vectors."""

    def __init__(self):
        super().__init__()
        self.table, self.filter = nn.Embedding(50, 16), nn.Conv1d(16, 16, 3, padding=1)
        self.last = nn.Bilinear(16, 16, CLASSES)

    def forward(self, x):
        places = (x.flatten(1)[:, :12].abs() * 40).long().clamp(0, 49)
        found = self.filter(self.table(places).transpose(1, 2))
        return self.last(found.mean(2), found.amax(2))


def mixed():
    return nn.Sequential(
        *[nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()],
        *[nn.Conv2d(8, 8, 3, stride=2, groups=8), nn.InstanceNorm2d(8, affine=True), nn.PReLU()],
        *[nn.ConvTranspose2d(8, 6, 3, stride=2), nn.ELU(), nn.AvgPool2d(2), nn.MaxPool2d(2)],
        *[nn.Hardswish(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, CLASSES)],
        nn.Softplus(),
    )


def perceptron():
    body = [nn.Flatten(), nn.Linear(768, 64), nn.GELU(), nn.LayerNorm(64)]
    return nn.Sequential(*body, nn.Linear(64, CLASSES), nn.LogSoftmax(1))


def recurrent(kind):
    return Sequence(kind(48, 24, num_layers=2, bidirectional=True, batch_first=True), 48)


def encoder():
    layer = nn.TransformerEncoderLayer(48, 4, 64, dropout=0.0, batch_first=True)
    return Sequence(nn.TransformerEncoder(layer, 2), 48)


def vision(name, **options):
    options = {"weights": None, "num_classes": CLASSES, **options}
    return lambda: getattr(torchvision.models, name)(**options)


def from_timm(name, **options):
    return lambda: timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)


# Models with the size of their images.
MODELS = {
    "perceptron": (perceptron, 16),
    "mixed": (mixed, 16),
    "embedded": (Embedded, 16),
    "lstm": (lambda: recurrent(nn.LSTM), 16),
    "gru": (lambda: recurrent(nn.GRU), 16),
    "rnn": (lambda: recurrent(nn.RNN), 16),
    "encoder": (encoder, 16),
    "transformer": (Attended, 16),
    "squeezenet1_1": (vision("squeezenet1_1"), 64),
    "resnet18": (vision("resnet18"), 64),
    "mobilenet_v2": (vision("mobilenet_v2"), 64),
    "mobilenet_v3_small": (vision("mobilenet_v3_small"), 64),
    "shufflenet_v2_x0_5": (vision("shufflenet_v2_x0_5"), 64),
    "efficientnet_b0": (vision("efficientnet_b0"), 64),
    "mnasnet0_5": (vision("mnasnet0_5"), 64),
    "regnet_y_400mf": (vision("regnet_y_400mf"), 64),
    "densenet121": (vision("densenet121"), 64),
    "convnext_tiny": (vision("convnext_tiny"), 64),
    "googlenet": (vision("googlenet", aux_logits=False, init_weights=False), 64),
    "vit": (
        lambda: torchvision.models.VisionTransformer(32, 8, 2, 4, 64, 128, num_classes=CLASSES),
        32,
    ),
    "swin": (
        lambda: torchvision.models.SwinTransformer(
            [4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=CLASSES
        ),
        64,
    ),
    "timm/resnet10t": (from_timm("resnet10t"), 64),
    "timm/mobilenetv4_conv_small": (from_timm("mobilenetv4_conv_small"), 64),
    "timm/ghostnet_050": (from_timm("ghostnet_050"), 64),
    "timm/lcnet_050": (from_timm("lcnet_050"), 64),
    "timm/tinynet_e": (from_timm("tinynet_e"), 64),
    "timm/edgenext_xx_small": (from_timm("edgenext_xx_small"), 64),
    "timm/mobileone_s0": (from_timm("mobileone_s0"), 64),
    "timm/repvgg_a0": (from_timm("repvgg_a0"), 64),
    "timm/vit_tiny_patch16_224": (from_timm("vit_tiny_patch16_224", img_size=64), 64),
    "timm/mixer_s32_224": (from_timm("mixer_s32_224", img_size=64), 64),
    "timm/poolformer_s12": (from_timm("poolformer_s12"), 64),
    "timm/efficientvit_b0": (from_timm("efficientvit_b0"), 64),
}

# Those that are compared in training: in float64 where statistics of a few numbers have gradients
# whose rounding in float32 alone is larger.
TRAINED = {
    **dict.fromkeys(["perceptron", "embedded", "lstm", "gru", "rnn", "encoder"], torch.float32),
    **dict.fromkeys(["transformer", "squeezenet1_1", "vit"], torch.float32),
    "timm/vit_tiny_patch16_224": torch.float32,
    **dict.fromkeys(["mixed", "resnet18", "mobilenet_v3_small"], torch.float64),
    "shufflenet_v2_x0_5": torch.float64,
}


def built(name):
    """The model, with numbers in place of parameters that begin as zeros, and images."""
    torch.manual_seed(0)
    make, size = MODELS[name]
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.count_nonzero():
                parameter.normal_(std=0.1)
    return module, torch.randn(ROWS, 3, size, size)


class Models(unittest.TestCase):
    def near(self, found, expected, largest=None):
        self.assertEqual(found.shape, expected.shape)
        largest = float(expected.abs().max()) if largest is None else largest
        self.assertGreater(largest, 0)
        self.assertLessEqual(float((found - expected).abs().max()), 1e-4 * largest)

    def tearDown(self):
        gc.collect()

    def test_outputs(self):
        self.assertGreaterEqual(len(MODELS), 30)
        for name in MODELS:
            with self.subTest(name), torch.no_grad():
                module, x = built(name)
                module.eval()
                expected = module(x)
                # Rows differ, so that it would show if they were mixed up.
                self.assertGreater(float((expected[0] - expected[1]).abs().max()), 0)
                self.near(DataParallel(module, gpus=3, target="cpu")(x), expected)

    def test_gradients(self):
        self.assertGreaterEqual(len(TRAINED), 10)
        for name, dtype in TRAINED.items():
            with self.subTest(name):
                module, x = built(name)
                module.to(dtype)
                for dropout in module.modules():
                    if isinstance(dropout, nn.Dropout):
                        dropout.p = 0.0
                other, x = copy.deepcopy(module), x.to(dtype)
                call = DataParallel(module, gpus=3, target="cpu")
                found, expected = call(x), other(x)
                self.near(found.detach(), expected.detach())
                seeds = torch.randn_like(expected)
                found.backward(seeds)
                expected.backward(seeds)
                self.gradients(module, other)

    def gradients(self, module, other):
        grads = [parameter.grad for parameter in other.parameters()]
        whole = max(float(grad.abs().max()) for grad in grads if grad is not None)
        for (name, parameter), expected in zip(module.named_parameters(), grads, strict=True):
            with self.subTest(name):
                self.assertEqual(parameter.grad is None, expected is None)
                if expected is not None:
                    # A bias before batch normalization has no gradient but rounding.
                    largest = max(float(expected.abs().max()), 1e-9 * whole)
                    self.near(parameter.grad, expected, largest)


if __name__ == "__main__":
    unittest.main()
