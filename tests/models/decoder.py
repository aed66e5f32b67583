"""Writes small decoders with caches of past keys and values, and what ONNX Runtime generates with them.

    python decoder.py FOLDER

writes `separate.onnx`, whose caches are `[B, H, P, D]` for keys and for values of each layer, and which counts positions
from the past's length, and `stacked.onnx`, whose caches are `[2, B, H, P, D]`, and which is given positions; copies of the
models of `decoders` (`export_gpt2.py`); and `generated.npz` with arrays `MODEL.ROWS.prompt`, `MODEL.ROWS.tokens` and
`MODEL.ROWS.logits` of twenty greedy steps.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

LAYERS, HEADS, SIZE, VOCABULARY, POSITIONS = 2, 2, 4, 19, 64
WIDTH = HEADS * SIZE
STEPS, ROWS, PROMPT = 20, [7, 2], 3


class Writer:
    """Nodes and weights of a graph; each method adds a node, and returns the name of its result."""

    def __init__(self, seed):
        self.rng, self.nodes, self.weights = np.random.default_rng(seed), [], []

    def node(self, op, *operands, name=None, **attributes):
        result = name or f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(operands), [result], **attributes))
        return result

    def constant(self, value, dtype=np.int64):
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), f"c_{len(self.weights)}"))
        return self.weights[-1].name

    def weight(self, *shape):
        return self.constant(self.rng.normal(size=shape), np.float32)

    def part(self, shape, axis):
        return self.node("Gather", shape, self.constant([axis]), axis=0)

    def norm(self, x):
        return self.node("LayerNormalization", x, self.weight(WIDTH), axis=-1)

    def linear(self, x, out, width=WIDTH):
        return self.node("Add", self.node("MatMul", x, self.weight(width, out)), self.weight(out))


def heads(g, x):
    """`[B, L, H * D]` as `[B, H, L, D]`."""
    return g.node("Transpose", g.node("Reshape", x, g.constant([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3])


def attention(g, x, past, hidden, present):
    """The attention of a layer; `past` and `present` name the keys and values."""
    q, k, v = (heads(g, g.linear(x, WIDTH)) for _ in range(3))
    k = g.node("Concat", past[0], k, axis=2, name=present[0])
    v = g.node("Concat", past[1], v, axis=2, name=present[1])
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Div", scores, g.constant(np.sqrt(SIZE), np.float32))
    scores = g.node("Add", scores, hidden)
    mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), v)
    mixed = g.node("Reshape", g.node("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([0, 0, WIDTH]))
    return g.linear(mixed, WIDTH)


def decoder(stacked):
    """A model; its inputs of tokens and of a mask have the names that exporters give."""
    g = Writer(17 + stacked)
    i64, f32 = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input_ids", i64, ["batch_size", "length"]),
        helper.make_tensor_value_info("attention_mask", i64, ["batch_size", "past_length + length"]),
    ]
    outputs = [helper.make_tensor_value_info("logits", f32, ["batch_size", "length", VOCABULARY])]
    pasts, presents = [], []
    for layer in range(LAYERS):
        if stacked:
            inputs.append(helper.make_tensor_value_info(f"past_{layer}", f32, [2, "batch_size", HEADS, "past_length", SIZE]))
            outputs.append(helper.make_tensor_value_info(f"present_{layer}", f32, [2, "batch_size", HEADS, "total", SIZE]))
            pasts.append([g.node("Gather", f"past_{layer}", g.constant(at), axis=0) for at in (0, 1)])
            presents.append([None, None])
            continue
        names = [[f"{kind}.{layer}.{of}" for of in ("key", "value")] for kind in ("past", "present")]
        for name, made in zip(*names):
            inputs.append(helper.make_tensor_value_info(name, f32, ["batch_size", HEADS, "past_length", SIZE]))
            outputs.append(helper.make_tensor_value_info(made, f32, ["batch_size", HEADS, "total", SIZE]))
        pasts.append(names[0])
        presents.append(names[1])
    length = g.part(g.node("Shape", "input_ids"), 1)
    before = g.part(g.node("Shape", pasts[0][0]), 2)
    total = g.node("Add", before, length)
    zero, one, nothing = g.constant(0), g.constant(1), g.constant([0])
    count = g.node("Range", zero, g.node("Squeeze", total, nothing), one)
    own = g.node("Slice", count, before, total, nothing)
    if stacked:
        inputs.append(helper.make_tensor_value_info("position_ids", i64, ["batch_size", "length"]))
        positions = "position_ids"
    else:
        positions = own
    x = g.node("Gather", g.weight(VOCABULARY, WIDTH), "input_ids", axis=0)
    x = g.node("Add", x, g.node("Gather", g.weight(POSITIONS, WIDTH), positions, axis=0))
    later = g.node("Greater", count, g.node("Unsqueeze", own, g.constant([1])))
    padding = g.node("Equal", g.node("Unsqueeze", "attention_mask", g.constant([1, 2])), zero)
    unseen = g.node("Or", g.node("Unsqueeze", later, g.constant([0, 1])), padding)
    hidden = g.node("Where", unseen, g.constant(-1e9, np.float32), g.constant(0, np.float32))
    for layer, (past, present) in enumerate(zip(pasts, presents)):
        made = [name or f"own_{layer}_{i}" for i, name in enumerate(present)]
        x = g.node("Add", x, attention(g, g.norm(x), past, hidden, made))
        inner = g.node("Relu", g.linear(g.norm(x), 2 * WIDTH))
        x = g.node("Add", x, g.linear(inner, WIDTH, 2 * WIDTH))
        if stacked:
            both = [g.node("Unsqueeze", name, nothing) for name in made]
            g.node("Concat", *both, axis=0, name=f"present_{layer}")
    g.node("MatMul", g.norm(x), g.weight(WIDTH, VOCABULARY), name="logits")
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def first_inputs(session, prompt):
    """The inputs of the first step: an empty past, and padding before the prompt of the first row."""
    rows, length = prompt.shape
    given = {"input_ids": prompt, "attention_mask": np.ones([rows, length], np.int64)}
    given["attention_mask"][0, 0] = 0
    for info in session.get_inputs():
        if info.name.startswith("past"):
            shape = [{"batch_size": rows, "past_length": 0}.get(size, size) for size in info.shape]
            given[info.name] = np.zeros(shape, np.float32)
        elif info.name == "position_ids":
            given[info.name] = np.tile(np.arange(length), [rows, 1])
    return given


def generate(session, prompt):
    """The tokens and the logits of the last position of twenty greedy steps."""
    names = [info.name for info in session.get_outputs()]
    given, all_tokens, all_logits = first_inputs(session, prompt), [], []
    rows, length = prompt.shape
    for _ in range(STEPS):
        made = dict(zip(names, session.run(None, given)))
        logits = made["logits"][:, -1]
        tokens = logits.argmax(axis=1)
        all_tokens.append(tokens)
        all_logits.append(logits)
        given["input_ids"] = tokens[:, None]
        given["attention_mask"] = np.concatenate([given["attention_mask"], np.ones([rows, 1], np.int64)], axis=1)
        if "position_ids" in given:
            given["position_ids"] = np.full([rows, 1], length)
        length += 1
        for name in names:
            if name.startswith("present"):
                given[name.replace("present", "past")] = made[name]
    return np.stack(all_tokens), np.stack(all_logits)


def main():
    folder, arrays = Path(sys.argv[1]), {}
    for name, stacked in [("separate", False), ("stacked", True)]:
        onnx.save(decoder(stacked), folder / f"{name}.onnx")
    for path in (Path(__file__).parent / "decoders").glob("*.onnx"):
        shutil.copy(path, folder)
    for path in sorted(folder.glob("*.onnx")):
        session = ort.InferenceSession(path)
        for rows in ROWS:
            prompt = np.random.default_rng(rows).integers(0, VOCABULARY, [rows, PROMPT])
            tokens, logits = generate(session, prompt)
            for kind, array in [("prompt", prompt), ("tokens", tokens), ("logits", logits)]:
                arrays[f"{path.stem}.{rows}.{kind}"] = array
    np.savez(folder / "generated.npz", **arrays)


if __name__ == "__main__":
    main()
