"""What `single.py` draws of operators that have bodies."""

import numpy as np
from onnx import TensorProto, helper
from operators import of, pick
from single import Case, Operand, constant


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def body(nodes, inputs, outputs):
    """A graph; inputs and outputs are names with types."""
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
    infos = [[helper.make_tensor_value_info(n, kinds[kind], shape) for n, kind, shape in v] for v in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *infos)


@of("If")
def branch(rng, op):
    size = pick(rng, 1, 3)
    if rng.random() < 0.5:
        # As exporters write a squeeze of one axis. Where its size is another, ONNX Runtime refuses one that is not run.
        before = [
            node("Shape", "c0", "sizes"),
            node("Gather", "sizes c1", "size"),
            node("Equal", "size c1", "is_one"),
        ]
        squeeze = node("Squeeze", "c0 axes", "s") if size == 1 else node("ReduceSum", "c0 axes", "s", keepdims=0)
        yes = body([squeeze], [], [("s", "f", None)])
        yes.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [1], [1]))
        no = body([node("Identity", "c0", "s")], [], [("s", "f", None)])
        captured = [Operand(["N", size, 4]), constant(1)]
        return Case(op, ["is_one"], before=before, captured=captured, then_branch=yes, else_branch=no)
    taken = constant(rng.random() < 0.5, np.bool_)
    # A name of a branch hides that of the other, and both take what stands around them.
    yes = body([node("Exp", "c0", "t"), node("Add", "t c1", "u")], [], [("u", "f", None), ("t", "f", None)])
    nodes = [node("Tanh", "c1", "t"), node("Mul", "t c0", "v"), node("Identity", "c0", "w")]
    no = body(nodes, [], [("v", "f", None), ("w", "f", None)])
    captured = [Operand(["N", size]), Operand(pick(rng, ["N", 1], [size]))]
    return Case(op, [taken], outputs=2, captured=captured, then_branch=yes, else_branch=no)


@of("Loop")
def loop(rng, op):
    trips, size = int(rng.integers(0, 5)), int(rng.integers(1, 4))
    most, ends = rng.random() < 0.7, rng.random() < 0.5
    # ONNX Runtime gives no sizes to what no trip gives.
    stacked = trips > 0
    until = [node("Add", "i one", "next"), node("Less", "next c1", "goes_on")]
    nodes = [
        node("Constant", "", "one", value_int=1),
        node("Cast", "i", "number", to=TensorProto.FLOAT),
        node("Mul", "a c0", "scaled"),
        node("Add", "scaled number", "a_out"),
        node("Sub", "b a", "b_out"),
        *(until if ends else [node("Identity", "holds", "goes_on")]),
        *([node("Neg", "a_out", "row")] if stacked else []),
    ]
    inputs = [("i", "i", []), ("holds", "b", []), ("a", "f", None), ("b", "f", None)]
    outputs = [("goes_on", "b", []), ("a_out", "f", None), ("b_out", "f", None)]
    outputs += [("row", "f", None)] if stacked else []
    count = constant(trips) if most or not ends else None
    # The condition ends it before or after its number of trips.
    holds = constant(trips > 0 or most, np.bool_)
    captured = [Operand(pick(rng, [size], ["N", size])), constant(max(1, trips + int(rng.integers(-1, 2))))]
    operands = [count, holds, Operand(["N", size]), Operand(["N", size])]
    graph = body(nodes, inputs, outputs)
    return Case(op, operands, outputs=len(outputs) - 1, opset=pick(rng, 13, 18), captured=captured, body=graph)


@of("Scan")
def scan(rng, op):
    steps, size = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    # The axis that is scanned stands anywhere among those of a row.
    axes = [int(rng.integers(0, 3)) for _ in range(2)]
    shapes = [["N", size] for _ in axes]
    for shape, axis in zip(shapes, axes):
        shape.insert(axis, steps)
    nodes = [node("Add", "s x", "t"), node("Mul", "t c0", "s_out"), node("Sub", "s_out z", "y"), node("Neg", "x", "w")]
    names = [[("s", "f", None), ("x", "f", None), ("z", "f", None)], [(n, "f", None) for n in ("s_out", "y", "w")]]
    lists = {
        "scan_input_axes": [axis - 3 if rng.random() < 0.3 else axis for axis in axes],
        "scan_input_directions": [int(d) for d in rng.integers(0, 2, 2)],
        "scan_output_axes": [int(axis) for axis in rng.integers(0, 3, 2)],
        "scan_output_directions": [int(d) for d in rng.integers(0, 2, 2)],
    }
    given = {name: values for name, values in lists.items() if "input_axes" in name or rng.random() < 0.6}
    operands = [Operand(["N", size]), *map(Operand, shapes)]
    captured = [Operand(pick(rng, [size], ["N", 1], []))]
    graph = body(nodes, *names)
    return Case(op, operands, outputs=3, captured=captured, body=graph, num_scan_inputs=2, **given)
