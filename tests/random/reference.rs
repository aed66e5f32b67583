//! The target that evaluates by reference, which the tests of programs and of devices share.

use fanwise::lower::{Kernels, Support, Types};
use fanwise::op::Op;
use fanwise::types::Target;

/// A target that has no kernels: every operator is evaluated by reference.
#[derive(Debug)]
pub(crate) struct Reference;

impl Kernels for Reference {
    fn target(&self) -> &Target {
        &TARGET
    }

    fn supports(&self, _op: &Op, _types: &Types<'_>) -> Support {
        Support::default()
    }
}

const TARGET: Target = Target {
    name: "reference",
    alignment: 64,
    keeps_params: false,
    updates: true,
    together: false,
    collectives: false,
    channels_last: false,
    any_channels_last: false,
};
