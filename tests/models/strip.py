"""The graphs of exported models without their weights, as `tests/models/architectures` has them.

A float initializer of several axes and more than KEPT elements loses them; its documentation says `uniform LOW HIGH`,
of which the test draws others. Vectors stay: statistics that have nothing to do with the data make results that no two
programs agree on. So do what is no float, and floats that are no weights: those of masks are huge or infinite.
"""

import pathlib
import zipfile

import numpy as np
import onnx
from onnx import numpy_helper

from tidy import tidied

KEPT = 32
LARGEST = 1000.0
TARGET = pathlib.Path(__file__).parent / "architectures"
# Each architecture of Hugging Face by one exporter, and the lightest models of images, with the exporters in turn.
GRAPHS = """
albert-script bart-dynamo bert-script clip_text-dynamo clip_vision-script deberta-dynamo deit-script distilbert-dynamo
electra-script gemma-dynamo gpt2-dynamo gpt_neox-script llama-script mistral-dynamo modernbert-script mpnet-dynamo
opt-script phi-dynamo qwen2-script roberta-dynamo segformer-script swin-dynamo t5_decoder-dynamo t5_encoder-script
vit-dynamo wav2vec2-script whisper-dynamo timm_edgenext_xx_small-script timm_ghostnet_050-dynamo timm_lcnet_050-script
timm_mobilevit_xxs-script tv_shufflenet_v2_x1_0-script
""".split()


def strip(model):
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(tensor).astype(np.float64)
        if array.ndim < 2 or array.size <= KEPT or not np.abs(array).max() < LARGEST:
            continue
        spread = np.sqrt(3) * array.std()
        low, high = max(array.min(), array.mean() - spread), min(array.max(), array.mean() + spread)
        for field in ("raw_data", "float_data"):
            tensor.ClearField(field)
        tensor.doc_string = f"uniform {low:.4g} {high:.4g}"


def main(folder):
    TARGET.mkdir(exist_ok=True)
    for name in GRAPHS:
        model = tidied(onnx.load(pathlib.Path(folder) / f"{name}.onnx"))
        # The types of values inside are inferred anew.
        del model.graph.value_info[:]
        strip(model)
        # A time of its own would make each archive another file.
        entry = zipfile.ZipInfo(f"{name}.onnx")
        with zipfile.ZipFile(TARGET / f"{name}.zip", "w") as archive:
            archive.writestr(entry, model.SerializeToString(deterministic=True), zipfile.ZIP_DEFLATED, 9)
    kib = sum(path.stat().st_size for path in TARGET.glob("*.zip")) / 1024
    print(f"{len(GRAPHS)} graphs, {kib:.0f} KiB")
