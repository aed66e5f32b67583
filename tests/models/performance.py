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
BATCHES = [1, 8, 32]
DEVICES = [1, 2, 4, 8]
# Models of which errors alone are measured, and those measured in a smaller form.
OTHERS = ["gru", "nested", "siamese", "two_head", "video"]
IN_PARTS = {"mobilenet_v2": "narrow=4,pixels=64", "resnet50": "narrow=8,pixels=64", "xception": "narrow=8,pixels=71"}
PARTS = ["rewrite", "verification", "proof", "whole"]
# Of a case that takes longer than this beside ONNX Runtime the operators are told.
GOAL = 1.1


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


def bench(fanwise, *args):
    """The cases that `fanwise bench` measures, 2 threads, and its means."""
    command = [fanwise, "bench", *args, "--threads", "2", "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    return json.loads(done.stdout)


def inference(fanwise, folder):
    files = []
    for name in MODELS:
        files.append(str(folder / f"{name}.onnx"))
        subprocess.run([fanwise, "compile", f"zoo:{name}", "--emit", f"onnx={files[-1]}"], check=True, capture_output=True)
    batches = ",".join(map(str, BATCHES))
    told = bench(fanwise, *files, "--batch", batches, "--against", "onnxruntime", "--python", sys.executable)
    rows, operators = [], []
    for case in told["cases"]:
        mine, theirs = case["measured"]
        name = pathlib.Path(case["model"]).stem
        if theirs["speed"] > GOAL:
            operators.append([f"`zoo:{name}`", case["rows"], *by_operator(fanwise, case["model"], case["rows"], folder)])
        # A speed is that of the other program, which is how much longer fanwise takes.
        rows.append([f"`zoo:{name}`", case["rows"], short(mine["seconds"]), short(theirs["seconds"]), f"{theirs['speed']:.2f}"])
        say(rows[-1])
    [mean] = told["geometric_means"]
    text = f"""### Inference beside ONNX Runtime

Each model as an ONNX file, 2 threads, medians of {told["rounds"]} rounds in turn (`fanwise bench`). The geometric mean of the
ratios is {mean["speed"]:.2f}.

"""
    version = mean["name"].removeprefix("onnxruntime ")
    text += table(["model", "rows", "fanwise", f"ONNX Runtime {version}", "ratio"], rows)
    return text + f"""
Of the cases above {GOAL} the operators that take most of the time (runs with `--profile`): their share of it, and of what these
threads multiply and move in a second at most.

{table(["model", "rows", "first", "second", "third"], operators)}"""


def by_operator(fanwise, model, rows, folder):
    """What the three operators do that take most of the time."""
    profile = folder / "profile.json"
    command = [fanwise, "run", model, "--gpus", "1", "--batch", str(rows), "--threads", "2", "--repeat", "20", f"--profile={profile}"]
    subprocess.run(command, check=True, capture_output=True)
    told = json.loads(profile.read_text())
    sums = {}
    for step in told["programs"][0]["steps"]:
        own = sums.setdefault(step["operator"], [0, 0, 0])
        for i, key in enumerate(["seconds", "operations", "bytes"]):
            own[i] += step[key]
    whole = sum(own[0] for own in sums.values())
    most = sorted(sums.items(), key=lambda item: -item[1][0])[:3]
    peak = [told["peak"]["operations_per_second"], told["peak"]["bytes_per_second"]]
    shares = lambda own: [own[0] / whole, own[1] / own[0] / peak[0], own[2] / own[0] / peak[1]]
    cells = [f"{name} {{:.0%}}: {{:.0%}}, {{:.0%}}".format(*shares(own)) for name, own in most]
    return cells + [""] * (3 - len(cells))


def devices(fanwise):
    rows = []
    for name, batch in [("mlp", 256), ("transformer", 32), ("mini_googlenet", 32), ("mobilenet_v2", 8)]:
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
    rounds = training_speed.rounds(fanwise)
    names = {"fanwise": "fanwise", "torch-channels-last": "PyTorch, channels last", "torch": "PyTorch, channels first"}
    names |= {"keras-tensorflow": "Keras on TensorFlow", "keras-jax": "Keras on JAX"}
    median = lambda name, i: statistics.median(r[name][i] for r in rounds)
    fastest = min(median(name, 0) for name in names)
    rows = [[text, short(median(name, 0)), f"{median(name, 0) / fastest:.2f}", short(median(name, 1))] for name, text in names.items()]
    rows.sort(key=lambda row: float(row[2]))
    text = """### A training step

One step of MiniGoogLeNet: 64 images of 32×32 pixels, SGD with momentum, 2 threads, each program in its own process, in turn
(`tests/models/training_speed.py`).

"""
    return text + table(["what", "step", "relative to the fastest", "processor time"], rows)


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
        parts += [inference(fanwise, folder), devices(fanwise), training(fanwise), errors(fanwise)]
    head = f"{datetime.date.today()}, {machine()}, commit `{commit}`.\n"
    # Another program that reads the page sees the old one or the new one.
    new = page.with_suffix(".new")
    new.write_text("\n".join([before + MARKS[0], head, *parts, MARKS[1] + after]))
    new.replace(page)


if __name__ == "__main__":
    main()
