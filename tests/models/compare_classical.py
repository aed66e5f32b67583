"""Compares fanwise with ONNX Runtime on the models of `classical`: class labels exactly, other values within 1e-4 of each
output's largest, and the same bits on every number of devices. Each is checked on three devices, where no rows are
gathered.

Usage: python compare_classical.py FANWISE FOLDER        (needs onnxruntime and numpy)
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime


def call(fanwise, *args):
    done = subprocess.run([fanwise, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{args[0]}: {done.stderr.strip()[:2000]}")
    return done.stdout


def run(fanwise, model, feed, gpus, folder):
    given, got = folder / "in.npz", folder / "out.npz"
    np.savez(given, **feed)
    call(fanwise, "run", model, "--gpus", gpus, "--inputs", given, "--outputs", got)
    with np.load(got) as arrays:
        return dict(arrays)


def matrix(result):
    """The matrix that maps of scores were made of."""
    return result if not isinstance(result, list) else np.array([list(row.values()) for row in result], np.float32)


def compare(fanwise, model, folder):
    call(fanwise, "check", model, "--gpus", 3, "--batch", 7)
    graph = call(fanwise, "compile", model, "--gpus", 3, "--emit", "graph")
    assert "all_gather" not in graph, "rows are gathered"
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    with np.load(model.with_suffix(".npz")) as arrays:
        rows = dict(arrays)
    worst = 0.0
    for batch in (1, 3, len(next(iter(rows.values())))):
        feed = {name: array[:batch] for name, array in rows.items()}
        expected = dict(zip(names, map(matrix, session.run(None, feed))))
        # Labels that are strings are left out; what is left is compared.
        expected = {name: want for name, want in expected.items() if want.dtype.kind in "fiu"}
        one = run(fanwise, model, feed, 1, folder)
        assert one.keys() == expected.keys(), f"{one.keys()} instead of {expected.keys()}"
        for name, want in expected.items():
            found = one[name]
            assert (found.shape, found.dtype) == (want.shape, want.dtype), f"{name}: {found.dtype}{found.shape}"
            if want.dtype.kind != "f":
                assert (found == want).all(), f"{name} at batch {batch}: other labels"
                continue
            error = np.abs(found.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-30)
            worst = max(worst, error)
            assert error <= 1e-4, f"{name} at batch {batch}: {error:.2e} of the largest value"
        for gpus in (2, 5):
            many = run(fanwise, model, feed, gpus, folder)
            for name in expected:
                assert many[name].tobytes() == one[name].tobytes(), f"{name}: bits differ on {gpus} devices"
    return worst


def main(fanwise, folder):
    failed, passed = 0, 0
    for model in sorted(pathlib.Path(folder).glob("*.onnx")):
        with tempfile.TemporaryDirectory() as temporary:
            try:
                print(f"ok      {model.name}: {compare(fanwise, model, pathlib.Path(temporary)):.1e}", flush=True)
                passed += 1
            except Exception as error:
                print(f"FAILED  {model.name}: {error}", flush=True)
                failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


main(*sys.argv[1:])
