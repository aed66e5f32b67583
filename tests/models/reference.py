"""Draws a batch of inputs for an ONNX model and computes the outputs with ONNX Runtime, one row at a time.

    python reference.py MODEL.onnx FOLDER ROWS

writes FOLDER/in.npz and FOLDER/out.npz. Inputs whose first size is a symbol, or 1, carry the batch; the others go
whole into every run. An output carries the batch if its first size does.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

DTYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


def has_rows(value):
    return len(value.shape) > 0 and (isinstance(value.shape[0], str) or value.shape[0] == 1)


def draw(rng, value, rows):
    shape = [rows if has_rows(value) else value.shape[0], *value.shape[1:]] if value.shape else []
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
    carriers = {v.name for v in session.get_inputs() if has_rows(v)}
    runs = [
        session.run(None, {k: x[i : i + 1] if k in carriers else x for k, x in inputs.items()})
        for i in range(rows)
    ]
    outputs = {}
    for i, value in enumerate(session.get_outputs()):
        parts = [run[i] for run in runs]
        outputs[value.name] = np.concatenate(parts) if has_rows(value) else parts[0]
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "in.npz", **inputs)
    np.savez(folder / "out.npz", **outputs)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
