"""Compares fanwise with ONNX Runtime on every model of a folder: values within 1e-4 of each output's largest,
and the same bits on every number of devices. The model as fanwise writes it gives the same in ONNX Runtime.

Usage: python compare.py FANWISE MODEL.onnx|zoo:NAME|FOLDER ...        (needs onnxruntime and numpy)
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
# Integer inputs are below this, by their names.
BELOW = {"mask": 2, "index": 9}


def inputs_of(session, batch):
    rng = np.random.default_rng(batch)
    feed = {}
    for value in session.get_inputs():
        shape = [d if isinstance(d, int) else batch for d in value.shape]
        kind = TYPES[value.type]
        if value.name == "mask":  # no sample is all padding
            shape[-1] -= 1
        feed[value.name] = (
            rng.integers(0, BELOW.get(value.name, 20), shape).astype(kind) if np.issubdtype(kind, np.integer) else rng.normal(size=shape).astype(kind)
        )
        if value.name == "mask":
            feed[value.name] = np.insert(feed[value.name], 0, 1, axis=-1)
    return feed


def run(fanwise, model, feed, gpus, folder):
    given, got = folder / "in.npz", folder / "out.npz"
    np.savez(given, **feed)
    command = [fanwise, "run", str(model), "--gpus", str(gpus), "--inputs", str(given), "--outputs", str(got)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[:2000])
    return dict(np.load(got))


def compare(fanwise, model, folder):
    written = folder / "written.onnx"
    done = subprocess.run([fanwise, "compile", str(model), "--emit", f"onnx={written}"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[:2000])
    again = onnxruntime.InferenceSession(str(written))
    # A model of the zoo is nowhere but in fanwise: its truth is what ONNX Runtime makes of the file that was written.
    session = again if str(model).startswith("zoo:") else onnxruntime.InferenceSession(str(model))
    worst = 0.0
    for batch in (1, 3, 7):
        feed = inputs_of(session, batch)
        names = [o.name for o in session.get_outputs()]
        expected = dict(zip(names, session.run(None, feed)))
        for name, found in zip(names, again.run(names, feed)):
            error = np.max(np.abs(found.astype(np.float64) - expected[name])) / max(np.max(np.abs(expected[name])), 1e-30)
            assert error <= 1e-4, f"{name} of the file written at batch {batch}: {error:.2e} of the largest value"
        one = run(fanwise, model, feed, 1, folder)
        for name, want in expected.items():
            scale = max(np.max(np.abs(want)), 1e-30)
            assert one[name].shape == want.shape, f"{name}: {one[name].shape} instead of {want.shape}"
            error = np.max(np.abs(one[name].astype(np.float64) - want)) / scale
            worst = max(worst, error)
            assert error <= 1e-4, f"{name} at batch {batch}: {error:.2e} of the largest value"
        for gpus in (2, 5):
            many = run(fanwise, model, feed, gpus, folder)
            for name in expected:
                assert many[name].tobytes() == one[name].tobytes(), f"{name}: bits differ on {gpus} devices"
    return worst


def main():
    fanwise, failed, passed = sys.argv[1], 0, 0
    paths = []
    for given in sys.argv[2:]:
        is_folder = pathlib.Path(given).is_dir()
        paths += sorted(pathlib.Path(given).glob("*.onnx")) if is_folder else [given if given.startswith("zoo:") else pathlib.Path(given)]
    for model in paths:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"ok      {getattr(model, 'name', model)}: {compare(fanwise, model, pathlib.Path(folder)):.1e}")
                passed += 1
            except Exception as error:
                print(f"FAILED  {getattr(model, 'name', model)}: {error}")
                failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


main()
