"""Times steps of training with fanwise, PyTorch, and Keras on TensorFlow and JAX, 2 threads each.

Usage: python training_speed.py FANWISE [MODEL...]        (needs the packages of performance.txt)

A step runs a model forward in training mode (batch normalisation by the batch's statistics, dropout), and backward from a
categorical cross-entropy, and updates by SGD with momentum, at a rate of 0: all steps compute with like numbers. Every program
has a process of its own; the steps of a round are asked of one after the other. A time is the median of the rounds' medians.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# Steps of a round that are not counted, and the fewest that are; their seconds; rounds; threads.
WARM, STEPS, SECONDS, ROUNDS, THREADS = 2, 3, 0.3, 5, 2
PEERS = {
    "torch-channels-last": "PyTorch, channels last",
    "torch": "PyTorch, channels first",
    "tensorflow": "Keras on TensorFlow",
    "jax": "Keras on JAX",
}


def mini_googlenet(f, image):
    inception = lambda x, ones, threes: f.concat([f.conv(x, ones, 1), f.conv(x, threes, 3)])
    downsample = lambda x, filters: f.concat([f.conv(x, filters, 3, 2, "valid"), f.max_pool(x, 3, 2, "valid")])
    x = f.conv(image, 96, 3)
    x = inception(inception(x, 32, 32), 32, 48)
    x = downsample(x, 80)
    for ones, threes in [(112, 48), (96, 64), (80, 80), (48, 96)]:
        x = inception(x, ones, threes)
    x = downsample(x, 96)
    x = inception(inception(x, 176, 160), 176, 160)
    return f.dense(f.dropout(f.mean(x)), 10)


def resnet50(f, image):
    def block(x, filters, stride, is_first):
        y = f.conv(f.conv(x, filters, 1), filters, 3, stride)
        short = f.conv(x, 4 * filters, 1, stride, relu=False) if is_first else x
        return f.relu(f.add(f.conv(y, 4 * filters, 1, relu=False), short))

    x = f.max_pool(f.conv(image, 64, 7, 2), 3, 2, "same")
    for filters, blocks, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(blocks):
            x = block(x, filters, 1 if i else stride, i == 0)
    return f.dense(f.mean(x), 1000)


def mlp(f, x):
    x = f.dropout(f.dense(x, 256, "relu"))
    return f.dense(f.dense(f.dense(x, 128, "tanh"), 64, "sigmoid"), 10)


def digits_cnn(f, image):
    """The convolutional network of Keras' first example."""
    x = f.max_pool(f.conv(image, 32, 3, padding="valid", norm=False), 2, 2, "valid")
    x = f.max_pool(f.conv(x, 64, 3, padding="valid", norm=False), 2, 2, "valid")
    return f.dense(f.dropout(f.flatten(x)), 10)


def lstm(f, words):
    """Keras' bidirectional LSTM for film reviews."""
    x = f.lstm(f.embedding(words, 20_000, 128), 64, sequences=True)
    return f.dense(f.lstm(x, 64, sequences=False), 2)


# The network, the rows of a step, the sizes of an input (of images: the channels last), the classes.
MODELS = {
    "mini_googlenet": (mini_googlenet, 64, (32, 32, 3), 10),
    "resnet50": (resnet50, 8, (224, 224, 3), 1000),
    "mlp": (mlp, 256, (784,), 10),
    "digits_cnn": (digits_cnn, 128, (28, 28, 1), 10),
    "lstm": (lstm, 32, (200,), 2),
}


def data(name):
    import numpy as np

    net, rows, sizes, classes = MODELS[name]
    rng = np.random.default_rng(1)
    x = rng.integers(0, 20_000, (rows, *sizes)) if net is lstm else rng.random((rows, *sizes), dtype=np.float32)
    return x, np.eye(classes, dtype=np.float32)[rng.integers(0, classes, rows)]


class Keras:
    """The layers of a model in Keras."""

    def __init__(self):
        import keras

        self.layers = keras.layers

    def conv(self, x, filters, kernel, stride=1, padding="same", norm=True, relu=True):
        x = self.layers.Conv2D(filters, kernel, strides=stride, padding=padding)(x)
        x = self.layers.BatchNormalization()(x) if norm else x
        return self.relu(x) if relu else x

    def relu(self, x):
        return self.layers.Activation("relu")(x)

    def max_pool(self, x, size, stride, padding):
        return self.layers.MaxPooling2D(size, strides=stride, padding=padding)(x)

    def concat(self, all):
        return self.layers.Concatenate()(all)

    def add(self, x, y):
        return self.layers.Add()([x, y])

    def mean(self, x):
        return self.layers.GlobalAveragePooling2D()(x)

    def flatten(self, x):
        return self.layers.Flatten()(x)

    def dropout(self, x):
        return self.layers.Dropout(0.5)(x)

    def dense(self, x, units, function=None):
        return self.layers.Dense(units, activation=function)(x)

    def embedding(self, x, known, features):
        return self.layers.Embedding(known, features)(x)

    def lstm(self, x, units, sequences):
        return self.layers.Bidirectional(self.layers.LSTM(units, return_sequences=sequences))(x)


def keras_model(name):
    import keras

    net, _, sizes, _ = MODELS[name]
    x = keras.Input(sizes, dtype="int32" if net is lstm else "float32")
    return keras.Model(x, keras.layers.Activation("softmax")(net(Keras(), x)))


def keras_step(backend, name):
    os.environ["KERAS_BACKEND"] = backend
    if backend == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    import keras

    model = keras_model(name)
    optimizer = keras.optimizers.SGD(0.0, momentum=0.9)
    model.compile(optimizer, "categorical_crossentropy", jit_compile=backend == "jax")
    x, y = data(name)
    return lambda: float(model.train_on_batch(x, y))


def torch_step(last, name):
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(THREADS)

    class Model(nn.Module):
        """The layers of a model; the first run makes them."""

        def __init__(self, net, x):
            super().__init__()
            self.made, self.net = nn.ModuleList(), net
            self.at = None
            self.net(self, x)

        def forward(self, x):
            self.at = 0
            return self.net(self, x)

        def own(self, x, make):
            if self.at is None:
                self.made.append(make())
                return self.made[-1](x)
            self.at += 1
            return self.made[self.at - 1](x)

        def conv(self, x, filters, kernel, stride=1, padding="same", norm=True, relu=True):
            around = kernel // 2 if padding == "same" else 0
            x = self.own(x, lambda: nn.Conv2d(x.shape[1], filters, kernel, stride, around))
            x = self.own(x, lambda: nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01)) if norm else x
            return functional.relu(x, inplace=True) if relu else x

        def relu(self, x):
            return functional.relu(x, inplace=True)

        def max_pool(self, x, size, stride, padding):
            return functional.max_pool2d(x, size, stride, size // 2 if padding == "same" else 0)

        def concat(self, all):
            return torch.cat(all, 1)

        def add(self, x, y):
            return x + y

        def mean(self, x):
            return x.mean((2, 3))

        def flatten(self, x):
            return x.flatten(1)

        def dropout(self, x):
            return functional.dropout(x, 0.5, self.training)

        def dense(self, x, units, function=None):
            x = self.own(x, lambda: nn.Linear(x.shape[1], units))
            return getattr(torch, function)(x) if function else x

        def embedding(self, x, known, features):
            return self.own(x, lambda: nn.Embedding(known, features))

        def lstm(self, x, units, sequences):
            x = self.own(x, lambda: nn.LSTM(x.shape[2], units, batch_first=True, bidirectional=True))[0]
            # The direction that goes backward ends at the first step.
            return x if sequences else torch.cat([x[:, -1, :units], x[:, 0, units:]], 1)

    x, y = map(torch.from_numpy, data(name))
    if x.dim() == 4:
        x = x.permute(0, 3, 1, 2)
        x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    model = Model(MODELS[name][0], x[:2]).train()
    if last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def serve(peer, name):
    """Runs the steps of a round for each line of standard input; writes the median time."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    step = torch_step(peer.endswith("last"), name) if peer.startswith("torch") else keras_step(peer, name)
    for _ in sys.stdin:
        times = []
        while len(times) < WARM + STEPS or sum(times[WARM:]) < SECONDS:
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        answers.write(f"{statistics.median(times[WARM:])}\n")


class Peer:
    """A process that serves."""

    def __init__(self, peer, name):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, __file__, "--serve", peer, name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        # The first steps compile.
        self.run()

    def run(self):
        print(file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{' '.join(self.process.args)} ended")
        return float(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def steps(program, name):
    """The median time of a step by fanwise and by each peer."""
    rows = MODELS[name][1]
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder, f"{name}.keras"))
        subprocess.run([sys.executable, __file__, "--write", path, name], check=True, capture_output=True)
        command = [program, "bench", path, "--train", "categorical_crossentropy", "--optimizer", "sgd:momentum=0.9"]
        command += ["--batch", str(rows), "--threads", str(THREADS), "--rounds", "1", "--format", "json"]

        def own():
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            return json.loads(done.stdout)["cases"][0]["measured"][0]["seconds"]

        peers = {peer: Peer(peer, name) for peer in PEERS}
        rounds = [[own(), *(peer.run() for peer in peers.values())] for _ in range(ROUNDS)]
        for peer in peers.values():
            peer.end()
    return dict(zip(["fanwise", *PEERS], map(statistics.median, zip(*rounds))))


def main():
    if sys.argv[1] == "--serve":
        return serve(*sys.argv[2:])
    if sys.argv[1] == "--write":
        os.environ["KERAS_BACKEND"] = "jax"
        return keras_model(sys.argv[3]).save(sys.argv[2])
    for name in sys.argv[2:] or MODELS:
        times = steps(sys.argv[1], name)
        fastest = min(seconds for program, seconds in times.items() if program != "fanwise")
        told = ", ".join(f"{program} {seconds * 1e3:.3g} ms" for program, seconds in times.items())
        print(f"{name}: {told}; {times['fanwise'] / fastest:.2f} of the fastest", flush=True)


if __name__ == "__main__":
    main()
