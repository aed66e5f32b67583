"""Runs models that fanwise wrote with ONNX Runtime, on the batches of `single.py`.

    python written.py FOLDER

FOLDER has NAME.written.onnx beside NAME.npz, whose arrays `ROWS.out.OUTPUT` are what the models gave that these were read
from. Writes `written.json`: for each name what is wrong, or why ONNX Runtime does not run it. Elements agree within a share
of the largest that depends on their type, or that of `cases.json`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

TOLERANCE = {"float64": 1e-7, "float32": 1e-5, "float16": 2e-3}


def agree(found, wanted, tolerance):
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype}{found.shape} where {wanted.dtype}{wanted.shape} is expected"
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    scale = np.max(np.abs(wanted[finite]), initial=0)
    with np.errstate(invalid="ignore"):
        close = (found == wanted) | (np.isnan(found) & np.isnan(wanted)) | (np.abs(found - wanted) <= tolerance * scale)
    return None if close.all() else f"element {np.argmin(close)} is {found.ravel()[np.argmin(close)]}, not {wanted.ravel()[np.argmin(close)]}"


def check(path, tolerances):
    name = path.name.removesuffix(".written.onnx")
    arrays = np.load(path.with_name(f"{name}.npz"))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(str(path), options)
    except Exception as error:
        return f"not loaded: {error}"
    names = [output.name for output in session.get_outputs()]
    for rows in (1, 2, 7):
        wanted = {n: arrays[f"{rows}.out.{n}"] for n in names if f"{rows}.out.{n}" in arrays}
        if not wanted:
            continue
        feed = {i.name: arrays[f"{rows}.in.{i.name}"] for i in session.get_inputs()}
        try:
            found = dict(zip(names, session.run(None, feed)))
        except Exception as error:
            return f"not run: {error}"
        for output, array in wanted.items():
            own = tolerances.get(name) or TOLERANCE.get(str(array.dtype), 0)
            wrong = agree(found[output], array, own)
            if wrong:
                return f"{rows} rows, {output}: {wrong}"
    return None


def main():
    folder = Path(sys.argv[1])
    cases = json.loads((folder / "cases.json").read_text())["cases"]
    tolerances = {case["name"]: case["tolerance"] for case in cases}
    results = {path.name.removesuffix(".written.onnx"): check(path, tolerances) for path in sorted(folder.glob("*.written.onnx"))}
    (folder / "written.json").write_text(json.dumps(results))


main()
