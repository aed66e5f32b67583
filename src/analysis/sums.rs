//! Rounding differences between replicas and one device: the sums in which they arise, and a test
//! of whether they explain a difference of outputs.
//!
//! Replicas combine sums over the batch in another order than one device. Outputs may be any
//! function of such a sum, so a tolerance on outputs proves little: the difference of two equal
//! means is rounding alone, and a comparison may turn it into 0 and 1. Therefore the model is cut:
//! one device takes the replicas' sums as inputs. Each sum that it computes itself must then equal
//! the replicas' sum up to the rounding of its terms, and each output must equal theirs in every
//! bit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::ir::{Graph, GraphError, NodeId, Value};
use crate::op::{Formula, Op, Traits};
use crate::types::{DType, Tensor};

use super::survey;

/// The sums of floats in a model that replicas combine, in topological order.
#[derive(Clone, Debug)]
pub struct Sums<'g> {
    model: &'g Graph,
    sums: Vec<Value>,
}

/// A difference between replicas and one device that rounding does not explain.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unexplained {
    /// A sum is further from that of one device than its rounding.
    #[error("the sum %{name} differs by {difference:e}, and its rounding is {rounding:e} at most")]
    Sum {
        /// The value's name in the model.
        name: Arc<str>,
        /// The largest difference.
        difference: f64,
        /// The bound on the rounding of that element.
        rounding: f64,
    },
    /// One device computes another output from the replicas' sums.
    #[error("%{name} is not what one device makes of the same sums")]
    Output {
        /// The output's name.
        name: Arc<str>,
    },
    /// A run gave no value of this name: a bug in the code that ran the graphs.
    #[error("internal error: no value %{0} was computed")]
    Missing(Arc<str>),
}

impl<'g> Sums<'g> {
    /// The sums of a model, found in its `repaired` form: only there partial values are explicit.
    pub fn find(model: &'g Graph, repaired: &Graph) -> Result<Self, GraphError> {
        let named: HashMap<&str, Value> =
            values(model).map(|v| (&*model.info(v).name, v)).collect();
        let claims = survey(repaired)?;
        let partial = |v: Value| {
            let float = repaired.ty(v).dtype.is_float();
            float && claims.get(v).partial().is_some_and(|by| !by.is_exact())
        };
        // Repairs keep the names of the model's values, so that names relate the two graphs.
        let mut sums: BTreeSet<Value> = BTreeSet::new();
        for own in values(repaired) {
            let Some(known) = named.get(&*repaired.info(own).name).copied() else { continue };
            for part in combined(repaired, own, &named) {
                // Where the part is a value of the model, that value is the sum: its whole is
                // combined once for all users. Else the part is a step inside a formula, and the
                // value of the model that the formula computes stands for it.
                sums.insert(named.get(&*repaired.info(part).name).copied().unwrap_or(known));
            }
            let output = repaired.outputs().iter().any(|o| o.value == own);
            if output && partial(own) {
                sums.insert(known);
            }
        }
        // Topological order, so that the first sum that differs is reported, not a later
        // consequence.
        let floats = sums.into_iter().filter(|v| model.ty(*v).dtype.is_float());
        let order: HashMap<_, usize> =
            model.order()?.into_iter().enumerate().map(|(i, id)| (id, i)).collect();
        let mut sums: Vec<Value> = floats.collect();
        sums.sort_by_key(|v| (order.get(&v.node).copied(), v.output));
        Ok(Self { model, sums })
    }

    /// The nodes of the model that compute the sums; a node occurs once for each of its sums.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.sums.iter().map(|sum| sum.node)
    }

    /// The model with each sum as a further output, after its own outputs.
    pub fn shown(&self) -> Graph {
        let mut graph = self.model.clone();
        for (i, sum) in self.sums.iter().enumerate() {
            graph.add_output(name("sum", i), *sum);
        }
        graph
    }

    /// The model with each sum as an input. Further outputs are the sums that the model itself
    /// computes, and the sums of the magnitudes of their terms where terms may cancel.
    pub fn cut(&self) -> Result<Graph, GraphError> {
        let mut graph = self.model.clone();
        for (i, sum) in self.sums.iter().enumerate() {
            // All sums are cut before outputs are added: each own sum is computed from the
            // replicas' sums before it, so that its error holds its own rounding only.
            let input = graph.add_input(name("sum", i), self.model.ty(*sum).clone());
            graph.replace(*sum, input)?;
        }
        for (i, sum) in self.sums.iter().enumerate() {
            graph.add_output(name("own", i), *sum);
            if let Some(size) = magnitudes(&mut graph, *sum, i)? {
                graph.add_output(name("size", i), size);
            }
        }
        Ok(graph)
    }

    /// The inputs of the cut model, taken from the replicas' outputs of [`Self::shown`].
    pub fn inputs(
        &self,
        shown: &[(Arc<str>, Tensor)],
    ) -> Result<BTreeMap<String, Tensor>, Unexplained> {
        let input = |i: usize| Ok((name("sum", i), find(shown, &name("sum", i))?.clone()));
        (0..self.sums.len()).map(input).collect()
    }

    /// Compares the outputs of the cut model with the replicas' outputs `shown`, for `n` rows.
    ///
    /// # Errors
    /// If a difference is more than rounding.
    pub fn judge(
        &self,
        shown: &[(Arc<str>, Tensor)],
        cut: &[(Arc<str>, Tensor)],
        n: i64,
    ) -> Result<(), Unexplained> {
        for (i, sum) in self.sums.iter().enumerate() {
            let (theirs, own) = (find(shown, &name("sum", i))?, find(cut, &name("own", i))?);
            let sizes = find(cut, &name("size", i)).ok();
            let bounds = Bounds::new(self.model, *sum, n);
            if let Some((difference, rounding)) = largest_excess(own, theirs, sizes, &bounds) {
                let name = self.model.info(*sum).name.clone();
                return Err(Unexplained::Sum { name, difference, rounding });
            }
        }
        for output in self.model.outputs() {
            if find(shown, &output.name)? != find(cut, &output.name)? {
                return Err(Unexplained::Output { name: output.name.clone() });
            }
        }
        Ok(())
    }
}

/// The name of a helper value of sum number `i`.
fn name(kind: &str, i: usize) -> String {
    // The blank keeps it apart from the names of the model, which have none.
    format!("{kind} {i}")
}

/// The tensor with this name.
fn find<'t>(values: &'t [(Arc<str>, Tensor)], name: &str) -> Result<&'t Tensor, Unexplained> {
    let found = values.iter().find(|(own, _)| **own == *name);
    found.map(|(_, tensor)| tensor).ok_or_else(|| Unexplained::Missing(name.into()))
}

/// All values of a graph, in the order of ids.
fn values(graph: &Graph) -> impl Iterator<Item = Value> + '_ {
    graph.ids().flat_map(|node| {
        let results = graph.node(node).results().len();
        (0u32..).take(results).map(move |output| Value { node, output })
    })
}

/// The parts of floats that collectives combine on the way to a value, searched back to the values
/// of the model (`named`).
fn combined(graph: &Graph, to: Value, named: &HashMap<&str, Value>) -> Vec<Value> {
    let (mut found, mut open, mut seen) = (Vec::new(), vec![to], BTreeSet::from([to.node]));
    while let Some(value) = open.pop() {
        let by = graph.node(value.node).op().and_then(|op| op.combines());
        let operands = graph.operands(value.node);
        let float = operands.iter().any(|v| graph.ty(*v).dtype.is_float());
        if float && by.is_some_and(|by| !by.is_exact()) {
            found.extend(operands.first());
        }
        let further = operands.into_iter().filter(|v| !named.contains_key(&*graph.info(*v).name));
        open.extend(further.filter(|v| seen.insert(v.node)));
    }
    found
}

/// Adds the sum of the magnitudes of a sum's terms to the graph; `None` where terms do not cancel
/// or the operator is no sum.
///
/// The rounding error of a sum is proportional to the magnitudes of its terms, not to the result:
/// cancellation leaves a small result with the error of large terms.
fn magnitudes(graph: &mut Graph, sum: Value, number: usize) -> Result<Option<Value>, GraphError> {
    let Some(op) = graph.node(sum.node).op().cloned() else { return Ok(None) };
    if has_running_statistics(graph, sum) {
        return match sum.output {
            // Normalised: a function of sums, but no sum itself. Other types than `f64` take off a
            // mean that has more digits than they have.
            0 if graph.ty(sum).dtype == DType::F64 => moved_by_mean(graph, sum, number).map(Some),
            0 => Ok(None),
            _ => largest_element(graph, sum, number).map(Some),
        };
    }
    // A change of sign keeps magnitudes; a permutation of elements permutes them alike.
    if op.is(Traits::NEGATES) {
        return magnitudes(graph, graph.operands(sum.node)[0], number);
    }
    if op.is(Traits::PERMUTES) {
        let Some(of) = magnitudes(graph, graph.operands(sum.node)[0], number)? else {
            return Ok(None);
        };
        let name = format!("size {number} of %{}", graph.info(sum).name);
        return graph.beside(sum.node, name).op(op, &[of]).map(Some);
    }
    let Some(op) = op.of_magnitudes() else { return Ok(None) };
    let mut operands = graph.operands(sum.node);
    for (i, operand) in operands.iter_mut().enumerate() {
        if graph.ty(*operand).dtype.is_float() {
            let name = format!("size {number} of {i}");
            *operand = graph.beside(sum.node, name).abs(*operand)?;
        }
    }
    graph.beside(sum.node, name("size", number)).op(op, &operands).map(Some)
}

/// Whether a value is one of batch normalisation in training: the normalised elements, the mean or
/// the variance.
fn has_running_statistics(graph: &Graph, value: Value) -> bool {
    let op = graph.node(value.node).op();
    let last = graph.operands(value.node).len().checked_sub(1);
    op.zip(last).is_some_and(|(op, last)| op.statistics().is_some() && op.is_running(last))
}

/// What a relative error of the mean of a channel moves its normalised elements by: the largest
/// magnitude of what is averaged, times what that is multiplied with, which is the range of the
/// channel's results beside that of its elements.
fn moved_by_mean(graph: &mut Graph, sum: Value, number: usize) -> Result<Value, GraphError> {
    let (x, ty) = (graph.operands(sum.node)[0], graph.ty(sum).clone());
    let axes: Vec<i64> = (0i64..).take(ty.shape.rank()).filter(|axis| *axis != 1).collect();
    let step = |i: usize| format!("size {number} step {i}");
    let range = |graph: &mut Graph, of: Value, first: usize| {
        let high = graph.beside(sum.node, step(first)).reduce_max(of, axes.clone(), true)?;
        let low = graph.beside(sum.node, step(first + 1)).reduce_min(of, axes.clone(), true)?;
        graph.beside(sum.node, step(first + 2)).sub(high, low)
    };
    let (results, elements) = (range(graph, sum, 0)?, range(graph, x, 3)?);
    // The results of equal elements have no range either.
    let elements =
        graph.beside(sum.node, step(6)).clip(elements, f64::MIN_POSITIVE, f64::INFINITY)?;
    let factor = graph.beside(sum.node, step(7)).div(results, elements)?;
    let largest = graph.beside(sum.node, step(8)).abs(x)?;
    let largest = graph.beside(sum.node, step(9)).reduce_max(largest, axes.clone(), true)?;
    let moved = graph.beside(sum.node, step(10)).mul(factor, largest)?;
    graph.beside(sum.node, step(11)).broadcast(moved, ty.shape.to_vec())
}

/// The largest magnitude among the elements of each channel that a batch normalisation averages, or
/// its square for the variance. It bounds every term of the averages; a NaN of another channel is
/// none of them.
fn largest_element(graph: &mut Graph, sum: Value, number: usize) -> Result<Value, GraphError> {
    let (x, ty) = (graph.operands(sum.node)[0], graph.ty(sum).clone());
    let axes = (0i64..).take(graph.ty(x).rank()).filter(|axis| *axis != 1).collect();
    let step = |i: usize| format!("size {number} step {i}");
    let mut value = graph.beside(sum.node, step(0)).abs(x)?;
    value = graph.beside(sum.node, step(1)).reduce_max(value, axes, false)?;
    // In the type of the statistics, where a square is no infinity.
    value = graph.beside(sum.node, step(2)).convert(value, ty.dtype)?;
    if sum.output > 1 {
        value = graph.beside(sum.node, step(3)).mul(value, value)?;
    }
    Ok(value)
}

/// Bounds on the difference between two orders of summation.
struct Bounds {
    /// Relative to the magnitudes of the element's own terms, where they are known.
    of_terms: f64,
    /// Relative to the largest element of the tensor, elsewhere.
    of_largest: f64,
    /// An absolute difference that is always allowed, for subnormal results.
    least: f64,
    /// True for the logarithm of a sum, which is compared as the sum itself.
    logarithm: bool,
    /// True for normalised elements, which are rounded themselves, beside the terms of the mean.
    normalised: bool,
}

impl Bounds {
    /// The bounds for a batch of `n` rows.
    ///
    /// A sum of `t` terms in any order has an error of at most about `t * u` times the sum of the
    /// magnitudes, with the unit roundoff `u` of the type that is summed in. Two orders differ by
    /// at most `2 * t * u`; the rounding to the result's type adds a few units of its own.
    fn new(model: &Graph, sum: Value, n: i64) -> Self {
        let dtype = model.ty(sum).dtype;
        let count = |v: Value| model.ty(v).shape.at(n).iter().map(|d| *d as f64).product::<f64>();
        let operands = model.operands(sum.node);
        // An upper bound: no sum has more terms than the largest operand has elements.
        let terms = operands.iter().map(|v| count(*v)).fold(1.0, f64::max);
        let op = model.node(sum.node).op();
        let product = op.is_some_and(|op| op.is(Traits::MATRIX_PRODUCT));
        let softmax = match op {
            Some(Op::Softmax(op)) => {
                let shape = &model.ty(operands[0]).shape;
                op.axis(shape.rank()).map(|axis| shape[axis].eval(n) as f64)
            }
            _ => None,
        };
        let (terms, unit) = match (product, &operands[..]) {
            // One device sums the exponentials of a row in `f32`, unless elements are `f64`.
            _ if let (Some(line), true) = (softmax, dtype != DType::F64) => {
                (line, unit_roundoff(DType::F32))
            }
            // For [M, K] by [K, P] the number of terms K is the root of M K * K P / (M P), without
            // a need to know which axes are contracted.
            (true, [a, b, ..]) if dtype != DType::F64 => {
                let terms = count(*a) * count(*b) / count(sum).max(1.0);
                (terms.sqrt(), unit_roundoff(DType::F32))
            }
            _ => (terms, unit_roundoff(DType::F64)),
        };
        Self {
            of_terms: 2.0 * terms * unit + 4.0 * unit_roundoff(dtype),
            of_largest: dtype.rounding() + 2.0 * terms * unit,
            least: 2.0 * smallest_positive(dtype),
            logarithm: op.is_some_and(|op| op.of_magnitudes().is_some_and(|of| of != *op)),
            normalised: sum.output == 0 && has_running_statistics(model, sum),
        }
    }

    /// The difference of an element and the bound on it; `size` is the magnitude of its terms.
    fn of(&self, own: f64, theirs: f64, size: Option<f64>, largest: f64) -> (f64, f64) {
        let of_terms = size.map(|size| size.abs() * self.of_terms);
        let of_largest =
            (of_terms.is_none() || self.normalised).then_some(largest * self.of_largest);
        let bound = of_terms.into_iter().chain(of_largest).sum::<f64>();
        if self.logarithm {
            // Cancellation may leave one sum a little above 0 and the other not, where there is no
            // logarithm; compared as sums, both are near 0.
            let [own, theirs] = [own, theirs].map(|log| if log.is_nan() { 0.0 } else { log.exp() });
            // The logarithm is rounded relative to itself: an error of `ln s * u` in the exponent.
            let rounding = self.of_largest * own.max(theirs) * own.max(theirs).ln().abs().max(1.0);
            return ((own - theirs).abs(), bound + rounding);
        }
        ((own - theirs).abs(), bound + self.least)
    }
}

/// The smallest positive number of the type, rounded up.
fn smallest_positive(dtype: DType) -> f64 {
    #[expect(clippy::wildcard_enum_match_arm, reason = "sums are of floats")]
    match dtype {
        DType::F16 => 6e-8,
        DType::F32 => 1.5e-45,
        DType::Bf16 => 1e-40,
        _ => 5e-324,
    }
}

/// The unit roundoff: half the distance from 1 to the next number.
fn unit_roundoff(dtype: DType) -> f64 {
    #[expect(clippy::wildcard_enum_match_arm, reason = "sums are of floats")]
    match dtype {
        DType::F16 => f64::exp2(-11.0),
        DType::Bf16 => f64::exp2(-8.0),
        DType::F32 => f64::exp2(-24.0),
        _ => f64::exp2(-53.0),
    }
}

/// The largest difference of two tensors that exceeds its bound, with that bound; `None` if all are
/// within. `sizes` are the magnitudes of terms.
fn largest_excess(
    own: &Tensor,
    theirs: &Tensor,
    sizes: Option<&Tensor>,
    bounds: &Bounds,
) -> Option<(f64, f64)> {
    if own.tensor_type() != theirs.tensor_type() {
        return Some((f64::INFINITY, 0.0));
    }
    let (own, theirs) = (own.to_f64(), theirs.to_f64());
    let largest = own.iter().map(|x| x.abs()).filter(|x| x.is_finite()).fold(0.0, f64::max);
    let sizes = sizes.map(Tensor::to_f64);
    let differences = own.iter().zip(&theirs).enumerate().map(|(i, (a, b))| {
        let size = sizes.as_ref().and_then(|sizes| sizes.get(i)).copied();
        let (difference, bound) = bounds.of(*a, *b, size, largest);
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        let difference = if same { 0.0 } else { difference };
        // A NaN on one side alone is no rounding.
        (if difference.is_nan() { f64::INFINITY } else { difference }, bound)
    });
    let wrong = differences
        .filter(|(difference, bound)| difference > bound || bound.is_nan() && *difference > 0.0);
    wrong.max_by(|a, b| a.0.total_cmp(&b.0))
}
