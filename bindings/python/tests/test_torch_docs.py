"""The snippets of the page about PyTorch run."""

import unittest

import test_docs


class Docs(unittest.TestCase):
    run_page = test_docs.Docs.run_page

    def test_pytorch(self):
        self.run_page("pytorch.md")


if __name__ == "__main__":
    unittest.main()
