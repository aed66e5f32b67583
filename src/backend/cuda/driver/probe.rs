//! Are the driver and the compiler of CUDA here?

use std::path::PathBuf;

pub use super::error::ProbeError;
pub(crate) use super::error::Version;
pub(crate) use super::error::nvrtc_package;
use super::sys;

/// The version of CUDA of the driver, if one can be used.
pub fn driver() -> Result<Version, ProbeError> {
    sys::open()
}

/// The search path for NVRTC. The library reads no environment variables; the caller gives the
/// path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvrtcSearch {
    /// The folder that must have it; without one, the library path and then `candidates` are tried.
    pub folder: Option<PathBuf>,
    /// Folders that may have it, as that of a Python package or of a toolkit.
    pub candidates: Vec<PathBuf>,
    /// The version of the driver that is to load what is compiled, as [`driver`] tells it: a
    /// compiler of a newer major version is taken only where there is no other. Without one the
    /// first that is found is taken.
    pub driver: Option<Version>,
}
