//! Graphs of one or a few operators, of which one combines over the batch.

use fanwise::ir::{Builder, Graph, Value};
use fanwise::op::Attr;
use fanwise::types::{DType, Dim, Shape, TensorType};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::combine::{FLOATS, INTEGERS};
use super::truth::Truth;
use super::values::scalar;
use crate::random::{Attrs, read};

/// A graph, and what is known of it.
pub(super) struct Drawn {
    pub(super) graph: Graph,
    pub(super) truth: Option<Truth>,
    /// What combines: failures are told apart by it.
    pub(super) family: &'static str,
}

/// What was added to a graph, if it suited.
pub(super) type Added = Option<Vec<Value>>;

pub(super) struct Draw {
    pub(super) rng: ChaCha8Rng,
    pub(super) builder: Builder,
    pub(super) dtype: DType,
    /// Many rows, so few elements in each and nothing that takes pairs of them.
    pub(super) many: bool,
    /// What is combined: the input `x`, or what one operator makes of it.
    pub(super) x: Value,
    /// The axis of the batch in it.
    pub(super) axis: usize,
    pub(super) truth: Option<Truth>,
}

/// A graph over elements of a type; the same seed gives the same graph.
pub(super) fn draw(seed: u64, dtype: DType, many: bool) -> Drawn {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let families = if dtype.is_float() { FLOATS } else { INTEGERS };
    for _ in 0..100 {
        let (family, combine, _) = *families.choose_weighted(&mut rng, |f| f.2).unwrap();
        let mut draw = Draw::new(rng.random(), dtype, many);
        if draw.grow(combine).is_some() {
            let (graph, _) = draw.builder.finish();
            return Drawn { graph, truth: draw.truth, family };
        }
    }
    panic!("no graph of {dtype} suits");
}

/// The shape of `x`, and which axis of it is the batch.
fn batch(rng: &mut ChaCha8Rng, many: bool) -> (Shape, usize) {
    let few = Dim::from(rng.random_range(1..if many { 3 } else { 5 }));
    let n = Dim::n;
    let (sizes, axis) = match rng.random_range(0..if many { 5 } else { 8 }) {
        0..=2 => (vec![n(), few], 0),
        3 => (vec![few, n()], 1),
        4 => (vec![n()], 0),
        5 | 6 => (vec![n(), few, 2.into()], 0),
        _ => (vec![2.into(), n(), few], 1),
    };
    (sizes.into_iter().collect(), axis)
}

impl Draw {
    fn new(seed: u64, dtype: DType, many: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (shape, axis) = batch(&mut rng, many);
        let mut builder = Builder::new("g");
        let x = builder.input("x", TensorType::new(dtype, shape));
        Self { rng, builder, dtype, many, x, axis, truth: None }
    }

    /// What combines, sometimes of a value computed before and mostly with something behind it.
    fn grow(&mut self, combine: fn(&mut Self) -> Added) -> Option<()> {
        if self.one_of(5) {
            self.before()?;
        }
        let combined = combine(self)?;
        let mut last = combined[0];
        let mut outputs = vec![last];
        for _ in 0..*[0, 0, 1, 2].choose(&mut self.rng)? {
            last = self.follow(last, combined[0])?;
            outputs.push(last);
        }
        if self.one_of(5) {
            outputs.push(self.jump(last)?);
        }
        // The combined value itself is not always needed by others.
        if outputs.len() > 1 && self.rng.random() {
            outputs.remove(0);
            self.truth = None;
        }
        outputs.extend(&combined[1..]);
        for (i, value) in outputs.into_iter().enumerate() {
            self.builder.output(&format!("y{i}"), value);
        }
        Some(())
    }

    /// An operator before what combines.
    fn before(&mut self) -> Option<()> {
        let x = self.x;
        self.x = match self.rng.random_range(0..5) {
            0 => self.op("mul", vec![], &[x, x])?,
            1 => self.op("abs", vec![], &[x])?,
            2 => self.op("neg", vec![], &[x])?,
            3 => self.op("exp", vec![], &[x])?,
            _ => {
                self.dtype = *[DType::F32, DType::F64, DType::F16].choose(&mut self.rng)?;
                self.cast(x, self.dtype)?
            }
        };
        Some(())
    }

    /// True of one in so many.
    pub(super) fn one_of(&mut self, count: u32) -> bool {
        self.rng.random_ratio(1, count)
    }

    pub(super) fn flag(&mut self) -> Attr {
        Attr::Bool(self.rng.random())
    }

    pub(super) fn ty(&self, value: Value) -> TensorType {
        self.builder.graph().ty(value).clone()
    }

    /// Adds an operator if it suits its operands.
    pub(super) fn add(&mut self, name: &str, attrs: Attrs, operands: &[Value]) -> Added {
        let op = read(name, attrs)?;
        self.builder.all(name, op, operands).ok()
    }

    /// The same, its first result.
    pub(super) fn op(&mut self, name: &str, attrs: Attrs, operands: &[Value]) -> Option<Value> {
        Some(self.add(name, attrs, operands)?[0])
    }

    pub(super) fn cast(&mut self, value: Value, to: DType) -> Option<Value> {
        self.op("cast", vec![("to", Attr::Name(to.name().to_owned()))], &[value])
    }

    /// A scalar of a type.
    pub(super) fn constant(&mut self, value: f64, dtype: DType) -> Option<Value> {
        self.op("constant", vec![("value", Attr::Tensor(scalar(dtype, value)?))], &[])
    }

    /// One more input.
    pub(super) fn input(&mut self, name: &str, dtype: DType, shape: Vec<Dim>) -> Value {
        self.builder.input(name, TensorType::new(dtype, shape.into_iter().collect::<Shape>()))
    }

    /// The type of `x` with another shape.
    pub(super) fn beside(&mut self, name: &str, shape: Vec<Dim>) -> Value {
        self.input(name, self.dtype, shape)
    }

    /// The sizes of `x`.
    pub(super) fn sizes(&self) -> Vec<Dim> {
        self.ty(self.x).shape.to_vec()
    }

    pub(super) fn is_input(&self) -> bool {
        self.builder.graph().inputs().next() == Some(self.x)
    }
}
