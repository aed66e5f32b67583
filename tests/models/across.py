"""Writes models whose operators need all rows of the batch, with inputs and what ONNX Runtime gives for the whole batch.

    python across.py FOLDER ROWS

writes NAME.onnx, NAME/in.npz and NAME/out.npz for each.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

REDUCTIONS = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp", "LogSum"]
rng = np.random.default_rng(3)


def constant(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.array(value, dtype), name)


def models():
    node, rows, images = helper.make_node, ["N", 5], ["N", 3, 4, 4]
    axis = constant("axis", [0], np.int64)
    yield "mean_variance", images, [node("MeanVarianceNormalization", ["x"], ["y"])], ["y"], []
    yield "dynamic_quantize", rows, [node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])], ["y", "s", "z"], []
    weights = [constant(name, rng.uniform(0.5, 2, 3)) for name in "gbmv"]
    norm = node("BatchNormalization", ["x", *"gbmv"], ["y", "m2", "v2"], training_mode=1)
    yield "batch_norm", images, [norm], ["y", "m2", "v2"], weights
    soft = [node("Softmax", ["x"], ["y"], axis=0), node("LogSoftmax", ["x"], ["z"], axis=0)]
    yield "softmax", rows, [*soft, node("Hardmax", ["x"], ["h"], axis=0)], ["y", "z", "h"], []
    arg = [node("ArgMax", ["x"], ["y"], axis=0), node("ArgMin", ["x"], ["z"], axis=0, keepdims=0)]
    yield "arg", rows, arg, ["y", "z"], []
    scan = [node("CumSum", ["x", "a"], ["y"]), node("CumSum", ["x", "a"], ["z"], exclusive=1, reverse=1)]
    yield "cumsum", rows, scan, ["y", "z"], [constant("a", 0, np.int64)]
    top = [node("TopK", ["x", "k"], ["y", "i"], axis=0), node("TopK", ["x", "k"], ["z", "j"], axis=0, largest=0)]
    yield "top_k", rows, top, ["y", "i", "z", "j"], [constant("k", [1], np.int64)]
    reduce = [node("Exp", ["x"], ["e"])]
    reduce += [node("Reduce" + kind, ["e", "axis"], [kind]) for kind in REDUCTIONS]
    yield "reduce", rows, reduce, REDUCTIONS, [axis]
    centred = [
        node("ReduceSum", ["x", "axis"], ["s"]), node("Shape", ["x"], ["sizes"], start=0, end=1),
        node("Cast", ["sizes"], ["n"], to=TensorProto.FLOAT), node("Div", ["s", "n"], ["m"]),
        node("Sub", ["x", "m"], ["y"]),
    ]
    yield "centred", rows, centred, ["y", "m"], [axis]
    gram = [node("Transpose", ["x"], ["t"]), node("MatMul", ["x", "t"], ["y"]), node("MatMul", ["t", "x"], ["z"])]
    yield "products", rows, gram, ["y", "z"], []
    bounds = [constant(name, [v], np.int64) for name, v in [("from", -1), ("to", -(2**31)), ("step", -1)]]
    yield "reversed", rows, [node("Slice", ["x", "from", "to", "axis", "step"], ["y"])], ["y"], [axis, *bounds]


def main(folder, rows):
    for name, shape, nodes, outputs, constants in models():
        results = [helper.make_empty_tensor_value_info(output) for output in outputs]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        graph = helper.make_graph(nodes, name, inputs, results, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        path = folder / f"{name}.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        x = rng.normal(size=[rows, *shape[1:]]).astype(np.float32)
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (folder / name).mkdir()
        np.savez(folder / name / "in.npz", x=x)
        np.savez(folder / name / "out.npz", **dict(zip(outputs, session.run(outputs, {"x": x}))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
