"""The command line: `python -m fanwise`."""

import signal
import sys

from . import _fanwise


def main() -> int:
    """Runs the command line with the arguments of the process; its exit code."""
    # Python's handler would wait for the command to end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _fanwise.main(["fanwise", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
