//! Compiled kernels on a device.

#![allow(unsafe_code, reason = "the driver is called through C functions")]

use std::ffi::{CString, c_int};
use std::ptr;
use std::sync::Arc;

use super::context::{Context, check};
use super::sys;
use crate::backend::DriverError;
use crate::types::invariant::invariant;

/// Above so many bytes of dynamic shared memory a kernel has to ask for them.
const SHARED_WITHOUT_ASKING: u32 = 48 << 10;

/// A compiled unit, loaded on a device.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}

// SAFETY: the driver's modules may be used from any thread; the handle is only passed to it.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads PTX or a cubin.
    pub(crate) fn new(context: &Arc<Context>, image: &[u8]) -> Result<Arc<Self>, DriverError> {
        let _current = context.enter()?;
        // PTX ends with a zero; a cubin says itself how long it is.
        let image = [image, &[0]].concat();
        let mut raw = ptr::null_mut();
        // SAFETY: it stores a module and reads the image, which is terminated or knows its length.
        let result = unsafe { sys::cuModuleLoadData(&raw mut raw, image.as_ptr().cast()) };
        check("cuModuleLoadData", result)?;
        Ok(Arc::new(Self { context: context.clone(), raw }))
    }

    /// A kernel, with the threads of a block and the bytes of its dynamic shared memory.
    pub(crate) fn function(
        self: &Arc<Self>,
        name: &str,
        threads: u32,
        shared: u32,
    ) -> Result<Function, DriverError> {
        let _current = self.context.enter()?;
        let name = CString::new(name).ok();
        let name = invariant(name, "that the name of a kernel has no zero");
        let mut raw = ptr::null_mut();
        // SAFETY: it stores a function; the module is valid and the name terminated.
        let result = unsafe { sys::cuModuleGetFunction(&raw mut raw, self.raw, name.as_ptr()) };
        check("cuModuleGetFunction", result)?;
        if shared > SHARED_WITHOUT_ASKING {
            let attribute =
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // So many bytes are more than a block has, and the driver says so.
            let bytes = c_int::try_from(shared).unwrap_or(c_int::MAX);
            // SAFETY: the function is valid.
            let result = unsafe { sys::cuFuncSetAttribute(raw, attribute, bytes) };
            check("cuFuncSetAttribute", result)?;
        }
        Ok(Function { _module: self.clone(), raw, threads, shared })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_current) = self.context.enter() {
            // SAFETY: the module was loaded by `new` and is unloaded once; its functions keep it.
            let _: sys::Code = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Function {
    /// Keeps the code loaded.
    _module: Arc<Module>,
    raw: sys::CUfunction,
    threads: u32,
    shared: u32,
}

// SAFETY: the handle is only passed to the driver, from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    pub(crate) fn raw(&self) -> sys::CUfunction {
        self.raw
    }

    /// The threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.threads
    }

    /// The bytes of a block's dynamic shared memory.
    pub(crate) fn shared(&self) -> u32 {
        self.shared
    }
}
