"""Counts which part of the instructions in the main loops of kernels multiply and add: the densities of tests/gpu/expect.

Usage: python density.py NVDISASM CUBINS SOURCES

NVDISASM is the disassembler of the CUDA toolkit, or of Triton's package. CUBINS and SOURCES are the folders that
`fanwise compile MODEL --target cuda --arch sm_90a --emit cubin=CUBINS,cuda=SOURCES` writes; with `:training` behind both
kinds those of a step. Prints, of each kind of kernel, the elements of a thread in a tile, whether there are several taps
and whether elements are read one by one, and the densities of all such kernels.
"""

import collections
import pathlib
import re
import subprocess
import sys

KINDS = {"conv", "matmul", "conv_weight_grad", "few_weight_grad", "depthwise", "recurrent", "recurrent_grad"}


def instructions(text):
    """The instructions of a kernel, and where its labels are."""
    found, labels = [], {}
    for line in text.splitlines():
        if label := re.match(r"\s*\.(L_x_\d+):", line):
            labels[label.group(1)] = len(found)
        if instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            found.append(instruction.group(1))
    return found, labels


def density(text):
    """That of the loop with the most multiply-adds."""
    found, labels = instructions(text)
    best = (0, 1)
    for at, instruction in enumerate(found):
        back = re.search(r"BRA.*`\(\.(L_x_\d+)\)", instruction)
        loop = found[labels.get(back.group(1), at) : at + 1] if back else []
        best = max(best, (sum("FFMA" in one for one in loop), len(loop)), key=lambda loop: loop[0])
    return best[0] / best[1]


def main():
    nvdisasm, cubins, sources = sys.argv[1:]
    all = collections.defaultdict(list)
    for cubin in sorted(pathlib.Path(cubins).glob("*.cubin")):
        source = (pathlib.Path(sources) / cubin.with_suffix(".cu").name).read_text()
        shown = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
        kernels = re.split(r"\n\s*\.section\s+\.text\.", shown)[1:]
        # Of several kernels in a file the definitions are not told apart.
        if len(kernels) > 1 and "#define TM" in source:
            continue
        number = lambda name: int((re.findall(rf"#define {name} (\d+)", source) or [0])[0])
        for kernel in kernels:
            kind = kernel.split(",")[0].strip().rsplit("_", 1)[0]
            if kind in KINDS:
                scalar = any(f"#define {flag}_VECTORS 0" in source for flag in ("X", "A"))
                all[kind, number("TM") * number("TN"), number("TAPS") > 1, scalar].append(density(kernel))
    for (kind, elements, taps, scalar), found in sorted(all.items()):
        words = [kind, f"{elements} elements", "taps" if taps else "", "scalar" if scalar else ""]
        print(*filter(None, words), *(f"{one:.2f}" for one in sorted(found)))


main()
