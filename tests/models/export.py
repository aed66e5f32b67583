"""Exports models with seeded random weights and compares fanwise with ONNX Runtime on them.

export.py FANWISE FOLDER [NAME...]: writes NAME-script.onnx and NAME-dynamo.onnx for each model into FOLDER, unless
they are there, by PyTorch's older and newer exporter, with an open batch and, where a model has it, an open length.
Each file then has to pass `fanwise check` without options, and to give what ONNX Runtime gives, with the same bits on
any number of devices. Prints a line for each file; the exit code is 1 if one fails.
"""

import os
import subprocess
import sys
import warnings

import numpy as np
import onnxruntime as ort
import torch
import torchvision
import timm
import transformers as hf

ROWS = (7, 2, 1)
DEVICES = (1, 3, 4)
# The share of the largest element by which results may differ from those of ONNX Runtime.
TOLERANCE = 1e-4
LENGTH = 9
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
    "rexnet_100 selecsls42 vovnet39a darknet53 sknet18 res2net50_14w_8s mobileone_s0"
).split()

for name in TORCHVISION:
    MODELS["tv_" + name] = image(lambda name=name: getattr(torchvision.models, name)(weights=None), 224)
MODELS.update({"timm_" + name: of_timm(name) for name in TIMM})


@torch.no_grad()
def export(name, way, path):
    torch.manual_seed(0)
    model, names, inputs, axes = MODELS[name]()
    model.eval()
    # A file that an interrupted export left would be taken for a whole one.
    unfinished = path + ".part"
    if way == "script":
        own = {"dynamic_axes": axes, "opset_version": 17, "dynamo": False}
    else:
        open_sizes = tuple({axis: torch.export.Dim.DYNAMIC for axis in axes[name]} for name in names)
        shapes = (open_sizes,) if isinstance(model, First) else open_sizes
        own = {"dynamic_shapes": shapes, "opset_version": 18, "dynamo": True, "external_data": False, "verbose": False}
    torch.onnx.export(model, inputs, unfinished, input_names=names, output_names=["y"], **own)
    os.replace(unfinished, path)


def feed(session, rows, rng):
    """Inputs of so many rows, the last words of some of which are masked."""
    inputs = {}
    for value in session.get_inputs():
        shape = [size if isinstance(size, int) else LENGTH for size in value.shape]
        shape[0] = rows
        if "int64" not in value.type:
            # Sounds have to be longer than the windows of their convolutions.
            shape = [800 if i == 1 and len(shape) == 2 else size for i, size in enumerate(shape)]
            inputs[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif "mask" in value.name:
            inputs[value.name] = np.ones(shape, np.int64)
            for row in range(rows):
                inputs[value.name][row, shape[1] - row % 3 :] = 0
        else:
            inputs[value.name] = rng.integers(5, 90, shape)
    return inputs


def fanwise(binary, *args):
    ended = subprocess.run([binary, *args], capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{args[0]}: {ended.stderr.strip()}")


def compare(binary, path):
    """The largest difference from ONNX Runtime, as a share of the largest element."""
    fanwise(binary, "check", path, "--gpus", "3", "--batch", "7", "--target", "cpu")
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng, worst = np.random.default_rng(0), 0.0
    for rows in ROWS:
        inputs = feed(session, rows, rng)
        np.savez(path + ".in.npz", **inputs)
        wanted = session.run(None, inputs)[0]
        results = []
        for count in DEVICES:
            out = f"{path}.{count}.npz"
            given = ["--inputs", path + ".in.npz", "--outputs", out]
            fanwise(binary, "run", path, "--gpus", str(count), "--target", "cpu", *given)
            with np.load(out) as arrays:
                results.append(arrays[session.get_outputs()[0].name])
            os.remove(out)
        os.remove(path + ".in.npz")
        if any(result.tobytes() != results[0].tobytes() for result in results):
            raise RuntimeError(f"{rows} rows differ between devices")
        if results[0].shape != wanted.shape:
            raise RuntimeError(f"{results[0].shape}, not {wanted.shape}")
        worst = max(worst, float(np.abs(results[0] - wanted).max() / max(1.0, np.abs(wanted).max())))
    if not worst <= TOLERANCE:
        raise RuntimeError(f"differs from ONNX Runtime by {worst:.1e}")
    return worst


def main(binary, folder, *names):
    warnings.filterwarnings("ignore")
    os.makedirs(folder, exist_ok=True)
    failed = 0
    for name in names or MODELS:
        for way in ("script", "dynamo"):
            path = os.path.join(folder, f"{name}-{way}.onnx")
            try:
                if not os.path.exists(path):
                    export(name, way, path)
                said = f"{compare(binary, path):.1e}"
            except Exception as error:
                failed += 1
                said = "FAILED: " + " | ".join(str(error).splitlines()[:4])
            print(f"{name} {way}: {said}", flush=True)
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
