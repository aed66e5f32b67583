//! Arrays of Python in and out, without copies: the buffer protocol and `DLPack`. The only file of
//! the bindings with `unsafe`.
#![allow(unsafe_code, reason = "both protocols are structs of pointers")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use bytes::Bytes;
use fanwise::types::{DType, Tensor};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::error::raised;

/// The device type of host memory in `DLPack`, and that of pinned host memory.
const DL_CPU: [i32; 2] = [1, 3];

/// The version of the structs below.
const DL_VERSION: (u32, u32) = (1, 0);

#[derive(Clone, Copy)]
#[repr(C)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

#[repr(C)]
struct DlVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// The names of capsules that hold these, before and after somebody took what they hold.
const MANAGED: (&CStr, &CStr) = (c"dltensor", c"used_dltensor");
const VERSIONED: (&CStr, &CStr) = (c"dltensor_versioned", c"used_dltensor_versioned");

/// The element types with their codes and bits in `DLPack`.
const DL_TYPES: [(DType, u8, u8); 13] = [
    (DType::I64, 0, 64),
    (DType::I32, 0, 32),
    (DType::I16, 0, 16),
    (DType::I8, 0, 8),
    (DType::U64, 1, 64),
    (DType::U32, 1, 32),
    (DType::U16, 1, 16),
    (DType::U8, 1, 8),
    (DType::F64, 2, 64),
    (DType::F32, 2, 32),
    (DType::F16, 2, 16),
    (DType::Bf16, 4, 16),
    (DType::Bool, 6, 8),
];

/// The letter of an element type in the buffer protocol; of `bf16`, which it does not have, that of
/// its bits.
const fn letter(dtype: DType) -> &'static CStr {
    match dtype {
        DType::F64 => c"d",
        DType::F32 => c"f",
        DType::F16 => c"e",
        DType::I64 => c"q",
        DType::I32 => c"i",
        DType::I16 => c"h",
        DType::I8 => c"b",
        DType::U64 => c"Q",
        DType::U32 => c"I",
        DType::U16 | DType::Bf16 => c"H",
        DType::U8 => c"B",
        DType::Bool => c"?",
    }
}

/// The element type of a format and a width; the width decides where the letter depends on the
/// platform.
fn dtype_of(format: &str, width: isize) -> Option<DType> {
    let native = if cfg!(target_endian = "little") { '<' } else { '>' };
    let letter = format.trim_start_matches(['@', '=', native]);
    Some(match (letter, width) {
        ("d", 8) => DType::F64,
        ("f", 4) => DType::F32,
        ("e", 2) => DType::F16,
        ("?", 1) => DType::Bool,
        ("b" | "h" | "i" | "l" | "q" | "n", 1) => DType::I8,
        ("b" | "h" | "i" | "l" | "q" | "n", 2) => DType::I16,
        ("b" | "h" | "i" | "l" | "q" | "n", 4) => DType::I32,
        ("b" | "h" | "i" | "l" | "q" | "n", 8) => DType::I64,
        ("B" | "H" | "I" | "L" | "Q" | "N", 1) => DType::U8,
        ("B" | "H" | "I" | "L" | "Q" | "N", 2) => DType::U16,
        ("B" | "H" | "I" | "L" | "Q" | "N", 4) => DType::U32,
        ("B" | "H" | "I" | "L" | "Q" | "N", 8) => DType::U64,
        _ => return None,
    })
}

/// What has to be given back when borrowed memory is no longer used.
enum Owner {
    Buffer(Box<ffi::Py_buffer>),
    Managed(*mut DlManaged),
    Versioned(*mut DlVersioned),
}

/// Memory of a Python object, which is not freed or moved before this is dropped.
struct Borrowed {
    data: *const u8,
    len: usize,
    owner: Owner,
}

// SAFETY: the memory is only read, and `drop` takes the interpreter's lock.
unsafe impl Send for Borrowed {}

impl AsRef<[u8]> for Borrowed {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the owner states so many bytes from there, which live until `drop`.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Without an interpreter there is no object to give back to.
        let _ = Python::try_attach(|_| match &mut self.owner {
            Owner::Buffer(view) => {
                // SAFETY: the view was filled by `PyObject_GetBuffer`, and is released once.
                unsafe { ffi::PyBuffer_Release(&raw mut **view) }
            }
            Owner::Managed(managed) => {
                // SAFETY: the struct was taken from its capsule, so it is ours.
                let deleter = unsafe { (**managed).deleter };
                if let Some(deleter) = deleter {
                    // SAFETY: it is called once, with its own struct.
                    unsafe { deleter(*managed) }
                }
            }
            Owner::Versioned(managed) => {
                // SAFETY: the struct was taken from its capsule, so it is ours.
                let deleter = unsafe { (**managed).deleter };
                if let Some(deleter) = deleter {
                    // SAFETY: it is called once, with its own struct.
                    unsafe { deleter(*managed) }
                }
            }
        });
    }
}

/// The tensor with the elements of a Python array: of one that has the buffer protocol or `DLPack`,
/// in host memory. It is not copied where its elements lie in row-major order.
pub(crate) fn tensor(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Ok(own) = array.cast::<PyTensor>() {
        return Ok(own.get().tensor.clone());
    }
    // SAFETY: asks an object about its type, with the lock held.
    if unsafe { ffi::PyObject_CheckBuffer(array.as_ptr()) } == 1 {
        return of_buffer(array);
    }
    if array.hasattr("__dlpack__")? {
        return of_dlpack(array);
    }
    let kind = array.get_type().fully_qualified_name()?;
    Err(PyTypeError::new_err(format!(
        "expected an array (NumPy, JAX, PyTorch, TensorFlow …), not {kind}"
    )))
}

/// A view of an object's memory.
fn view(array: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Box<ffi::Py_buffer>> {
    let mut view = Box::new(ffi::Py_buffer::new());
    // SAFETY: the struct is ours, and filled where the call succeeds.
    let failed = unsafe { ffi::PyObject_GetBuffer(array.as_ptr(), &raw mut *view, flags) } != 0;
    if failed { Err(PyErr::fetch(array.py())) } else { Ok(view) }
}

fn of_buffer(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let in_order = view(array, ffi::PyBUF_FORMAT | ffi::PyBUF_C_CONTIGUOUS);
    let is_contiguous = in_order.is_ok();
    let view = match in_order {
        Ok(view) => view,
        Err(_) => view(array, ffi::PyBUF_FULL_RO)?,
    };
    let len = usize::try_from(view.len)?;
    let owner =
        Borrowed { data: view.buf.cast::<u8>().cast_const(), len, owner: Owner::Buffer(view) };
    let Owner::Buffer(view) = &owner.owner else { return Err(unsupported("?")) };
    // SAFETY: a view with a format has a text that lives as long as the view.
    let format = (!view.format.is_null()).then(|| unsafe { CStr::from_ptr(view.format) });
    // A view without a format is one of bytes.
    let format = format.map_or_else(|| "B".into(), CStr::to_string_lossy).into_owned();
    let dtype = dtype_of(&format, view.itemsize).ok_or_else(|| unsupported(&format))?;
    let rank = usize::try_from(view.ndim)?;
    let shape: &[isize] = if rank == 0 {
        &[]
    } else {
        // SAFETY: a view with strides or in row-major order has a shape of that many sizes.
        unsafe { std::slice::from_raw_parts(view.shape, rank) }
    };
    let dims = shape.iter().map(|size| usize::try_from(*size)).collect::<Result<Vec<_>, _>>()?;
    if is_contiguous {
        return shared(dtype, &dims, owner);
    }
    let mut copy = Tensor::zeros(dtype, &dims).map_err(|e| raised(array.py(), &e.into()))?;
    let to = copy.bytes_mut().as_mut_ptr().cast::<c_void>();
    #[expect(clippy::cast_possible_wrap, reason = "a letter")]
    let order = b'C' as c_char;
    // SAFETY: `to` has `len` bytes, as the dims and the width say.
    let failed = unsafe { ffi::PyBuffer_ToContiguous(to, &raw const **view, view.len, order) } != 0;
    if failed { Err(PyErr::fetch(array.py())) } else { Ok(copy) }
}

/// The tensor with these dims that has the memory of a Python object.
fn shared(dtype: DType, dims: &[usize], memory: Borrowed) -> PyResult<Tensor> {
    let bytes = Bytes::from_owner(memory);
    Tensor::from_shared(dtype, dims, &bytes).map_err(|e| Python::attach(|py| raised(py, &e.into())))
}

fn unsupported(what: &str) -> PyErr {
    PyTypeError::new_err(format!("elements of format `{what}` are not supported"))
}

fn of_dlpack(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let (device, _): (i32, i32) = array.call_method0("__dlpack_device__")?.extract()?;
    if !DL_CPU.contains(&device) {
        return Err(PyValueError::new_err(
            "the array is not in host memory; copy it there first (`.cpu()`, `jax.device_get`)",
        ));
    }
    let asked = PyDict::new(array.py());
    asked.set_item("max_version", DL_VERSION)?;
    let capsule = match array.call_method("__dlpack__", (), Some(&asked)) {
        // Objects of before version 1 do not know the argument.
        Err(error) if error.is_instance_of::<PyTypeError>(array.py()) => {
            array.call_method0("__dlpack__")?
        }
        result => result?,
    };
    let capsule = capsule.cast::<PyCapsule>()?;
    let managed = taken(capsule, MANAGED)?.cast::<DlManaged>();
    if !managed.is_null() {
        // SAFETY: the capsule's name says what it held, and it is ours now.
        let tensor = unsafe { (*managed).tensor };
        return of_dl(&tensor, Owner::Managed(managed));
    }
    let managed = taken(capsule, VERSIONED)?.cast::<DlVersioned>();
    if managed.is_null() {
        return Err(PyTypeError::new_err("`__dlpack__` gave no capsule of a tensor"));
    }
    // SAFETY: the capsule's name says what it held, and it is ours now.
    let held = unsafe { &*managed };
    let (major, tensor) = (held.major, held.tensor);
    let owner = Owner::Versioned(managed);
    if major != DL_VERSION.0 {
        drop(Borrowed { data: ptr::null(), len: 0, owner });
        return Err(PyBufferError::new_err(format!("DLPack {major} is not supported")));
    }
    of_dl(&tensor, owner)
}

/// What a capsule of the first name holds, which is ours then; null for one of another name.
fn taken(capsule: &Bound<'_, PyCapsule>, name: (&CStr, &CStr)) -> PyResult<*mut c_void> {
    // SAFETY: asks a capsule for its name.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.0.as_ptr()) } == 0 {
        return Ok(ptr::null_mut());
    }
    // SAFETY: the capsule has this name.
    let held = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.0.as_ptr()) };
    // SAFETY: the new name is a constant; it tells the capsule not to free what we have.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.1.as_ptr()) } != 0 {
        return Err(PyErr::fetch(capsule.py()));
    }
    Ok(held)
}

fn of_dl(tensor: &DlTensor, owner: Owner) -> PyResult<Tensor> {
    let mut memory = Borrowed { data: ptr::null(), len: 0, owner };
    let DlDataType { code, bits, lanes } = tensor.dtype;
    let dtype = DL_TYPES.iter().find(|(_, c, b)| (*c, *b, 1) == (code, bits, lanes));
    let dtype = dtype.ok_or_else(|| unsupported(&format!("{code}:{bits}x{lanes}")))?.0;
    let rank = usize::try_from(tensor.ndim)?;
    let list = |list: *mut i64| {
        if rank == 0 || list.is_null() {
            return Vec::new();
        }
        // SAFETY: both lists have a number for each axis.
        unsafe { std::slice::from_raw_parts(list, rank) }.to_vec()
    };
    let (shape, strides) = (list(tensor.shape), list(tensor.strides));
    let dims = shape.iter().map(|size| usize::try_from(*size)).collect::<Result<Vec<_>, _>>()?;
    let bytes = dims.iter().try_fold(dtype.bytes(), |n, size| n.checked_mul(*size));
    memory.len = bytes.ok_or_else(|| PyValueError::new_err("the array is too large"))?;
    if memory.len > 0 && tensor.data.is_null() {
        return Err(PyBufferError::new_err("the array has no memory"));
    }
    // The products of the sizes of an array with elements fit, as its bytes do.
    let is_in_order = || {
        let expected = row_major(&shape, 1);
        (0..rank).all(|axis| shape[axis] <= 1 || strides[axis] == expected[axis])
    };
    if memory.len > 0 && !strides.is_empty() && !is_in_order() {
        return Err(PyBufferError::new_err(
            "the array's elements are not in row-major order; make it contiguous first",
        ));
    }
    let offset = usize::try_from(tensor.byte_offset)?;
    memory.data = tensor.data.cast::<u8>().cast_const().wrapping_add(offset);
    shared(dtype, &dims, memory)
}

/// The strides of row-major elements of this width.
fn row_major<T>(dims: &[T], width: T) -> Vec<T>
where
    T: Copy + std::ops::Mul<Output = T>,
{
    let mut strides = vec![width; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// The first element of a tensor.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: the tensor beside it keeps the memory; who writes to it takes care themselves, as with
// every array of Python.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// A tensor in host memory, for everything that takes arrays: it has the buffer protocol and
/// `DLPack`.
#[pyclass(frozen, module = "fanwise", name = "Tensor")]
pub(crate) struct PyTensor {
    tensor: Tensor,
    data: Address,
    is_readonly: bool,
    shape: Vec<isize>,
    strides: Vec<isize>,
}

impl PyTensor {
    fn at(tensor: Tensor, data: Address, is_readonly: bool) -> Self {
        // Of a tensor with elements all products fit; one without has no element to reach.
        let size = |size: usize| isize::try_from(size).unwrap_or(isize::MAX);
        let shape: Vec<isize> = tensor.dims().iter().map(|dim| size(*dim)).collect();
        let strides = row_major(&shape, size(tensor.dtype().bytes()));
        Self { tensor, data, is_readonly, shape, strides }
    }
}

impl From<Tensor> for PyTensor {
    fn from(mut tensor: Tensor) -> Self {
        // Memory that somebody else has too is copied here: Python may write to it.
        let data = Address(tensor.bytes_mut().as_mut_ptr());
        Self::at(tensor, data, false)
    }
}

#[pymethods]
#[expect(clippy::needless_pass_by_value, reason = "methods of Python take the object so")]
impl PyTensor {
    /// The tensor with the elements of an array, without a copy where they are in row-major order;
    /// `dtype` names the type of which they are the bits.
    #[new]
    #[pyo3(signature = (array, dtype=None))]
    fn new(array: &Bound<'_, PyAny>, dtype: Option<&str>) -> PyResult<Self> {
        let mut tensor = tensor(array)?;
        if let Some(dtype) = dtype {
            let dtype: DType = dtype.parse().map_err(|e| PyValueError::new_err(format!("{e}")))?;
            if dtype.bytes() != tensor.dtype().bytes() {
                let own = tensor.dtype();
                return Err(PyValueError::new_err(format!("{own} has not the width of {dtype}")));
            }
            tensor = tensor.reinterpreted(dtype);
        }
        let data = Address(tensor.bytes().as_ptr().cast_mut());
        Ok(Self::at(tensor, data, true))
    }

    /// The element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.tensor.dtype().name()
    }

    /// The sizes of the axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.dims())
    }

    fn __repr__(&self) -> String {
        format!("Tensor({:?})", self.tensor)
    }

    /// Fills a view of the elements. The tensor of a view lives as long as the view.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let own = slf.get();
        if own.is_readonly && flags & ffi::PyBUF_WRITABLE != 0 {
            return Err(PyBufferError::new_err("the memory of another array is only read"));
        }
        let asks = |flag: c_int| flags & flag == flag;
        let list = |list: &[isize]| list.as_ptr().cast_mut();
        let len = isize::try_from(own.tensor.bytes().len())?;
        let filled = ffi::Py_buffer {
            buf: own.data.0.cast(),
            len,
            itemsize: isize::try_from(own.tensor.dtype().bytes())?,
            readonly: c_int::from(own.is_readonly),
            ndim: c_int::try_from(own.shape.len())?,
            format: if asks(ffi::PyBUF_FORMAT) {
                letter(own.tensor.dtype()).as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            },
            shape: if asks(ffi::PyBUF_ND) { list(&own.shape) } else { ptr::null_mut() },
            strides: if asks(ffi::PyBUF_STRIDES) { list(&own.strides) } else { ptr::null_mut() },
            obj: slf.clone().into_ptr(),
            ..ffi::Py_buffer::new()
        };
        // SAFETY: Python gives a struct to fill.
        unsafe { view.write(filled) };
        Ok(())
    }

    /// Where the elements are.
    #[expect(clippy::unused_self, reason = "the protocol asks the object")]
    fn __dlpack_device__(&self) -> (i32, i32) {
        (DL_CPU[0], 0)
    }

    /// The elements as a capsule.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if dl_device.is_some_and(|(device, _)| device != DL_CPU[0]) || copy == Some(true) {
            return Err(PyBufferError::new_err("the elements are in host memory, not copied"));
        }
        let exported = Box::new(Exported::new(&slf));
        if max_version.is_some_and(|(major, _)| major >= DL_VERSION.0) {
            return exported.versioned(slf.py());
        }
        if slf.get().is_readonly {
            return Err(PyBufferError::new_err("the memory of another array is only read"));
        }
        exported.managed(slf.py())
    }
}

/// What a capsule holds beside the struct: the object and the lists that the struct points to.
struct Exported {
    owner: Py<PyTensor>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Exported {
    fn new(owner: &Bound<'_, PyTensor>) -> Self {
        // As for the buffer protocol.
        let size = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let dims = owner.get().tensor.dims();
        let shape: Vec<i64> = dims.iter().map(|dim| size(*dim)).collect();
        Self { owner: owner.clone().unbind(), strides: row_major(&shape, 1), shape }
    }

    fn tensor(&mut self) -> DlTensor {
        let own = self.owner.get();
        let dtype = own.tensor.dtype();
        let known = DL_TYPES.iter().find(|(known, ..)| *known == dtype);
        // The table has every type.
        let (code, bits) = known.map_or((0, 0), |(_, code, bits)| (*code, *bits));
        DlTensor {
            data: own.data.0.cast(),
            device_type: DL_CPU[0],
            device_id: 0,
            // A tensor has at most as many axes as a shape, 32.
            ndim: i32::try_from(self.shape.len()).unwrap_or(i32::MAX),
            dtype: DlDataType { code, bits, lanes: 1 },
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
        }
    }

    fn managed(mut self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let tensor = self.tensor();
        let context = Box::into_raw(self).cast();
        let managed = DlManaged { tensor, context, deleter: Some(free_managed) };
        let held = Box::into_raw(Box::new(managed));
        // SAFETY: the name is a constant, and the destructor frees what nobody took.
        let capsule =
            unsafe { ffi::PyCapsule_New(held.cast(), MANAGED.0.as_ptr(), Some(drop_managed)) };
        // SAFETY: a new reference, or null with an error set.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
    }

    fn versioned(mut self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let tensor = self.tensor();
        let (major, minor) = DL_VERSION;
        let flags = u64::from(self.owner.get().is_readonly);
        let context = Box::into_raw(self).cast();
        let deleter = Some(free_versioned as unsafe extern "C" fn(*mut DlVersioned));
        let versioned = DlVersioned { major, minor, context, deleter, flags, tensor };
        let held = Box::into_raw(Box::new(versioned));
        // SAFETY: the name is a constant, and the destructor frees what nobody took.
        let capsule =
            unsafe { ffi::PyCapsule_New(held.cast(), VERSIONED.0.as_ptr(), Some(drop_versioned)) };
        // SAFETY: a new reference, or null with an error set.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
    }
}

/// Frees an exported struct, with the lock of the interpreter or without.
unsafe extern "C" fn free_managed(managed: *mut DlManaged) {
    // SAFETY: made by `Exported::managed`, freed once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    let exported = unsafe { Box::from_raw(managed.context.cast::<Exported>()) };
    // With the lock the object is let go now, not at some later time.
    let _ = Python::try_attach(|_| drop(exported));
}

/// As [`free_managed`].
unsafe extern "C" fn free_versioned(managed: *mut DlVersioned) {
    // SAFETY: made by `Exported::versioned`, freed once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above.
    let exported = unsafe { Box::from_raw(managed.context.cast::<Exported>()) };
    // With the lock the object is let go now, not at some later time.
    let _ = Python::try_attach(|_| drop(exported));
}

/// Frees what a capsule holds if nobody took it.
unsafe extern "C" fn drop_managed(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that is being freed; one whose struct was taken has another name.
    if unsafe { ffi::PyCapsule_IsValid(capsule, MANAGED.0.as_ptr()) } == 1 {
        // SAFETY: the capsule has this name.
        let held = unsafe { ffi::PyCapsule_GetPointer(capsule, MANAGED.0.as_ptr()) };
        // SAFETY: what the capsule was made with.
        unsafe { free_managed(held.cast()) }
    }
}

/// As [`drop_managed`].
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule that is being freed; one whose struct was taken has another name.
    if unsafe { ffi::PyCapsule_IsValid(capsule, VERSIONED.0.as_ptr()) } == 1 {
        // SAFETY: the capsule has this name.
        let held = unsafe { ffi::PyCapsule_GetPointer(capsule, VERSIONED.0.as_ptr()) };
        // SAFETY: what the capsule was made with.
        unsafe { free_versioned(held.cast()) }
    }
}
