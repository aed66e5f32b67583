use std::fmt;
use std::str::FromStr;

use super::ParseValueError;
use super::Quoted;

/// The kind of processor of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The host.
    Cpu,
    /// An accelerator, or the virtual device that stands for one.
    Gpu,
}

/// A place where a value lives and an operator runs: `cpu:0`, `gpu:3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// The kind of processor.
    pub kind: DeviceKind,
    /// Its number among devices of that kind.
    pub index: u32,
}

impl Device {
    /// The host, where inputs arrive and outputs are handed out.
    pub const HOST: Self = Self::cpu(0);

    /// The CPU with this number.
    pub const fn cpu(index: u32) -> Self {
        Self { kind: DeviceKind::Cpu, index }
    }

    /// The GPU with this number.
    pub const fn gpu(index: u32) -> Self {
        Self { kind: DeviceKind::Gpu, index }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        };
        write!(f, "{kind}:{}", self.index)
    }
}

/// The error for a text that does not fit.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!("{} is not a device; write `cpu:0` or `gpu:3`", Quoted(text)))
}

impl FromStr for Device {
    type Err = ParseValueError;

    /// Reads `cpu:0` and `gpu:3`, in any case, also in the older spellings `/gpu:0`,
    /// `/device:GPU:0` and `/job:localhost/replica:0/task:0/device:GPU:0`.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let wrong = || wrong(s);
        let lower = s.to_ascii_lowercase();
        let last = lower.rsplit('/').next().unwrap_or_default();
        let last = last.strip_prefix("device:").unwrap_or(last);
        let (kind, index) = last.split_once(':').ok_or_else(wrong)?;
        if !index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong());
        }
        let index = index.parse().map_err(|_| wrong())?;
        match kind {
            "cpu" => Ok(Self::cpu(index)),
            "gpu" => Ok(Self::gpu(index)),
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Device;

    #[test]
    fn every_spelling_names_the_same_device() {
        for s in [
            "gpu:3",
            "GPU:3",
            "/gpu:3",
            "/device:GPU:3",
            "/job:localhost/replica:0/task:0/device:GPU:3",
        ] {
            assert_eq!(s.parse(), Ok(Device::gpu(3)), "{s}");
        }
        assert_eq!(Device::HOST.to_string(), "cpu:0");
        for s in ["gpu", "gpu:", "gpu:-1", "gpu:+1", "xla_gpu:0", "3", ""] {
            assert!(s.parse::<Device>().is_err(), "{s}");
        }
    }
}
