//! The target that evaluates by reference, which the tests of programs and of devices share.

use fanwise::types::{KernelClass, Limits, Target};

/// A target that has no kernels: every operator is evaluated by reference.
pub(crate) const REFERENCE: Target = Target {
    name: "reference",
    kernels: &[KernelClass::View, KernelClass::Copy, KernelClass::Reference],
    any_type: &[],
    numbers: &[],
    limits: Limits::NONE,
    epilogues: &[],
    in_place: &[],
    alignment: 64,
    keeps_params: false,
    updates: true,
    channels_last: &[],
};
