"""The snippets of the book run, those of a page one after the other."""

import os
import re
import tempfile
import unittest
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"


def snippets_of(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


class Docs(unittest.TestCase):
    def run_page(self, name):
        self.run_snippets(name, snippets_of(DOCS / name), {})

    def run_snippets(self, name, snippets, scope, then=lambda: None):
        """Runs snippets and then `then` in a folder of their own."""
        self.assertTrue(snippets)
        before = Path.cwd()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.chdir(folder)
            try:
                for snippet in snippets:
                    exec(compile(snippet, name, "exec"), scope)  # noqa: S102
                then()
            finally:
                os.chdir(before)

    def test_python(self):
        self.run_page("python.md")

    def test_front_page(self):
        import keras
        import numpy as np

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
        before = model.get_weights()[0]
        x = np.random.default_rng(0).random((40, 4), np.float32)
        scope = {"model": model, "x": x, "y": np.eye(3)[np.arange(40) % 3]}

        def then():
            kernel = keras.models.load_model("my_model.keras").get_weights()[0]
            np.testing.assert_array_equal(kernel, model.get_weights()[0])
            self.assertFalse(np.array_equal(kernel, before))

        of_keras, _ = snippets_of(ROOT / "README.md")
        self.run_snippets("README.md", [of_keras], scope, then)

    def test_coming_from_keras(self):
        self.run_page("coming-from-keras.md")


if __name__ == "__main__":
    unittest.main()
