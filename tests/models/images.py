"""Writes the images in `images/` with Pillow 13.0.0: JPEG files, and beside each what Pillow reads of it as PNG.

The pictures are smooth, so that what decoders may do differently, as the filter of subsampled colours, stays small.
"""

from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path(__file__).parent / "images"


def picture(height, width):
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [np.sin(x / 9 + y / 17), np.cos(x / 13 - y / 7), np.sin((x + y) / 23)]
    return np.stack([127.5 + 120 * wave for wave in waves], axis=-1).round().astype(np.uint8)


def main():
    FOLDER.mkdir(exist_ok=True)
    colours = Image.fromarray(picture(37, 45))
    forms = {
        "baseline": (colours, {"subsampling": 0}),
        "subsampled": (colours, {"subsampling": 2}),
        "progressive": (colours, {"subsampling": 0, "progressive": True}),
        "grey": (colours.convert("L"), {}),
    }
    for name, (image, options) in forms.items():
        path = FOLDER / f"{name}.jpg"
        image.save(path, quality=90, **options)
        Image.open(path).save(path.with_suffix(".png"), optimize=True)


main()
