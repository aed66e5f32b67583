"""The command line: `python -m fanwise`."""

import subprocess
import sys
import unittest


def run(*arguments):
    command = [sys.executable, "-m", "fanwise", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


class CommandLine(unittest.TestCase):
    def test_it_is_that_of_the_library(self):
        found = run("check", "zoo:mlp:narrow=32", "--gpus", "3", "--target", "cpu")
        self.assertEqual(found.returncode, 0, found.stderr)
        self.assertIn("equal in every bit", found.stdout)

    def test_exit_codes_are_kept(self):
        self.assertEqual(run("--no-such-option").returncode, 2)
        self.assertEqual(run("run", "/no/such/file").returncode, 2)
        self.assertIn("Usage: fanwise", run("--help").stdout)


if __name__ == "__main__":
    unittest.main()
