//! `fanwise devices`: what programs can run on, and what is missing for more.

use std::process::ExitCode;

use clap::Args;
#[cfg(feature = "cuda")]
use fanwise::codegen::{Arch, Form};
use serde_json::{Value, json};

use crate::args::Format;
use crate::ui;

/// List the devices of this machine, and what is missing to use GPUs
#[derive(Args)]
#[command(after_help = "Examples:\n  fanwise devices\n  fanwise devices --format json")]
pub(crate) struct DevicesArgs {
    /// How to print it
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub(crate) fn devices(args: &DevicesArgs) -> anyhow::Result<ExitCode> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let gpus = Gpus::find();
    match args.format {
        Format::Text => ui::out(&format!("cpu:0   host, {threads} threads\n{}", gpus.text()))?,
        Format::Json => {
            let mut all = gpus.json();
            all["cpu"] = json!({ "threads": threads });
            ui::out(&all.to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How to get an NVRTC that fits a driver of this major version of CUDA.
#[cfg(feature = "cuda")]
fn package(major: i32) -> &'static str {
    if major < 13 {
        "pip install nvidia-cuda-nvrtc-cu12"
    } else {
        "pip install nvidia-cuda-nvrtc==13.0.88"
    }
}

/// What there is of CUDA.
#[cfg(feature = "cuda")]
struct Gpus {
    devices: Result<fanwise::backend::cuda::Devices, String>,
    nvrtc: Result<fanwise::backend::cuda::Nvrtc, String>,
}

#[cfg(feature = "cuda")]
impl Gpus {
    fn find() -> Self {
        use fanwise::backend::cuda::{Nvrtc, devices};

        let nvrtc = Nvrtc::open(&crate::target::search());
        Self {
            devices: devices().map_err(|error| error.to_string()),
            nvrtc: nvrtc.map_err(|error| error.to_string()),
        }
    }

    /// What stands in the way of running on GPUs.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        match &self.devices {
            Err(error) => missing.push(error.clone()),
            Ok(found) if found.devices.is_empty() => {
                missing.push(format!("libcuda is here (CUDA {}), and no GPU", found.driver));
            }
            Ok(_) => {}
        }
        let driver = self.devices.as_ref().ok().map(|found| found.driver);
        match &self.nvrtc {
            Err(error) => {
                missing.push(error.clone());
                missing.extend(driver.filter(|d| d.major == 12).map(|driver| {
                    format!("for this driver (CUDA {driver}): `{}`", package(driver.major))
                }));
            }
            Ok(nvrtc) => missing.extend(self.mismatches(nvrtc)),
        }
        missing
    }

    /// Where the driver, the GPUs and NVRTC do not fit each other.
    fn mismatches(&self, nvrtc: &fanwise::backend::cuda::Nvrtc) -> Vec<String> {
        let Ok(found) = &self.devices else { return Vec::new() };
        let (driver, version) = (found.driver, nvrtc.version());
        let mut missing = Vec::new();
        if version.major > driver.major {
            let package = package(driver.major);
            missing.push(format!(
                "the driver is of CUDA {driver} and may not load what NVRTC {version} compiles: `{package}`, or install \
                 a newer driver"
            ));
        }
        for gpu in &found.devices {
            match nvrtc.for_device(gpu.arch, Form::Cubin) {
                Err(error) => missing.push(format!("gpu:{}: {error}", gpu.ordinal)),
                Ok((arch, Form::Ptx)) if version > driver => missing.push(format!(
                    "gpu:{} is {}, which NVRTC {version} does not know: it is given PTX for {arch}, which a driver of \
                     CUDA {driver} may not take; install a newer driver",
                    gpu.ordinal, gpu.arch
                )),
                Ok(_) => {}
            }
        }
        missing
    }

    /// What kernels a GPU of this architecture is given, where NVRTC does not know it.
    fn given(&self, own: Arch) -> Option<String> {
        let (arch, form) = self.nvrtc.as_ref().ok()?.for_device(own, Form::Cubin).ok()?;
        (arch.number() != own.number()).then(|| format!("{form} for {arch}"))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        match &self.devices {
            Ok(found) => {
                for gpu in &found.devices {
                    let device = format!("gpu:{}", gpu.ordinal);
                    let peers = match gpu.peers.as_slice() {
                        [] => "no peers".to_owned(),
                        all => {
                            let names = all.iter().map(|peer| format!("gpu:{peer}"));
                            format!("peers {}", names.collect::<Vec<_>>().join(" "))
                        }
                    };
                    text.extend([format!(
                        "{device:7} {}, {}, {} multiprocessors, {}{}, {peers}\n",
                        gpu.name,
                        ui::bytes(gpu.memory),
                        gpu.multiprocessors,
                        gpu.arch,
                        self.given(gpu.arch)
                            .map_or(String::new(), |given| format!(" (given {given})"))
                    )]);
                }
                text.extend([format!("driver  libcuda, CUDA {}\n", found.driver)]);
            }
            Err(_) => {
                text += "gpu     none found; `--gpus N` runs N virtual devices on the CPU\n";
            }
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
            .flat_map(|found| &found.devices)
            .map(|gpu| {
                json!({
                    "device": format!("gpu:{}", gpu.ordinal),
                    "name": gpu.name,
                    "memory_bytes": gpu.memory,
                    "multiprocessors": gpu.multiprocessors,
                    "arch": gpu.arch.to_string(),
                    "given": self.given(gpu.arch),
                    "peers": gpu.peers,
                })
            })
            .collect();
        let nvrtc = self.nvrtc.as_ref().ok();
        json!({
            "gpus": gpus,
            "driver": self.devices.as_ref().ok().map(|found| found.driver.to_string()),
            "nvrtc": nvrtc.map(|nvrtc| nvrtc.version().to_string()),
            "nvrtc_path": nvrtc.map(|nvrtc| nvrtc.path().display().to_string()),
            "archs": nvrtc.map(|nvrtc| nvrtc.archs().iter().map(ToString::to_string).collect::<Vec<_>>()),
            "missing": self.missing(),
        })
    }
}

/// Without CUDA there is nothing to find.
#[cfg(not(feature = "cuda"))]
struct Gpus;

#[cfg(not(feature = "cuda"))]
impl Gpus {
    const MISSING: &str = "this fanwise is built without the feature `cuda`";

    fn find() -> Self {
        Self
    }

    fn text(&self) -> String {
        format!(
            "gpu     none found; `--gpus N` runs N virtual devices on the CPU\nmissing {}\n",
            Self::MISSING
        )
    }

    fn json(&self) -> Value {
        json!({
            "gpus": [], "driver": null, "nvrtc": null, "nvrtc_path": null, "archs": null,
            "missing": [Self::MISSING],
        })
    }
}
