//! The kernels of a program.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CodegenError, Kernel, calls};
use crate::lower::Program;
use crate::types::DeviceKind;

/// Returns the distinct kernels that the GPUs of a program launch, in order. Steps of the host have
/// no CUDA kernel.
pub fn kernels(program: &Program) -> Result<Vec<Arc<Kernel>>, CodegenError> {
    let mut kernels = BTreeSet::new();
    for device in program.devices.iter().filter(|d| d.device.kind == DeviceKind::Gpu) {
        kernels.extend(calls(device)?.into_iter().flatten().map(|call| call.kernel));
    }
    Ok(kernels.into_iter().collect())
}
