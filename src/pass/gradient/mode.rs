//! Train mode: batch statistics in batch normalisation, and draws that are made.

use std::collections::{BTreeMap, BTreeSet};

use super::error::TrainingError;
use super::inference::inference_mode;
use super::phase::Phase;
use crate::analysis::survey;
use crate::ir::{Builder, Graph, GraphError, NodeId, NodeKind, Origin, Value};
use crate::op::{BatchNormTrain, Formula, Op, RuleError};
use crate::types::invariant::invariant;
use crate::types::{Claim, DType, Dim};

/// Settings of train mode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mode {
    /// The momentum of running means and variances, the part that a step keeps; `None` for each
    /// layer's own.
    pub momentum: Option<f64>,
    /// The seed of dropout.
    pub seed: i64,
}

/// What a graph in train mode adds.
pub(crate) struct TrainMode {
    /// The parameters that the step itself moves: running statistics, and what layers keep.
    pub(super) statistics: BTreeSet<NodeId>,
    /// What layers add to the loss.
    pub(super) losses: Vec<Value>,
    /// Outputs by their names, each with the truth values of the costs that count.
    pub(super) counted: BTreeMap<String, Value>,
}

/// The largest momentum of running statistics in a graph in train mode, if it has some.
pub(crate) fn largest_momentum(graph: &Graph) -> Option<f64> {
    let momenta = graph.ids().filter_map(|id| {
        let Some(Op::BatchNormTrain(norm)) = graph.node(id).op() else { return None };
        Some(norm.momentum)
    });
    momenta.reduce(f64::max)
}

/// Puts a graph into train mode: batch normalisation takes the statistics of the batch and updates
/// its running ones, and draws are those of the step number in `step`.
///
/// Batch normalisation stays in inference mode if its statistics are no parameters, or if its scale
/// and bias, or its statistics, are `frozen`.
///
/// # Errors
/// If a layer that gives the new values of variables shares them with one before it, if the mask of
/// a dropout is used, or if something is drawn for a value whose elements belong to no row.
pub(crate) fn train_mode(
    builder: &mut Builder,
    step: Value,
    mode: Mode,
    frozen: &BTreeSet<String>,
) -> Result<TrainMode, TrainingError> {
    // One form to start from: a file may have layers in either mode.
    inference_mode(builder)?;
    let phase = Phase::enter(builder, true, frozen)?;
    let mut running = RunningStatistics::default();
    let claims = survey(builder.graph())?;
    let mut rows = RowNumbers::default();
    // Each layer has a seed of its own. The rotation keeps the seeds of a run's layers apart from
    // those of a run whose seed is close: `seed` and `seed + 1` must not share masks.
    let mut layer = mode.seed.rotate_left(20);
    let ids: Vec<NodeId> = builder.graph().order()?;
    for id in ids {
        let node = builder.graph().node(id);
        let Some(op) = node.op().cloned() else { continue };
        let (label, operands) = (node.label().to_owned(), builder.graph().operands(id));
        let old = Value { node: id, output: 0 };
        builder.set_origin(Origin::new(&*label));
        match (op, &operands[..]) {
            (Op::BatchNorm(norm), [x, scale, bias, mean, var])
                if is_param(builder.graph(), *mean)
                    && is_param(builder.graph(), *var)
                    && !all_frozen(builder.graph(), [*scale, *bias], frozen)
                    && !all_frozen(builder.graph(), [*mean, *var], frozen) =>
            {
                let momentum = mode.momentum.unwrap_or(norm.momentum);
                let train = BatchNormTrain { epsilon: norm.epsilon, local: false, momentum };
                let operands = [*x, *scale, *bias, *mean, *var];
                running.train(builder, id, train, &operands)?;
            }
            // Nodes that inference mode replaced are still in the graph, unused: skip them.
            (Op::BatchNormTrain(_), [_, _, _, mean, var])
                if (0..3).any(|output| builder.graph().is_used(Value { node: id, output })) =>
            {
                running.keep(builder.graph(), *mean, Value { node: id, output: 1 })?;
                running.keep(builder.graph(), *var, Value { node: id, output: 2 })?;
            }
            (op, [_]) => {
                let Some(train) = op.drawn(layer.wrapping_add(1)) else { continue };
                layer = layer.wrapping_add(1);
                // The claim is that of the old result: the operand may be a new node without one.
                drawn(builder, &mut rows, old, claims.get(old), train, step)?;
            }
            _ => {}
        }
    }
    for (variable, new) in &phase.moved {
        running.keep(builder.graph(), *variable, *new)?;
    }
    builder.set_origin(Origin::default());
    let Phase { losses, counted, .. } = phase;
    Ok(TrainMode { statistics: running.update(builder), losses, counted })
}

/// Makes everything of a graph draw that draws in training, by the number in `step`.
///
/// # Errors
/// As [`train_mode`].
pub(super) fn draws(builder: &mut Builder, step: Value) -> Result<(), TrainingError> {
    let claims = survey(builder.graph())?;
    let (mut rows, mut layer) = (RowNumbers::default(), 0);
    for id in builder.graph().order()? {
        let node = builder.graph().node(id);
        let Some(train) = node.op().and_then(|op| op.drawn(layer + 1)) else { continue };
        layer += 1;
        let origin = Origin::new(node.label());
        builder.set_origin(origin);
        let old = Value { node: id, output: 0 };
        drawn(builder, &mut rows, old, claims.get(old), train, step)?;
    }
    builder.set_origin(Origin::default());
    Ok(())
}

/// Replaces what has a result with this claim by what draws in its place, at a step.
///
/// Draws go by the number of the row in the whole batch, so that a replica draws the same as one
/// device.
fn drawn(
    builder: &mut Builder,
    rows: &mut RowNumbers,
    old: Value,
    claim: Claim,
    train: Op,
    step: Value,
) -> Result<(), TrainingError> {
    let graph = builder.graph();
    let node = graph.node(old.node);
    if graph.is_used(Value { output: 1, ..old }) {
        return Err(refused(node.label(), "its mask is used, which training does not provide"));
    }
    let Some(form) = RowsFirst::of(graph, old, claim) else {
        return Err(refused(node.label(), "its operand has no axis of rows"));
    };
    let name = format!(
        "{}.train",
        invariant(node.results().first(), "that a replaced node has a result").name
    );
    let Some(x) = graph.operands(old.node).first().copied() else { return Ok(()) };
    let new = form.apply(builder, &name, x, |builder, name, x| {
        let numbers = rows.numbers(builder, form.has_rows)?;
        builder.op(name, train, &[x, numbers, step])
    })?;
    Ok(builder.replace(old, new)?)
}

/// Notes on a model in train mode: its exporter may have folded batch normalisation into
/// convolutions, where training cannot find it.
pub(super) fn notes(model: &Graph) -> Vec<String> {
    let ops = || model.ids().filter_map(|id| Some((id, model.node(id).op()?)));
    let biased =
        |(id, op): (NodeId, &Op)| matches!(op, Op::Conv(_)) && model.operands(id).len() > 2;
    let normed = |(_, op): (NodeId, &Op)| op.is_running(3);
    if !ops().any(biased) || ops().any(normed) {
        return Vec::new();
    }
    let note = "the model has convolutions and no batch normalisation; if its exporter folded it \
        into the convolutions, the model is trained without it. PyTorch keeps it with \
        `training=TrainingMode.TRAINING, do_constant_folding=False`, or with `dynamo=True, \
        optimize=False`";
    vec![note.to_owned()]
}

/// The error for a layer that cannot be trained.
fn refused(label: &str, reason: &'static str) -> TrainingError {
    TrainingError::Rule { what: format!("`{label}`"), error: RuleError::Undefined(reason) }
}

/// The running statistics and their new values. Layers that share a statistic update it one after
/// the other.
#[derive(Default)]
struct RunningStatistics(Vec<(Value, Value)>);

impl RunningStatistics {
    /// The value of a running statistic after the layers so far.
    fn now(&self, running: Value) -> Value {
        self.0.iter().find(|(known, _)| *known == running).map_or(running, |(_, now)| *now)
    }

    /// Records that a layer updates a statistic.
    fn moved(&mut self, running: Value, new: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == running) {
            Some((_, now)) => *now = new,
            None => self.0.push((running, new)),
        }
    }

    /// Replaces a layer in inference mode by one with the statistics of the batch.
    fn train(
        &mut self,
        builder: &mut Builder,
        node: NodeId,
        train: BatchNormTrain,
        operands: &[Value; 5],
    ) -> Result<(), TrainingError> {
        let [x, scale, bias, mean, var] = *operands;
        let graph = builder.graph();
        if mean == var {
            return Err(refused(graph.node(node).label(), "its running mean is its variance too"));
        }
        let result = graph.node(node).results().first();
        let name = &*invariant(result, "that a replaced node has a result").name;
        let operands = [x, scale, bias, self.now(mean), self.now(var)];
        let new = builder.all(&format!("{name}.train"), train, &operands)?;
        builder.replace(Value { node, output: 0 }, new[0])?;
        self.moved(mean, new[1]);
        self.moved(var, new[2]);
        Ok(())
    }

    /// Records the update of a layer that is in train mode already, whose new statistics are used.
    fn keep(&mut self, graph: &Graph, running: Value, new: Value) -> Result<(), TrainingError> {
        if !is_param(graph, running) {
            return Ok(());
        }
        // The layer computes from the old statistic; the update of the layer before would be lost.
        if self.now(running) != running {
            let label = graph.node(new.node).label();
            return Err(refused(label, "its running statistics are also those of another layer"));
        }
        self.moved(running, new);
        Ok(())
    }

    /// Adds the updates; returns the parameters.
    fn update(self, builder: &mut Builder) -> BTreeSet<NodeId> {
        let moved = self.0.into_iter().map(|(running, new)| {
            builder.update(running, new);
            running.node
        });
        moved.collect()
    }
}

/// The row numbers that draws take, each tensor written at its first use.
#[derive(Default)]
struct RowNumbers {
    batch: Option<Value>,
    one: Option<Value>,
}

impl RowNumbers {
    /// The numbers of all rows of the batch; a single 0 for a value without rows.
    fn numbers(&mut self, builder: &mut Builder, of_batch: bool) -> Result<Value, GraphError> {
        let (made, limit, name) = if of_batch {
            (&mut self.batch, Dim::n(), "row")
        } else {
            (&mut self.one, Dim::ONE, "no_row")
        };
        if let Some(made) = *made {
            return Ok(made);
        }
        Ok(*made.insert(builder.named(name).count_to(limit, DType::I64)?))
    }
}

/// The reshape and transpose that bring the rows of a value to axis 0, where draws number them.
struct RowsFirst {
    /// The shape of the value.
    whole: Vec<Dim>,
    /// The shape with the rows on an axis of their own.
    apart: Vec<Dim>,
    /// The permutation of its axes that puts the rows first.
    perm: Vec<usize>,
    /// True if there are rows; a value without rows counts as one.
    has_rows: bool,
}

impl RowsFirst {
    /// The transformation for a value with this claim; `None` if its elements belong to no row.
    fn of(graph: &Graph, x: Value, claim: Claim) -> Option<Self> {
        let whole = graph.ty(x).shape.to_vec();
        let mut apart = whole.clone();
        let (rows, has_rows) = match claim {
            Claim::Shard(shard) => {
                let inner = i64::try_from(shard.inner).ok()?;
                let outer = i64::try_from(shard.outer).ok()?;
                let parts = [Dim::from(outer), Dim::n(), Dim::from(inner)];
                let own = parts.into_iter().filter(|size| *size != Dim::ONE);
                apart.splice(shard.axis..=shard.axis, own);
                (shard.axis + usize::from(outer != 1), true)
            }
            Claim::Mixed if whole.first() == Some(&Dim::n()) => (0, true),
            Claim::Invariant | Claim::Partial(_) if !whole.iter().any(Dim::depends_on_batch) => {
                apart.insert(0, Dim::ONE);
                (0, false)
            }
            Claim::Mixed | Claim::Invariant | Claim::Partial(_) | Claim::Own => return None,
        };
        let others = (0..apart.len()).filter(|axis| *axis != rows);
        let perm = std::iter::once(rows).chain(others).collect();
        Some(Self { whole, apart, perm, has_rows })
    }

    /// Applies `write`, which keeps the type, to the value in this form, and undoes the form.
    fn apply(
        &self,
        b: &mut Builder,
        name: &str,
        x: Value,
        write: impl FnOnce(&mut Builder, &str, Value) -> Result<Value, GraphError>,
    ) -> Result<Value, GraphError> {
        let Self { whole, apart, perm, .. } = self;
        let (reshaped, turned) = (whole != apart, !perm.is_sorted());
        let mut x = x;
        if reshaped {
            x = b.named(&format!("{name}.apart")).view(x, apart.clone())?;
        }
        if turned {
            x = b.named(&format!("{name}.rows")).transpose(x, perm.clone())?;
        }
        let own = if reshaped || turned { format!("{name}.drawn") } else { name.to_owned() };
        let mut y = write(b, &own, x)?;
        if turned {
            let mut back = vec![0; perm.len()];
            perm.iter().enumerate().for_each(|(to, from)| back[*from] = to);
            let own = if reshaped { format!("{name}.back") } else { name.to_owned() };
            y = b.named(&own).transpose(y, back)?;
        }
        if reshaped {
            y = b.named(name).view(y, whole.clone())?;
        }
        Ok(y)
    }
}

/// True if at least one of the values is a parameter and all that are parameters are frozen.
fn all_frozen(graph: &Graph, values: [Value; 2], frozen: &BTreeSet<String>) -> bool {
    let names = values.iter().filter_map(|value| match *graph.node(value.node).kind() {
        NodeKind::Param(param) => Some(&*graph.param(param).name),
        NodeKind::Input | NodeKind::Op(_) => None,
    });
    let names: Vec<&str> = names.collect();
    !names.is_empty() && names.iter().all(|name| frozen.contains(*name))
}

fn is_param(graph: &Graph, value: Value) -> bool {
    matches!(graph.node(value.node).kind(), NodeKind::Param(_))
}

#[cfg(test)]
mod tests {
    use super::notes;
    use crate::ir::Builder;
    use crate::op::{BatchNorm, Conv};
    use crate::types::{DType, Dim, Shape, Tensor, TensorType};

    #[test]
    fn normalisation_that_may_be_missing_is_told() {
        for (biased, normed, told) in
            [(false, false, false), (true, false, true), (true, true, false)]
        {
            let mut b = Builder::new("m");
            let shape: Shape = [Dim::n(), Dim::ONE, 2.into()].into_iter().collect();
            let x = b.input("x", TensorType::new(DType::F32, shape));
            let kernel = b.param("kernel", Tensor::new(&[3, 1, 1], &[1.0f32; 3]).unwrap());
            let three = Tensor::new(&[3], &[1.0f32; 3]).unwrap();
            let mut operands = vec![x, kernel];
            if biased {
                operands.push(b.param("bias", three.clone()));
            }
            let mut y = b.op("y", Conv::default(), &operands).unwrap();
            if normed {
                let scales = ["s", "b", "m", "v"].map(|name| b.param(name, three.clone()));
                let operands = [y, scales[0], scales[1], scales[2], scales[3]];
                y = b.op("z", BatchNorm::default(), &operands).unwrap();
            }
            b.output("out", y);
            assert_eq!(notes(&b.finish().0).len(), usize::from(told), "{biased} {normed}");
        }
    }
}
