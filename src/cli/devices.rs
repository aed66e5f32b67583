//! `fanwise devices`: what programs can run on, and what is missing for more.

use std::process::ExitCode;

#[cfg(feature = "cuda")]
use crate::backend::cuda::probe::nvrtc_package;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{DeviceInfo, Devices, Nvrtc, Version, is_of_instance};
#[cfg(feature = "cuda")]
use crate::codegen::{Arch, CodeFormat};
use clap::Args;
use serde_json::{Value, json};

use crate::cli::args::{Format, FormatArgs};
use crate::cli::ui;

/// List the devices of this machine, and what is missing for GPUs
#[derive(Args)]
#[command(after_help = "Examples:\n  fanwise devices\n  fanwise devices --format json")]
pub(crate) struct DevicesArgs {
    #[command(flatten)]
    format: FormatArgs,
}

/// Runs `fanwise devices`. That GPUs are missing is what it reports, not a failure.
pub(crate) fn devices(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let gpus = Gpus::find();
    match args.format.format {
        Format::Text => ui::out(&format!("cpu:0   host, {threads} threads\n{}", gpus.text()))?,
        Format::Json => {
            let mut all = gpus.json();
            all["cpu"] = json!({ "threads": threads });
            ui::out(&all.to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The GPUs from which one copies directly, those from which it does not although the driver says
/// so, and whether it is a part of a GPU.
#[cfg(feature = "cuda")]
fn peers(gpu: &DeviceInfo) -> String {
    let names: Vec<_> = gpu.peers.iter().map(|peer| format!(" gpu:{peer}")).collect();
    let direct =
        if names.is_empty() { "no peers".to_owned() } else { format!("peers{}", names.concat()) };
    let distrusted = gpu.distrusted.iter();
    let distrusted = distrusted
        .map(|(peer, flaw)| format!("gpu:{peer} through the host (direct copies {flaw})"));
    let instance = is_of_instance(&gpu.name).then(|| {
        "an instance of a divided GPU (MIG): a process sees one, and `--logical N` shares it"
            .to_owned()
    });
    [direct].into_iter().chain(distrusted).chain(instance).collect::<Vec<_>>().join(", ")
}

/// Reasons why the driver may hide GPUs, and remedies; `visible` is
/// `CUDA_VISIBLE_DEVICES`.
#[cfg(feature = "cuda")]
fn unseen(found: &Devices, visible: Option<&str>) -> Vec<String> {
    let failed = |(ordinal, error): &(usize, _)| {
        // A GPU that works may still fail to answer about its peers.
        let is_listed = found.list.iter().any(|device| device.ordinal == *ordinal);
        let what = if is_listed { "does not report its peers" } else { "cannot be used" };
        format!("gpu:{ordinal} {what}: {error}")
    };
    let mut unseen: Vec<_> = found.failed.iter().map(failed).collect();
    if found.list.is_empty() && unseen.is_empty() {
        let visible = visible.map_or(String::new(), |visible| {
            let is = if visible.is_empty() { "empty".to_owned() } else { format!("`{visible}`") };
            format!("CUDA_VISIBLE_DEVICES is {is}; unset it or name existing GPUs; ")
        });
        // The driver is there and answers: what hides GPUs lies outside it.
        unseen.push(format!(
            "libcuda is installed (CUDA {}), but shows no GPU: {visible}start a container with \
             `--gpus all` (NVIDIA Container Toolkit); give the user access to /dev/nvidia*",
            found.driver
        ));
    }
    unseen
}

/// Fails where the driver shows no GPU that can be used, and says why.
#[cfg(feature = "cuda")]
pub(crate) fn require(found: &Devices) -> anyhow::Result<()> {
    if found.list.is_empty() {
        let unseen = unseen(found, visible().as_deref()).join("; ");
        anyhow::bail!("{unseen}; or run on the CPU with `--target cpu`");
    }
    Ok(())
}

/// GPUs that the environment exposes to the driver.
#[cfg(feature = "cuda")]
fn visible() -> Option<String> {
    Some(std::env::var_os("CUDA_VISIBLE_DEVICES")?.to_string_lossy().into_owned())
}

/// The remedy if `FANWISE_NVRTC` names a folder whose NVRTC does not suit the driver.
#[cfg(feature = "cuda")]
const NAMED: &str = " and unset FANWISE_NVRTC, or set it to that package's folder";

/// The warning that NVRTC has a newer major version than the driver; `named` if its folder
/// was given.
#[cfg(feature = "cuda")]
fn newer(nvrtc: Version, driver: Version, named: bool) -> Option<String> {
    let (package, named) = (nvrtc_package(Some(driver)), if named { NAMED } else { "" });
    // Within a major version drivers load what later compilers of it made.
    (nvrtc.major > driver.major).then(|| {
        format!(
            "the driver supports CUDA {driver} and may not load what NVRTC {nvrtc} compiles: `pip \
             install {package}`{named}, or install a newer driver"
        )
    })
}

/// State of the CUDA installation.
#[cfg(feature = "cuda")]
struct Gpus {
    devices: Result<Devices, String>,
    nvrtc: Result<Nvrtc, String>,
    /// True if NVRTC was looked for in a folder that was named, and nowhere else.
    named: bool,
}

#[cfg(feature = "cuda")]
impl Gpus {
    fn find() -> Self {
        let devices = crate::backend::cuda::devices();
        let search = crate::cli::target::search(devices.as_ref().ok().map(|found| found.driver));
        Self {
            devices: devices.map_err(|error| error.to_string()),
            nvrtc: Nvrtc::open(&search).map_err(|error| error.to_string()),
            named: search.folder.is_some(),
        }
    }

    /// Reasons why programs cannot run on GPUs.
    fn missing(&self) -> Vec<String> {
        let mut missing = match &self.devices {
            Err(error) => vec![error.clone()],
            Ok(found) => unseen(found, visible().as_deref()),
        };
        match &self.nvrtc {
            Err(error) => {
                missing.push(error.clone());
                let driver = self.devices.as_ref().map(|found| found.driver);
                missing.extend(driver.ok().filter(|_| self.named).map(|driver| {
                    let package = nvrtc_package(Some(driver));
                    format!("for this driver (CUDA {driver}): `pip install {package}`{NAMED}")
                }));
            }
            Ok(nvrtc) => missing.extend(self.mismatches(nvrtc)),
        }
        missing
    }

    /// Incompatibilities among the driver, the GPUs and NVRTC.
    fn mismatches(&self, nvrtc: &Nvrtc) -> Vec<String> {
        let Ok(found) = &self.devices else { return Vec::new() };
        let (driver, version) = (found.driver, nvrtc.version());
        let mut missing: Vec<_> = newer(version, driver, self.named).into_iter().collect();
        for gpu in &found.list {
            match nvrtc.for_device(gpu.arch, CodeFormat::Cubin) {
                Err(error) => missing.push(format!("gpu:{}: {error}", gpu.ordinal)),
                Ok((arch, CodeFormat::Ptx)) if version > driver => missing.push(format!(
                    "gpu:{} is {}, which NVRTC {version} does not support: it gets PTX for {arch}, \
                     which a driver for CUDA {driver} may not load; install a newer driver",
                    gpu.ordinal, gpu.arch
                )),
                Ok(_) => {}
            }
        }
        missing
    }

    /// The form and architecture of kernels for a GPU that is newer than NVRTC.
    fn given(&self, own: Arch) -> Option<String> {
        let (arch, form) = self.nvrtc.as_ref().ok()?.for_device(own, CodeFormat::Cubin).ok()?;
        (arch.number() != own.number()).then(|| format!("{form} for {arch}"))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if self.devices.as_ref().map_or(0, |found| found.list.len()) == 0 {
            text += "gpu     none found; `--gpus N` runs N virtual devices on the CPU\n";
        }
        if let Ok(found) = &self.devices {
            for gpu in &found.list {
                let device = format!("gpu:{}", gpu.ordinal);
                let peers = peers(gpu);
                text.extend([format!(
                    "{device:7} {}, {}, {} multiprocessors, {}{}, {peers}\n",
                    gpu.name,
                    ui::bytes(gpu.memory),
                    gpu.multiprocessors,
                    gpu.arch,
                    self.given(gpu.arch).map_or(String::new(), |given| format!(" (gets {given})"))
                )]);
            }
            text.extend([format!("driver  libcuda, CUDA {}\n", found.driver)]);
        }
        if let Ok(nvrtc) = &self.nvrtc {
            let archs: Vec<_> = nvrtc.archs().iter().map(ToString::to_string).collect();
            let (version, path) = (nvrtc.version(), nvrtc.path().display());
            text.extend([format!("nvrtc   {version}, for {}, {path}\n", archs.join(" "))]);
        }
        for missing in self.missing() {
            text.extend([format!("missing {missing}\n")]);
        }
        text
    }

    fn json(&self) -> Value {
        let gpus: Vec<_> = self
            .devices
            .iter()
            .flat_map(|found| &found.list)
            .map(|gpu| {
                json!({
                    "device": format!("gpu:{}", gpu.ordinal),
                    "name": gpu.name,
                    "memory_bytes": gpu.memory,
                    "multiprocessors": gpu.multiprocessors,
                    "arch": gpu.arch.to_string(),
                    "given": self.given(gpu.arch),
                    "peers": gpu.peers,
                    "distrusted": gpu.distrusted.iter().map(|(peer, _)| peer).collect::<Vec<_>>(),
                })
            })
            .collect();
        let nvrtc = self.nvrtc.as_ref().ok();
        let archs = |nvrtc: &Nvrtc| nvrtc.archs().iter().map(ToString::to_string).collect();
        let archs: Option<Vec<String>> = nvrtc.map(archs);
        json!({
            "gpus": gpus,
            "driver": self.devices.as_ref().ok().map(|found| found.driver.to_string()),
            "nvrtc": nvrtc.map(|nvrtc| nvrtc.version().to_string()),
            "nvrtc_path": nvrtc.map(|nvrtc| nvrtc.path().display().to_string()),
            "archs": archs,
            "missing": self.missing(),
        })
    }
}

/// Without CUDA there is nothing to find.
#[cfg(not(feature = "cuda"))]
struct Gpus(&'static str);

#[cfg(not(feature = "cuda"))]
impl Gpus {
    fn find() -> Self {
        Self("this build has no feature `cuda`")
    }

    fn text(&self) -> String {
        format!(
            "gpu     none found; `--gpus N` runs N virtual devices on the CPU\nmissing {}\n",
            self.0
        )
    }

    fn json(&self) -> Value {
        json!({
            "gpus": [], "driver": null, "nvrtc": null, "nvrtc_path": null, "archs": null,
            "missing": [self.0],
        })
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use crate::backend::DriverError;
    use crate::backend::cuda::{Devices, Version};

    use super::{Gpus, newer, require, unseen};

    const OLD: Version = Version { major: 12, minor: 4 };
    const NEW: Version = Version { major: 13, minor: 0 };

    fn none() -> Devices {
        Devices { driver: OLD, list: Vec::new(), failed: Vec::new() }
    }

    #[test]
    fn a_driver_without_gpus_says_how_to_show_them() {
        let said = unseen(&none(), None).join("\n");
        assert!(said.starts_with("libcuda is installed (CUDA 12.4), but shows no GPU: "), "{said}");
        for hint in ["`--gpus all`", "NVIDIA Container Toolkit", "/dev/nvidia*"] {
            assert!(said.contains(hint), "{said}");
        }
        assert!(!said.contains("VISIBLE"), "{said}");
        for (visible, is) in [("", "is empty; unset it"), ("7,8", "is `7,8`; unset it")] {
            let said = unseen(&none(), Some(visible)).join("\n");
            assert!(said.contains(&format!("no GPU: CUDA_VISIBLE_DEVICES {is}")), "{said}");
        }
        let said = require(&none()).unwrap_err().to_string();
        assert!(said.contains("shows no GPU") && said.ends_with("`--target cpu`"), "{said}");
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_named() {
        let (name, text) = ("CUDA_ERROR_ECC_UNCORRECTABLE".to_owned(), "broken".to_owned());
        let error = DriverError { call: "cuDeviceGetAttribute", code: 214, name, text };
        let found = Devices { failed: vec![(3, error)], ..none() };
        let line =
            "gpu:3 cannot be used: cuDeviceGetAttribute failed: CUDA_ERROR_ECC_UNCORRECTABLE";
        let said = require(&found).unwrap_err().to_string();
        assert!(said.starts_with(line) && !said.contains("shows no GPU"), "{said}");
        let gpus = Gpus { devices: Ok(found), nvrtc: Err("no NVRTC".to_owned()), named: true };
        let shown = gpus.text();
        assert!(shown.contains("gpu     none found") && shown.contains("CUDA 12.4\n"), "{shown}");
        assert!(shown.contains(&format!("missing {line}")), "{shown}");
        let advice =
            "missing for this driver (CUDA 12.4): `pip install nvidia-cuda-nvrtc-cu12` and";
        assert!(shown.contains(advice) && shown.contains("unset FANWISE_NVRTC"), "{shown}");
        assert_eq!(gpus.json()["missing"].as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn a_compiler_that_is_newer_than_the_driver_is_told() {
        assert_eq!((newer(OLD, NEW, false), newer(OLD, OLD, false)), (None, None));
        let said = newer(NEW, OLD, false).unwrap();
        assert!(said.contains("`pip install nvidia-cuda-nvrtc-cu12`, or"), "{said}");
        let said = newer(NEW, OLD, true).unwrap();
        assert!(said.contains("-cu12` and unset FANWISE_NVRTC, or set it"), "{said}");
    }
}
