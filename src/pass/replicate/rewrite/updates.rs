//! What updates need, and the updates: written once, not for each replica.

use std::sync::Arc;

use smallvec::SmallVec;

use super::writer::{Replica, Rewrite};
use crate::ir::{NodeId, NodeKind, Place, Placement, Value};
use crate::op::{CopyOp, First};
use crate::pass::PassError;
use crate::types::invariant::invariant;
use crate::types::{Device, Table};

/// What is written on one device for the updates.
struct There {
    device: Device,
    /// The suffix of its names.
    suffix: String,
    /// The values of the template there.
    values: Table<Value, Value>,
}

impl Rewrite<'_> {
    /// Writes what the updates need, and the updates.
    pub(super) fn updates(&mut self, replicas: &mut [Replica]) -> Result<(), PassError> {
        let template = self.template;
        let mirrored =
            |id| matches!(self.out.param(id).placement, Placement::Mirrored).then_some(id);
        let mirrored = template.updates().iter().find_map(|update| mirrored(update.param));
        let devices: Vec<(Device, String)> = match mirrored {
            Some(id) => {
                let homes = self.out.homes(id).iter().enumerate();
                homes.map(|(i, device)| (*device, format!(".d{i}"))).collect()
            }
            None => vec![(self.merge_device, String::new())],
        };
        self.take_first(replicas)?;
        let mut new: Vec<SmallVec<[Value; 1]>> = vec![SmallVec::new(); template.updates().len()];
        // What is an output is on the host already.
        let outputs = template.outputs().iter().zip(self.out.outputs());
        let mut copies: Table<(Value, Device), Value> =
            outputs.map(|(of, own)| ((of.value, Device::HOST), own.value)).collect();
        for (device, suffix) in devices {
            let mut there = There { device, suffix, values: Table::default() };
            for id in self.claims.order() {
                if self.once.has(*id) && template.node(*id).op().is_some() {
                    self.write_once(&mut there, *id)?;
                }
            }
            for (new, update) in new.iter_mut().zip(template.updates()) {
                let Some(value) = update.values.first().copied() else { continue };
                new.push(match (mirrored, self.out.homes(update.param)) {
                    (None, [home]) => self.bring_back(&mut there, value, *home, &mut copies),
                    _ => self.there(&mut there, value),
                });
            }
        }
        for (update, values) in template.updates().iter().zip(new) {
            self.out.add_update(update.param, values);
        }
        Ok(())
    }

    /// Takes from the first replica that has rows what updates need and every replica computes.
    fn take_first(&mut self, replicas: &mut [Replica]) -> Result<(), PassError> {
        let template = self.template;
        let mut needed: Vec<Value> = Vec::new();
        for id in self.claims.order().iter().filter(|id| self.once.has(**id)) {
            needed.extend(template.operands(*id));
        }
        needed.extend(template.updates().iter().filter_map(|update| update.values.first()));
        for value in needed {
            let is_op = template.node(value.node).op().is_some();
            if !is_op || self.once.has(value.node) || self.whole(value).is_some() {
                continue;
            }
            let info = template.info(value);
            let mut parts = Vec::with_capacity(replicas.len());
            for replica in replicas.iter_mut() {
                let part = self.own(replica, value);
                parts.push(self.copy_to(replica, self.merge_device, part, &info.name, ".h"));
            }
            let name = self.free_name(&info.name, ".first");
            let origin = template.node(value.node).origin().clone();
            let place = Place { device: self.merge_device, replica: None };
            let node = self.out.add(First {}.into(), &parts, &[name], place, origin)?;
            self.merged.insert(value, Value { node, output: 0 });
        }
        Ok(())
    }

    /// Writes a node of the template on one device, for all replicas.
    fn write_once(&mut self, there: &mut There, id: NodeId) -> Result<(), PassError> {
        let node = self.template.node(id);
        let Some(op) = node.op() else { return Ok(()) };
        let operands: SmallVec<[Value; 4]> =
            self.template.operands(id).into_iter().map(|v| self.there(there, v)).collect();
        let names: SmallVec<[Arc<str>; 1]> = node
            .results()
            .iter()
            .map(|r| match there.suffix.as_str() {
                "" if self.once.only(id) => r.name.clone(),
                "" => self.free_name(&r.name, ".once"),
                suffix => self.free_name(&r.name, suffix),
            })
            .collect();
        let place = Place { device: there.device, replica: None };
        let new = self.out.add(op.clone(), &operands, &names, place, node.origin().clone())?;
        for (output, _) in (0u32..).zip(node.results()) {
            there.values.insert(Value { node: id, output }, Value { node: new, output });
        }
        Ok(())
    }

    /// The whole of a value of the template on one device.
    fn there(&mut self, there: &mut There, value: Value) -> Value {
        if let Some(known) = there.values.get(&value) {
            return *known;
        }
        let whole = self.source(value, there.device);
        let suffix = if there.suffix.is_empty() { ".u" } else { &there.suffix };
        let own = self.copy_once(value, whole, there.device, suffix);
        there.values.insert(value, own);
        own
    }

    /// What a parameter on `home` is to hold, of a value written on one device.
    fn bring_back(
        &mut self,
        there: &mut There,
        value: Value,
        home: Device,
        copies: &mut Table<(Value, Device), Value>,
    ) -> Value {
        if let Some(known) = copies.get(&(value, home)) {
            return *known;
        }
        let whole = match there.values.get(&value) {
            Some(known) => *known,
            None => self.source(value, home),
        };
        let copy = self.copy_once(value, whole, home, ".home");
        copies.insert((value, home), copy);
        copy
    }

    /// Where the whole of a value is that is not written for the updates; a mirrored parameter as
    /// `device` holds it.
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

    /// `whole` on `device`, for all replicas: a copy, unless it is there.
    fn copy_once(&mut self, value: Value, whole: Value, device: Device, suffix: &str) -> Value {
        if self.out.node(whole.node).place().device == device {
            return whole;
        }
        let name = self.free_name(&self.template.info(value).name, suffix);
        let place = Place { device, replica: None };
        let ty = self.out.ty(whole).clone();
        self.add(CopyOp {}.into(), whole, name, ty, place)
    }
}
