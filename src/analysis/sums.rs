//! Where the results of replicas may be rounded otherwise than those of one device, and whether a
//! difference follows from that alone.
//!
//! Replicas combine sums over the batch in another order than one device. What follows from such a
//! sum may be any function of it, so how far outputs are apart says little: a difference of two
//! equal means is rounding alone, and a comparison may turn it into 0 and 1. Therefore the model is
//! cut: one device takes the replicas' sums as inputs. Then each sum that it computes itself must
//! be the replicas' up to the rounding of its terms, and each output must be theirs in every bit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::ir::{Graph, GraphError, NodeId, Value};
use crate::op::{Formula, Op, Traits};
use crate::types::{DType, Tensor};

use super::survey;

/// The values of a model that replicas combine of floats.
#[derive(Clone, Debug)]
pub struct Sums<'g> {
    model: &'g Graph,
    sums: Vec<Value>,
}

/// What is wrong with an output or with a sum before it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unexplained {
    /// A sum is further from that of one device than its rounding.
    #[error("the sum %{name} differs by {difference:e}, and its rounding is {rounding:e} at most")]
    Sum {
        /// The value's name in the model.
        name: Arc<str>,
        /// The largest difference.
        difference: f64,
        /// What it may be there.
        rounding: f64,
    },
    /// An output is not what one device makes of the replicas' sums.
    #[error("%{name} is not what one device makes of the same sums")]
    Output {
        /// The output's name.
        name: Arc<str>,
    },
    /// A value that was asked for is not there: a bug in what ran the graphs.
    #[error("internal error: no value %{0} was computed")]
    Missing(Arc<str>),
}

impl<'g> Sums<'g> {
    /// The sums of a model, given what its repairs made of it.
    pub fn find(model: &'g Graph, repaired: &Graph) -> Result<Self, GraphError> {
        let named: HashMap<&str, Value> =
            values(model).map(|v| (&*model.info(v).name, v)).collect();
        let claims = survey(repaired)?;
        let partial = |v: Value| {
            let float = repaired.ty(v).dtype.is_float();
            float && claims.get(v).partial().is_some_and(|by| !by.is_exact())
        };
        let mut sums: BTreeSet<Value> = BTreeSet::new();
        for own in values(repaired) {
            let Some(known) = named.get(&*repaired.info(own).name).copied() else { continue };
            for part in combined(repaired, own, &named) {
                // Of a value of the model that has parts the whole is combined for all that take
                // it.
                sums.insert(named.get(&*repaired.info(part).name).copied().unwrap_or(known));
            }
            let output = repaired.outputs().iter().any(|o| o.value == own);
            if output && partial(own) {
                sums.insert(known);
            }
        }
        let floats = sums.into_iter().filter(|v| model.ty(*v).dtype.is_float());
        let order: HashMap<_, usize> =
            model.order()?.into_iter().enumerate().map(|(i, id)| (id, i)).collect();
        let mut sums: Vec<Value> = floats.collect();
        sums.sort_by_key(|v| (order.get(&v.node).copied(), v.output));
        Ok(Self { model, sums })
    }

    /// The nodes of the model that give them, each as often as it gives one.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.sums.iter().map(|sum| sum.node)
    }

    /// The model with each sum as an output, behind its own.
    pub fn shown(&self) -> Graph {
        let mut graph = self.model.clone();
        for (i, sum) in self.sums.iter().enumerate() {
            graph.add_output(name("sum", i), *sum);
        }
        graph
    }

    /// The model with each sum as an input. Its further outputs are the sums that it would take,
    /// and the sums of their terms' magnitudes where these may cancel.
    pub fn cut(&self) -> Result<Graph, GraphError> {
        let mut graph = self.model.clone();
        for (i, sum) in self.sums.iter().enumerate() {
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

    /// The inputs of the cut model that the outputs of the replicas of the shown one give.
    pub fn inputs(
        &self,
        shown: &[(Arc<str>, Tensor)],
    ) -> Result<BTreeMap<String, Tensor>, Unexplained> {
        let input = |i: usize| Ok((name("sum", i), find(shown, &name("sum", i))?.clone()));
        (0..self.sums.len()).map(input).collect()
    }

    /// Whether the outputs of the cut model and of the shown one's replicas, for `n` rows, differ
    /// by rounding alone.
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
            if let Some((difference, rounding)) = apart(own, theirs, sizes, &bounds) {
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

fn name(kind: &str, i: usize) -> String {
    // No name of a model has a blank.
    format!("{kind} {i}")
}

fn find<'t>(values: &'t [(Arc<str>, Tensor)], name: &str) -> Result<&'t Tensor, Unexplained> {
    let found = values.iter().find(|(own, _)| **own == *name);
    found.map(|(_, tensor)| tensor).ok_or_else(|| Unexplained::Missing(name.into()))
}

fn values(graph: &Graph) -> impl Iterator<Item = Value> + '_ {
    graph.ids().flat_map(|node| {
        let results = graph.node(node).results().len();
        (0u32..).take(results).map(move |output| Value { node, output })
    })
}

/// What is combined on the way to a value from those of the model, which `named` lists.
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

/// The sum of the magnitudes of the terms of a sum, as a further value of the graph; `None` where
/// they do not cancel, or are no terms.
fn magnitudes(graph: &mut Graph, sum: Value, number: usize) -> Result<Option<Value>, GraphError> {
    let Some(op) = graph.node(sum.node).op().cloned() else { return Ok(None) };
    if op.statistics().is_some() && op.is_running(graph.operands(sum.node).len() - 1) {
        return if sum.output == 0 {
            Ok(None)
        } else {
            largest_element(graph, sum, number).map(Some)
        };
    }
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

/// For each channel the magnitude of the largest element that a batch normalisation averages, or of
/// its square.
fn largest_element(graph: &mut Graph, sum: Value, number: usize) -> Result<Value, GraphError> {
    let (x, ty) = (graph.operands(sum.node)[0], graph.ty(sum).clone());
    let axes = (0i64..).take(graph.ty(x).rank()).collect();
    let step = |i: usize| format!("size {number} step {i}");
    let mut value = graph.beside(sum.node, step(0)).abs(x)?;
    value = graph.beside(sum.node, step(1)).reduce_max(value, axes, false)?;
    let mut next = 2;
    if sum.output > 1 {
        value = graph.beside(sum.node, step(next)).reduce_sum_square(value, Vec::new(), false)?;
        next += 1;
    }
    value = graph.beside(sum.node, step(next)).convert(value, ty.dtype)?;
    graph.beside(sum.node, step(next + 1)).broadcast(value, ty.shape.to_vec())
}

/// How far a result may be from that of another order, of one element and of all.
struct Bounds {
    /// As a share of the magnitudes of its own terms, where they are known.
    of_terms: f64,
    /// As a share of the largest result elsewhere.
    of_largest: f64,
    /// The least that an element may differ by.
    least: f64,
    /// Whether the value is the logarithm of a sum, which is compared as that sum.
    logarithm: bool,
}

impl Bounds {
    /// The bounds for a batch of `n` rows: each addition rounds to the type that is summed in, and
    /// the result is rounded once.
    fn new(model: &Graph, sum: Value, n: i64) -> Self {
        let dtype = model.ty(sum).dtype;
        let count = |v: Value| model.ty(v).shape.at(n).iter().map(|d| *d as f64).product::<f64>();
        let operands = model.operands(sum.node);
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
            // One device sums the exponentials of a line in the type that it computes in.
            _ if let (Some(line), true) = (softmax, dtype != DType::F64) => {
                (line, unit_roundoff(DType::F32))
            }
            // Of [M, K] and [K, P] the number of terms is the root of M K * K P / (M P).
            (true, [a, b, ..]) if dtype != DType::F64 => {
                let terms = count(*a) * count(*b) / count(sum).max(1.0);
                (terms.sqrt(), unit_roundoff(DType::F32))
            }
            _ => (terms, unit_roundoff(DType::F64)),
        };
        Self {
            of_terms: 2.0 * terms * unit + 4.0 * unit_roundoff(dtype),
            of_largest: dtype.rounding() + 2.0 * terms * unit,
            least: 2.0 * least(dtype),
            logarithm: op.is_some_and(|op| op.of_magnitudes().is_some_and(|of| of != *op)),
        }
    }

    /// The difference of an element, and what it may be; `size` is the magnitude of its terms.
    fn of(&self, own: f64, theirs: f64, size: Option<f64>, largest: f64) -> (f64, f64) {
        let bound = size.map_or(largest * self.of_largest, |size| size.abs() * self.of_terms);
        if self.logarithm {
            // A sum that cancels may be a little above 0 or not, where it has no logarithm.
            let [own, theirs] = [own, theirs].map(|log| if log.is_nan() { 0.0 } else { log.exp() });
            let rounding = self.of_largest * own.max(theirs) * own.max(theirs).ln().abs().max(1.0);
            return ((own - theirs).abs(), bound + rounding);
        }
        ((own - theirs).abs(), bound + self.least)
    }
}

/// The least number above 0, or more.
fn least(dtype: DType) -> f64 {
    #[expect(clippy::wildcard_enum_match_arm, reason = "sums are of floats")]
    match dtype {
        DType::F16 => 6e-8,
        DType::F32 => 1.5e-45,
        DType::Bf16 => 1e-40,
        _ => 5e-324,
    }
}

/// Half the distance from 1 to the next number.
fn unit_roundoff(dtype: DType) -> f64 {
    #[expect(clippy::wildcard_enum_match_arm, reason = "sums are of floats")]
    match dtype {
        DType::F16 => f64::exp2(-11.0),
        DType::Bf16 => f64::exp2(-8.0),
        DType::F32 => f64::exp2(-24.0),
        _ => f64::exp2(-53.0),
    }
}

/// The largest difference of two tensors that is more than their rounding, with what that may be
/// there; `sizes` are the magnitudes of terms.
fn apart(
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
        // What is no number on one side alone is no rounding.
        (if difference.is_nan() { f64::INFINITY } else { difference }, bound)
    });
    let wrong = differences
        .filter(|(difference, bound)| difference > bound || bound.is_nan() && *difference > 0.0);
    wrong.max_by(|a, b| a.0.total_cmp(&b.0))
}
