"""Exports a small GPT-2 with random weights and caches of past keys and values to ONNX, by both exporters of PyTorch.

Usage: python export_gpt2.py FOLDER        (needs the packages of peers.txt, which the test suite does not)
"""

import pathlib
import sys

import torch
from tidy import tidy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.cache_utils import DynamicCache

LAYERS, HEADS, SIZE, VOCABULARY, POSITIONS = 2, 2, 8, 37, 64


class Decoder(torch.nn.Module):
    """The model with its caches as tensors."""

    def __init__(self):
        super().__init__()
        width, wide = HEADS * SIZE, 0.6
        ends = {"bos_token_id": 0, "eos_token_id": 0}
        sizes = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": width, "n_layer": LAYERS, "n_head": HEADS}
        config = GPT2Config(**sizes, **ends, initializer_range=wide, attn_implementation="eager", use_cache=True)
        self.model = GPT2LMHeadModel(config).eval()

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = DynamicCache()
        for layer in range(LAYERS):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.model(input_ids, past_key_values=cache, attention_mask=attention_mask, position_ids=position_ids, use_cache=True)
        caches = [tensor for layer in made.past_key_values.layers for tensor in (layer.keys, layer.values)]
        return made.logits, *caches


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.manual_seed(0)
    # Both parts: an exporter looks at the outer one.
    model, rows, length, past = Decoder().eval(), 2, 3, 5
    tokens = torch.randint(0, VOCABULARY, (rows, length))
    mask = torch.ones(rows, past + length, dtype=torch.int64)
    positions = torch.arange(past, past + length).repeat(rows, 1)
    caches = [torch.randn(rows, HEADS, past, SIZE) for _ in range(2 * LAYERS)]
    kinds = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past.{kind}" for kind in kinds)]
    names = {"input_names": inputs, "output_names": ["logits", *(f"present.{kind}" for kind in kinds)]}
    given = (tokens, mask, positions, *caches)

    own = {0: "batch_size", 1: "length"}
    axes = {"input_ids": own, "attention_mask": {0: "batch_size", 1: "past_length + length"}, "position_ids": own, "logits": own}
    axes |= {f"past.{kind}": {0: "batch_size", 2: "past_length"} for kind in kinds}
    axes |= {f"present.{kind}": {0: "batch_size", 2: "total"} for kind in kinds}
    path = folder / "gpt2_script.onnx"
    torch.onnx.export(model, given, path, **names, dynamic_axes=axes, opset_version=17, dynamo=False)
    tidy(path)

    batch, steps, before = (torch.export.Dim(name, max=32) for name in ("batch_size", "length", "past_length"))
    own = {0: batch, 1: steps}
    shapes = (own, {0: batch, 1: torch.export.Dim.AUTO}, own, tuple({0: batch, 2: before} for _ in caches))
    path = folder / "gpt2_dynamo.onnx"
    torch.onnx.export(model, given, path, **names, dynamic_shapes=shapes, opset_version=18, dynamo=True, external_data=False)
    tidy(path)


if __name__ == "__main__":
    main()
