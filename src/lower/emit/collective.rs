//! The steps with which devices join or combine what they have, each for itself.

use std::ops::Range;

use smallvec::SmallVec;

use super::{Emitter, Point};
use crate::ir::{NodeId, Value};
use crate::lower::LowerError;
use crate::lower::chain::Chain;
use crate::lower::collect::bytes;
use crate::lower::layout::{Collective, Form, Member, Role};
use crate::lower::program::{Action, Buffer, BufferId, Guard, Lane, Launch, Storage};
use crate::op::{ExclusiveScan, Op};
use crate::types::invariant::invariant;
use crate::types::{Dim, Order, Shape, TensorType};

impl Emitter<'_> {
    /// What every member does: it takes what it needs of its peers when they have recorded that it
    /// is there.
    pub(super) fn collective(
        &mut self,
        id: NodeId,
        collective: &Collective,
    ) -> Result<(), LowerError> {
        self.on(collective.lane, |emitter| emitter.work(id, collective))
    }

    /// Does something on a lane.
    fn on<T>(&mut self, lane: Lane, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.lane, lane);
        let done = work(self);
        self.lane = before;
        done
    }

    /// The steps of every member, on the lane.
    fn work(&mut self, id: NodeId, collective: &Collective) -> Result<(), LowerError> {
        let devices: Vec<usize> =
            collective.members.iter().map(|m| self.position(m.device)).collect();
        if self.lane == Lane::Exchange {
            for device in &devices {
                self.begin(id, *device);
            }
        }
        if matches!(collective.form, Form::Sliced(_)) {
            self.sliced(id, collective)?;
        }
        for (m, member) in collective.members.iter().enumerate() {
            let device = self.position(member.device);
            match (&collective.form, self.layout.role(id)) {
                (Form::Sliced(_), _) => {}
                (Form::Scan, _) => self.scan(id, collective, member)?,
                (Form::Direct, Role::Join) => {
                    for value in member.results.iter().flatten() {
                        self.join(id, device, *value)?;
                    }
                }
                (Form::Direct, _) => {
                    let operands = collective.parts.as_slice();
                    let op = self.graph.node(id).op().cloned();
                    self.combine(id, op, operands, member)?;
                }
            }
            self.receive(id, member, m == 0);
        }
        if self.lane == Lane::Exchange {
            for device in devices {
                let now = self.now(device);
                self.exchanged[device].push(now);
            }
        }
        Ok(())
    }

    /// Beside its computing a device begins when all that was computed before is done: what is
    /// written may take the place of something that was read. Of the exchanges before at most the
    /// last is left beside: the memory of others is free.
    fn begin(&mut self, id: NodeId, device: usize) {
        let label = self.graph.node(id).label();
        if let [.., before, _] = self.exchanged[device].as_slice() {
            let before = *before;
            self.on(Lane::Compute, |emitter| emitter.wait(label, device, before));
        }
        let steps = self.devices[device].steps.iter().rposition(|s| s.lane == Lane::Compute);
        // Nothing was computed yet.
        let steps = steps.map_or(0, |at| at + 1);
        self.wait(label, device, Point { device, steps, lane: Lane::Compute });
    }

    /// Says that a member has its results, and copies those that it needs more than once.
    fn receive(&mut self, id: NodeId, member: &Member, is_first: bool) {
        let device = self.position(member.device);
        let label = self.graph.node(id).label();
        for (output, again) in &member.again {
            if let Some(from) = member.results[*output as usize] {
                let (from, to) = (*self.buffers.get(from), *self.buffers.get(*again));
                let guard = self.layout.guard(again.node);
                self.push(device, label, guard, Action::Copy { device, from, to });
            }
        }
        let now = self.now(device);
        let again = member.again.iter().map(|(_, value)| value);
        for value in member.results.iter().flatten().chain(again) {
            self.defined[value.node.index()] = now;
        }
        if is_first {
            self.defined[id.index()] = now;
        }
    }

    /// A launch of the operator on a member, of parts that it has or takes from its peers.
    fn combine(
        &mut self,
        id: NodeId,
        op: Option<Op>,
        parts: &[Value],
        member: &Member,
    ) -> Result<(), LowerError> {
        let device = self.position(member.device);
        let mut operands = Vec::with_capacity(parts.len());
        for part in parts {
            operands.push(self.form(*part, device, Order::RowMajor)?);
        }
        let mut results = Vec::with_capacity(member.results.len());
        let all = matches!(op, Some(Op::ExclusiveScan(_)));
        for (output, result) in (0u32..).zip(&member.results) {
            let ty = self.graph.ty(Value { node: id, output }).clone();
            match result {
                Some(value) => results.push(self.result(*value, device, ty)?),
                None if all => {}
                None => {
                    let name = self.graph.info(Value { node: id, output }).name.clone();
                    let (storage, order) = (Storage::Arena, Order::RowMajor);
                    results.push(self.add_buffer(device, Buffer { name, ty, storage, order })?);
                }
            }
        }
        let launch = self.launch_of(id, op, operands, results);
        self.push(device, self.graph.node(id).label(), member.guard, launch);
        Ok(())
    }

    fn launch_of(
        &self,
        id: NodeId,
        op: Option<Op>,
        operands: Vec<BufferId>,
        results: Vec<BufferId>,
    ) -> Action {
        let class = self.layout.support(id).class();
        let chain = Chain::default();
        Action::Launch(Box::new(Launch { class, op, chain, operands, results }))
    }

    /// The buffer of a member's value, as a tensor of this type with as many bytes.
    fn result(
        &mut self,
        value: Value,
        device: usize,
        ty: TensorType,
    ) -> Result<BufferId, LowerError> {
        if *self.graph.ty(value) == ty {
            return Ok(*self.buffers.get(value));
        }
        let (base, offset) = self.layout.base(value);
        let name = self.graph.info(value).name.clone();
        let storage = Storage::Part { of: *self.buffers.get(base), offset };
        self.add_buffer(device, Buffer { name, ty, storage, order: Order::RowMajor })
    }

    /// A member's result of a scan: what the parts before its own give.
    fn scan(
        &mut self,
        id: NodeId,
        collective: &Collective,
        member: &Member,
    ) -> Result<(), LowerError> {
        let Some(Op::ExclusiveScan(scan)) = self.graph.node(id).op() else { return Ok(()) };
        let parts = collective.parts.len();
        for (own, value) in member.results.iter().enumerate() {
            let Some(value) = *value else { continue };
            let range = if scan.reverse { own + 1..parts } else { 0..own };
            let rows = scan.rows[range.clone()].to_vec();
            let op = ExclusiveScan { rows, ..scan.clone() };
            let mut results: SmallVec<[Option<Value>; 2]> = SmallVec::from_elem(None, parts);
            results[own] = Some(value);
            let single = Member { results, again: Vec::new(), ..member.clone() };
            self.combine(id, Some(op.into()), &collective.parts[range], &single)?;
        }
        Ok(())
    }

    /// Each member combines its slice of the parts, then takes the other slices from those that
    /// combined them.
    fn sliced(&mut self, id: NodeId, collective: &Collective) -> Result<(), LowerError> {
        let ty = &self.graph.node(id).results()[0].ty;
        let elements = ty.shape.elements().as_const();
        let elements = invariant(elements, "that what is combined in slices has a fixed size");
        let slices = collective.slices(elements);
        let mut done = Vec::with_capacity(slices.len());
        for (member, slice) in collective.members.iter().zip(&slices) {
            let device = self.position(member.device);
            let own = member.results.first().copied().flatten();
            let Some(own) = own.filter(|_| !slice.is_empty()) else {
                done.push(None);
                continue;
            };
            let mut operands = Vec::with_capacity(collective.parts.len());
            for part in &collective.parts {
                operands.push(self.slice_here(id, *part, device, slice)?);
            }
            let result = self.slice_of(own, device, slice)?;
            // Whatever rows the member has: the others need its slice.
            let op = self.graph.node(id).op().cloned();
            let launch = self.launch_of(id, op, operands, vec![result]);
            self.push(device, self.graph.node(id).label(), Guard::Always, launch);
            done.push(Some((self.now(device), result)));
        }
        for (to, member) in collective.members.iter().enumerate() {
            let Some(own) = member.results.first().copied().flatten() else { continue };
            let device = self.position(member.device);
            for (from, slice) in slices.iter().enumerate().filter(|(from, _)| *from != to) {
                let Some((point, buffer)) = done[from] else { continue };
                let place = self.slice_of(own, device, slice)?;
                let label = self.graph.node(id).label();
                self.wait(label, device, point);
                let action = Action::Copy { device: point.device, from: buffer, to: place };
                self.push(device, label, member.guard, action);
            }
        }
        Ok(())
    }

    /// A slice of a part in the memory of a device: there already, or copied now.
    fn slice_here(
        &mut self,
        id: NodeId,
        part: Value,
        device: usize,
        slice: &Range<i64>,
    ) -> Result<BufferId, LowerError> {
        let source = self.device(part.node);
        let from = self.slice_of(part, source, slice)?;
        let label = self.graph.node(id).label();
        self.wait(label, device, self.defined[part.node.index()]);
        if source == device {
            return Ok(from);
        }
        let buffer =
            Buffer { storage: Storage::Arena, ..self.devices[source].buffer(from).clone() };
        let to = self.add_buffer(device, buffer)?;
        let guard = self.layout.guard(part.node);
        self.push(device, label, guard, Action::Copy { device: source, from, to });
        Ok(to)
    }

    /// These elements of a value, as a buffer of the device that has it.
    fn slice_of(
        &mut self,
        value: Value,
        device: usize,
        slice: &Range<i64>,
    ) -> Result<BufferId, LowerError> {
        let (base, offset) = self.layout.base(value);
        let info = self.graph.info(value);
        let dtype = info.ty.dtype;
        let buffer = Buffer {
            name: info.name.clone(),
            ty: TensorType {
                dtype,
                shape: Shape::from([Dim::from(slice.end - slice.start)].as_slice()),
            },
            storage: Storage::Part {
                of: *self.buffers.get(base),
                offset: offset + bytes(slice.start, dtype.bytes()),
            },
            order: Order::RowMajor,
        };
        self.add_buffer(device, buffer)
    }
}
