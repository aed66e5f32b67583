"""The devices that `gpus` names, and Keras' words for those that it cannot name."""

import unittest
import warnings
from unittest import mock

import numpy as np

from fanwise import _fanwise
from fanwise.keras import multi_gpu_model
from fanwise.keras._devices import choose

FEW = (
    "For multi-gpu usage to be effective, call `multi_gpu_model` with `{}`. Received: `gpus={}`"
).format
ABSENT = (
    "To call `multi_gpu_model` with `gpus={}`, we expect the following devices to be available: "
    "{}. However this machine only has: {}. Try reducing `gpus`."
).format


def on(found):
    return mock.patch.object(_fanwise, "gpus", lambda: found)


class Devices(unittest.TestCase):
    def refused(self, gpus, words, target="auto", found=8):
        with on(found), self.assertRaises(ValueError) as caught:
            choose(gpus, target)
        self.assertEqual(str(caught.exception), words)

    def test_gpus_are_chosen_as_asked(self):
        with on(8), warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(choose(8, "auto"), (list(range(8)), "cuda"))
            self.assertEqual(choose([2, 0], "auto"), ([2, 0], "cuda"))
            self.assertEqual(choose((0, 4), "cuda"), ([0, 4], "cuda"))
            self.assertEqual(choose(np.int64(3), "auto"), ([0, 1, 2], "cuda"))
            for everything in (None, 0, [], (), False):
                self.assertEqual(choose(everything, "auto"), (list(range(8)), "cuda"))
            self.assertEqual(choose(3, "cpu"), ([0, 1, 2], "cpu"))

    def test_virtual_devices_take_the_place_of_missing_gpus(self):
        for gpus, ids in ((4, [0, 1, 2, 3]), ([0, 9], [0, 9]), (None, [0, 1])):
            with on(1), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self.assertEqual(choose(gpus, "auto"), (ids, "cpu"))
            self.assertEqual(len(caught), 1)
            self.assertIn("virtual devices", str(caught[0].message))

    def test_counts_that_are_too_small(self):
        for gpus, shown in ((1, 1), (-2, -2), (True, 1), (2.0, 2.0), (2.5, 2.5), ("2", "2")):
            self.refused(gpus, FEW("gpus >= 2", shown))
        self.refused({0, 1}, FEW("gpus >= 2", {0, 1}))
        self.refused(range(2), FEW("gpus >= 2", "range(0, 2)"))
        self.refused(np.array([0, 1]), FEW("gpus >= 2", "[0 1]"))
        self.refused(np.array(2.0), FEW("gpus >= 2", "2.0"))

    def test_lists_that_are_too_short(self):
        self.refused([0], FEW("len(gpus) >= 2", "[0]"))
        self.refused((0,), FEW("len(gpus) >= 2", "0"))

    def test_nothing_is_named_and_nothing_is_there(self):
        self.refused(None, FEW("gpus >= 2", 0), "cuda", 0)
        self.refused(None, FEW("gpus >= 2", 1), "cuda", 1)

    def test_devices_that_are_not_there(self):
        has = ["/gpu:0", "/gpu:1", "/cpu:0"]
        self.refused([0, 9], ABSENT("[0, 9]", ["/cpu:0", "/gpu:0", "/gpu:9"], has), "cuda", 2)
        wanted = ["/cpu:0", "/gpu:0", "/gpu:1", "/gpu:2"]
        self.refused(3, ABSENT("3", wanted, has), "cuda", 2)
        self.refused([0, -1], ABSENT("[0, -1]", ["/cpu:0", "/gpu:0", "/gpu:-1"], has), "cuda", 2)
        for target, found in (("auto", 2), ("cuda", 2), ("cpu", 0)):
            only = ["/gpu:0", *(["/gpu:1"] if found else []), "/cpu:0"]
            twice = ABSENT("[0, 0]", ["/cpu:0", "/gpu:0", "/gpu:0"], only)
            self.refused([0, 0], twice, target, found)
        for wrong in (["0", 1], [0.0, 1], [None, 1], [True, 0]):
            with self.assertRaisesRegex(ValueError, "^To call `multi_gpu_model` with `gpus="):
                choose(wrong, "cpu")

    def test_the_function_checks_its_other_arguments(self):
        for wrong in ({"target": "tpu"}, {"reproducible": True}, {"reproducible": "yes"}):
            with self.assertRaises(ValueError):
                multi_gpu_model(None, 2, **wrong)


if __name__ == "__main__":
    unittest.main()
