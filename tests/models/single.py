"""Writes models of one operator each, with random attributes and operands, and what ONNX Runtime gives for batches of several sizes.

    python single.py FOLDER COUNT

writes COUNT cases of every operator of `operators.py`: NAME.onnx, NAME.npz with arrays `ROWS.in.INPUT` and
`ROWS.out.OUTPUT`, and `cases.json`, which lists the cases, why ONNX Runtime does not run some of them, and the names of
all operators of the standard.
"""

import json
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

ROWS = [0, 1, 2, 7]


class Operand:
    """What stands at the place of an operand: an input if its shape has an "N" or if it is `whole`, else a constant."""

    def __init__(self, shape, draw="normal", dtype=np.float32, whole=False, value=None):
        self.shape, self.draw, self.dtype, self.value = list(shape), draw, np.dtype(dtype), value
        self.is_input = value is None and (whole or "N" in self.shape)

    def sample(self, rng, rows):
        shape = [rows if size == "N" else size for size in self.shape]
        if self.value is not None:
            return np.asarray(self.value, self.dtype)
        if callable(self.draw):
            return np.asarray(self.draw(rng, shape)).astype(self.dtype)
        kinds = {
            "normal": lambda: rng.normal(size=shape),
            "unit": lambda: rng.uniform(-0.95, 0.95, shape),
            "positive": lambda: rng.uniform(0.3, 2, shape),
            "above one": lambda: rng.uniform(1, 4, shape),
            "ties": lambda: rng.integers(-2, 3, shape),
            "small": lambda: rng.integers(0, 5, shape),
            "odd": lambda: rng.choice([np.nan, np.inf, -np.inf, 1.0, -0.0], shape),
            "bool": lambda: rng.integers(0, 2, shape),
            # Differ by more than a rounding.
            "apart": lambda: rng.permutation(int(np.prod(shape))).reshape(shape) / 7,
        }
        if self.draw == "normal" and self.dtype.kind in "iu":
            low = 0 if self.dtype.kind == "u" else -9
            return rng.integers(low, 10, shape).astype(self.dtype)
        return np.asarray(kinds[self.draw]()).astype(self.dtype)


def constant(value, dtype=np.int64):
    return Operand([], value=value, dtype=dtype)


class Case:
    """A node with its operands (None where one is left out); `before` are nodes that make operands named by strings, and
    `captured` are values c0, c1, ... that they and bodies take."""

    def __init__(
        self, op, operands, outputs=1, opset=18, before=(), captured=(), tolerance=None, ml=3, **attributes
    ):
        self.op, self.operands, self.outputs, self.ml = op, list(operands), outputs, ml
        self.captured = list(captured)
        self.opset, self.before, self.tolerance = opset, list(before), tolerance
        self.attributes = {name: value for name, value in attributes.items() if value is not None}

    def model(self, rng):
        """The model, and its inputs by name."""
        inputs, initializers, names = {}, [], []
        for i, operand in enumerate(self.operands):
            name = f"x{i}"
            if operand is None:
                name = ""
            elif isinstance(operand, str):
                name = operand
            elif operand.is_input:
                inputs[name] = operand
            else:
                initializers.append(numpy_helper.from_array(operand.sample(rng, 0), name))
            names.append(name)
        for i, operand in enumerate(self.captured):
            if operand.is_input:
                inputs[f"c{i}"] = operand
            else:
                initializers.append(numpy_helper.from_array(operand.sample(rng, 0), f"c{i}"))
        outputs = [f"y{i}" for i in range(self.outputs)]
        domain, _, name = self.op.rpartition(".")
        node = helper.make_node(name, names, outputs, name="the_node", domain=domain, **self.attributes)
        opsets = [helper.make_opsetid("", self.opset)] + ([helper.make_opsetid(domain, self.ml)] if domain else [])
        nodes = [*self.before, node]
        if not any("N" in operand.shape for operand in inputs.values()):
            inputs["rows"] = Operand(["N", 2])
            nodes.append(helper.make_node("Neg", ["rows"], ["same"]))
            outputs.append("same")
        types = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(operand.dtype), operand.shape)
            for name, operand in inputs.items()
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(nodes, self.op, types, results, initializers)
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), inputs


# What ONNX Runtime makes of no rows with these is no reference: it ends the process, gives results of a wrong shape, or
# leaves an attribute out.
WRONG_WITHOUT_ROWS = (
    "LSTM", "GRU", "RNN", "Reduce", "ArgM", "BatchNormalization", "Gemm", "Scan", "ai.onnx.ml.FeatureVectorizer"
)


def matrix(result):
    """The matrix that maps of scores were made of."""
    if not isinstance(result, list):
        return result
    return np.array([list(row.values()) for row in result], np.float32) if result else None


def run(case, model, inputs, rng):
    """The arrays of all batch sizes, and why ONNX Runtime gives no results of the model, or of a batch."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session, reason = None, None
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = str(error).splitlines()[0]
    arrays = {}
    for rows in ROWS:
        feed = {name: operand.sample(rng, rows) for name, operand in inputs.items()}
        arrays |= {f"{rows}.in.{name}": array for name, array in feed.items()}
        if session is None or (rows == 0 and case.op.startswith(WRONG_WITHOUT_ROWS)):
            continue
        names = [output.name for output in session.get_outputs()]
        try:
            results = session.run(names, feed)
        except Exception as error:
            # Few kernels take no rows at all.
            reason = str(error).splitlines()[0] if rows > 0 else reason
            continue
        results = {f"{rows}.out.{name}": matrix(array) for name, array in zip(names, results)}
        # Strings are not read, and of no map nothing is known.
        arrays |= {name: array for name, array in results.items() if array is not None and array.dtype.kind != "O"}
    return arrays, reason


def main(folder, count):
    import bodies  # adds to the table
    import classical  # adds to the table
    import layers
    from operators import TABLE

    ort.set_default_logger_severity(4)
    cases = []
    for op, draw in TABLE.items():
        rng = np.random.default_rng(zlib.crc32(op.encode()))
        for i in range(count):
            case = draw(rng, op)
            model, inputs = case.model(rng)
            name = f"{op}_{i}"
            arrays, reason = run(case, model, inputs, rng)
            onnx.save(model, folder / f"{name}.onnx")
            np.savez(folder / f"{name}.npz", **arrays)
            text = ", ".join(f"{key}={value}" for key, value in case.attributes.items())
            shapes = " ".join(f"{k}:{v.dtype}{v.shape}" for k, v in inputs.items())
            text = f"{shapes} {{{text}}} opset {case.opset}"
            cases.append({"name": name, "op": op, "text": text, "unknown": reason, "tolerance": case.tolerance})
    schemas = onnx.defs.get_all_schemas_with_history()
    standard = sorted({s.name if s.domain == "" else f"{s.domain}.{s.name}" for s in schemas if s.domain in ("", "ai.onnx.ml")})
    (folder / "cases.json").write_text(json.dumps({"cases": cases, "rows": ROWS, "standard": standard}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
