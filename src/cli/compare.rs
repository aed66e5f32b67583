//! Outputs of one device beside those of many, and beside those that a file expects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Error;
use crate::analysis::{Sums, Unexplained};
use crate::backend::RunOutput;
use crate::ir::{Graph, Label, NodeId};
use crate::lower::{self, LowerError};
use crate::model::Model;
use crate::op::Statistics;
use crate::pass::{Action, PassError};
use crate::types::Tensor;

use anyhow::ensure;

use crate::cli::args::ModelArgs;
use crate::cli::exec;
use crate::cli::replicate::{ReplicateArgs, Replicated};
use crate::cli::target::Runner;

/// The name of an operator of the model that takes the statistics of each replica's own rows, where
/// outputs follow from them.
fn local_statistics(model: &Graph, replicas: &Graph) -> Option<String> {
    let follow = replicas.split().is_some() && replicas.labels().contains(&Label::LocalStatistics);
    let local = |id: &NodeId| {
        let statistics = model.node(*id).op().and_then(|op| op.statistics());
        statistics == Some(Statistics::OfReplica)
    };
    let found = model.ids().find(local).filter(|_| follow)?;
    Some(model.node(found).label().to_owned())
}

/// Fails where outputs follow from the statistics of each replica's own rows: they depend on the
/// number of devices.
pub(crate) fn check_statistics(model: &Graph, replicated: &Replicated<'_>) -> anyhow::Result<()> {
    let mut repairs = replicated.repairs.iter();
    let repair = repairs.find(|repair| repair.action == Action::LocalStatistics);
    let label = match repair {
        Some(local) => Some(local.label.clone()),
        None => local_statistics(model, &replicated.graph),
    };
    let error = label.map(|label| Error::from(PassError::LocalStatistics(label)));
    error.map_or(Ok(()), |error| Err(error.into()))
}

/// The two programs of a comparison: one device and many.
#[derive(Clone)]
pub(crate) struct Comparison<'a> {
    pub(crate) args: &'a ModelArgs,
    pub(crate) replicate: &'a ReplicateArgs,
    pub(crate) runner: &'a Runner,
    pub(crate) model: &'a Model,
    pub(crate) inputs: BTreeMap<String, Tensor>,
}

impl Comparison<'_> {
    /// What a graph gives for these inputs.
    pub(crate) fn run(
        &self,
        graph: &Graph,
        inputs: &BTreeMap<String, Tensor>,
    ) -> anyhow::Result<RunOutput> {
        let executable = self.runner.prepare(graph, &self.model.weights)?;
        lower::check_batches(executable.program())
            .map_err(LowerError::from)
            .map_err(Error::from)?;
        Ok(exec::run(&*executable, inputs, 1, self.args.max_memory())?.0)
    }

    /// The outputs of `single` and of the replicas, side by side.
    pub(crate) fn compare<'o>(
        &self,
        single: &Graph,
        labels: &[Label],
        one: &'o RunOutput,
        many: &RunOutput,
    ) -> anyhow::Result<Vec<Row<'o>>> {
        let outputs = one.outputs.iter().zip(&many.outputs).enumerate();
        let mut rows: Vec<Row<'o>> = outputs
            .map(|(i, ((name, a), (other, b)))| {
                let label = labels.get(i).copied().unwrap_or(Label::RowExact);
                let difference = largest_difference(a, b);
                // Relative to the largest magnitude: where terms cancel, a small sum has the error
                // of large terms.
                let rounding = a.dtype().rounding() * largest(a);
                let near = label == Label::Reassociated && difference <= rounding;
                let (same, verdict) = match (name == other, a == b) {
                    (true, true) => (true, "equal in every bit".to_owned()),
                    (true, false) if near => {
                        (true, format!("equal within rounding, by {difference:.1e}"))
                    }
                    _ => (false, format!("differs by {difference:e}")),
                };
                Row { name, ty: a.tensor_type().to_string(), label, same, difference, verdict }
            })
            .collect();
        // Outputs with another promise have to be equal in every bit.
        let follows = |row: &Row<'_>| {
            !row.same && matches!(row.label, Label::Reassociated | Label::Discontinuous)
        };
        if rows.iter().any(follows) {
            let judged = self.follows_from_sums(single, one.n)?;
            for row in rows.iter_mut().filter(|row| follows(row)) {
                match &judged {
                    Ok(()) => {
                        row.same = true;
                        let by = row.difference;
                        row.verdict = format!("equal but for rounded sums before it, by {by:.1e}");
                    }
                    Err(why) => row.verdict = format!("{}: {why}", row.verdict),
                }
            }
        }
        Ok(rows)
    }

    /// Decides whether rounding of sums explains all differences. Their size cannot decide it,
    /// because a jump may amplify one rounding; running the same sums on one device can.
    fn follows_from_sums(&self, single: &Graph, n: i64) -> anyhow::Result<Result<(), Unexplained>> {
        let (args, replicate, place) = (self.args, self.replicate, self.runner.place());
        // On GPUs `single` is a repaired graph itself.
        let model = if place.cuda { &self.model.graph } else { single };
        let repaired = replicate.repaired(model)?.into_graph();
        let sums = Sums::find(model, &repaired).map_err(Error::from)?;
        let (shown, cut) = (sums.shown(), sums.cut().map_err(Error::from)?);
        let replicas = replicate.again(args, &shown, place)?;
        let shown = self.run(&replicas.graph, &self.inputs)?.outputs;
        let mut inputs = self.inputs.clone();
        match sums.inputs(&shown) {
            Ok(given) => inputs.extend(given),
            Err(error) => return Ok(Err(error)),
        }
        let cut = replicate.single(args, &cut, place)?;
        let cut = self.run(&cut.graph, &inputs)?.outputs;
        Ok(sums.judge(&shown, &cut, n))
    }
}

/// Outcome of the comparison of one output.
pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) ty: String,
    pub(crate) label: Label,
    pub(crate) same: bool,
    pub(crate) difference: f64,
    pub(crate) verdict: String,
}

/// What another backend gave for the same program.
pub(crate) struct Beside {
    /// The instructions, or the target.
    pub(crate) name: &'static str,
    /// `None` where this machine lacks it.
    pub(crate) outputs: Option<Vec<Other>>,
}

/// An output by its name.
type Named = (Arc<str>, Tensor);

/// Why the same bits are not promised of an output.
#[derive(Clone)]
pub(crate) struct Unpromised {
    /// The operator before it that may have other bits.
    pub(crate) operator: String,
    /// The operator behind that which may turn other bits into quite another value.
    pub(crate) jump: Option<String>,
}

impl fmt::Display for Unpromised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operator, jump } = self;
        write!(f, "{operator} before it may have other bits on each kind of device")?;
        let Some(jump) = jump else { return Ok(()) };
        write!(f, ", which {jump} may turn into another value")
    }
}

/// An output that another backend gave.
pub(crate) struct Other {
    pub(crate) name: String,
    /// `None` where it has the same bits; a NaN equals a NaN.
    pub(crate) difference: Option<f64>,
    /// Why the same bits are not promised, where they are not.
    pub(crate) unpromised: Option<Unpromised>,
    /// Whether the difference is one that orders of summation make.
    is_near: bool,
}

impl Other {
    /// Pairs the outputs of two backends. Of those with an entry in `own`, by the place of the
    /// output, it is promised that they are near alone.
    pub(crate) fn all(
        ran: &RunOutput,
        other: &RunOutput,
        own: &[Option<Unpromised>],
    ) -> anyhow::Result<Vec<Self>> {
        /// Sums of many terms that cancel, relative to the largest element.
        const NEAR: f64 = 1e-4;
        let counts = [ran.outputs.len(), other.outputs.len()];
        ensure!(counts[0] == counts[1], "internal error: {counts:?} outputs of two backends");
        let pairs = ran.outputs.iter().zip(&other.outputs).enumerate();
        let pair = |(at, ((name, a), (_, b))): (usize, (&Named, &Named))| {
            let difference = (!same_bits(a, b)).then(|| largest_difference(a, b));
            let unpromised = own.get(at).cloned().flatten();
            let near = a.dtype().rounding().max(NEAR);
            let is_near = difference.is_none_or(|by| by <= near * largest(a));
            Self { name: name.to_string(), difference, unpromised, is_near }
        };
        Ok(pairs.map(pair).collect())
    }

    /// Whether it keeps what is promised of it.
    pub(crate) fn is_kept(&self) -> bool {
        self.difference.is_none() || self.unpromised.is_some() && self.is_near
    }
}

/// Whether two tensors have the same bits; a NaN equals a NaN.
fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    let pairs = || a.to_f64().into_iter().zip(b.to_f64());
    let equal = |(x, y): (f64, f64)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    let typed = a.tensor_type() == b.tensor_type() && a.dtype().is_float();
    a == b || (typed && pairs().all(equal))
}

/// The largest finite magnitude.
fn largest(tensor: &Tensor) -> f64 {
    tensor.to_f64().into_iter().map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The largest absolute difference of two tensors; infinite where their types differ, or where one
/// has a NaN and the other has not.
fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    if a.tensor_type() != b.tensor_type() {
        return f64::INFINITY;
    }
    let differences =
        a.to_f64().into_iter().zip(b.to_f64()).map(|(x, y)| match (x.is_nan(), y.is_nan()) {
            (true, true) => 0.0,
            // Infinities of one sign are equal.
            (false, false) if x.to_bits() == y.to_bits() => 0.0,
            (false, false) => (x - y).abs(),
            _ => f64::INFINITY,
        });
    differences.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::{Other, Unpromised};
    use crate::backend::RunOutput;
    use crate::types::Tensor;

    fn ran(y: [f32; 2]) -> RunOutput {
        let y = Tensor::new(&[2], &y).unwrap();
        RunOutput { n: 2, outputs: vec![("y".into(), y)], devices: Vec::new() }
    }

    /// Other bits are only for outputs of which the same are not promised, and near the first; what
    /// an operator jumps at is named and excuses nothing.
    #[test]
    fn what_is_promised_is_kept_by_equal_or_near_outputs() {
        let promise = |jump: Option<&str>| {
            let (operator, jump) = ("`s` (softmax)".to_owned(), jump.map(str::to_owned));
            Some(Unpromised { operator, jump })
        };
        let [near, jumps] = [promise(None), promise(Some("`a` (arg_max)"))];
        for (other, own, expected) in [
            ([1.0, f32::NAN], &None, true),
            ([1.0 + f32::EPSILON, f32::NAN], &None, false),
            ([1.0 + f32::EPSILON, f32::NAN], &near, true),
            ([1.0 + f32::EPSILON, f32::NAN], &jumps, true),
            ([2.0, f32::NAN], &near, false),
            ([2.0, f32::NAN], &jumps, false),
            ([1.0, 0.0], &jumps, false),
        ] {
            let all = Other::all(&ran([1.0, f32::NAN]), &ran(other), std::slice::from_ref(own));
            assert_eq!(all.unwrap()[0].is_kept(), expected, "{other:?}");
        }
        let told = jumps.map(|why| why.to_string());
        let expected = "`s` (softmax) before it may have other bits on each kind of device, \
                        which `a` (arg_max) may turn into another value";
        assert_eq!(told.as_deref(), Some(expected));
    }
}
