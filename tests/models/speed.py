"""Times fanwise and ONNX Runtime on the same models, 2 threads each, in turn in one run: medians and their ratio.

Usage: python speed.py FANWISE MODEL.onnx ...        (needs onnxruntime and numpy)

Both run the model at its own batch, 20 times after a warm-up; the time of fanwise is that of `--repeat`,
without loading.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import onnxruntime

RUNS, ROUNDS = 20, 3


def runtime(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(str(path), options)
    rng = np.random.default_rng(1)
    sizes = lambda i: [d if isinstance(d, int) else 1 for d in i.shape]
    feed = {
        i.name: rng.integers(0, 2, sizes(i)) if i.type == "tensor(int64)" else rng.normal(size=sizes(i)).astype(np.float32)
        for i in session.get_inputs()
    }

    def run():
        session.run(None, feed)
        times = []
        for _ in range(RUNS):
            start = time.perf_counter()
            session.run(None, feed)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return run


def ours(fanwise, path):
    command = [fanwise, "run", str(path), "--batch", "1", "--threads", "2"]
    command += ["--repeat", str(RUNS + 1), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["seconds"]


def main():
    fanwise = sys.argv[1]
    for path in map(pathlib.Path, sys.argv[2:]):
        run = runtime(path)
        pairs = [(ours(fanwise, path), run()) for _ in range(ROUNDS)]
        mine, theirs = (statistics.median(p[i] for p in pairs) for i in (0, 1))
        print(f"{path.stem}: fanwise {mine * 1e3:.1f} ms, onnxruntime {theirs * 1e3:.1f} ms, ratio {mine / theirs:.2f}")


main()
