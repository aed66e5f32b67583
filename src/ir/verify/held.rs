//! The devices on which the nodes of parameters are.

use super::super::{Graph, Id, ParamId};
use crate::types::{Device, FastMap, FastSet};

/// By parameter and device, whether there is a node.
pub(super) struct Held {
    /// The number of each device among those that hold parameters, and that of the last one asked
    /// for: nodes of one device come together.
    numbers: FastMap<Device, usize>,
    last: Option<(Device, usize)>,
    /// By number, and by parameter there.
    seen: Vec<Vec<bool>>,
    params: usize,
    /// Those on devices that hold no parameter.
    others: FastSet<(ParamId, Device)>,
}

impl Held {
    /// No node is there yet.
    pub(super) fn new(graph: &Graph) -> Self {
        let mut numbers = FastMap::default();
        let params = graph.params().len();
        // All mirrored parameters are on the same devices.
        let mut last = None;
        for id in (0u32..).map(ParamId).take(params) {
            let placement = graph.param(id).placement;
            if last == Some(placement) {
                continue;
            }
            last = Some(placement);
            for device in graph.homes(id) {
                let number = numbers.len();
                numbers.entry(*device).or_insert(number);
            }
        }
        let seen = vec![Vec::new(); numbers.len()];
        Self { numbers, last: None, seen, params, others: FastSet::default() }
    }

    /// Takes a node; false if there is one already.
    pub(super) fn insert(&mut self, id: ParamId, device: Device) -> bool {
        let number = match self.last {
            Some((last, number)) if last == device => Some(number),
            _ => self.numbers.get(&device).copied(),
        };
        let Some(number) = number else { return self.others.insert((id, device)) };
        self.last = Some((device, number));
        let seen = &mut self.seen[number];
        if seen.is_empty() {
            seen.resize(self.params, false);
        }
        !std::mem::replace(&mut seen[id.index()], true)
    }
}
