"""Exports BERT-base (128 tokens) and ViT-small (224x224 pixels), with random weights and a dynamic batch, as PyTorch does.

Usage: python export_measured.py FOLDER        (needs the packages of performance.txt)
"""

import pathlib
import sys

import timm
import torch
import transformers


class Bert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = transformers.BertModel(transformers.BertConfig())

    def forward(self, ids, mask):
        told = self.model(input_ids=ids, attention_mask=mask)
        return told.last_hidden_state, told.pooler_output


def main(folder):
    torch.manual_seed(0)
    batch = {0: torch.export.Dim("batch", min=1, max=4096)}
    # Two rows: of one the exporter would make a constant.
    words = (torch.randint(0, 30_000, (2, 128)), torch.ones(2, 128, dtype=torch.int64))
    options = {"dynamo": True, "external_data": False}
    with torch.no_grad():
        shapes = {"ids": batch, "mask": batch}
        torch.onnx.export(Bert().eval(), words, folder / "bert_base.onnx", dynamic_shapes=shapes, **options)
        vit = timm.create_model("vit_small_patch16_224", pretrained=False).eval()
        image = (torch.randn(2, 3, 224, 224),)
        torch.onnx.export(vit, image, folder / "vit_small.onnx", dynamic_shapes=(batch,), **options)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
