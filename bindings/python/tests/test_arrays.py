"""Arrays in and out."""

import gc
import unittest
import weakref

import jax.numpy as jnp
import ml_dtypes
import numpy as np

import fanwise
from fanwise import _arrays


class Arrays(unittest.TestCase):
    def test_every_element_type_keeps_its_bits(self):
        names = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]
        for dtype in [*map(np.dtype, names), np.dtype(ml_dtypes.bfloat16)]:
            for shape in [(), (0, 3), (5,), (2, 3, 4)]:
                array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
                tensor = _arrays.tensor(array)
                self.assertEqual(tensor.shape, shape)
                back = _arrays.numpy(tensor)
                self.assertEqual((back.dtype, back.shape), (dtype, shape))
                self.assertEqual(back.tobytes(), array.tobytes())

    def test_nothing_is_copied(self):
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        address = array.__array_interface__["data"][0]
        tensor = fanwise.Tensor(array)
        for back in (
            np.asarray(tensor),
            np.from_dlpack(tensor),
            np.asarray(fanwise.Tensor(tensor)),
        ):
            self.assertEqual(back.__array_interface__["data"][0], address)
            np.testing.assert_array_equal(back, array)
        other = jnp.arange(4.0)
        self.assertEqual(
            np.asarray(_arrays.tensor(other)).__array_interface__["data"][0],
            np.asarray(other).__array_interface__["data"][0],
        )

    def test_memory_lives_as_long_as_somebody_reads_it(self):
        array = np.arange(1000, dtype=np.float64)
        held = weakref.ref(array)
        view = np.from_dlpack(fanwise.Tensor(array))
        del array
        gc.collect()
        self.assertEqual(view.sum(), 499500)
        self.assertIsNotNone(held())
        del view
        gc.collect()
        self.assertIsNone(held())

    def test_other_orders_are_copied(self):
        array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
        for other in (
            array.T,
            array[:, ::2],
            array[::-1],
            array.astype(">i4"),
            np.asfortranarray(array),
        ):
            np.testing.assert_array_equal(_arrays.numpy(_arrays.tensor(other)), other)

    def test_a_view_of_another_array_is_only_read(self):
        array = np.zeros(3, np.float32)
        self.assertFalse(np.asarray(fanwise.Tensor(array)).flags.writeable)

    def test_what_is_no_array_is_refused(self):
        for wrong in (object(), np.array(["a"]), np.array([1j])):
            with self.assertRaises(TypeError):
                _arrays.tensor(wrong)
        with self.assertRaises(TypeError):
            fanwise.Tensor([1.0])
        with self.assertRaises(ValueError):
            fanwise.Tensor(np.zeros(3, np.float32), dtype="bf16")


if __name__ == "__main__":
    unittest.main()
