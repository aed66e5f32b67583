"""Damaged files of Keras: an error with the place, in little memory and time, and the interpreter
goes on."""

import io
import json
import os
import random
import resource
import struct
import tempfile
import time
import unittest
import zipfile
import zlib
from collections import Counter
from pathlib import Path

import h5py
import keras
import numpy as np
from keras import layers

import fanwise

# How many files are made.
COUNT = 500

# The most that one of them may take: the files themselves have a few KiB.
SECONDS = 5.0
MEBIBYTES = 256


def made(folder):
    """Files of small models, as bytes by their endings."""
    keras.utils.set_random_seed(7)
    x = keras.Input((6,), name="x")
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(4)], name="inner")
    dense = keras.Model(x, layers.Dense(2)(layers.BatchNormalization()(inner(x))))
    x = keras.Input((8, 8, 3))
    images = keras.Model(x, layers.Flatten()(layers.Conv2D(4, 3)(x)))
    x = keras.Input((5,), dtype="int32")
    text = keras.Model(x, layers.LSTM(3)(layers.Embedding(7, 4, mask_zero=True)(x)))
    found = []
    for model in (dense, images, text):
        model.compile("adam", "mse")
        for ending in (".keras", ".h5"):
            path = Path(folder) / f"whole{ending}"
            model.save(path)
            found.append((path.read_bytes(), ending))
    return found


def members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files, how=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def with_config(data, ending, change):
    """A file with another configuration."""
    if ending == ".keras":
        files = members(data)
        files["config.json"] = change(files["config.json"].decode()).encode()
        return packed(files)
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        file.attrs["model_config"] = change(file.attrs["model_config"])
    return buffer.getvalue()


def truncated(rng, data, ending):
    return data[: rng.randrange(len(data))]


def flipped(rng, data, ending):
    data = bytearray(data)
    for _ in range(rng.choice((1, 4, 50))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def blotted(rng, data, ending):
    data, at = bytearray(data), rng.randrange(len(data))
    data[at : at + 200] = rng.randbytes(200)
    return bytes(data)


# What the members of bombs become, and what makes them.
BOMB = 1 << 30


def inflated(files, name, told):
    """An archive with a member of blanks, `told` of them by its headers, of a thousandth on disk."""
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    part = press.compress(b" " * (1 << 20)) + press.flush(zlib.Z_FULL_FLUSH)
    data = packed({**files, name: part * (BOMB >> 20)}, zipfile.ZIP_STORED)
    data, own = bytearray(data), name.encode()
    # Where the headers say how a member is packed, and how large it is.
    for mark, how, size, at in ((b"PK\3\4", 8, 22, 30), (b"PK\1\2", 10, 24, 46)):
        begin = -1
        while (begin := data.find(mark, begin + 1)) >= 0:
            if data[begin + at : begin + at + len(own)] == own:
                struct.pack_into("<H", data, begin + how, zipfile.ZIP_DEFLATED)
                struct.pack_into("<I", data, begin + size, told)
    return bytes(data)


def bomb(rng, data, ending):
    """A member, or a data set, of which the size that is told is much more than that of the file."""
    if ending == ".keras":
        name = rng.choice(("config.json", "model.weights.h5"))
        return inflated(members(data), name, rng.choice((BOMB, len(data), 1 << 20)))
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        (path, _), *_ = arrays(file)
        del file[path]
        shape = rng.choice(((1 << 33,), (1 << 20, 1 << 20), (6, 1 << 30)))
        chunks = (6, 1)[: len(shape)]
        file.create_dataset(path, shape, "f4", chunks=chunks, compression="gzip")
    return buffer.getvalue()


def arrays(file):
    found = []
    file.visititems(
        lambda path, item: found.append((path, item)) if hasattr(item, "shape") else None
    )
    weights = [(path, item) for path, item in found if "optimizer" not in path]
    return [(path, item) for path, item in weights if item.ndim]


def cyclic(rng, data, ending):
    """A layer that is called with its own result, or with that of a layer behind it."""

    def change(text):
        config = json.loads(text)
        *_, before, last = config["config"]["layers"]
        layer, result = rng.choice(((last, last), (before, last)))
        before_it = json.dumps(layer["inbound_nodes"])
        own = next(
            other for other in config["config"]["layers"] if f'"{other["name"]}", 0, 0' in before_it
        )
        changed = before_it.replace(f'"{own["name"]}", 0, 0', f'"{result["name"]}", 0, 0')
        layer["inbound_nodes"] = json.loads(changed)
        return json.dumps(config)

    return with_config(data, ending, change)


def nested(rng, data, ending):
    """A model inside itself, inside itself, and so on."""

    def change(text):
        config = json.loads(text)
        own = config["config"]["layers"]
        for _ in range(rng.choice((3, 30, 300))):
            config = {**config, "config": {**config["config"], "layers": [*own, config]}}
            if len(json.dumps(config)) > 1 << 18:
                break
        return json.dumps(config)

    return with_config(data, ending, change)


def reshaped(rng, data, ending):
    """A weight of another shape or type, or none."""
    files = members(data) if ending == ".keras" else {"": data}
    name = "model.weights.h5" if ending == ".keras" else ""
    buffer = io.BytesIO(files[name])
    with h5py.File(buffer, "r+") as file:
        path, item = rng.choice(arrays(file))
        shape, value = item.shape, item[()]
        del file[path]
        kind = rng.choice(("larger", "flat", "text", "absent", "group"))
        if kind == "larger":
            file[path] = np.zeros([size + 1 for size in shape], np.float32)
        elif kind == "flat":
            file[path] = np.append(value.ravel(), value.ravel()[:1])
        elif kind == "text":
            file[path] = "weights"
        elif kind == "group":
            file.create_group(path)
    files[name] = buffer.getvalue()
    return packed(files) if name else files[name]


def misplaced(rng, data, ending):
    """Paths that lead out of the file."""
    outside = rng.choice(("../../etc/passwd", "/etc/passwd", "C:\\secret", "a/../../b", "~"))
    if ending == ".keras":
        files = members(data)
        name = rng.choice(list(files))
        files[outside] = files.pop(name)
        return packed(files, zipfile.ZIP_STORED)
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        path, _ = rng.choice(arrays(file))
        del file[path]
        link = rng.choice((h5py.ExternalLink("/etc/passwd", "/x"), h5py.SoftLink("/" + path)))
        file[path] = link
    return buffer.getvalue()


def wrong_number(rng, data, ending):
    """A number of the configuration that no layer has."""
    wrong = rng.choice(("-1", "0", "1e308", "99999999999999999999", "1073741824", "null", '"x"'))

    def change(text):
        keys = [key for key in ("units", "filters", "kernel_size", "axis") if f'"{key}": ' in text]
        keys = keys or ["batch_shape"]
        before, key, after = text.partition(f'"{rng.choice(keys)}": ')
        depth, end = 0, 0
        for end, sign in enumerate(after):
            depth += (sign == "[") - (sign == "]")
            if depth == 0 and sign in ",}":
                break
        return before + key + wrong + after[end:]

    return with_config(data, ending, change)


DAMAGE = (truncated, flipped, blotted, bomb, cyclic, nested, reshaped, misplaced, wrong_number)

# What may leave a file that is whole: bits beside what is read, members that nothing needs.
MAY_BE_READ = {"truncated", "flipped", "blotted", "bomb", "nested", "misplaced", "wrong_number"}


class Damaged(unittest.TestCase):
    def load(self, path):
        """The error of a file, or none."""
        begin = time.monotonic()
        try:
            fanwise.load(path)
        except (ValueError, OSError, MemoryError) as error:
            found = error
        else:
            found = None
        self.assertLess(time.monotonic() - begin, SECONDS, path)
        return found

    def test_damaged_files_are_told_of(self):
        seed = int(os.environ.get("FANWISE_SEED", "5"))
        rng, found = random.Random(seed), Counter()
        with tempfile.TemporaryDirectory() as folder:
            whole = made(folder)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(COUNT):
                damage = DAMAGE[number % len(DAMAGE)]
                data, ending = rng.choice(whole)
                path = Path(folder) / f"damaged{ending}"
                path.write_bytes(damage(rng, data, ending))
                error = self.load(path)
                found[damage.__name__, error is None] += 1
                if error is None:
                    self.assertIn(damage.__name__, MAY_BE_READ, f"{number} of seed {seed}")
                    continue
                self.assertRegex(str(error), "damaged|^not an ONNX model: byte", damage.__name__)
                self.assertNotIn("internal error", str(error))
                self.assertNotIn("panic", str(error))
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        self.assertLess(used / 1024, MEBIBYTES)
        if "FANWISE_TOLD" in os.environ:
            print(found, f"{used / 1024:.0f} MiB")
        for damage in DAMAGE:
            self.assertGreater(found[damage.__name__, False], 0, damage.__name__)


if __name__ == "__main__":
    unittest.main()
