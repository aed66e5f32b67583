//! The functions that the library exports, under the names and with the parameters of the CUDA
//! driver API.
#![allow(non_snake_case, reason = "the names are those of the CUDA driver API")]

pub mod context;
pub mod device;
pub mod event;
pub mod graph;
pub mod launch;
pub mod memory;
pub mod module;
pub mod pinned;
pub mod stream;

use super::code;
use super::state::Call;
use std::ffi::{CStr, c_char};

/// A pointer to where a result goes.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes a result that must be asked for.
    fn give(self, value: T) -> Call<()> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        self.offer(value);
        Ok(())
    }

    /// Writes a result unless the caller does not want it.
    fn offer(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the caller gave a pointer to a place for the result.
            unsafe { self.0.write(value) };
        }
    }
}

impl<T: Copy> Out<T> {
    /// What is at the place.
    fn read(self) -> Call<T> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller gave a pointer to a value.
        Ok(unsafe { self.0.read() })
    }
}

/// A string that ends in NUL.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Text(*const c_char);

impl Text {
    /// The string.
    fn read(self) -> Call<String> {
        if self.0.is_null() {
            return Err(code::INVALID_VALUE);
        }
        // SAFETY: the caller gave a string that ends in NUL.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Exported functions: class of the call, parameters, and what the driver does.
macro_rules! exports {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($class:ident $(, $arg:ident: $ty:ty)*) |$d:ident| $body:block
    )*) => { $(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> u32 {
            use $crate::driver::schedule;
            schedule::result(schedule::call(
                stringify!($name),
                $crate::driver::config::Class::$class,
                |$d| -> $crate::driver::state::Call<$crate::driver::schedule::Goal> { $body },
            ))
        }
    )* };
}
use exports;
