//! The libraries of CUDA: their versions, and why one cannot be used.

use std::fmt;
use std::path::PathBuf;

use crate::types::{Diagnostic, Hint, Setting};

/// Why a library of CUDA cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The driver is not installed.
    #[error(
        "libcuda, the NVIDIA GPU driver library, is not installed (a container needs access to the \
         GPUs of its host)"
    )]
    Driver,
    /// The driver is too old.
    #[error("libcuda supports CUDA {0}; {1} or later is needed: install a newer NVIDIA driver")]
    DriverTooOld(Version, Version),
    /// The driver does not start.
    #[error("libcuda is installed, but cannot be initialised: {0}")]
    DriverFailed(String),
    /// No NVRTC that can be used is where it is looked for.
    #[error(
        "libnvrtc, the compiler of CUDA kernels, is not installed: `pip install {}`{} or \
         install the CUDA toolkit, and set `FANWISE_NVRTC` to its folder if it is still not \
         found; searched: the library path and {}{}",
        nvrtc_package(*driver),
        Suits(*driver),
        Folders(looked),
        Unusable(unusable)
    )]
    Nvrtc {
        /// The driver that was to load what it compiles.
        driver: Option<Version>,
        /// The folders beside the library path.
        looked: Vec<PathBuf>,
        /// The library that was found, and why it cannot be used.
        unusable: Vec<String>,
    },
    /// The folder that was named does not have NVRTC.
    #[error("{} has no libnvrtc that can be used: {reason}", folder.display())]
    NvrtcFolder {
        /// The folder.
        folder: PathBuf,
        /// The candidates that were found.
        reason: String,
    },
}

impl Diagnostic for ProbeError {
    fn code(&self) -> &'static str {
        "E0503"
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Driver => vec![
                Hint::advice(
                    "install the driver (https://www.nvidia.com/drivers; Debian: nvidia-driver)",
                ),
                Hint::set(Setting::Target, ["cpu"], "run on the CPU"),
            ],
            Self::DriverTooOld(..)
            | Self::DriverFailed(_)
            | Self::Nvrtc { .. }
            | Self::NvrtcFolder { .. } => Vec::new(),
        }
    }
}

/// The package of Python whose NVRTC compiles what this driver loads, as pip takes it; without a
/// driver the newest.
pub(crate) fn nvrtc_package(driver: Option<Version>) -> &'static str {
    match driver {
        Some(Version { major: ..13, .. }) => "nvidia-cuda-nvrtc-cu12",
        _ => "nvidia-cuda-nvrtc==13.0.88",
    }
}

/// The driver that a package suits.
struct Suits(Option<Version>);

impl fmt::Display for Suits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver is not known where it was not asked.
        self.0.map_or(Ok(()), |driver| write!(f, ", which suits the driver (CUDA {driver}),"))
    }
}

/// Candidates that were found and cannot be used.
struct Unusable<'a>(&'a [String]);

impl fmt::Display for Unusable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; not usable: {}", self.0.join(", ")) }
    }
}

/// Folders of an error, the first few of them.
struct Folders<'a>(&'a [PathBuf]);

impl fmt::Display for Folders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        match self.0 {
            [] => f.write_str("no other folder"),
            all => {
                let shown = all.iter().take(SHOWN).map(|p| p.display().to_string());
                f.write_str(&shown.collect::<Vec<_>>().join(", "))?;
                let rest = all.len().saturating_sub(SHOWN);
                if rest > 0 { write!(f, " and {rest} more") } else { Ok(()) }
            }
        }
    }
}

/// A version of a driver or a compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The major number: 13 of CUDA 13.0.
    pub major: i32,
    /// The minor number.
    pub minor: i32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest driver that has every function that is called.
pub(crate) const OLDEST_DRIVER: Version = Version { major: 12, minor: 2 };

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{ProbeError, Version};

    #[test]
    fn messages_name_the_library_and_what_to_do() {
        let looked: Vec<_> = (0..6).map(|i| PathBuf::from(format!("/f{i}"))).collect();
        let nvrtc = |driver, unusable| {
            ProbeError::Nvrtc { driver, looked: looked.clone(), unusable }.to_string()
        };
        let said = nvrtc(None, Vec::new());
        assert!(said.contains("libnvrtc, "), "{said}");
        assert!(said.contains(": `pip install nvidia-cuda-nvrtc==13.0.88` or install"), "{said}");
        assert!(said.ends_with("and /f0, /f1, /f2, /f3 and 2 more"), "{said}");
        let unusable = vec!["/f0/libnvrtc.so.10: too old".to_owned()];
        let said = nvrtc(None, unusable);
        assert!(said.ends_with("; not usable: /f0/libnvrtc.so.10: too old"), "{said}");
        for (major, package) in [(12, "nvidia-cuda-nvrtc-cu12"), (13, "nvidia-cuda-nvrtc==13.0.88")]
        {
            let said = nvrtc(Some(Version { major, minor: 4 }), Vec::new());
            let suits = format!(
                "`pip install {package}`, which suits the driver (CUDA {major}.4), or install"
            );
            assert!(said.contains(&suits), "{said}");
        }
        let said = ProbeError::Driver.to_string();
        assert!(said.contains("libcuda") && said.contains("is not installed"), "{said}");
        let old = Version { major: 11, minor: 8 };
        let said = ProbeError::DriverTooOld(old, super::OLDEST_DRIVER).to_string();
        assert!(said.contains("CUDA 11.8; 12.2 or later"), "{said}");
    }
}
