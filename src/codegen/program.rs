//! The kernels of a program.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CodegenError, Kernel, call};
use crate::lower::{Action, Program};
use crate::types::DeviceKind;

/// The kernels that the GPUs of a program launch, each once, ordered. What runs on the host has none.
pub fn kernels(program: &Program) -> Result<Vec<Arc<Kernel>>, CodegenError> {
    let mut kernels = BTreeSet::new();
    for device in program.devices.iter().filter(|d| d.device.kind == DeviceKind::Gpu) {
        for step in &device.steps {
            if let Action::Launch(launch) = &step.action {
                kernels.insert(call(device, step, launch)?.kernel);
            }
        }
    }
    Ok(kernels.into_iter().collect())
}
