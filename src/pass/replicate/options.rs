//! Options of replication.

use crate::pass::repair::Repair;
use crate::types::{Device, ShardRule};

/// The device on which outputs are merged.
///
/// Elsewhere: gather (PyTorch); concatenate (Keras).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// On the host.
    #[default]
    Cpu,
    /// On the first device of the split; the result is then copied to the host.
    Gpu,
}

/// The devices that hold the parameters.
///
/// Elsewhere: mirrored variable (Keras).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightPlacement {
    /// The devices of the template; other devices copy the parameters in each run, but GPUs keep
    /// their copies of those that no run changes.
    #[default]
    Template,
    /// The host; devices copy them as above. Shared parameters stay shared.
    Cpu,
    /// Every device has a copy of its own.
    Mirrored,
}

/// Options of the `replicate` pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicate {
    /// The devices, one for each replica, in order.
    pub devices: Vec<Device>,
    /// The rule that divides the rows.
    pub rule: ShardRule,
    /// The device that merges outputs.
    pub merge: Merge,
    /// The devices that hold the parameters.
    pub weights: WeightPlacement,
    /// The allowed repairs.
    pub repair: Repair,
}

impl Replicate {
    /// The defaults on these devices: the last takes the remainder of the rows, the host merges
    /// outputs, weights stay on their devices.
    ///
    /// What the devices are is not known here, so `weights` is [`WeightPlacement::Template`]. On
    /// GPUs choose [`WeightPlacement::Mirrored`], as the command line and the Python package do: a
    /// step of training then updates the weights where their gradients are, and sends none to the
    /// GPUs. Inference costs the same with both, for GPUs keep a copy of what no run changes.
    pub fn over(devices: Vec<Device>) -> Self {
        Self {
            devices,
            rule: ShardRule::default(),
            merge: Merge::default(),
            weights: WeightPlacement::default(),
            repair: Repair::default(),
        }
    }
}
