"""Gives a model whose weights are constants random ones of the same shapes, so that its arithmetic counts.

    python randomise.py MODEL.onnx OUT.onnx

Every `ConstantOfShape` becomes an initializer: of a size that keeps the scale of values for kernels, near 1 for what
scales (a variance among them), near 0 for what shifts. A softmax at the end is left out.
"""

import sys

import numpy as np
import onnx
from onnx import numpy_helper

# What the operands of an operator are, by position.
ROLES = {
    "Conv": {1: "kernel", 2: "shift"},
    "Gemm": {1: "kernel", 2: "shift"},
    "MatMul": {1: "kernel"},
    "BatchNormalization": {1: "scale", 2: "shift", 3: "shift", 4: "scale"},
    "Mul": {0: "scale", 1: "scale"},
    "Add": {0: "shift", 1: "shift"},
}


def draw(rng, role, shape):
    if role == "kernel":
        fan_in = int(np.prod(shape[1:]))
        return rng.standard_normal(shape) * np.sqrt(2 / fan_in)
    return rng.uniform(-0.2, 0.2, shape) + (role == "scale")


def main(source, target):
    model = onnx.load(source)
    graph = model.graph
    users = {}
    for node in graph.node:
        for i, name in enumerate(node.input):
            # An unsqueezed scale is a scale.
            role = ROLES.get(node.op_type, {}).get(i, "through" if node.op_type == "Unsqueeze" else None)
            users.setdefault(name, []).append((role, node.output[0]))

    def role(name):
        known, result = users[name][0]
        return role(result) if known == "through" else known

    sizes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    rng = np.random.default_rng(11)
    nodes = []
    for node in graph.node:
        name = node.output[0]
        kind = role(name) if node.op_type == "ConstantOfShape" and name in users else None
        if kind is None:
            nodes.append(node)
            continue
        array = draw(rng, kind, [int(size) for size in sizes[node.input[0]]]).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(array, name))
    # A softmax of large values hides all but one of them.
    last = nodes[-1]
    if last.op_type == "Softmax":
        nodes[-1] = onnx.helper.make_node("Identity", last.input, last.output, name=last.name)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, target)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
