//! fanwise for Python: glue between the library and the package `fanwise`, whose Python files lie
//! in `python/`.

mod array;
mod batches;
mod detached;
mod error;
mod graph;
mod model;
mod options;
mod program;
mod traced;

use pyo3::prelude::*;

#[pymodule]
mod _fanwise {
    use std::ffi::OsString;
    use std::process::ExitCode;

    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::array::PyTensor;
    #[pymodule_export]
    use crate::graph::{PyGraph, replicate};
    #[pymodule_export]
    use crate::model::{PyModel, keras_model, load};
    #[pymodule_export]
    use crate::options::check_options;
    #[pymodule_export]
    use crate::program::{PyProgram, PyRun, program};
    #[pymodule_export]
    use crate::traced::{fingerprint, traced_model, traced_program};

    /// The exit codes of the command line.
    const CODES: [u8; 3] = [0, 1, 2];

    /// Runs the command line with these arguments, the name of the program first.
    #[pyfunction]
    fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        let code = py.detach(|| fanwise::cli::main(arguments));
        // What it ends with beside these is a failure.
        CODES.into_iter().find(|known| ExitCode::from(*known) == code).unwrap_or(2)
    }

    /// The number of GPUs that the driver shows.
    #[pyfunction]
    fn gpus() -> usize {
        fanwise::internal::count()
    }
}
