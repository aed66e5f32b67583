//! Updates of parameters, and the nodes they need, each written once per device that computes them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::writer::{Replica, Rewrite};
use crate::ir::{DevicePlacement, NodeId, NodeKind, Placement, Value};
use crate::op::First;
use crate::pass::PassError;
use crate::types::invariant::invariant;
use crate::types::{Device, FastMap};

/// The nodes written on one device for updates.
struct UpdateDevice {
    device: Device,
    /// The suffix of the names of its values.
    suffix: String,
    /// The values of the template that the device has.
    values: FastMap<Value, Value>,
}

impl Rewrite<'_> {
    /// Writes the nodes that updates need, and the updates.
    pub(super) fn updates(&mut self, replicas: &mut [Replica]) -> Result<(), PassError> {
        let template = self.template;
        let mirrored =
            |id| matches!(self.out.param(id).placement, Placement::Mirrored).then_some(id);
        // One mirrored parameter means all are: options place parameters alike.
        let mirrored = template.updates().iter().find_map(|update| mirrored(update.param));
        let devices: Vec<(Device, String)> = match mirrored {
            Some(id) => {
                let homes = self.out.homes(id).iter().enumerate();
                homes.map(|(i, device)| (*device, format!(".d{i}"))).collect()
            }
            None => vec![(self.merge_device, String::new())],
        };
        self.select_first(replicas)?;
        let mut new: Vec<SmallVec<[Value; 1]>> = vec![SmallVec::new(); template.updates().len()];
        // An output is on the host already: an update of a parameter there needs no second copy.
        let outputs = template.outputs().iter().zip(self.out.outputs());
        let mut copies: FastMap<(Value, Device), Value> =
            outputs.map(|(of, own)| ((of.value, Device::HOST), own.value)).collect();
        for (device, suffix) in devices {
            let mut target = UpdateDevice { device, suffix, values: FastMap::default() };
            for id in self.claims.order() {
                if self.update_nodes.contains(*id) && template.node(*id).op().is_some() {
                    self.write_once(&mut target, *id)?;
                }
            }
            for (new, update) in new.iter_mut().zip(template.updates()) {
                let Some(value) = update.values.first().copied() else { continue };
                new.push(match (mirrored, self.out.homes(update.param)) {
                    (None, [home]) => self.value_for_home(&mut target, value, *home, &mut copies),
                    _ => self.value_on(&mut target, value),
                });
            }
        }
        for (update, values) in template.updates().iter().zip(new) {
            self.out.add_update(update.param, values);
        }
        Ok(())
    }

    /// Writes `first` for values that updates need and every replica computes: the value of the
    /// first replica that has rows.
    fn select_first(&mut self, replicas: &mut [Replica]) -> Result<(), PassError> {
        let template = self.template;
        let mut needed: Vec<Value> = Vec::new();
        for id in self.claims.order().iter().filter(|id| self.update_nodes.contains(**id)) {
            needed.extend(template.operands(*id));
        }
        needed.extend(template.updates().iter().filter_map(|update| update.values.first()));
        // Parameters and inputs are whole already, as are merged values.
        for value in needed {
            let is_op = template.node(value.node).op().is_some();
            if !is_op || self.update_nodes.contains(value.node) || self.whole(value).is_some() {
                continue;
            }
            let info = template.info(value);
            let mut parts = Vec::with_capacity(replicas.len());
            for replica in replicas.iter_mut() {
                let part = self.local(replica, value);
                parts.push(self.copy_to(replica, self.merge_device, part, &info.name, ".h"));
            }
            let name = self.free_name(&info.name, ".first");
            let origin = template.node(value.node).origin().clone();
            let place = DevicePlacement { device: self.merge_device, replica: None };
            let node = self.out.add(First {}.into(), &parts, &[name], place, origin)?;
            self.merged.insert(value, Value { node, output: 0 });
        }
        Ok(())
    }

    /// Writes a node of the template on one device, on behalf of all replicas.
    fn write_once(&mut self, target: &mut UpdateDevice, id: NodeId) -> Result<(), PassError> {
        let template = self.template;
        let node = template.node(id);
        let Some(op) = node.op() else { return Ok(()) };
        let operands: SmallVec<[Value; 4]> =
            template.operands(id).into_iter().map(|v| self.value_on(target, v)).collect();
        let names: SmallVec<[Arc<str>; 1]> = node
            .results()
            .iter()
            .map(|r| match target.suffix.as_str() {
                "" if self.update_nodes.is_update_only(id) => r.name.clone(),
                "" => self.free_name(&r.name, ".once"),
                suffix => self.free_name(&r.name, suffix),
            })
            .collect();
        let place = DevicePlacement { device: target.device, replica: None };
        let new = self.out.add(op.clone(), &operands, &names, place, node.origin().clone())?;
        for (output, _) in (0u32..).zip(node.results()) {
            target.values.insert(Value { node: id, output }, Value { node: new, output });
        }
        Ok(())
    }

    /// The whole of a value of the template, on one device.
    fn value_on(&mut self, target: &mut UpdateDevice, value: Value) -> Value {
        if let Some(known) = target.values.get(&value) {
            return *known;
        }
        let whole = self.source(value, target.device);
        let suffix = if target.suffix.is_empty() { ".u" } else { &target.suffix };
        let own = self.copy_once(value, whole, target.device, suffix);
        target.values.insert(value, own);
        own
    }

    /// The new value of a parameter on the device `home` that holds it, copied there if another
    /// device computes it.
    fn value_for_home(
        &mut self,
        target: &mut UpdateDevice,
        value: Value,
        home: Device,
        copies: &mut FastMap<(Value, Device), Value>,
    ) -> Value {
        if let Some(known) = copies.get(&(value, home)) {
            return *known;
        }
        let whole = match target.values.get(&value) {
            Some(known) => *known,
            None => self.source(value, home),
        };
        let copy = self.copy_once(value, whole, home, ".home");
        copies.insert((value, home), copy);
        copy
    }

    /// The whole of a value that is not written for updates; of a mirrored parameter the copy that
    /// `device` holds.
    fn source(&mut self, value: Value, device: Device) -> Value {
        match self.template.node(value.node).kind() {
            NodeKind::Param(id) => self.held_param(*id, device),
            NodeKind::Input => self.input(value),
            NodeKind::Op(_) => invariant(
                self.whole(value),
                "that what replicas hold is joined before updates take it",
            ),
        }
    }

    /// `whole` on `device`, on behalf of all replicas: a copy, unless it is there already.
    fn copy_once(&mut self, value: Value, whole: Value, device: Device, suffix: &str) -> Value {
        if self.out.node(whole.node).place().device == device {
            return whole;
        }
        let template = self.template;
        let name = self.free_name(&template.info(value).name, suffix);
        let place = DevicePlacement { device, replica: None };
        self.add_copy(whole, name, place)
    }
}
