"""Measures what docs/performance.md shows and writes its part between the marks, of this machine and one commit.

Usage: python performance.py FANWISE CRITERION COMMIT MEMORY PAGE    (the packages of performance.txt)

CRITERION is the folder where the bench of the pass left its figures, MEMORY a file with what the bench of its memory printed.
`cargo xtask performance` gives all of them.
"""

import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import training_speed

MARKS = ["<!-- `cargo xtask performance` writes what follows -->\n", "<!-- end of what is measured -->\n"]
MODELS = ["mlp", "lstm", "transformer", "mini_googlenet", "unet", "mobilenet_v2", "resnet50", "xception"]
EXPORTED = ["bert_base", "vit_small"]
BATCHES = [1, 8, 32]
DEVICES = [1, 2, 4, 8]
# Models of which errors alone are measured, and those measured in a smaller form.
OTHERS = ["gru", "nested", "siamese", "two_head", "video"]
IN_PARTS = {"mobilenet_v2": "narrow=4,pixels=64", "resnet50": "narrow=8,pixels=64", "xception": "narrow=8,pixels=71"}
PARTS = ["rewrite", "verification", "proof", "whole"]
# Of a case that takes longer than this beside ONNX Runtime the operators are told.
GOAL = 1.0
PRODUCTS = [64, 128, 256, 512, 1024, 2048, 4096]
# Channels, places on a side, filters, kernel, stride and groups of convolutions of the models, one group or as many as channels.
CONVOLUTIONS = [
    *[(3, 224, 64, 7, 2, 1), (64, 56, 64, 1, 1, 1), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 1, 1), (256, 56, 64, 1, 1, 1)],
    *[(256, 56, 128, 1, 1, 1), (128, 56, 128, 3, 2, 1), (128, 28, 512, 1, 1, 1), (128, 28, 128, 3, 1, 1), (512, 28, 256, 1, 1, 1)],
    *[(256, 14, 256, 3, 1, 1), (256, 14, 1024, 1, 1, 1), (1024, 14, 512, 1, 1, 1), (512, 7, 512, 3, 1, 1), (512, 7, 2048, 1, 1, 1)],
    *[(3, 224, 32, 3, 2, 1), (32, 112, 32, 3, 1, 32), (16, 112, 96, 1, 1, 1), (96, 112, 96, 3, 2, 96), (96, 56, 24, 1, 1, 1)],
    *[(144, 56, 144, 3, 1, 144), (192, 28, 192, 3, 1, 192), (384, 14, 64, 1, 1, 1), (320, 7, 1280, 1, 1, 1)],
    *[(32, 149, 64, 3, 1, 1), (128, 147, 128, 3, 1, 128), (728, 19, 728, 1, 1, 1), (728, 19, 728, 3, 1, 728)],
    *[(3, 32, 96, 3, 1, 1), (96, 32, 32, 3, 1, 1)],
]


def say(text):
    print(text, file=sys.stderr, flush=True)


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def short(seconds):
    """A time with three digits."""
    for unit, factor in [("s", 1), ("ms", 1e3), ("µs", 1e6)]:
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def machine():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}"


def bench(fanwise, *args, threads=2):
    """The cases that `fanwise bench` measures, and its means."""
    command = [fanwise, "bench", *args, "--threads", str(threads), "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def beside_onnxruntime(fanwise, files, rows, threads=2):
    """For each file and number of rows what was measured: seconds, memory and ratio; and the version and the mean ratio."""
    args = ["--batch", ",".join(map(str, rows)), "--against", "onnxruntime", "--python", sys.executable]
    told = bench(fanwise, *map(str, files), *args, threads=threads)
    # A speed is that of the other program, which is how much longer fanwise takes.
    [mean] = told["geometric_means"]
    return [case["measured"] for case in told["cases"]], mean["name"].removeprefix("onnxruntime "), mean["speed"]


def resident(command):
    """The most memory that a process holds, in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: status {status}")
    return 1024 * used.ru_maxrss


def inference(fanwise, folder):
    files = []
    for name in MODELS:
        files.append(folder / f"{name}.onnx")
        subprocess.run([fanwise, "compile", f"zoo:{name}", "--emit", f"onnx={files[-1]}"], check=True, capture_output=True)
    exporter = pathlib.Path(__file__).parent / "export_measured.py"
    subprocess.run([sys.executable, exporter, folder], check=True, stdout=subprocess.DEVNULL)
    files += [folder / f"{name}.onnx" for name in EXPORTED]
    two, version, mean_of_two = beside_onnxruntime(fanwise, files, BATCHES)
    one, _, mean_of_one = beside_onnxruntime(fanwise, files, BATCHES, threads=1)
    idle = resident([fanwise, "--version"])
    rows, memory, operators = [], [], []
    for i, (of_two, of_one) in enumerate(zip(two, one)):
        file, batch = files[i // len(BATCHES)], BATCHES[i % len(BATCHES)]
        case = [f"`{file.stem}`", batch]
        # The run that writes a profile measures the machine, too, which takes memory.
        held = resident([fanwise, *repeated(file, batch)]) - idle
        if of_two[1]["speed"] > GOAL:
            operators.append([*case, *by_operator(fanwise, file, batch, folder)])
        times = [[short(own["seconds"]), short(other["seconds"]), f"{other['speed']:.2f}"] for own, other in (of_two, of_one)]
        rows.append([*case, *times[0], *times[1]])
        memory.append([*case, *(f"{size / 2**20:.0f} MiB" for size in (held, of_two[1]["memory_bytes"]))])
        say([*rows[-1], *memory[-1][2:]])
    heads = [f"{what}, {n}" for n in ("2 threads", "1 thread") for what in ("fanwise", "ONNX Runtime", "ratio")]
    return f"""### Inference beside ONNX Runtime

Each model as an ONNX file, beside ONNX Runtime {version}: medians of 5 rounds in turn (`fanwise bench`). The geometric mean of
the ratios is {mean_of_two:.2f} with 2 threads and {mean_of_one:.2f} with one. PyTorch exported `bert_base` (128 tokens) and `vit_small`; the others
are built in.

{table(["model", "rows", *heads], rows)}
Of the cases with 2 threads above {GOAL} the operators that take most of the time (runs with `--profile`, which take all rows at
once): their share of it, and of what these threads multiply and move in a second at most.

{table(["model", "rows", "first", "second", "third"], operators)}
The most memory that a process holds beside one without a model, with the weights:

{table(["model", "rows", "fanwise", "ONNX Runtime"], memory)}"""


def repeated(model, rows):
    """A command of some runs."""
    return ["run", str(model), "--gpus", "1", "--batch", str(rows), "--threads", "2", "--repeat", "5"]


def shares(fanwise, model, rows, folder):
    """The seconds of each operator, and its shares of the operations and bytes that are possible in them."""
    profile = folder / "profile.json"
    subprocess.run([fanwise, *repeated(model, rows), f"--profile={profile}"], check=True, capture_output=True)
    told = json.loads(profile.read_text())
    sums = {}
    for step in told["programs"][0]["steps"]:
        own = sums.setdefault(step["operator"], [0, 0, 0])
        for i, key in enumerate(["seconds", "operations", "bytes"]):
            own[i] += step[key]
    peak = [told["peak"]["operations_per_second"], told["peak"]["bytes_per_second"]]
    return {name: [own[0], own[1] / own[0] / peak[0], own[2] / own[0] / peak[1]] for name, own in sums.items()}


def by_operator(fanwise, model, rows, folder):
    """What the three operators do that take most of the time."""
    all = shares(fanwise, model, rows, folder)
    whole = sum(own[0] for own in all.values())
    most = sorted(all.items(), key=lambda item: -item[1][0])[:3]
    cells = [f"{name} {own[0] / whole:.0%}: {own[1]:.0%}, {own[2]:.0%}" for name, own in most]
    return cells + [""] * (3 - len(cells))


def single_operators(fanwise, folder):
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(1)
    files, names = [], []

    def write(name, operator, sizes, weights, **attributes):
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *sizes])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        w = numpy_helper.from_array(rng.normal(size=weights).astype(np.float32), "w")
        nodes = [helper.make_node(operator, ["x", "w"], ["y"], **attributes)]
        graph = helper.make_graph(nodes, "one", [x], [y], [w])
        files.append(folder / f"{len(files)}.onnx")
        names.append(name)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), files[-1])

    for n in PRODUCTS:
        write(f"product of {n}×{n} matrices", "MatMul", [n, n], (n, n))
    for channels, size, filters, kernel, stride, groups in CONVOLUTIONS:
        what = f"{kernel}×{kernel} in groups of one" if groups > 1 else f"{kernel}×{kernel} to {filters}"
        name = f"{channels}×{size}×{size}, {what}" + (f", stride {stride}" if stride > 1 else "")
        sizes = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": groups}
        write(name, "Conv", [channels, size, size], (filters, channels // groups, kernel, kernel), **sizes)
    measured, _, mean = beside_onnxruntime(fanwise, files, [1])
    rows = []
    for name, file, (own, other) in zip(names, files, measured):
        all = shares(fanwise, file, 1, folder)
        [told] = [told for operator, told in all.items() if operator in ("matmul", "conv")]
        rows.append([name, f"{told[1]:.0%}", f"{told[2]:.0%}", short(own["seconds"]), f"{other['speed']:.2f}"])
        say(rows[-1])
    return f"""### Products and convolutions

One row, 2 threads: the share of what these threads multiply and move in a second at most (the step alone, by `--profile`), and
the time of a graph of this operator alone beside ONNX Runtime, where images are put into another order in front and behind. The
geometric mean of the ratios is {mean:.2f}.

{table(["what", "of multiplications", "of memory", "time", "ratio"], rows)}"""


def overhead(fanwise, folder):
    """What a run costs beside its kernels, and how long a process takes to its first result."""
    from onnx import TensorProto, helper, save

    def chain(count):
        x = helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["N", 4])
        y = helper.make_tensor_value_info(f"v{count}", TensorProto.FLOAT, None)
        nodes = [helper.make_node("Softmax", [f"v{i}"], [f"v{i + 1}"], axis=1) for i in range(count)]
        graph = helper.make_graph(nodes, "chain", [x], [y])
        file = folder / f"chain{count}.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), file)
        return file

    measured, _, _ = beside_onnxruntime(fanwise, [chain(1), chain(101)], [1])
    (own, other), (own_many, other_many) = [[one["seconds"] for one in case] for case in measured]
    cells = [("fanwise", own, own_many), ("ONNX Runtime", other, other_many)]
    rows = [[name, short(one), short((many - one) / 100)] for name, one, many in cells]
    say(rows)
    command = [fanwise, "run", folder / "resnet50.onnx", "--gpus", "1", "--batch", "1", "--threads", "2"]

    def first():
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start

    return f"""### What a run costs

A graph of one softmax of a row of four elements, and one of 101, each of the one before, on 2 threads:

{table(["program", "a run of one", "each further launch, with its kernel"], rows)}
A process that reads `resnet50` from its ONNX file, which the system has in memory, and computes one row: {short(statistics.median(first() for _ in range(5)))}.
"""


def devices(fanwise):
    rows = []
    for name, batch in [("mlp", 256), ("transformer", 32), ("transformer", 256), ("mini_googlenet", 32), ("mobilenet_v2", 8)]:
        speeds = []
        for n in DEVICES[1:]:
            told = bench(fanwise, f"zoo:{name}", "--batch", str(batch), "--gpus", str(n))
            one, many = told["cases"][0]["measured"]
            speeds.append(f"{many['speed']:.2f}")
        rows.append([f"`zoo:{name}`", batch, short(one["seconds"]), *speeds])
        say(rows[-1])
    text = "### More virtual devices\n\nThe same rows on more virtual devices of the same 2 threads, relative to the speed of one device.\n\n"
    return text + table(["model", "rows", "one device", *(f"{n} devices" for n in DEVICES[1:])], rows)


def training(fanwise):
    rows = []
    for name, (_, batch, _, _) in training_speed.MODELS.items():
        times = training_speed.steps(fanwise, name)
        own = times.pop("fanwise")
        rows.append([f"`{name}`", batch, short(own), *map(short, times.values()), f"{own / min(times.values()):.2f}"])
        say(rows[-1])
    heads = ["model", "rows", "fanwise", *training_speed.PEERS.values(), "beside the fastest"]
    return f"""### A training step

SGD with momentum, 2 threads, each program in its own process, in turn (`tests/models/training_speed.py`).

{table(heads, rows)}"""


def passes(criterion, memory):
    def figure(name):
        path = criterion / "replicate" / name / "new" / "estimates.json"
        return json.loads(path.read_text())["median"]["point_estimate"] / 1e9

    whole = [("Xception onto 8, mirrored weights", "xception onto 8, mirrored"), ("Xception onto 8, `template` weights", "xception onto 8, template")]
    whole.append(("100,000 synthetic nodes onto 8", "100000 nodes onto 8"))
    rows = [[text, *(short(figure(f"{name}, {part}")) for part in PARTS)] for text, name in whole]
    nodes = [(n, figure(f"nodes onto 8/{n}")) for n in (12_500, 25_000, 50_000, 100_000)]
    replicas = [(n, figure(f"25000 nodes onto/{n}")) for n in (2, 4, 8, 16)]
    claims = [(n, figure(f"claims of nodes/{n}")) for n in (25_000, 50_000, 100_000)]
    series = lambda all: [", ".join(f"{n:,}" for n, _ in all), ", ".join(short(t) for _, t in all)]
    grows = [["nodes onto 8 devices", *series(nodes)], ["devices, of 25,000 nodes", *series(replicas)], ["nodes, claims alone", *series(claims)]]
    million = short(figure("1000000 nodes onto 4"))
    text = f"""### The pass

Rewrite, verification of the result and its proof, without freeing graphs; medians of
[criterion](https://docs.rs/criterion), a library for benchmarks (`cargo bench -p bench --bench passes`).

{table(["what", *PARTS], rows)}
{table(["what grows", "sizes", "times of all three"], grows)}
A million nodes onto 4 devices take {million}. The memory at its peak, besides the template (`--bench pass_memory`):

```text
{memory.strip()}
```
"""
    return text


def kernels(fanwise, folder):
    def compile(cache):
        command = [fanwise, "compile", "zoo:xception", "--gpus", "4", "--target", "cuda", "--arch", "sm_90a", "--emit", f"cubin={folder / 'out'}", "--cache-dir", str(cache)]
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return time.perf_counter() - start

    cold = compile(folder / "cache")
    warm = statistics.median(compile(folder / "cache") for _ in range(3))
    text = f"""### Kernels

The kernels of Xception on 4 devices compiled for `sm_90a`, the whole process: {short(cold)} with an empty cache, {short(warm)} from the
cache.
"""
    return text


def errors(fanwise):
    zoo = [f"zoo:{name}:{IN_PARTS[name]}" if name in IN_PARTS else f"zoo:{name}" for name in sorted(MODELS + OTHERS)]
    folder = pathlib.Path(__file__).parent
    # The older exporter of PyTorch gives the same models.
    files = [path for path in sorted((folder / "exported").glob("*.onnx")) if "script" not in path.name and "erfc" not in path.name]
    command = [sys.executable, folder / "errors.py", fanwise, *zoo, *files]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [[float(cell) for cell in line.split("|")[2:4]] for line in shown.splitlines()[2:]]
    smaller, larger = (sum(sign * own < sign * other for own, other in rows) for sign in (1, -1))
    most = [max(row[i] for row in rows) for i in range(2)]
    return f"""### Errors

How far results in `f32` are from those of the same model in `f64`, 3 rows (`tests/models/errors.py`): the largest error as a
share of the largest element of an output. The last column is of the products of matrices and convolutions alone, each with the
operands that ONNX Runtime computes for it: the largest error of an element as a share of `2^-23 √K` times the sum of the
magnitudes of its `K` terms. Of {len(rows)} models the error of fanwise is smaller in {smaller} and larger in {larger}; the largest of all is
{most[0]:.1e}, ONNX Runtime's {most[1]:.1e}. A test runs these models and those of PyTorch's older exporter, a quarter for each change.

{shown}"""


def main():
    fanwise, criterion, commit, memory, page = sys.argv[1:]
    page = pathlib.Path(page)
    text = page.read_text()
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        parts = [passes(pathlib.Path(criterion), pathlib.Path(memory).read_text()), kernels(fanwise, folder)]
        parts += [inference(fanwise, folder), single_operators(fanwise, folder), overhead(fanwise, folder), devices(fanwise)]
        parts += [training(fanwise), errors(fanwise)]
    head = f"{datetime.date.today()}, {machine()}, commit `{commit}`.\n"
    # Another program that reads the page sees the old one or the new one.
    new = page.with_suffix(".new")
    new.write_text("\n".join([before + MARKS[0], head, *parts, MARKS[1] + after]))
    new.replace(page)


if __name__ == "__main__":
    main()
