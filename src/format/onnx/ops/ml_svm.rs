//! Support vector machines.

use super::ml_scores::{
    Labels, Transform, features, matrix, post_transform, rows_f32, transformed,
};
use super::{Done, Imports, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::pair_probabilities::PairProbabilities;
use crate::op::{Formula, OpError};
use crate::types::invariant::int;
use crate::types::{DType, Dim, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.add_ml("SVMRegressor", 1, regressor);
    all.add_ml("SVMClassifier", 1, classifier);
}

/// The kernel of a machine.
#[derive(Clone, Copy)]
enum Kernel {
    Linear,
    Poly,
    Rbf,
    Sigmoid,
}

const KERNELS: [(&str, Kernel); 4] = [
    ("LINEAR", Kernel::Linear),
    ("POLY", Kernel::Poly),
    ("RBF", Kernel::Rbf),
    ("SIGMOID", Kernel::Sigmoid),
];

/// The classes of a machine: its pairs grow with their square.
const MOST_CLASSES: usize = 128;

/// What both kinds of machines have.
struct Machine {
    kernel: Kernel,
    gamma: f32,
    offset: f32,
    degree: f32,
    coefficients: Vec<f32>,
    rho: Vec<f32>,
    vectors: Vec<f32>,
}

impl Machine {
    fn read(n: &mut Node<'_, '_>) -> Result<Self, NodeError> {
        let kernel = n.choice("kernel_type", "LINEAR", &KERNELS)?;
        // Kernels without parameters have no list.
        let params = n.opt_floats("kernel_params")?.unwrap_or_default();
        let [gamma, offset, degree] = match params[..] {
            [] => [0.0; 3],
            [gamma, offset, degree] => [gamma, offset, degree],
            _ => return Err(wrong("kernel_params", format!("has {} numbers", params.len()))),
        };
        let mut list = |name| n.opt_floats(name)?.ok_or_else(|| wrong(name, "is missing"));
        let (coefficients, rho) = (list("coefficients")?, list("rho")?);
        // A linear machine has no vectors.
        let vectors = n.opt_floats("support_vectors")?.unwrap_or_default();
        Ok(Self { kernel, gamma, offset, degree, coefficients, rho, vectors })
    }

    /// The kernel of each row with each of so many support vectors.
    fn kernels(&self, n: &mut Node<'_, '_>, x: Value, count: usize) -> Result<Value, NodeError> {
        let vectors = matrix("support_vectors", &self.vectors, count, features(n, x)?)?;
        if let Kernel::Rbf = self.kernel {
            let distance = distances(n, x, &vectors)?;
            let scaled = n.scale(distance, -f64::from(self.gamma))?;
            return n.exp(scaled);
        }
        let vectors = n.table("vectors", vectors)?;
        let vectors = n.transposed(vectors)?;
        let product = n.matmul(x, vectors)?;
        if let Kernel::Linear = self.kernel {
            return Ok(product);
        }
        let scaled = n.scale(product, self.gamma.into())?;
        let shifted = n.shift(scaled, self.offset.into())?;
        if let Kernel::Sigmoid = self.kernel {
            return n.tanh(shifted);
        }
        let degree = n.number(shifted, self.degree.into())?;
        n.pow(shifted, degree)
    }
}

/// The squared distance of each row from each vector. The products are of `f64`: what cancels is as
/// large as the rows, not as their distances.
fn distances(n: &mut Node<'_, '_>, x: Value, vectors: &Tensor) -> Result<Value, NodeError> {
    let vectors = crate::op::converted(vectors, DType::F64)?;
    let vectors = n.table("vectors", vectors)?;
    let x = n.convert(x, DType::F64)?;
    let own = n.reduce_sum_square(x, vec![1], true)?;
    let theirs = n.reduce_sum_square(vectors, vec![1], false)?;
    let turned = n.transposed(vectors)?;
    let product = n.matmul(x, turned)?;
    let twice = n.scale(product, -2.0)?;
    let sum = n.add(own, theirs)?;
    let distance = n.add(sum, twice)?;
    let distance = n.relu(distance)?;
    n.convert(distance, DType::F32)
}

fn regressor(n: &mut Node<'_, '_>) -> Done {
    let (supports, one_class) = (n.int("n_supports", 0)?, n.flag("one_class", false)?);
    if post_transform(n)? != Transform::None {
        let text = "a post transform, which ONNX Runtime leaves out,";
        return Err(NodeError::Unsupported(text.to_owned()));
    }
    let (machine, x) = (Machine::read(n)?, rows_f32(n)?);
    let [rho] = machine.rho[..] else { return Err(wrong("rho", "must be one number")) };
    let count = usize::try_from(supports).map_err(|_| wrong("n_supports", "is negative"))?;
    let kernels = if count == 0 { x } else { machine.kernels(n, x, count)? };
    let width = features(n, kernels)?;
    let coefficients = matrix("coefficients", &machine.coefficients, width, 1)?;
    let coefficients = n.table("coefficients", coefficients)?;
    let sum = n.matmul(kernels, coefficients)?;
    let score = n.shift(sum, rho.into())?;
    if !one_class {
        n.last(0).identity(score)?;
        return Ok(());
    }
    let inside = n.is_above(score, 0.0)?;
    let (one, minus) = (n.number(score, 1.0)?, n.number(score, -1.0)?);
    n.last(0).choose(inside, one, minus)?;
    Ok(())
}

/// The pairs of so many classes, in order.
fn pairs(classes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..classes).flat_map(move |i| (i + 1..classes).map(move |j| (i, j)))
}

/// A machine of pairs of classes: the label is that of the class with most votes.
fn classifier(n: &mut Node<'_, '_>) -> Done {
    let (labels, by) = (Labels::read(n, "classlabels_ints")?, post_transform(n)?);
    let own = n.ints("vectors_per_class")?;
    // Without calibration there are no such lists.
    let mut list = |name| Ok::<_, NodeError>(n.opt_floats(name)?.unwrap_or_default());
    let (a, b) = (list("prob_a")?, list("prob_b")?);
    let (machine, x) = (Machine::read(n)?, rows_f32(n)?);
    let classes = labels.len();
    if own.is_empty() {
        return linear(n, &machine, x, &labels, by);
    }
    let counts: Option<Vec<usize>> = own.iter().map(|c| usize::try_from(*c).ok()).collect();
    let counts = counts.filter(|c| c.len() == classes && (2..=MOST_CLASSES).contains(&classes));
    let counts = counts.ok_or_else(|| {
        let reason = format!("must have a count for each of 2 to {MOST_CLASSES} classes");
        wrong("vectors_per_class", reason)
    })?;
    let scores = pairwise(n, &machine, x, &counts)?;
    let votes = votes(n, scores, classes)?;
    let place = n.arg_max(votes, 1)?;
    labels.at(n, place)?;
    let scores = if !a.is_empty() || !b.is_empty() {
        probabilities(n, scores, [("prob_a", &a), ("prob_b", &b)], classes)?
    } else if classes == 2 {
        if by != Transform::None {
            let text = "a post transform of one score for two classes";
            return Err(NodeError::Unsupported(text.to_owned()));
        }
        let minus = n.neg(scores)?;
        n.concat(&[minus, scores], 1)?
    } else {
        scores
    };
    let scores = transformed(n, scores, by)?;
    n.last(1).identity(scores)?;
    Ok(())
}

/// The score of each pair of classes, above 0 for the first one: a class has so many vectors, and
/// for each other class a row of coefficients.
fn pairwise(
    n: &mut Node<'_, '_>,
    machine: &Machine,
    x: Value,
    counts: &[usize],
) -> Result<Value, NodeError> {
    let others = counts.len() - 1;
    let rho = matrix("rho", &machine.rho, 1, pairs(counts.len()).count())?;
    let vectors = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
    let vectors = vectors.ok_or_else(|| wrong("vectors_per_class", "has too many vectors"))?;
    let kernels = machine.kernels(n, x, vectors)?;
    let rows = matrix("coefficients", &machine.coefficients, others, vectors)?;
    let rows = n.table("coefficients", rows)?;
    let sizes: Vec<Dim> = counts.iter().map(|count| Dim::from(int::<i64>(*count))).collect();
    let (kernels, rows) = (n.split(kernels, 1, sizes.clone())?, n.split(rows, 1, sizes)?);
    // What the vectors of each class say of it and each other class.
    let mut parts = Vec::with_capacity(counts.len());
    for (own, rows) in kernels.into_iter().zip(rows) {
        let columns = n.transposed(rows)?;
        parts.push(n.matmul(own, columns)?);
    }
    let all = n.concat(&parts, 1)?;
    let mut picked = |place: &dyn Fn((usize, usize)) -> usize| {
        let places: Vec<i64> = pairs(counts.len()).map(|pair| int(place(pair))).collect();
        let places = Tensor::new(&[places.len()], &places).map_err(OpError::from)?;
        let places = n.table("pairs", places)?;
        n.gather(all, places, 1)
    };
    let first = picked(&|(i, j)| i * others + j - 1)?;
    let second = picked(&|(i, j)| j * others + i)?;
    let (sum, rho) = (n.add(first, second)?, n.table("rho", rho)?);
    n.add(sum, rho)
}

/// The pairs of classes that each class wins.
fn votes(n: &mut Node<'_, '_>, scores: Value, classes: usize) -> Result<Value, NodeError> {
    let count = pairs(classes).count();
    // What the first of a pair does not win, the second does.
    let (mut first, mut lost) = (vec![0.0f32; count * classes], vec![0.0f32; classes]);
    for (pair, (i, j)) in pairs(classes).enumerate() {
        first[pair * classes + i] = 1.0;
        first[pair * classes + j] = -1.0;
        lost[j] += 1.0;
    }
    let first = Tensor::new(&[count, classes], &first).map_err(OpError::from)?;
    let lost = Tensor::new(&[classes], &lost).map_err(OpError::from)?;
    let (first, lost) = (n.table("firsts", first)?, n.table("seconds", lost)?);
    let wins = n.is_above(scores, 0.0)?;
    let wins = n.convert(wins, DType::F32)?;
    let won = n.matmul(wins, first)?;
    n.add(won, lost)
}

/// The probability of each class by those of the pairs, which are sigmoids of their scores.
fn probabilities(
    n: &mut Node<'_, '_>,
    scores: Value,
    lists: [(&str, &[f32]); 2],
    classes: usize,
) -> Result<Value, NodeError> {
    let count = features(n, scores)?;
    let mut list = |(name, all)| {
        let row = matrix(name, all, 1, count)?;
        n.table(name, row)
    };
    let (a, b) = (list(lists[0])?, list(lists[1])?);
    let scaled = n.mul(scores, a)?;
    let shifted = n.add(scaled, b)?;
    let minus = n.neg(shifted)?;
    let first = n.sigmoid(minus)?;
    let first = n.clip(first, 1e-7, 1.0 - 1e-7)?;
    n.op(PairProbabilities { classes }, &[first])
}

/// A machine whose coefficients are those of the features, a row for each class.
fn linear(
    n: &mut Node<'_, '_>,
    machine: &Machine,
    x: Value,
    labels: &Labels,
    by: Transform,
) -> Done {
    if labels.len() < 3 {
        let text = "a linear machine of two classes, for which runtimes and the standard differ,";
        return Err(NodeError::Unsupported(text.to_owned()));
    }
    let Some(rho) = machine.rho.first() else { return Err(wrong("rho", "is empty")) };
    let rows = matrix("coefficients", &machine.coefficients, labels.len(), features(n, x)?)?;
    let rows = n.table("coefficients", rows)?;
    let columns = n.transposed(rows)?;
    let product = n.matmul(x, columns)?;
    let scores = n.shift(product, (*rho).into())?;
    let place = n.arg_max(scores, 1)?;
    labels.at(n, place)?;
    let scores = transformed(n, scores, by)?;
    n.last(1).identity(scores)?;
    Ok(())
}
