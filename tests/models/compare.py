"""Compares fanwise with ONNX Runtime: values within 1e-4 of each output's largest, and the same bits on every number
of devices. A model without open sizes beside its batch, as fanwise writes it, gives the same in ONNX Runtime.

Usage: python compare.py FANWISE MODEL.onnx|zoo:NAME|FOLDER ...        (needs onnxruntime and numpy)

Open sizes beside the batch are 9, or what the file's metadata say under `sizes`: numbers by `INPUT[AXIS]`.
A file whose batch is fixed runs in ONNX Runtime row by row.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime

ROWS = (7, 2, 1)
DEVICES = (1, 3, 5)
TOLERANCE = 1e-4
LENGTH = 9
TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
# Integer inputs are below this, by their names.
BELOW = {"mask": 2, "attention_mask": 2, "index": 9}


class Reference:
    """A file in ONNX Runtime, with inputs of any number of rows."""

    def __init__(self, model):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 2
        self.session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.inputs = self.session.get_inputs()
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.lengths = json.loads(self.session.get_modelmeta().custom_metadata_map.get("sizes", "{}"))
        opened = [(axis, size) for v in self.inputs for axis, size in enumerate(v.shape) if not isinstance(size, int)]
        # A batch leads, or stands behind the steps; further back there are widths and lengths.
        self.front = min((axis for axis, _ in opened), default=2)
        self.is_fixed = self.front > 1
        self.batch = {size for axis, size in opened if axis == self.front and size} if not self.is_fixed else set()
        self.has_lengths = any(size not in self.batch and (size or axis != self.front) for axis, size in opened)

    def axis(self, value):
        """The axis of an input that is the batch."""
        if self.is_fixed:
            return value.shape.index(1)
        is_batch = lambda axis, size: size in self.batch or (size is None and axis == self.front)
        return next((axis for axis, size in enumerate(value.shape) if is_batch(axis, size)), None)

    def shape(self, value, rows):
        at = self.axis(value)
        length = lambda axis: self.lengths.get(f"{value.name}[{axis}]", LENGTH)
        sizes = [size if isinstance(size, int) else length(axis) for axis, size in enumerate(value.shape)]
        return [rows if axis == at else size for axis, size in enumerate(sizes)]

    def draw(self, rows):
        rng = np.random.default_rng(rows)
        feed = {}
        for value in self.inputs:
            kind, shape = TYPES[value.type], self.shape(value, rows)
            if not np.issubdtype(kind, np.integer):
                feed[value.name] = (printed(shape, rng) if len(shape) == 4 and shape[1] == 3 else rng.normal(size=shape)).astype(kind)
                continue
            feed[value.name] = rng.integers(0, BELOW.get(value.name, 20), shape).astype(kind)
            if "mask" in value.name:  # no sample is all padding
                feed[value.name][:, 0] = 1
        return feed

    def run(self, feed, shapes):
        """The outputs by name, of these shapes where rows are joined."""
        if not self.is_fixed:
            return dict(zip(self.outputs, self.session.run(self.outputs, feed)))
        axes = {value.name: self.axis(value) for value in self.inputs}
        rows = next(feed[name].shape[axis] for name, axis in axes.items())
        runs = [
            self.session.run(self.outputs, {name: x.take([i], axes[name]) for name, x in feed.items()}) for i in range(rows)
        ]
        joined = {}
        for name, *parts in zip(self.outputs, *runs):
            differ = (axis for axis, (a, b) in enumerate(zip(parts[0].shape, shapes[name])) if a != b)
            joined[name] = np.concatenate(parts, next(differ, 0))
        return joined


def printed(shape, rng):
    """Images with dark bars, which a detector of text finds: where it finds nothing, all that it gives is near 0."""
    images = 1 + 0.3 * rng.normal(size=shape)
    third = shape[2] // 3
    for image in images:
        first, step, width = rng.integers((6, 6, 2), (12, 12, 5))
        for bar in range(first, shape[-1], step):
            image[:, third : 2 * third, bar : bar + width] -= 2
    return images


def said(fanwise, *words):
    """What the command line prints."""
    done = subprocess.run([fanwise, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()[:2000]}")
    return done.stdout


def run(fanwise, model, feed, gpus, folder):
    given, got = folder / "in.npz", folder / "out.npz"
    np.savez(given, **feed)
    said(fanwise, "run", model, "--gpus", gpus, "--target", "cpu", "--inputs", given, "--outputs", got)
    with np.load(got) as arrays:
        return dict(arrays)


def differ(found, expected, what):
    """The largest difference of two results by name, as a share of each one's largest element."""
    worst = 0.0
    for name, want in expected.items():
        assert found[name].shape == want.shape, f"{name} of {what}: {found[name].shape} instead of {want.shape}"
        error = np.abs(found[name].astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-30)
        assert error <= TOLERANCE, f"{name} of {what}: {error:.2e} of the largest value"
        worst = max(worst, error)
    return worst


def compare(fanwise, model, folder):
    """The largest difference from ONNX Runtime."""
    is_zoo = str(model).startswith("zoo:")
    original = None if is_zoo else Reference(model)
    again = None
    if is_zoo or not (original.has_lengths or original.is_fixed):
        said(fanwise, "compile", model, "--emit", f"onnx={folder / 'written.onnx'}")
        again = Reference(folder / "written.onnx")
    # A model of the zoo is nowhere but in fanwise: its truth is what ONNX Runtime makes of the file that was written.
    truth = original or again
    worst = 0.0
    for rows in ROWS:
        feed = truth.draw(rows)
        one, *others = [run(fanwise, model, feed, gpus, folder) for gpus in DEVICES]
        expected = truth.run(feed, {name: result.shape for name, result in one.items()})
        worst = max(worst, differ(one, expected, f"{rows} rows"))
        for gpus, many in zip(DEVICES[1:], others):
            for name in expected:
                assert many[name].tobytes() == one[name].tobytes(), f"{name}: bits differ on {gpus} devices"
        if again:
            differ(again.run(feed, {}), expected, f"{rows} rows of the file written")
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


if __name__ == "__main__":
    main()
