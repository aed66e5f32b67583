"""Runs a command in a terminal of 100 columns, and prints what it shows there.

    python terminal.py COMMAND [ARGUMENT …]
"""

import os
import pty
import sys
import termios

pid, terminal = pty.fork()
if pid == 0:
    termios.tcsetwinsize(0, (40, 100))
    os.execv(sys.argv[1], sys.argv[1:])
shown = bytearray()
while True:
    try:
        read = os.read(terminal, 65536)
    except OSError:  # Linux says so of a terminal that nobody writes to any more.
        break
    if not read:
        break
    shown += read
print(shown.decode(errors="replace"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
