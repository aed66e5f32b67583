"""Measures how far fanwise and ONNX Runtime are from exact results of ONNX models in float32, and each of their products.

Usage: python errors.py FANWISE MODEL.onnx|zoo:NAME ...        (needs onnx, onnxruntime and numpy)

The truth is the same model in float64. Prints a row of a table for each model: the largest error of each program as a share
of the largest element of an output, and of all elements of all products the largest error as a share of what is allowed, 2^-23
of the sum of the magnitudes of K terms, times the root of K. Fails where that is more than 1, or where fanwise's largest error
over all models is more than twice ONNX Runtime's and no noise.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compare import Reference, said

ROWS = 3
# A few roundings of the largest element are no difference of two programs.
NOISE = 2.0**-21
PRODUCTS = ["MatMul", "Gemm", "Conv", "ConvTranspose"]
# Operands that are float32 whatever the other types are.
SINGLE = {("Resize", 2), ("Upsample", 1)}


def double(tensor):
    """The same tensor in float64."""
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def widen(graph, single):
    """Replaces float32 by float64 in a graph, but for the tensors named in `single`."""
    for i, tensor in enumerate(graph.initializer):
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in single:
            graph.initializer[i].CopyFrom(double(tensor))
    del graph.value_info[:]
    for value in [*graph.input, *graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                widen(attribute.g, single)
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT and node.output[0] not in single:
                attribute.t.CopyFrom(double(attribute.t))
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                value = np.float64(attribute.f if attribute.name == "value_float" else list(attribute.floats))
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def in_double(model):
    """The model in float64."""
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = [node for graph in [wide.graph] for node in graph.node]
    single = {node.input[i] for node in nodes for op, i in SINGLE if node.op_type == op and i < len(node.input)}
    widen(wide.graph, single)
    return wide


def run(fanwise, model, feed, folder):
    """The outputs of a model on one device."""
    path, given, got = folder / "run.onnx", folder / "in.npz", folder / "out.npz"
    onnx.save(model, path)
    np.savez(given, **feed)
    said(fanwise, "run", path, "--gpus", 1, "--target", "cpu", "--inputs", given, "--outputs", got)
    with np.load(got) as arrays:
        return dict(arrays)


def wide(feed):
    return {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feed.items()}


def error(found, truth):
    """The largest error of outputs by name, as a share of each one's largest element."""
    shares = [0.0]
    for name, want in truth.items():
        if want.dtype == np.float64 and want.size:
            assert (np.isfinite(found[name]) == np.isfinite(want)).all(), f"{name}: other numbers are infinite, or none"
            shares.append(np.abs(found[name].astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-300))
    return max(shares)


def products(model):
    """The nodes of the graph that are products of floats, without biases, and the names of their operands."""
    nodes = []
    for i, node in enumerate(model.graph.node):
        if node.op_type in PRODUCTS:
            new = onnx.NodeProto.FromString(node.SerializeToString())
            del new.input[2:]
            new.output[0] = f"product{i}"
            nodes.append(new)
    return nodes


def terms(node, operands):
    """The number of terms of an element of a product."""
    a, b = (operands[name].shape for name in node.input[:2])
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Conv":
        return int(np.prod(b[1:]))
    if node.op_type == "ConvTranspose":
        return b[0] // attributes.get("group", 1) * int(np.prod(b[2:]))
    return a[0] if attributes.get("transA") else a[-1]


def worst_product(fanwise, model, feed, folder):
    """The largest error of an element of a product, as a share of what its terms allow, and the number of products.

    Operands are what ONNX Runtime computes, so that errors of one product are none of the next."""
    nodes = products(model)
    named = {name for node in nodes for name in node.input}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    shown = onnx.ModelProto.FromString(model.SerializeToString())
    known = {value.name for value in [*shown.graph.input, *shown.graph.output]}
    made = {name for node in shown.graph.node for name in node.output}
    for name in sorted(named & made - known):
        shown.graph.output.append(helper.make_empty_tensor_value_info(name))
    path = folder / "shown.onnx"
    onnx.save(shown, path)
    reference = Reference(path)
    results = reference.run(feed, {})
    operands = {name: feed[name] if name in feed else constants[name] if name in constants else results[name] for name in named}
    operands = {name: x for name, x in operands.items() if x.dtype == np.float32 and np.isfinite(x).all()}
    nodes = [node for node in nodes if all(name in operands for name in node.input)]
    if not nodes:
        return 0.0, 0
    opsets = list(model.opset_import)

    def alone(dtype, feed):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        used = sorted({name for node in nodes for name in node.input})
        given = [helper.make_tensor_value_info(name, kind, feed[name].shape) for name in used]
        given_results = [helper.make_tensor_value_info(node.output[0], kind, None) for node in nodes]
        graph = helper.make_graph(nodes, "products", given, given_results)
        made = helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
        return run(fanwise, made, {name: feed[name] for name in used}, folder)

    exact_operands = {name: x.astype(np.float64) for name, x in operands.items()}
    found = alone(np.float32, operands)
    exact = alone(np.float64, exact_operands)
    magnitudes = alone(np.float64, {name: np.abs(x) for name, x in exact_operands.items()})
    worst = 0.0
    for node in nodes:
        name = node.output[0]
        allowed = np.sqrt(terms(node, operands)) * 2.0**-23 * magnitudes[name]
        errors = np.abs(found[name] - exact[name])
        assert np.isfinite(errors).all(), f"{name}: no number"
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = max(worst, float(np.where(errors > 0, errors / allowed, 0).max(initial=0)))
    return worst, len(nodes)


def measure(fanwise, given, folder):
    path = pathlib.Path(given)
    if given.startswith("zoo:"):
        path = folder / "zoo.onnx"
        said(fanwise, "compile", given, "--emit", f"onnx={path}")
    model = onnx.load(path)
    reference = Reference(path)
    feed = reference.draw(ROWS)
    truth = run(fanwise, in_double(model), wide(feed), folder)
    own = error(run(fanwise, model, feed, folder), truth)
    theirs = error(reference.run(feed, {name: x.shape for name, x in truth.items()}), truth)
    return own, theirs, *worst_product(fanwise, model, feed, folder)


def main():
    fanwise, *given = sys.argv[1:]
    rows = []
    print("| model | fanwise | ONNX Runtime | products | worst product |\n| --- | ---: | ---: | ---: | ---: |")
    for name in given:
        with tempfile.TemporaryDirectory() as folder:
            own, theirs, worst, count = measure(fanwise, name, pathlib.Path(folder))
        rows.append((own, theirs, worst))
        print(f"| `{pathlib.Path(name).stem}` | {own:.1e} | {theirs:.1e} | {count} | {worst:.2f} |", flush=True)
    largest = [max(row[i] for row in rows) for i in range(3)]
    assert largest[2] <= 1, f"a product is {largest[2]:.2f} times further from the truth than its terms allow"
    assert largest[0] <= max(2 * largest[1], NOISE), f"{largest[0]:.1e}: more than twice ONNX Runtime's {largest[1]:.1e}"


if __name__ == "__main__":
    main()
