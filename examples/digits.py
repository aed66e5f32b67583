"""Writes scikit-learn's digits, scaled to 32 by 32 pixels of three channels, as arrays for training.

Usage: digits.py FOLDER

`train.npz` has four fifths of the 1797 images, `test.npz` the others: `x` with rows of [32, 32, 3] from 0 to 1, and `y`
with the digit.
"""

import gzip
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def main(folder: Path) -> None:
    # The file of the package is read without its other parts.
    package = Path(find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets/data/digits.csv.gz", "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    table = table[np.random.default_rng(0).permutation(len(table))]
    images = (table[:, :64] / 16).astype(np.float32).reshape(-1, 8, 8)
    x = np.repeat(images.repeat(4, axis=1).repeat(4, axis=2)[..., None], 3, axis=3)
    y = table[:, 64].astype(np.int64)
    cut = len(y) * 4 // 5
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "train.npz", x=x[:cut], y=y[:cut])
    np.savez(folder / "test.npz", x=x[cut:], y=y[cut:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
