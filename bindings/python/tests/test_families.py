"""Models of Keras from the live object, from `.keras` and from `.h5`, beside Keras itself, and the
same bits on any number of devices."""

import os
import tempfile
import unittest
from pathlib import Path

import keras
import numpy as np
from architectures import FAMILIES, SMALL, WRITTEN, application, rows, stirred
from turns import in_turn

import fanwise
from fanwise.keras import multi_gpu_model

# Fewer rows than devices, as many, and more.
BATCHES = (3, 8, 13)


class Families(unittest.TestCase):
    def near(self, found, expected, what):
        for own, theirs in zip(found, expected, strict=True):
            self.assertEqual(own.shape, theirs.shape)
            largest = np.abs(theirs).max()
            # Rows that are all alike would prove nothing; untrained deep networks make them similar.
            self.assertGreater(np.abs(theirs - theirs[:1]).max(), 1e-6 * largest, what)
            error = np.abs(own - theirs).max() / largest
            if "FANWISE_TOLD" in os.environ:
                print(f"{what}: {error:.2e}", flush=True)
            self.assertLessEqual(error, 1e-4, what)

    def outputs(self, source, gpus, given):
        """The outputs of a graph, in their order."""
        graph = fanwise.replicate(source, gpus, target="cpu")
        found = graph.run(given)
        return [np.asarray(found[name]) for name in graph.outputs]

    def check(self, model, name):
        given = rows(model, 7)
        data = given if len(given) > 1 else next(iter(given.values()))
        expected = keras.tree.flatten(model(data))
        expected = [keras.ops.convert_to_numpy(y) for y in expected]
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"model{ending}" for ending in (".keras", ".h5")]
            for path in paths:
                model.save(path)
            for source in (model, *paths):
                found = self.outputs(source, 3, given)
                self.near(found, expected, f"{name} from {getattr(source, 'suffix', 'live')}")
            self.same_bits(paths[0], model, name)
        parallel = multi_gpu_model(model, 3, target="cpu")
        found = keras.tree.flatten(parallel.predict(data, batch_size=7, verbose=0))
        self.near(found, expected, f"{name} by predict")

    def same_bits(self, path, model, name):
        """The same bits on 1 to 8 devices."""
        graphs = {gpus: fanwise.replicate(path, gpus, target="cpu") for gpus in range(1, 9)}
        for batch in BATCHES:
            given = rows(model, batch, seed=batch)
            bits = {
                gpus: [np.asarray(y).tobytes() for y in graph.run(given).values()]
                for gpus, graph in graphs.items()
            }
            for gpus in range(2, 9):
                self.assertEqual(bits[gpus], bits[1], f"{name}: {gpus} devices, {batch} rows")

    def test_families_of_applications(self):
        for name in in_turn(FAMILIES, 1, most=SMALL):
            with self.subTest(name):
                self.check(stirred(application, name), name)
                keras.backend.clear_session()

    def test_models_that_people_write(self):
        for make in in_turn(WRITTEN, 2):
            with self.subTest(make.__name__):
                self.check(stirred(make), make.__name__)


if __name__ == "__main__":
    unittest.main()
