//! A kernel for tests.

use super::{Kernel, ParamDecl};

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
    }
}
