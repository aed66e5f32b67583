"""Models, replicated graphs and their errors."""

import _thread
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.dom.minidom
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import fanwise

MODEL = "zoo:mlp:narrow=32"


class Graphs(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(1)
        self.x = rng.standard_normal((7, 784), np.float32)

    def test_devices_do_not_change_the_outputs(self):
        one = fanwise.replicate(MODEL, target="cpu").run({"image": self.x})
        for gpus in (2, [3, 0, 1], range(8)):
            many = fanwise.replicate(MODEL, gpus, target="cpu", shards="balanced")
            found = many.run({"image": self.x})
            self.assertEqual(found["predictions"].tobytes(), one["predictions"].tobytes())
            self.assertTrue(many.check(5))

    def test_a_graph_tells_about_itself(self):
        graph = fanwise.replicate(MODEL, 3, target="cpu")
        self.assertEqual(graph.shards, [("gpu:0", "N/3"), ("gpu:1", "N/3"), ("gpu:2", "N-2*(N/3)")])
        self.assertIn("concat(", graph.emit("graph"))
        self.assertNotIn("concat(", graph.emit("graph:input"))
        for kind in ("graph:repaired", "json", "dot", "program", "memory"):
            self.assertTrue(graph.emit(kind, batch=9))
        self.assertIn("shard(0)", graph.claims())
        self.assertIn("remainder-last", graph.explain())
        self.assertTrue(graph.verify().startswith("3 replicas compute what the template does"))
        self.assertIn("N-2*(N/3)", graph._repr_html_())
        xml.dom.minidom.parseString(graph._repr_svg_())

    def test_a_model_is_written_and_read(self):
        expected = fanwise.replicate(MODEL, target="cpu").run({"image": self.x})["predictions"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            fanwise.replicate(MODEL, 2, target="cpu").save(path)
            onnx.checker.check_model(str(path))
            session = onnxruntime.InferenceSession(str(path))
            (found,) = session.run(None, {"image": self.x})
            np.testing.assert_allclose(found, expected, atol=1e-6)
            fan = Path(folder) / "model.fan"
            fanwise.load(path).save(fan)
            again = fanwise.replicate(fan, 3, target="cpu").run({"image": self.x})["predictions"]
            self.assertEqual(again.tobytes(), expected.tobytes())
            with self.assertRaisesRegex(ValueError, "endings"):
                fanwise.load(path).save(Path(folder) / "model.txt")

    def test_a_refusal_names_the_operator(self):
        text = (
            "fanwise 1\nsymbol N >= 0\ngraph @net(%x: f32[N,2]) -> (y: f32[N,2]) {\n"
            "  %y : f32[N,2] = softmax(%x) {axis=0}\n  return %y\n}\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.fan"
            path.write_text(text)
            with self.assertRaises(fanwise.RefusedError) as caught:
                fanwise.replicate(path, 2, target="cpu", repair="none")
        error = caught.exception
        self.assertIsInstance(error, ValueError)
        self.assertRegex(error.code, r"^R\d{4}$")
        self.assertEqual((error.operator, error.layer), ("softmax", "y"))
        self.assertTrue(error.hints)

    def test_errors_have_their_kinds(self):
        graph = fanwise.replicate(MODEL, 2, target="cpu")
        with self.assertRaisesRegex(ValueError, "f32\\[N,784\\]"):
            graph.run({"image": self.x[:, :3]})
        with self.assertRaises(FileNotFoundError):
            fanwise.load("/no/such/file")
        with self.assertRaises(fanwise.Error) as caught:
            fanwise.load("zoo:nothing")
        self.assertTrue(caught.exception.code.startswith("E"))
        for wrong in ([0, 0], [], 0, -1, [-1, 2]):
            with self.assertRaises(ValueError):
                fanwise.replicate(MODEL, wrong, target="cpu")
        for setting in ("shards", "merge", "weights", "repair", "batch_norm", "target"):
            with self.assertRaises(ValueError):
                fanwise.replicate(MODEL, 2, **{"target": "cpu", setting: "x"})

    def test_ctrl_c_ends_the_wait(self):
        # A process that was started in the background ignores the signal.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, handler)
        graph = fanwise.replicate("zoo:mlp", 2, target="cpu")
        x = np.zeros((200_000, 784), np.float32)
        threading.Timer(0.1, _thread.interrupt_main).start()
        start = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            for _ in range(100):
                graph.run({"image": x})
        self.assertLess(time.monotonic() - start, 2)

    def test_threads_go_on_during_a_run(self):
        graph = fanwise.replicate("zoo:mlp", 2, target="cpu")
        x, turns, is_over = np.zeros((20_000, 784), np.float32), [], threading.Event()
        thread = threading.Thread(
            target=lambda: [turns.append(1) for _ in iter(is_over.is_set, True)]
        )
        thread.start()
        before = len(turns)
        graph.run({"image": x})
        passed = len(turns) - before
        is_over.set()
        thread.join()
        self.assertGreater(passed, 100)

    def test_a_fork_is_told_that_it_has_no_threads(self):
        graph = fanwise.replicate(MODEL, 2, target="cpu")
        graph.run({"image": self.x})
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            told = "it ran"
            try:
                graph.run({"image": self.x})
            except RuntimeError as error:
                told = str(error)
            finally:
                os.write(writer, told.encode())
                os._exit(0)
        os.waitpid(child, 0)
        self.assertIn("prepared before the process was forked", os.read(reader, 1000).decode())

    def test_the_import_is_quick(self):
        script = (
            "import time; t = time.perf_counter(); import fanwise; print(time.perf_counter() - t)"
        )
        times = [float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(3)]
        self.assertLess(min(times), 0.15)


if __name__ == "__main__":
    unittest.main()
