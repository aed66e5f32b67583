"""Times a training step of MiniGoogLeNet with fanwise, Keras on TensorFlow, Keras on JAX and PyTorch, 2 threads each.

Usage: python training_speed.py FANWISE        (needs keras, tensorflow, jax, torch and numpy)

Every program runs in a process of its own, in turn, three rounds in one call; a time is the median of the rounds' medians.
Beside the time is that of the processors, which other work on the machine changes less.
A step takes a batch of 64 images of 32x32 pixels: forward in training mode (batch normalisation by the batch's
statistics, dropout), categorical cross-entropy, backward, SGD with momentum. The first steps, which compile, are left out.
"""

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

BATCH, STEPS, WARM, ROUNDS, THREADS = 64, 6, 2, 3, 2
PEERS = ["keras-tensorflow", "keras-jax", "torch"]


def data(rows):
    import numpy as np

    rng = np.random.default_rng(1)
    x = rng.random((rows, 32, 32, 3), dtype=np.float32)
    return x, np.eye(10, dtype=np.float32)[rng.integers(0, 10, rows)]


def median(step):
    """The median time of a step, which waits for its results, and that of the processors."""
    times = []
    for _ in range(WARM + STEPS):
        start = time.perf_counter(), time.process_time()
        step()
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return [statistics.median(t) for t in zip(*times[WARM:])]


def net(image, conv, pool, concat):
    """The part of the model that has an image, from the functions of a library."""
    inception = lambda x, ones, threes: concat(conv(x, ones, 1, 1), conv(x, threes, 3, 1))
    downsample = lambda x, filters: concat(conv(x, filters, 3, 2), pool(x))
    x = conv(image, 96, 3, 1)
    x = inception(inception(x, 32, 32), 32, 48)
    x = downsample(x, 80)
    for ones, threes in [(112, 48), (96, 64), (80, 80), (48, 96)]:
        x = inception(x, ones, threes)
    x = downsample(x, 96)
    return inception(inception(x, 176, 160), 176, 160)


def keras_step(backend):
    os.environ["KERAS_BACKEND"] = backend
    if backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    import keras

    layers = keras.layers

    def conv(x, filters, kernel, stride):
        padding = "same" if stride == 1 else "valid"
        x = layers.Conv2D(filters, kernel, strides=stride, padding=padding)(x)
        return layers.Activation("relu")(layers.BatchNormalization()(x))

    image = keras.Input((32, 32, 3))
    pool = lambda x: layers.MaxPooling2D(3, strides=2)(x)
    x = net(image, conv, pool, lambda a, b: layers.Concatenate()([a, b]))
    x = layers.Flatten()(layers.Dropout(0.5)(layers.AveragePooling2D(7)(x)))
    model = keras.Model(image, layers.Dense(10, activation="softmax")(x))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, "categorical_crossentropy", jit_compile=backend == "jax")
    x, y = data(BATCH)
    return lambda: float(model.train_on_batch(x, y))


def torch_step():
    import torch
    from torch import nn

    torch.set_num_threads(THREADS)

    class Conv(nn.Sequential):
        def __init__(self, inputs, filters, kernel, stride):
            padding = kernel // 2 if stride == 1 else 0
            conv = nn.Conv2d(inputs, filters, kernel, stride, padding)
            super().__init__(conv, nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01), nn.ReLU())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList()
            image = self.forward_image(torch.zeros(2, 3, 32, 32), True)
            self.dense = nn.Linear(image.shape[1], 10)

        def forward_image(self, x, build=False):
            order = iter(self.convs)

            def conv(x, filters, kernel, stride):
                if build:
                    self.convs.append(Conv(x.shape[1], filters, kernel, stride))
                    return self.convs[-1](x)
                return next(order)(x)

            pool = lambda x: nn.functional.max_pool2d(x, 3, 2)
            return net(x, conv, pool, lambda a, b: torch.cat([a, b], 1))

        def forward(self, x):
            x = nn.functional.avg_pool2d(self.forward_image(x), 7)
            return self.dense(nn.functional.dropout(x, 0.5, self.training).flatten(1))

    x, y = map(torch.from_numpy, data(BATCH))
    x = x.permute(0, 3, 1, 2)
    model = Model().train()
    if os.environ.get("CHANNELS_LAST") == "1":
        model = model.to(memory_format=torch.channels_last)
    else:
        x = x.contiguous()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def peer(name):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    return median(torch_step() if name == "torch" else keras_step(name.removeprefix("keras-")))


def fanwise(program, folder):
    import numpy as np

    path = pathlib.Path(folder, "images.npz")
    if not path.exists():
        x, y = data(BATCH * 2)
        np.savez(path, x=x, y=y)
    command = [program, "fit", "zoo:mini_googlenet", "--data", str(path), "--loss", "categorical_crossentropy"]
    command += ["--optimizer", "sgd:momentum=0.9", "--batch", str(BATCH), "--threads", str(THREADS), "--format", "json"]

    def run(epochs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*command, "--epochs", str(epochs)], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = [json.loads(line)["seconds"] / 2 for line in done.stdout.splitlines() if '"epoch"' in line]
        return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    (_, short), (epochs, long) = run(WARM // 2), run((WARM + STEPS) // 2)
    return [statistics.median(epochs[WARM // 2 :]), (long - short) / STEPS]


def timed(name):
    own = {"torch-channels-last": ("torch", "1")}.get(name, (name, "0"))
    environment = {**os.environ, "CHANNELS_LAST": own[1], "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--peer", own[0]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def rounds(fanwise_binary):
    """The times of each program in each round."""
    names = [*PEERS, "torch-channels-last"]
    all = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            all.append({"fanwise": fanwise(fanwise_binary, folder), **{n: timed(n) for n in names}})
            print(json.dumps(all[-1]), file=sys.stderr, flush=True)
    return all


def main():
    if sys.argv[1] == "--peer":
        return print(json.dumps(peer(sys.argv[2])))
    all = rounds(sys.argv[1])
    for i, what in enumerate(["time", "time of the processors"]):
        times = {name: statistics.median(r[name][i] for r in all) for name in all[0]}
        ratio = statistics.median(r["fanwise"][i] / min(r[n][i] for n in r if n != "fanwise") for r in all)
        print(what + ": " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in times.items()))
        print(f"  fanwise against the fastest: {ratio:.2f}")


if __name__ == "__main__":
    main()
