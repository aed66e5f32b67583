//! What random cases are drawn from.

use std::fmt;

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::splits::{self, tensor};
use fanwise::op::{Attr, Op};
use fanwise::types::{Claim, DType, Dim, Shard, Tensor};

/// An operand with its claim.
pub(super) type Held = (Tensor, Claim);

/// An operator with its operands.
pub(super) struct Case {
    pub(super) op: Op,
    pub(super) operands: Vec<Held>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of", self.op)?;
        self.operands.iter().try_for_each(|(t, c)| write!(f, " {}, {c};", t.tensor_type()))
    }
}

/// A source of cases.
pub(super) struct Draw {
    pub(super) rng: ChaCha8Rng,
    /// The number of the case.
    seed: usize,
    /// Rows of the batch.
    pub(super) n: usize,
    /// Entries of the batch axis for each row, side by side.
    pub(super) inner: usize,
    /// Blocks of the batch axis, each with entries of every row.
    outer: usize,
}

/// The batch in a shape.
pub(super) const N: usize = usize::MAX;

impl Draw {
    pub(super) fn new(name: &str, seed: u64) -> Self {
        let salt = name.bytes().fold(seed, |s, b| s.wrapping_mul(31).wrapping_add(u64::from(b)));
        let mut rng = splits::rng(salt);
        let n = if rng.random() { rng.random_range(0..12) } else { 7 };
        let inner = *[1, 1, 1, 2, 3].choose(&mut rng).unwrap();
        let outer = *[1, 1, 1, 2].choose(&mut rng).unwrap();
        Self { rng, seed: usize::try_from(seed).unwrap(), n, inner, outer }
    }

    /// One of these names, each in turn.
    pub(super) fn next_of(&self, names: &[&'static str]) -> &'static str {
        names[self.seed % names.len()]
    }

    /// One of these.
    pub(super) fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all.choose(&mut self.rng).unwrap().clone()
    }

    pub(super) fn chance(&mut self, one_of: u32) -> bool {
        self.rng.random_range(0..one_of) == 0
    }

    /// A number from `low` to below `high`.
    pub(super) fn int(&mut self, low: i64, high: i64) -> i64 {
        self.rng.random_range(low..high)
    }

    pub(super) fn size(&mut self) -> usize {
        self.rng.random_range(1..5)
    }

    /// A shape of 1 to `most` axes, one of which is the batch: mostly the first.
    pub(super) fn shape(&mut self, most: usize) -> Vec<usize> {
        let rank = self.rng.random_range(1..=most);
        let mut shape: Vec<usize> = (0..rank).map(|_| self.size()).collect();
        let axis = if self.chance(2) { 0 } else { self.rng.random_range(0..rank) };
        shape[axis] = N;
        shape
    }

    /// An axis of a shape, sometimes counted from the end.
    pub(super) fn axis(&mut self, rank: usize) -> i64 {
        let rank = i64::try_from(rank).unwrap();
        self.int(-rank, rank)
    }

    /// A float type, mostly `f32`.
    pub(super) fn float(&mut self) -> DType {
        self.of(&[DType::F32, DType::F32, DType::F64, DType::F16, DType::Bf16])
    }

    /// The sizes of a shape of this case.
    pub(super) fn sizes(&self, shape: &[usize]) -> Vec<usize> {
        shape.iter().map(|d| if *d == N { self.outer * self.n * self.inner } else { *d }).collect()
    }

    /// The sizes of a shape as attributes have them.
    pub(super) fn dims(&self, shape: &[usize]) -> Vec<Dim> {
        let int = |d: usize| i64::try_from(d).unwrap();
        shape
            .iter()
            .map(|d| if *d == N { Dim::n() * int(self.inner * self.outer) } else { int(*d).into() })
            .collect()
    }

    fn claim(&self, shape: &[usize]) -> Claim {
        let [outer, inner] = [self.outer, self.inner].map(|d| u64::try_from(d).unwrap());
        let axis = shape.iter().position(|d| *d == N);
        axis.map_or(Claim::Invariant, |axis| Claim::Shard(Shard { axis, outer, inner }))
    }

    /// Random values of this shape: with its rows where it has the batch, else whole.
    pub(super) fn held(&mut self, dtype: DType, shape: &[usize]) -> Held {
        let sizes = self.sizes(shape);
        (splits::random(&mut self.rng, dtype, &sizes), self.claim(shape))
    }

    /// Random integers in a range, as a type.
    pub(super) fn ints(&mut self, dtype: DType, shape: &[usize], low: i64, high: i64) -> Held {
        let sizes = self.sizes(shape);
        let count: usize = sizes.iter().product();
        let values: Vec<f64> = (0..count).map(|_| self.int(low, high) as f64).collect();
        (tensor(dtype, &sizes, &values), self.claim(shape))
    }

    /// An operand that broadcasts with one of `shape`.
    pub(super) fn partner(&mut self, dtype: DType, shape: &[usize]) -> Held {
        let thin = |draw: &mut Self, d: &usize| if draw.chance(3) { 1 } else { *d };
        let mut own: Vec<usize> = match self.rng.random_range(0..6) {
            0 | 1 => shape.to_vec(),
            2 => Vec::new(),
            3 => shape.iter().map(|d| if *d == N { 1 } else { *d }).collect(),
            4 => shape[1..].to_vec(),
            _ => shape.iter().map(|d| thin(self, d)).collect(),
        };
        if self.chance(12) && !own.contains(&N) {
            own = [&[N][..], &vec![1; shape.len()]].concat();
        }
        self.held(dtype, &own)
    }
}

/// The operator `name`; none where it does not take these attributes.
pub(super) fn named(name: &str, attrs: Vec<(&str, Attr)>) -> Option<Op> {
    Op::read(name, attrs.into_iter().map(|(n, a)| (n.to_owned(), a)).collect()).ok()
}

/// A case of an operator.
#[expect(clippy::unnecessary_wraps, reason = "generators end with it, and may give none")]
pub(super) fn case(op: impl Into<Op>, operands: impl IntoIterator<Item = Held>) -> Option<Case> {
    Some(Case { op: op.into(), operands: operands.into_iter().collect() })
}
