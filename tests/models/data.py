"""Writes data as NumPy does: `stored.npz`, `deflated.npz`, `x.npy`, and what they hold in `expected.npz`.

data.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np

FOLDER = Path(sys.argv[1])
RNG = np.random.default_rng(7)


def main():
    arrays = {
        "x": RNG.standard_normal((50, 3, 4)).astype(np.float32),
        "big": RNG.integers(-1000, 1000, (50, 2)).astype(">i4"),
        "turned": np.asfortranarray(RNG.standard_normal((50, 5, 2))),
        "y": RNG.integers(0, 10, 50),
        "flag": RNG.integers(0, 2, (50, 3)).astype(bool),
        "half": RNG.standard_normal((50,)).astype(np.float16),
        "bytes": RNG.integers(0, 256, (50, 40, 50), dtype=np.uint8),
    }
    np.savez(FOLDER / "stored.npz", **arrays)
    np.savez_compressed(FOLDER / "deflated.npz", **arrays)
    np.save(FOLDER / "x.npy", arrays["turned"])
    plain = {name: np.ascontiguousarray(a.astype(a.dtype.newbyteorder("="))) for name, a in arrays.items()}
    np.savez(FOLDER / "expected.npz", **plain)


main()
