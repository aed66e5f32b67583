"""Writes small ONNX models with random weights and a dynamic batch, as exporters write them.

    python generate.py FOLDER

`residual` and `siamese` are in the manner of PyTorch's exporter, `separable` in that of tf2onnx.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """A graph under construction; every method adds a node and returns the name of its result."""

    def __init__(self, name, opset):
        self.name, self.opset = name, opset
        self.rng = np.random.default_rng(len(name))
        self.nodes, self.initializers, self.inputs, self.outputs = [], [], [], []
        self.shared = {}

    def input(self, name, *shape, dtype=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name, value, *shape):
        self.nodes.append(helper.make_node("Identity", [value], [name], name=f"to_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def constant(self, array, name=None):
        name = name or f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape, key=None, fan_in=None):
        """Weights of a key are drawn once, however often they are asked for."""
        if key in self.shared:
            return self.shared[key]
        fan_in = fan_in or int(np.prod(shape[1:])) or 1
        array = self.rng.standard_normal(shape) / np.sqrt(fan_in)
        name = self.constant(array.astype(np.float32), key)
        if key:
            self.shared[key] = name
        return name

    def op(self, op, *operands, results=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(results)]
        node = helper.make_node(op, operands, names, name=f"{op}_{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        return names[0] if results == 1 else names

    def conv(self, x, inputs, filters, kernel, key=None, group=1, bias=True, **attributes):
        shape = (filters, inputs // group, kernel, kernel)
        operands = [x, self.weight(*shape, key=key and f"{key}.weight")]
        if bias:
            operands.append(self.weight(filters, key=key and f"{key}.bias", fan_in=10))
        if "auto_pad" not in attributes:
            attributes.setdefault("pads", [kernel // 2] * 4)
        return self.op("Conv", *operands, group=group, kernel_shape=[kernel] * 2, **attributes)

    def batch_norm(self, x, channels):
        rng = self.rng
        near = lambda center, spread: self.constant(
            rng.uniform(center - spread, center + spread, channels).astype(np.float32)
        )
        parameters = [near(1, 0.5), near(0, 0.5), near(0, 0.5), near(1, 0.5)]
        return self.op("BatchNormalization", x, *parameters, epsilon=1e-3)

    def relu(self, x):
        return self.op("Relu", x)

    def gemm(self, x, inputs, units, key=None):
        weight = self.weight(units, inputs, key=key and f"{key}.weight")
        bias = self.weight(units, key=key and f"{key}.bias", fan_in=10)
        return self.op("Gemm", x, weight, bias, transB=1)

    def view(self, x, features):
        """`x.view(x.size(0), features)` as PyTorch exports it."""
        rows = self.op("Gather", self.op("Shape", x), self.constant(np.int64(0)), axis=0)
        axes = self.constant(np.array([0], np.int64))
        parts = [self.op("Unsqueeze", rows, axes), self.constant(np.array([features], np.int64))]
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0))

    def save(self, folder):
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.initializers)
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, Path(folder) / f"{self.name}.onnx")


def residual():
    net = Net("residual", 17)
    x = net.input("image", "batch", 3, 24, 24)
    x = net.relu(net.batch_norm(net.conv(x, 3, 16, 3, bias=False), 16))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for inputs, filters, stride in [(16, 16, 1), (16, 32, 2), (32, 32, 1)]:
        y = net.conv(x, inputs, filters, 3, bias=False, strides=[stride] * 2)
        y = net.relu(net.batch_norm(y, filters))
        y = net.batch_norm(net.conv(y, filters, filters, 3, bias=False), filters)
        if stride > 1 or inputs != filters:
            x = net.conv(x, inputs, filters, 1, bias=False, strides=[stride] * 2, pads=[0] * 4)
            x = net.batch_norm(x, filters)
        x = net.relu(net.op("Add", y, x))
    x = net.view(net.op("GlobalAveragePool", x), 32)
    net.output("logits", net.gemm(x, 32, 10), "batch", 10)
    return net


def inception():
    net = Net("inception", 13)
    x = net.input("image", "N", 3, 20, 20)
    x = net.relu(net.conv(x, 3, 16, 5, strides=[2, 2]))
    x = net.op("LRN", x, size=5, alpha=1e-3, beta=0.75, bias=1.0)
    for inputs in (16, 40):
        pool = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
        branches = [
            net.conv(x, inputs, 8, 1),
            net.conv(net.relu(net.conv(x, inputs, 8, 1)), 8, 16, 3),
            net.conv(net.relu(net.conv(x, inputs, 4, 1)), 4, 8, 5),
            net.conv(pool, inputs, 8, 1),
        ]
        x = net.op("Concat", *map(net.relu, branches), axis=1)
    x = net.op(
        "AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[0, 0, 1, 1]
    )
    x = net.op("Dropout", net.op("Flatten", x, axis=1))
    x = net.op("Softmax", net.gemm(x, 40 * 5 * 5, 10), axis=-1)
    net.output("probabilities", x, "N", 10)
    return net


def separable():
    net = Net("separable", 15)
    x = net.input("image", "unk__1", 18, 18, 3)
    x = net.op("Transpose", x, perm=[0, 3, 1, 2])
    x = net.conv(x, 3, 16, 3, auto_pad="SAME_UPPER", strides=[2, 2])
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    for inputs, filters, stride in [(16, 24, 1), (24, 32, 2)]:
        x = net.conv(
            x, inputs, inputs, 3, group=inputs, bias=False, auto_pad="SAME_UPPER", strides=[stride] * 2
        )
        x = net.op("Clip", net.batch_norm(x, inputs), low, high)
        x = net.op("HardSwish", net.batch_norm(net.conv(x, inputs, filters, 1), filters))
    squeeze = net.op("ReduceMean", x, axes=[2, 3], keepdims=1)
    gate = net.op("HardSigmoid", net.conv(squeeze, 32, 32, 1), alpha=1 / 6, beta=0.5)
    x = net.op("Transpose", net.op("Mul", x, gate), perm=[0, 2, 3, 1])
    x = net.op("ReduceMean", x, axes=[1, 2], keepdims=0)
    x = net.op("Add", net.op("MatMul", x, net.weight(32, 7, fan_in=32)), net.weight(7, fan_in=10))
    net.output("dense", net.op("Softmax", x, axis=-1), "unk__1", 7)
    return net


def siamese():
    net = Net("siamese", 18)

    def tower(x):
        x = net.relu(net.conv(x, 1, 8, 3, key="conv1"))
        x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        x = net.relu(net.conv(x, 8, 16, 3, key="conv2"))
        return net.gemm(net.op("Flatten", x), 16 * 7 * 7, 12, key="embed")

    left = tower(net.input("left", "batch", 1, 14, 14))
    right = tower(net.input("right", "batch", 1, 14, 14))
    difference = net.op("Sub", left, right)
    axes = net.constant(np.array([1], np.int64))
    distance = net.op("ReduceL2", difference, axes, keepdims=1)
    net.output("distance", distance, "batch", 1)
    net.output("same", net.op("Sigmoid", net.gemm(net.op("Abs", difference), 12, 1)), "batch", 1)
    return net


def multi_io():
    """Two inputs with a batch and one without, which one output depends on alone."""
    net = Net("multi_io", 17)
    image = net.input("image", "batch", 3, 12, 12)
    features = net.input("features", "batch", 4)
    scale = net.input("scale", 4)
    x = net.op("Tanh", net.conv(image, 3, 8, 3, strides=[2, 2]))
    x = net.view(x, 8 * 6 * 6)
    y = net.op("Mul", features, scale)
    both = net.op("Concat", net.relu(net.gemm(x, 288, 20)), y, axis=1)
    left, right = net.op("Split", both, net.constant(np.array([8, 16], np.int64)), results=2, axis=1)
    logits = net.op("LogSoftmax", net.gemm(right, 16, 10), axis=1)
    net.output("logits", logits, "batch", 10)
    net.output("score", net.op("ReduceMean", left, axes=[1], keepdims=1), "batch", 1)
    net.output("squares", net.op("Mul", scale, scale), 4)
    return net


def quantised():
    """8-bit convolutions and products, with scales of tensors and of channels."""
    net = Net("quantised", 17)

    def integers(dtype, *shape):
        # Signed bytes of 7 bits: where a machine has no instructions for more, ONNX Runtime adds two of their products
        # in 16 bits, which larger ones leave.
        limits = np.iinfo(dtype)
        least, most = (-64, 63) if dtype is np.int8 else (limits.min, limits.max)
        return net.constant(net.rng.integers(least, most + 1, shape).astype(dtype))

    def scale(mean, *shape):
        return net.constant(net.rng.uniform(0.5 * mean, 1.5 * mean, shape).astype(np.float32))

    def zero(value, dtype=np.uint8):
        return net.constant(np.array(value, dtype))

    image = net.input("image", "batch", 3, 10, 10)
    x_scale, x_zero = scale(0.03), zero(121)
    x = net.op("QuantizeLinear", image, x_scale, x_zero)
    kernel, bias = integers(np.int8, 8, 3, 3, 3), integers(np.int16, 8)
    bias = net.op("Cast", bias, to=TensorProto.INT32)
    h_scale, h_zero = scale(0.4), zero(17)
    each = [scale(0.01, 8), net.constant(np.zeros(8, np.int8))]
    h = net.op(
        "QLinearConv", x, x_scale, x_zero, kernel, *each, h_scale, h_zero, bias,
        pads=[1, 1, 1, 1], strides=[2, 2],
    )
    sums = net.op("ConvInteger", h, integers(np.uint8, 4, 4, 3, 3), h_zero, zero(99), group=2, pads=[1] * 4)
    sums = net.op("Cast", sums, to=TensorProto.FLOAT)
    net.output("sums", net.op("Mul", sums, scale(1e-4)), "batch", 4, 5, 5)
    flat = net.op("Flatten", h)
    weights = [integers(np.int8, 200, 6), scale(0.01), zero(3, np.int8)]
    y_scale, y_zero = scale(2.0), zero(130)
    y = net.op("QLinearMatMul", flat, h_scale, h_zero, *weights, y_scale, y_zero)
    net.output("dense", net.op("DequantizeLinear", y, y_scale, y_zero), "batch", 6)
    products = net.op("MatMulInteger", flat, integers(np.int8, 200, 5), h_zero, integers(np.int8, 5))
    products = net.op("DequantizeLinear", products, scale(1e-3, 5), axis=1)
    net.output("products", products, "batch", 5)
    return net


def cells():
    """Recurrent cells with what exporters leave out, time-major; and slices that run backwards from before an axis."""
    net = Net("cells", 17)
    x = net.input("x", 6, "batch", 5)

    def weights(gates, directions=1):
        return [net.weight(directions, gates * 4, 5), net.weight(directions, gates * 4, 4)]

    state = net.input("state", 1, "batch", 4)
    peepholes, bias = net.weight(1, 12, fan_in=2), net.weight(1, 32, fan_in=2)
    y, last, cell = net.op(
        "LSTM", x, *weights(4), bias, "", "", state, peepholes,
        results=3, hidden_size=4, clip=0.4, direction="reverse", activations=["HardSigmoid", "Tanh", "Elu"],
        activation_alpha=[0.3, 0.7], activation_beta=[0.4],
    )
    net.output("lstm", y, 6, 1, "batch", 4)
    net.output("lstm_last", last, 1, "batch", 4)
    net.output("lstm_cell", cell, 1, "batch", 4)
    y = net.op("LSTM", x, *weights(4, 2), hidden_size=4, input_forget=1, clip=0.2, direction="bidirectional")
    net.output("coupled", y, 6, 2, "batch", 4)
    for before in (0, 1):
        y, _ = net.op(
            "GRU", x, *weights(3), net.weight(1, 24, fan_in=2), "", state, results=2, hidden_size=4,
            linear_before_reset=before, clip=0.5, activations=["Sigmoid", "ScaledTanh"],
            activation_alpha=[1.2], activation_beta=[0.6],
        )
        net.output(f"gru_{before}", y, 6, 1, "batch", 4)
    y, _ = net.op("RNN", x, *weights(1), results=2, hidden_size=4, activations=["LeakyRelu"], activation_alpha=[0.2])
    net.output("rnn", y, 6, 1, "batch", 4)
    numbers = lambda *values: net.constant(np.array(values, np.int64))
    for i, (start, end) in enumerate([(-9, -100), (-9, -(2**63)), (4, -(2**31)), (2**31, 1)]):
        y = net.op("Slice", x, numbers(start), numbers(end), numbers(2), numbers(-1))
        net.output(f"slice_{i}", y, 6, "batch", None)
    return net


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for build in (residual, inception, separable, siamese, multi_io, quantised, cells):
        build().save(sys.argv[1])
