//! A kernel for tests.

use super::{Kernel, ParamDecl};

/// The text of the kernel's file, which no program needs.
pub(super) fn text(name: &str) -> Option<&'static str> {
    (name == "copy.cu").then_some(include_str!("testing/copy.cu"))
}

/// A copy of elements of a type, as many as the batch gives.
pub(crate) fn copy(ty: &'static str) -> Kernel {
    Kernel {
        file: "copy.cu",
        defines: Vec::new(),
        expression: String::new(),
        params: vec![
            ParamDecl::Read("x".to_owned(), ty),
            ParamDecl::Write("y".to_owned(), ty),
            ParamDecl::Size("COUNT".to_owned()),
        ],
        threads: 256,
        shared: 0,
        parts: Vec::new(),
    }
}
