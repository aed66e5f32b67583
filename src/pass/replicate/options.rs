//! How a graph is replicated.

use crate::pass::repair::Repair;
use crate::types::{Device, ShardRule};

/// Where the outputs are merged.
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

/// Which devices hold the parameters.
///
/// Elsewhere: mirrored variable (Keras).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightPlacement {
    /// Those that the template put them on; other devices copy them in each run.
    #[default]
    Template,
    /// The host; devices copy them in each run. Values stay, and what is shared stays shared.
    Cpu,
    /// Every device has its own.
    Mirrored,
}

/// How to replicate a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicate {
    /// The devices, one for each replica, in order.
    pub devices: Vec<Device>,
    /// How the rows are divided.
    pub rule: ShardRule,
    /// Where the outputs are merged.
    pub merge: Merge,
    /// Which devices hold the parameters.
    pub weights: WeightPlacement,
    /// Which repairs are allowed.
    pub repair: Repair,
}

impl Replicate {
    /// The defaults on these devices: the last takes the remainder, the host merges, weights stay.
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
