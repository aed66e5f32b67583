"""Draws a batch of inputs for an ONNX model and computes the outputs with ONNX Runtime, one row at a time.

    python reference.py MODEL.onnx FOLDER ROWS

writes FOLDER/in.npz and FOLDER/out.npz. The first size of a value that is a symbol, or else a first size of 1, is the
batch; inputs without one go whole into every run.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


def batch_axis(value):
    symbols = [i for i, size in enumerate(value.shape) if isinstance(size, str)]
    return symbols[0] if symbols else 0 if value.shape[:1] == [1] else None


def draw(rng, value, rows):
    shape = list(value.shape)
    if (axis := batch_axis(value)) is not None:
        shape[axis] = rows
    dtype = DTYPES[value.type]
    if dtype is np.int64:
        return rng.integers(0, 2, shape)
    return rng.standard_normal(shape).astype(dtype)


def main(model, folder, rows):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    # Older files list their parameters among the inputs; ONNX Runtime does not.
    rng = np.random.default_rng(7)
    inputs = {v.name: draw(rng, v, rows) for v in session.get_inputs()}
    axes = {v.name: batch_axis(v) for v in session.get_inputs()}

    def row(name, i):
        return inputs[name] if axes[name] is None else inputs[name].take([i], axes[name])

    runs = [session.run(None, {name: row(name, i) for name in inputs}) for i in range(rows)]
    outputs = {}
    for i, value in enumerate(session.get_outputs()):
        parts = [run[i] for run in runs]
        outputs[value.name] = parts[0] if batch_axis(value) is None else np.concatenate(parts, batch_axis(value))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "in.npz", **inputs)
    np.savez(folder / "out.npz", **outputs)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
