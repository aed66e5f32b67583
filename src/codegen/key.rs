//! Compilation targets (architecture, code format, options) and the cache key of a compiled unit.

use std::fmt;
use std::str::FromStr;

use super::Unit;
use crate::types::{ParseValueError, Quoted};

/// An architecture of NVIDIA GPUs, as `sm_80` or `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Ten times the major number of the compute capability plus the minor: 90 for 9.0.
    number: u16,
    /// Its features beyond those that all later architectures support.
    features: Features,
}

/// Features that code for an architecture may use although later architectures lack them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Features {
    /// Nothing: the code of `sm_90` runs on 9.0 and later minor versions of 9.
    Base,
    /// The features of its family: `sm_100f`.
    Family,
    /// Architecture-specific features: the code of `sm_90a` runs on 9.0 only.
    Own,
}

impl Arch {
    /// The architecture of a device with this compute capability. From 9.0 on it includes the
    /// architecture-specific features: code compiled for the device at hand need not be portable.
    pub(crate) fn of_device(major: u16, minor: u16) -> Self {
        let features = if major >= 9 { Features::Own } else { Features::Base };
        Self { number: major.saturating_mul(10).saturating_add(minor), features }
    }

    /// The architecture that NVRTC lists by this number, without architecture-specific features.
    pub(crate) fn of_number(number: u16) -> Self {
        Self { number, features: Features::Base }
    }

    /// Ten times the major number of the compute capability plus the minor.
    pub(crate) fn number(self) -> u16 {
        self.number
    }

    fn suffix(self) -> &'static str {
        match self.features {
            Features::Base => "",
            Features::Family => "f",
            Features::Own => "a",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("sm_{}{}", self.number, self.suffix()))
    }
}

impl FromStr for Arch {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let wrong = || {
            let shown = Quoted(text);
            let message = format!("{shown} is not an architecture; write sm_80, sm_90a …");
            ParseValueError::new(message)
        };
        let rest = text.strip_prefix("sm_").ok_or_else(wrong)?;
        let (digits, features) = match rest.strip_suffix(['a', 'f']) {
            Some(digits) if rest.ends_with('a') => (digits, Features::Own),
            Some(digits) => (digits, Features::Family),
            None => (rest, Features::Base),
        };
        let plain = (2..=3).contains(&digits.len()) && !digits.starts_with('0');
        if !plain || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        Ok(Self { number: digits.parse().map_err(|_| wrong())?, features })
    }
}

/// The format of compiled code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeFormat {
    /// Machine code of one architecture.
    #[default]
    Cubin,
    /// PTX, which the driver compiles for its device, of this architecture or a later one.
    Ptx,
}

impl CodeFormat {
    /// The name, which is also the file extension.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cubin => "cubin",
            Self::Ptx => "ptx",
        }
    }
}

impl fmt::Display for CodeFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the compiler options of every unit.
///
/// Multiply-adds are fused only where the source calls `fmaf`. Whether a compiler contracts them
/// may depend on the surrounding text, which differs between specialisations, and the results would
/// no longer be bit-identical.
pub(crate) fn options(arch: Arch, form: CodeFormat) -> Vec<String> {
    let target = match form {
        CodeFormat::Cubin => arch.to_string(),
        CodeFormat::Ptx => format!("compute_{}{}", arch.number, arch.suffix()),
    };
    let mut options = vec![
        format!("--gpu-architecture={target}"),
        "--std=c++17".to_owned(),
        "--fmad=false".to_owned(),
    ];
    if form == CodeFormat::Cubin {
        // The log then lists the registers and the shared memory of each kernel.
        options.push("--ptxas-options=-v".to_owned());
    }
    options
}

/// The cache key of a compiled unit: a hash of the source text, the options (with the architecture)
/// and the compiler.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Returns the key of a unit compiled with these options; `compiler` identifies the compiler and
/// its version.
pub fn key(unit: &Unit, options: &[String], compiler: &str) -> Key {
    let mut hasher = blake3::Hasher::new();
    let parts = [compiler].into_iter().chain(options.iter().map(String::as_str));
    for part in parts.chain([unit.text.as_str()]) {
        // The length separates the parts: `ab, c` and `a, bc` are different inputs.
        hasher.update(&part.len().to_le_bytes());
        hasher.update(part.as_bytes());
    }
    Key(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Arch, CodeFormat, key, options};
    use crate::codegen::testing::copy;
    use crate::codegen::units;

    #[test]
    fn architectures_are_read_and_printed() {
        for text in ["sm_80", "sm_90a", "sm_100f", "sm_121"] {
            assert_eq!(text.parse::<Arch>().unwrap().to_string(), text);
        }
        let long = "s".repeat(1000);
        for text in
            ["", "sm_", "sm_8", "80", "sm_8000", "sm_90b", "sm_a", "sm_9٣", "sm_08", "SM_80", &long]
        {
            assert!(text.parse::<Arch>().unwrap_err().to_string().len() < 150, "{text}");
        }
        assert_eq!(Arch::of_device(8, 6).to_string(), "sm_86");
        assert_eq!(Arch::of_device(9, 0).to_string(), "sm_90a");
        assert_eq!(Arch::of_device(12, 1).number(), 121);
        assert_eq!(Arch::of_device(u16::MAX, 1).number(), u16::MAX);
    }

    #[test]
    fn options_say_the_target_and_no_fast_maths() {
        let arch: Arch = "sm_90a".parse().unwrap();
        let cubin = options(arch, CodeFormat::Cubin);
        assert_eq!(cubin[0], "--gpu-architecture=sm_90a");
        assert!(cubin.contains(&"--fmad=false".to_owned()));
        assert_eq!(options(arch, CodeFormat::Ptx)[0], "--gpu-architecture=compute_90a");
    }

    #[test]
    fn a_key_depends_on_everything() {
        let unit = |ty| units(&[Arc::new(copy(ty))]).unwrap().remove(0);
        let arch: Arch = "sm_80".parse().unwrap();
        let other: Arch = "sm_86".parse().unwrap();
        let base = key(&unit("float"), &options(arch, CodeFormat::Cubin), "13.0");
        assert_eq!(base, key(&unit("float"), &options(arch, CodeFormat::Cubin), "13.0"));
        let mut header = unit("float");
        header.text = header.text.replacen("(a + b - 1) / b", "(a - 1 + b) / b", 1);
        assert_ne!(header, unit("float"));
        for changed in [
            key(&unit("double"), &options(arch, CodeFormat::Cubin), "13.0"),
            key(&header, &options(arch, CodeFormat::Cubin), "13.0"),
            key(&unit("float"), &options(arch, CodeFormat::Ptx), "13.0"),
            key(&unit("float"), &options(other, CodeFormat::Cubin), "13.0"),
            key(&unit("float"), &options(arch, CodeFormat::Cubin), "12.9"),
        ] {
            assert_ne!(base, changed);
        }
        assert_eq!(base.to_string().len(), 64);
    }
}
