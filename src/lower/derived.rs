//! The factors of batch norms whose operands no run changes: parameters that are computed when
//! those are given their elements, once and not in every launch.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::LowerError;
use super::chain::ChainStep;
use super::program::{Action, Buffer, BufferId, Derived, Factor, Launch, Port, Program, Storage};
use crate::types::invariant::int;
use crate::types::{DType, Order, TensorType};

/// What the factors of a batch norm depend on: its operands among the parameters, the bits of its
/// epsilon, and the type of what it normalises.
type Key = ([u32; 4], u64, DType);

/// The derived parameters so far.
struct Folding<'a> {
    /// The given parameters.
    params: &'a [Port],
    /// The positions of those that a run changes.
    updates: &'a [u32],
    derived: &'a mut Vec<Derived>,
    /// The positions of the two factors.
    known: BTreeMap<Key, [u32; 2]>,
}

/// The buffers of a device, and those of them that hold derived parameters.
struct Held<'a> {
    buffers: &'a mut Vec<Buffer>,
    derived: BTreeMap<u32, BufferId>,
}

/// Gives batch norms in chains derived parameters for operands, where all of theirs are parameters
/// that no run changes.
pub(super) fn fold_batch_norms(program: &mut Program) -> Result<(), LowerError> {
    let Program { devices, derived, updates, params, .. } = program;
    let mut folding = Folding { params, updates, derived, known: BTreeMap::new() };
    for device in devices {
        let mut held = Held { buffers: &mut device.buffers, derived: BTreeMap::new() };
        for step in &mut device.steps {
            if let Action::Launch(launch) = &mut step.action {
                folding.fold(launch, &mut held)?;
            }
        }
    }
    Ok(())
}

impl Folding<'_> {
    /// Folds the batch norms of a launch.
    fn fold(&mut self, launch: &mut Launch, held: &mut Held<'_>) -> Result<(), LowerError> {
        // Behind a step that changes the type the running element may have another one.
        let is_mixed = |step: &ChainStep| matches!(step, ChainStep::Mixed { .. });
        if launch.chain.steps.iter().any(is_mixed) {
            return Ok(());
        }
        let of = held.buffers[launch.results[0].0 as usize].ty.dtype;
        let others: SmallVec<[BufferId; 8]> = launch.split_operands().1.into();
        let steps = &mut launch.chain.steps;
        let factors = steps.iter().map(|step| self.factors(step, of, &others, held));
        let factors = factors.collect::<Result<Vec<_>, LowerError>>()?;
        if factors.iter().all(Option::is_none) {
            return Ok(());
        }
        let own = launch.operands.len() - others.len();
        launch.operands.truncate(own);
        // Each step has positions of its own, also of operands that another reads, too.
        let mut place = |id: BufferId| {
            launch.operands.push(id);
            launch.operands.len() - own - 1
        };
        for (step, factors) in steps.iter_mut().zip(factors) {
            if let (ChainStep::BatchNorm { access, .. }, Some(factors)) = (&*step, factors) {
                let (operands, access) = (factors.map(&mut place), *access);
                *step = ChainStep::ScaleShift { operands, access };
            } else {
                step.operands_mut().iter_mut().for_each(|i| *i = place(others[*i]));
            }
        }
        Ok(())
    }

    /// The buffers of the factors of a batch norm in a chain with these operands; `None` of another
    /// step, and where a run may change an operand of the batch norm.
    fn factors(
        &mut self,
        step: &ChainStep,
        of: DType,
        others: &[BufferId],
        held: &mut Held<'_>,
    ) -> Result<Option<[BufferId; 2]>, LowerError> {
        let ChainStep::BatchNorm { op, operands, .. } = step else { return Ok(None) };
        let operands = operands.map(|i| others[i]);
        let mut params = [0; 4];
        for (param, id) in params.iter_mut().zip(operands) {
            match held.buffers[id.0 as usize].storage {
                Storage::Param(i) if !self.updates.contains(&i) => *param = i,
                Storage::Param(_)
                | Storage::Input(_)
                | Storage::Output(_)
                | Storage::Update(_)
                | Storage::Arena
                | Storage::Part { .. }
                | Storage::Strip { .. }
                | Storage::Reuse { .. } => return Ok(None),
            }
        }
        let dtype = if of == DType::F64 { DType::F64 } else { DType::F32 };
        let shape = held.buffers[operands[0].0 as usize].ty.shape.clone();
        let ty = TensorType::new(dtype, shape);
        let key = (params, op.epsilon.to_bits(), dtype);
        let both = self.known.entry(key).or_insert_with(|| {
            [Factor::Scale, Factor::Shift].map(|factor| {
                let names = params.map(|i| &*self.params[i as usize].name);
                let name = format!("{}({})", factor.name(), names.join(", ")).into();
                let (port, op) = (Port { name, ty: ty.clone() }, op.clone());
                self.derived.push(Derived { port, op, operands: params, factor });
                int::<u32>(self.params.len() + self.derived.len() - 1)
            })
        });
        let mut ids = [operands[0]; 2];
        for (id, i) in ids.iter_mut().zip(*both) {
            *id = held.derived(i, &self.derived[i as usize - self.params.len()].port)?;
        }
        Ok(Some(ids))
    }
}

impl Held<'_> {
    /// The buffer of a derived parameter.
    fn derived(&mut self, i: u32, port: &Port) -> Result<BufferId, LowerError> {
        if let Some(id) = self.derived.get(&i) {
            return Ok(*id);
        }
        let id = BufferId(u32::try_from(self.buffers.len()).map_err(|_| LowerError::TooLarge)?);
        let Port { name, ty } = port.clone();
        self.buffers.push(Buffer { name, ty, storage: Storage::Param(i), order: Order::RowMajor });
        self.derived.insert(i, id);
        Ok(id)
    }
}
