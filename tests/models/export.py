"""Exports models with seeded random weights and compares fanwise with ONNX Runtime on them.

export.py FANWISE FOLDER [NAME...]: writes NAME-WAY.onnx for each model into FOLDER, unless it is there: by PyTorch's
older and newer exporter (`script`, `dynamo`) or the package's own (`own`), with an open batch and, where a model has
it, an open length; files that packages ship are taken from there (`file`). Each has to pass `fanwise check` without
options and `compare.py`, and to be split without `all_gather`. Prints a line for each file; the exit code is 1 if one
fails, or does not fail as EXCEPTIONS says.

export.py --strip FOLDER: makes the graphs without weights of tests/models/architectures of the files in FOLDER.
"""

import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile
import warnings

# Before the import of its package, which would install others and keep settings in the user's folder.
os.environ.update(YOLO_AUTOINSTALL="false", YOLO_OFFLINE="true", YOLO_VERBOSE="false", YOLO_CONFIG_DIR=tempfile.gettempdir())

import onnx
import torch
import torchvision
import timm
import transformers as hf
import ultralytics

import compare
import strip

VOCABULARY = 100

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
BYTES = {"vocab_size": VOCABULARY}
DECODER = {**SMALL, **BYTES, "num_key_value_heads": 2}
CODER = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "d_model": 32,
}
T5 = hf.T5Config(**BYTES, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
PATCHES = {**SMALL, "image_size": 32, "patch_size": 8}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


class First(torch.nn.Module):
    """A model with its first result, or its logits; inputs by position."""

    def __init__(self, model, names, **options):
        super().__init__()
        self.model, self.names, self.options = model, names, options

    def forward(self, *inputs):
        result = self.model(**dict(zip(self.names, inputs)), **self.options)
        return result.logits if hasattr(result, "logits") else result[0]


class Decoder(torch.nn.Module):
    """The decoder of T5, given what its encoder made."""

    def __init__(self):
        super().__init__()
        self.model = hf.T5ForConditionalGeneration(T5)

    def forward(self, decoder_input_ids, encoder_hidden_states):
        states = hf.modeling_outputs.BaseModelOutput(encoder_hidden_states)
        return self.model(decoder_input_ids=decoder_input_ids, encoder_outputs=states, use_cache=False)


def plain(kind, config):
    """A model whose attention both exporters can write."""
    return kind._from_config(config, attn_implementation="eager")


def words(kind, config, **options):
    """A model of words and a mask."""

    def make():
        names = ["input_ids", "attention_mask"]
        inputs = (torch.randint(5, 90, (3, 6)), torch.ones(3, 6, dtype=torch.long))
        axes = {name: {0: "batch", 1: "length"} for name in names}
        return First(plain(kind, config), names, **options), names, inputs, axes

    return make


def image(make_model, size):
    """A model of images."""

    def make():
        return make_model(), ["x"], (torch.randn(2, 3, size, size),), {"x": {0: "batch"}}

    return make


def pixels(kind, config):
    return image(lambda: First(plain(kind, config), ["pixel_values"]), 32)


def other(make_model, names, inputs, axes):
    return lambda: (make_model(), names, tuple(make() for make in inputs), axes)


def of_timm(name):
    def make():
        model = timm.create_model(name, pretrained=False, exportable=True)
        return image(lambda: model, model.default_cfg["input_size"][-1])()

    return make


def whisper():
    config = hf.WhisperConfig(
        **BYTES, **CODER, **MARKS, num_mel_bins=16, max_source_positions=20, decoder_start_token_id=1
    )
    return First(hf.WhisperModel(config).encoder, ["input_features"])


def wav2vec2():
    config = hf.Wav2Vec2Config(
        **SMALL,
        conv_dim=(16, 16),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
    )
    return First(hf.Wav2Vec2Model(config), ["input_values"])


MODELS = {
    "bert": words(hf.BertModel, hf.BertConfig(**BYTES, **SMALL)),
    "roberta": words(hf.RobertaModel, hf.RobertaConfig(**BYTES, **SMALL)),
    "albert": words(hf.AlbertModel, hf.AlbertConfig(**BYTES, **SMALL, embedding_size=16)),
    "electra": words(hf.ElectraModel, hf.ElectraConfig(**BYTES, **SMALL, embedding_size=16)),
    "distilbert": words(hf.DistilBertModel, hf.DistilBertConfig(**BYTES, dim=32, n_layers=2, n_heads=4, hidden_dim=64)),
    "deberta": words(
        hf.DebertaV2Model,
        hf.DebertaV2Config(
            **BYTES,
            **SMALL,
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=8,
            max_relative_positions=16,
        ),
    ),
    "mpnet": words(hf.MPNetModel, hf.MPNetConfig(**BYTES, **SMALL)),
    "modernbert": words(
        hf.ModernBertModel, hf.ModernBertConfig(**BYTES, **SMALL, **MARKS, cls_token_id=3, sep_token_id=4)
    ),
    "gpt2": words(hf.GPT2LMHeadModel, hf.GPT2Config(**BYTES, n_embd=32, n_layer=2, n_head=4), use_cache=False),
    "gpt_neox": words(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**BYTES, **SMALL), use_cache=False),
    "opt": words(
        hf.OPTForCausalLM,
        hf.OPTConfig(
            **BYTES, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=32
        ),
        use_cache=False,
    ),
    "llama": words(hf.LlamaForCausalLM, hf.LlamaConfig(**DECODER), use_cache=False),
    "mistral": words(hf.MistralForCausalLM, hf.MistralConfig(**DECODER), use_cache=False),
    "qwen2": words(hf.Qwen2ForCausalLM, hf.Qwen2Config(**DECODER), use_cache=False),
    "gemma": words(hf.GemmaForCausalLM, hf.GemmaConfig(**DECODER, head_dim=8), use_cache=False),
    "phi": words(hf.PhiForCausalLM, hf.PhiConfig(**DECODER), use_cache=False),
    "t5_encoder": words(hf.T5EncoderModel, T5),
    "t5_decoder": other(
        lambda: First(Decoder(), ["decoder_input_ids", "encoder_hidden_states"]),
        ["decoder_input_ids", "encoder_hidden_states"],
        [lambda: torch.randint(5, 90, (3, 5)), lambda: torch.randn(3, 6, 32)],
        {"decoder_input_ids": {0: "batch", 1: "written"}, "encoder_hidden_states": {0: "batch", 1: "read"}},
    ),
    "bart": words(hf.BartModel, hf.BartConfig(**BYTES, **CODER), use_cache=False),
    "clip_text": words(hf.CLIPTextModel, hf.CLIPTextConfig(**BYTES, **SMALL, eos_token_id=99)),
    "clip_vision": pixels(hf.CLIPVisionModel, hf.CLIPVisionConfig(**PATCHES)),
    "vit": pixels(hf.ViTForImageClassification, hf.ViTConfig(**PATCHES)),
    "deit": pixels(hf.DeiTForImageClassification, hf.DeiTConfig(**PATCHES)),
    "swin": pixels(
        hf.SwinForImageClassification,
        hf.SwinConfig(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4),
    ),
    "segformer": pixels(
        hf.SegformerForSemanticSegmentation,
        hf.SegformerConfig(
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[16, 32],
            num_attention_heads=[1, 2],
            patch_sizes=[7, 3],
            strides=[4, 2],
            mlp_ratios=[2, 2],
            decoder_hidden_size=32,
        ),
    ),
    "whisper": other(whisper, ["input_features"], [lambda: torch.randn(3, 16, 40)], {"input_features": {0: "batch"}}),
    "wav2vec2": other(
        wav2vec2, ["input_values"], [lambda: torch.randn(3, 800)], {"input_values": {0: "batch", 1: "samples"}}
    ),
}

# Models of torchvision and timm, at the size of their images.
TORCHVISION = (
    "alexnet resnet18 vgg11_bn squeezenet1_0 densenet121 mobilenet_v3_small shufflenet_v2_x1_0 efficientnet_b0 "
    "mnasnet0_5 regnet_y_400mf convnext_tiny vit_b_32 swin_t"
).split()
TIMM = (
    "convnext_atto deit_tiny_patch16_224 swin_tiny_patch4_window7_224 mobilenetv3_small_050 ghostnet_050 "
    "hrnet_w18_small mixer_s32_224 resmlp_12_224 gmlp_ti16_224 pit_ti_224 coat_lite_tiny levit_128s mobilevit_xxs "
    "edgenext_xx_small poolformer_s12 xcit_nano_12_p16_224 cait_xxs24_224 twins_pcpvt_small nfnet_f0 lcnet_050 "
    "tinynet_e fastvit_t8 repvgg_a0 eva02_tiny_patch14_224 crossvit_tiny_240 visformer_tiny efficientformer_l1 "
    "rexnet_100 selecsls42 vovnet39a darknet53 skresnet18 res2net50_14w_8s mobileone_s0"
).split()

for name in TORCHVISION:
    MODELS["tv_" + name] = image(lambda name=name: getattr(torchvision.models, name)(weights=None), 224)
MODELS.update({"timm_" + name: of_timm(name) for name in TIMM})

# Models that their package, ultralytics, describes; its own exporter opens heights and widths. Versions 9, 12 and 26 with
# random weights are no yardstick: what PyTorch itself gives in float32 and in float64 differs by more than 1e-4.
YOLO = "yolov3-tiny yolov5n yolov6n yolov8n yolov8n-cls yolov8n-obb yolov8n-pose yolov8n-seg yolov10n yolo11n rtdetr-l".split()

# Files that packages ship.
PACKAGED = {
    "ddddocr": "ddddocr/common.onnx",
    "ddddocr_detection": "ddddocr/common_det.onnx",
    "magika": "magika/models/standard_v3_3/model.onnx",
    "ppocr_class": "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
    "ppocr_detection": "rapidocr/models/PP-OCRv6_det_small.onnx",
    "ppocr_recognition": "rapidocr/models/PP-OCRv6_rec_small.onnx",
    "silero_vad_16k": "silero_vad/data/silero_vad_openvino_16k.onnx",
}

# Open sizes that are not those of `compare.py`.
SIZES = {
    "t5_decoder": {"decoder_input_ids[1]": 7},
    "wav2vec2": {"input_values[1]": 800},
    "yolo": {"images[2]": 64, "images[3]": 96},
    "ddddocr": {"input1[3]": 88},
    "ppocr_class": {"x[2]": 48, "x[3]": 192},
    "ppocr_detection": {"x[2]": 64, "x[3]": 96},
    "ppocr_recognition": {"x[3]": 88},
}

# What an exporter or fanwise cannot, with a part of what is said then.
EXCEPTIONS = {
    # It orders its queries by scores, of which two differ in their last bits: the same queries, two of them exchanged.
    ("rtdetr-l", "own"): "of the largest value",
}


def ways(name):
    """How a model becomes a file."""
    if name in PACKAGED:
        return ["file"]
    return ["own"] if name in YOLO else ["script", "dynamo"]


@torch.no_grad()
def enliven(model, inputs):
    """Gives constants that hide what is computed other values: scales near 0 or 1, shifts of 0, statistics that are
    not those of the data."""
    for name, tensor in model.named_parameters():
        first = tensor.flatten()[:1].item() if tensor.numel() else 0.0
        if tensor.is_floating_point() and bool((tensor == first).all()):
            tensor.uniform_(-0.2, 0.2) if first == 0 else tensor.uniform_(0.5, 1.5).mul_(max(first, 0.1))
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        model(*inputs)
    for norm in norms:
        # A channel that hardly varies in these few rows would magnify what is rounded.
        norm.running_var.clamp_(min=float(norm.running_var.mean()) / 4)
    model.eval()


@torch.no_grad()
def by_torch(name, way, path):
    model, names, inputs, axes = MODELS[name]()
    model.eval()
    enliven(model, inputs)
    if way == "script":
        own = {"dynamic_axes": axes, "opset_version": 17, "dynamo": False}
    else:
        open_sizes = tuple({axis: torch.export.Dim.DYNAMIC for axis in axes[name]} for name in names)
        shapes = (open_sizes,) if isinstance(model, First) else open_sizes
        own = {"dynamic_shapes": shapes, "opset_version": 18, "dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(model, inputs, path, input_names=names, output_names=["y"], **own)


def by_ultralytics(name, path):
    kind = ultralytics.RTDETR if name.startswith("rtdetr") else ultralytics.YOLO
    model = kind(name + ".yaml")
    enliven(model.model, (torch.randn(4, 3, 128, 128),))
    # It writes into the current folder.
    own = model.export(format="onnx", dynamic=True, imgsz=64, simplify=False, verbose=False)
    os.replace(own, path)


def of_package(name, path):
    package, _, inside = PACKAGED[name].partition("/")
    folder = importlib.util.find_spec(package).submodule_search_locations[0]
    shutil.copyfile(os.path.join(folder, inside), path)


def export(name, way, path):
    torch.manual_seed(0)
    # A file that an interrupted export left would be taken for a whole one.
    unfinished = path.with_suffix(".part")
    if way == "file":
        of_package(name, unfinished)
    elif way == "own":
        by_ultralytics(name, unfinished)
    else:
        by_torch(name, way, unfinished)
    sizes = SIZES.get("yolo" if way == "own" else name)
    if sizes:
        model = onnx.load(unfinished)
        onnx.helper.set_model_props(model, {"sizes": json.dumps(sizes)})
        onnx.save(model, unfinished)
    os.replace(unfinished, path)


def attempt(fanwise, name, way, path, folder):
    """Whether a model does what it should, and what is said of it."""
    excepted = EXCEPTIONS.get((name, way))
    try:
        if not path.exists():
            export(name, way, path)
        compare.said(fanwise, "check", path, "--gpus", 3, "--batch", 7, "--target", "cpu")
        if "all_gather" in compare.said(fanwise, "compile", path, "--gpus", 3, "--emit", "graph"):
            raise RuntimeError("its graph has all_gather")
        worst = compare.compare(fanwise, path, folder)
    except Exception as error:
        text = " | ".join(str(error).splitlines()[:4])
        if excepted and excepted in str(error):
            return True, f"as excepted: {text}"
        return False, f"FAILED: {text}"
    return not excepted, f"{worst:.1e}" + (", which was excepted" if excepted else "")


def main(fanwise, folder, *names):
    warnings.filterwarnings("ignore")
    torch.backends.mha.set_fastpath_enabled(False)  # What it calls has no counterpart in ONNX.
    fanwise, models = os.path.abspath(fanwise), pathlib.Path(folder).absolute()
    models.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in names or (*MODELS, *YOLO, *PACKAGED):
            for way in ways(name):
                passed, said = attempt(fanwise, name, way, models / f"{name}-{way}.onnx", pathlib.Path(folder))
                failed += not passed
                print(f"{name} {way}: {said}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--strip":
        sys.exit(strip.main(sys.argv[2]))
    sys.exit(main(*sys.argv[1:]))
