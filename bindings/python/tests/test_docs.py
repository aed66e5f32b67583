"""The snippets of the book run, those of a page one after the other."""

import os
import re
import tempfile
import unittest
import warnings
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


class Docs(unittest.TestCase):
    def run_page(self, name):
        snippets = re.findall(
            r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL
        )
        self.assertTrue(snippets)
        before, scope = Path.cwd(), {}
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.chdir(folder)
            try:
                for snippet in snippets:
                    exec(compile(snippet, name, "exec"), scope)  # noqa: S102
            finally:
                os.chdir(before)

    def test_python(self):
        self.run_page("python.md")

    def test_coming_from_keras(self):
        self.run_page("coming-from-keras.md")


if __name__ == "__main__":
    unittest.main()
