"""Runs the scripts of this folder, each in a process forked from this one, which has imported what they need.

    python serve.py SOCKET

prints a line when it listens at SOCKET, and ends when its standard input does. A connection sends one line, a script and its
arguments as JSON; it gets what the script prints and, as the last line, its exit code.
"""

import json
import os
import runpy
import select
import socketserver
import sys
import traceback

# The imports that take long, once for all scripts.
import numpy
import onnx
import onnxruntime


class Run(socketserver.StreamRequestHandler):
    def handle(self):
        sys.argv = json.loads(self.rfile.readline())
        for stream in (1, 2):
            os.dup2(self.connection.fileno(), stream)
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        print(f"\n{code}", end="", flush=True)


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    def service_actions(self):
        super().service_actions()
        if select.select([0], [], [], 0)[0]:
            os.unlink(self.server_address)
            os._exit(0)


if __name__ == "__main__":
    with Server(sys.argv[1], Run) as server:
        print("listening", flush=True)
        server.serve_forever()
