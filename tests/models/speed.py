"""Times fanwise and ONNX Runtime on the same models, 2 threads each, in turn in one run: medians and their ratio.

Usage: python speed.py FANWISE MODEL.onnx ...        (needs onnxruntime and numpy)

Both run the model at batch 1 after a warm-up; the time of fanwise is that of `--repeat`, without loading.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import onnxruntime

THREADS, ROUNDS = 2, 3
# A round takes as long, but for models that need longer for three runs.
SECONDS, RUNS = 1.0, (3, 20)


def runtime(path, batch):
    """A function that gives the median time of so many runs of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    sizes = lambda i: [d if isinstance(d, int) else batch for d in i.shape]
    feed = {
        i.name: rng.integers(0, 2, sizes(i)) if i.type == "tensor(int64)" else rng.normal(size=sizes(i)).astype(np.float32)
        for i in session.get_inputs()
    }

    def run(runs):
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            session.run(None, feed)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return run


def ours(fanwise, model, batch, runs, *more):
    """The median time of so many runs of fanwise."""
    command = [fanwise, "run", str(model), "--batch", str(batch), "--threads", str(THREADS), *more]
    command += ["--repeat", str(runs + 1), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["seconds"]


def beside(fanwise, path, batch):
    """The medians over the rounds of the times of fanwise and of ONNX Runtime, and of their ratios."""
    run = runtime(path, batch)
    run(1)
    least, most = RUNS
    runs = max(least, min(most, int(SECONDS / run(1))))
    pairs = [(ours(fanwise, path, batch, runs), run(runs)) for _ in range(ROUNDS)]
    return [statistics.median(p) for p in (*zip(*pairs), [a / b for a, b in pairs])]


def main():
    for path in map(pathlib.Path, sys.argv[2:]):
        mine, theirs, ratio = beside(sys.argv[1], path, 1)
        print(f"{path.stem}: fanwise {mine * 1e3:.1f} ms, onnxruntime {theirs * 1e3:.1f} ms, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
