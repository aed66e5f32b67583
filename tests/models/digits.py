"""Writes scikit-learn's digits (1797 images of 8x8 pixels of 0..16, UCI's test set) as arrays for training.

Usage: digits.py OUT_DIR

The images are those of the file that the package scikit-learn ships, scaled to 0..1 and put into an order drawn from
SEED; four fifths are for training. `train.npz` and `test.npz` have rows of 64 pixels, `train_images.npz` and
`test_images.npz` the same as images; `y` has a 1 at the place of the digit.
"""

import gzip
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

SEED = 20


def digits() -> np.ndarray:
    # The package itself is not imported: it would ask for others that nothing here needs.
    package = Path(find_spec("sklearn").origin).parent
    with gzip.open(package / "datasets/data/digits.csv.gz", "rt") as lines:
        return np.loadtxt(lines, delimiter=",")


def main(out: Path) -> None:
    table = digits()
    assert table.shape == (1797, 65)
    table = table[np.random.default_rng(SEED).permutation(len(table))]
    x = (table[:, :64] / 16).astype(np.float32)
    y = np.eye(10, dtype=np.float32)[table[:, 64].astype(int)]
    cut = len(table) * 4 // 5
    for name, part in [("train", slice(0, cut)), ("test", slice(cut, None))]:
        np.savez(out / f"{name}.npz", x=x[part], y=y[part])
        np.savez(out / f"{name}_images.npz", x=x[part].reshape(-1, 1, 8, 8), y=y[part])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
