//! The steps of collectives: each member copies the parts of its peers and combines them itself.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::{Emitter, Point};
use crate::ir::{NodeId, Value};
use crate::lower::LowerError;
use crate::lower::chain::Chain;
use crate::lower::collectives::{bytes, rotated};
use crate::lower::layout::{Algorithm, Collective, Member, Role};
use crate::lower::program::{Action, Buffer, BufferId, Guard, Lane, Launch, Storage};
use crate::op::{ExclusiveScan, Op};
use crate::types::invariant::invariant;
use crate::types::{Dim, Order, Shape, TensorType};

impl Emitter<'_> {
    /// Emits the steps of a collective on its lane.
    pub(super) fn collective(
        &mut self,
        id: NodeId,
        collective: &Collective,
    ) -> Result<(), LowerError> {
        self.on_lane(collective.lane, |emitter| emitter.member_steps(id, collective))
    }

    /// Runs `work` with `lane` as the current lane.
    fn on_lane<T>(&mut self, lane: Lane, work: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.lane, lane);
        let done = work(self);
        self.lane = before;
        done
    }

    /// Emits the steps of every member.
    fn member_steps(&mut self, id: NodeId, collective: &Collective) -> Result<(), LowerError> {
        let devices: Vec<usize> =
            collective.members.iter().map(|m| self.position(m.device)).collect();
        if self.lane == Lane::Exchange {
            for device in &devices {
                self.begin_exchange(id, *device);
            }
        }
        if matches!(collective.algorithm, Algorithm::ReduceScatter(_)) {
            self.reduce_scatter(id, collective)?;
        }
        for (m, member) in collective.members.iter().enumerate() {
            let device = self.position(member.device);
            match (&collective.algorithm, self.layout.role(id)) {
                (Algorithm::ReduceScatter(_), _) => {}
                (Algorithm::Scan, _) => self.scan(id, collective, member)?,
                (Algorithm::Direct, Role::Concat) => {
                    for value in member.results.iter().flatten() {
                        self.concat(id, device, *value)?;
                    }
                }
                (Algorithm::Direct, _) => {
                    let operands = collective.parts.as_slice();
                    let op = self.graph.node(id).op().cloned();
                    self.combine(id, op, operands, member)?;
                }
            }
            self.receive_results(id, member, m == 0);
        }
        if self.lane == Lane::Exchange {
            for device in devices {
                let now = self.now(device);
                self.exchange_ends[device].push(now);
            }
        }
        Ok(())
    }

    /// Orders an exchange behind all computation that was emitted before it: its results may reuse
    /// bytes that earlier steps read. The compute stream also waits for all earlier exchanges but
    /// the last, so that at most two are in flight and the memory plan can reuse the bytes of the
    /// others.
    fn begin_exchange(&mut self, id: NodeId, device: usize) {
        let label = self.graph.node(id).label();
        if let [.., before, _] = self.exchange_ends[device].as_slice() {
            let before = *before;
            self.on_lane(Lane::Compute, |emitter| emitter.wait(label, device, before));
        }
        let steps = self.devices[device].steps.iter().rposition(|s| s.lane == Lane::Compute);
        // Before the first step of the compute stream there is nothing to wait for.
        let steps = steps.map_or(0, |at| at + 1);
        self.wait(label, device, Point { device, steps, lane: Lane::Compute });
    }

    /// Records that a member has its results, and copies those that it needs more than once.
    fn receive_results(&mut self, id: NodeId, member: &Member, is_first: bool) {
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
            self.defined[value.node] = now;
        }
        if is_first {
            self.defined[id] = now;
        }
    }

    /// Emits the launch of the operator on a member, with parts that it holds or copies from its
    /// peers.
    fn combine(
        &mut self,
        id: NodeId,
        op: Option<Op>,
        parts: &[Value],
        member: &Member,
    ) -> Result<(), LowerError> {
        let device = self.position(member.device);
        let sources: Vec<usize> = parts.iter().map(|part| self.device(part.node)).collect();
        let mut operands = vec![None; parts.len()];
        for at in rotated(&sources, device) {
            operands[at] = Some(self.materialize(parts[at], device, Order::RowMajor)?);
        }
        let operands = operands.into_iter().flatten().collect();
        let mut results = Vec::with_capacity(member.results.len());
        let all = matches!(op, Some(Op::ExclusiveScan(_)));
        for (output, result) in (0u32..).zip(&member.results) {
            let ty = self.graph.ty(Value { node: id, output }).clone();
            match result {
                Some(value) => results.push(self.result(*value, device, ty)?),
                // A scan is launched for each result by itself.
                None if all => {}
                None => {
                    // The kernel writes all results: one that the member does not need gets memory
                    // that nobody reads.
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
        Action::Launch(Box::new(Launch {
            class,
            op,
            product: false,
            prologue: BTreeMap::new(),
            chain,
            operands,
            results,
        }))
    }

    /// The buffer of a member's value, reinterpreted as a tensor of this type with the same bytes.
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

    /// Emits the launches of a scan on a member: each of its results combines the parts before it.
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
            // Without its own part: the scan is exclusive.
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

    /// Emits a reduce-scatter and an all-gather: each member combines its slice of the parts, then
    /// copies the other slices from the members that combined them. All launches come before all
    /// copies, so that no member waits for a copy of a slice before it has combined its own.
    fn reduce_scatter(&mut self, id: NodeId, collective: &Collective) -> Result<(), LowerError> {
        let ty = &self.graph.node(id).results()[0].ty;
        let elements = ty.shape.elements().as_const();
        let elements = invariant(elements, "that what is combined in slices has a fixed size");
        let slices = collective.slices(elements);
        let sources: Vec<usize> =
            collective.parts.iter().map(|part| self.device(part.node)).collect();
        let homes: Vec<usize> =
            collective.members.iter().map(|member| self.position(member.device)).collect();
        let mut done = Vec::with_capacity(slices.len());
        for (member, slice) in collective.members.iter().zip(&slices) {
            let device = self.position(member.device);
            let own = member.results.first().copied().flatten();
            let Some(own) = own.filter(|_| !slice.is_empty()) else {
                done.push(None);
                continue;
            };
            let mut operands = vec![None; collective.parts.len()];
            for at in rotated(&sources, device) {
                operands[at] = Some(self.fetch_slice(id, collective.parts[at], device, slice)?);
            }
            let operands = operands.into_iter().flatten().collect();
            let result = self.slice_buffer(own, device, slice)?;
            // Unconditional, even if the member has no rows: its peers need the slice.
            let op = self.graph.node(id).op().cloned();
            let launch = self.launch_of(id, op, operands, vec![result]);
            self.push(device, self.graph.node(id).label(), Guard::Always, launch);
            done.push(Some((self.now(device), result)));
        }
        for (to, member) in collective.members.iter().enumerate() {
            let Some(own) = member.results.first().copied().flatten() else { continue };
            let device = self.position(member.device);
            for from in rotated(&homes, device).into_iter().filter(|from| *from != to) {
                let Some((point, buffer)) = done[from] else { continue };
                let place = self.slice_buffer(own, device, &slices[from])?;
                let label = self.graph.node(id).label();
                self.wait(label, device, point);
                let action = Action::Copy { device: point.device, from: buffer, to: place };
                self.push(device, label, member.guard, action);
            }
        }
        Ok(())
    }

    /// A slice of a part in the memory of a device: in place, or copied now.
    fn fetch_slice(
        &mut self,
        id: NodeId,
        part: Value,
        device: usize,
        slice: &Range<i64>,
    ) -> Result<BufferId, LowerError> {
        let source = self.device(part.node);
        let from = self.slice_buffer(part, source, slice)?;
        let label = self.graph.node(id).label();
        self.wait(label, device, self.defined[part.node]);
        if source == device {
            return Ok(from);
        }
        let buffer =
            Buffer { storage: Storage::Arena, ..self.devices[source].buffer(from).clone() };
        let to = self.add_buffer(device, buffer)?;
        // Without rows the part's replica writes nothing, and there is nothing to copy.
        let guard = self.layout.guard(part.node);
        self.push(device, label, guard, Action::Copy { device: source, from, to });
        Ok(to)
    }

    /// A buffer for a range of the elements of a value, on the device that holds it.
    fn slice_buffer(
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
