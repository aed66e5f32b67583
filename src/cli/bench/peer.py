"""Runs a model by another library, so often as standard input says: one number a line.

The argument is JSON: the library, the file, the rows, the threads, and what is trained if anything. Answers are JSON, a
line each: the version when the model is ready, then the seconds of each run, and the memory beside that of the
interpreter with the library.
"""

import json
import os
import sys
import time

asked = json.loads(sys.argv[1])
peer, path, rows, threads, train = (asked[key] for key in ("peer", "file", "rows", "threads", "train"))
# Libraries write what they like to standard output.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = str(threads)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def answer(**told):
    answers.write(json.dumps(told) + "\n")
    answers.flush()


try:
    import numpy as np
except ImportError as error:
    answer(error=f"{type(error).__name__}: {error}")
    sys.exit(1)
rng = np.random.default_rng(1)


def memory(what):
    try:
        with open("/proc/self/status") as status:
            return next(1024 * int(line.split()[1]) for line in status if line.startswith(what + ":"))
    except (OSError, StopIteration):
        return None


def array(sizes, kind):
    """Random numbers; integers, which may be positions, are 0 or 1."""
    if np.issubdtype(kind, np.floating):
        return rng.normal(size=sizes).astype(kind)
    return rng.integers(0, 2, sizes).astype(kind)


def onnxruntime():
    import onnxruntime as library

    yield library.__version__
    options = library.SessionOptions()
    options.intra_op_num_threads = threads
    session = library.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16"}

    def kind(text):
        return np.dtype(kinds.get(text, text.removeprefix("tensor(").removesuffix(")")))

    sizes = lambda one: [size if isinstance(size, int) else rows for size in one.shape]
    feed = {one.name: array(sizes(one), kind(one.type)) for one in session.get_inputs()}
    yield lambda: session.run(None, feed)


def keras():
    os.environ["KERAS_BACKEND"] = peer
    if peer == "tensorflow":
        import tensorflow as library

        library.config.threading.set_intra_op_parallelism_threads(threads)
        library.config.threading.set_inter_op_parallelism_threads(threads)
    elif peer == "torch":
        import torch as library

        library.set_num_threads(threads)
    else:
        import jax as library
    import keras

    yield f"{library.__version__}, Keras {keras.__version__}"
    model = keras.saving.load_model(path, compile=False)

    def batch(one):
        return array([rows, *one.shape[1:]], np.dtype(one.dtype))

    inputs = [batch(one) for one in model.inputs]
    inputs = inputs[0] if len(inputs) == 1 else inputs
    if train is None:
        yield lambda: model.predict_on_batch(inputs)
        return
    name, settings = train["optimizer"]
    optimizer = keras.optimizers.get({"class_name": name, "config": {**settings, "learning_rate": 0.0}})
    model.compile(optimizer, train["loss"])
    sparse = "sparse" in train["loss"]
    targets = [np.zeros([rows, *one.shape[1:-1]], "int32") if sparse else batch(one) for one in model.outputs]
    targets = targets[0] if len(targets) == 1 else targets
    yield lambda: model.train_on_batch(inputs, targets)


def main():
    work = onnxruntime() if peer == "onnxruntime" else keras()
    version = next(work)
    idle = memory("VmRSS")
    run = next(work)
    # The first runs compile.
    for _ in range(2):
        run()
    answer(version=version)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        most = memory("VmHWM")
        answer(seconds=seconds, memory=None if idle is None or most is None else most - idle)


try:
    main()
except Exception as error:  # noqa: BLE001
    answer(error=f"{type(error).__name__}: {error}")
