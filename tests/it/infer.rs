//! Inference and evaluation of every operator with attributes and operands that may be anything.

use std::time::{Duration, Instant};

use fanwise::internal::MAX_SIZE;
use fanwise::internal::{Operand, Results, SplitOperand};
use fanwise::op::{Attr, AttrError, Op};
use fanwise::types::{Claim, DType, Dim, Shape, Shard, Tensor, TensorType};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::operators::{Operator, declared};

/// Cases for each operator.
const CASES: u64 = 300;
/// Elements of tensors that are evaluated, at most.
const ELEMENTS: usize = 2048;
/// The longest time that one call may take, on a busy machine without optimisation.
const LONG: Duration = Duration::from_secs(2);

struct Cases {
    rng: ChaCha8Rng,
}

impl Cases {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn integer(&mut self) -> i64 {
        const EXTREME: [i64; 16] = [
            i64::MIN,
            i64::MIN + 1,
            i64::MAX,
            i64::MAX - 1,
            MAX_SIZE,
            MAX_SIZE + 1,
            -MAX_SIZE,
            1 << 62,
            1 << 32,
            (1 << 31) - 1,
            -(1 << 31),
            65_536,
            1024,
            1023,
            -2,
            64,
        ];
        match self.rng.random_range(0..10) {
            0..=6 => self.rng.random_range(0..5),
            7 => -1,
            8 => *EXTREME.choose(&mut self.rng).unwrap(),
            _ => self.rng.random(),
        }
    }

    /// A number, or a formula of the batch size.
    fn dim(&mut self) -> Dim {
        const FORMULAS: [&str; 12] = [
            "N",
            "N",
            "N",
            "2*N",
            "N*4",
            "N/2",
            "N-N/3",
            "N-1",
            "min(N,7)-max(N/5,3)",
            "9223372036854775807*N",
            "N*N*N",
            "65537*(N/65537)-min(N,9223372036854775807)",
        ];
        if self.one_in(4) {
            FORMULAS.choose(&mut self.rng).unwrap().parse().unwrap()
        } else {
            self.integer().into()
        }
    }

    fn length(&mut self) -> usize {
        if self.one_in(40) { self.rng.random_range(0..200) } else { self.rng.random_range(0..7) }
    }

    fn float(&mut self) -> f64 {
        let few = [0.0, -0.0, 1.0, -1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300, 5e-324];
        *few.choose(&mut self.rng).unwrap()
    }

    fn dtype(&mut self) -> DType {
        *DType::ALL.choose(&mut self.rng).unwrap()
    }

    /// A value of the kind that an operator says it expects.
    fn attr(&mut self, expected: &str) -> Attr {
        let length = self.length();
        match expected {
            "true or false" => Attr::Bool(self.rng.random()),
            "an integer, which may depend on N" => Attr::Int(self.dim()),
            "a list of integers, which may depend on N" => {
                Attr::Ints((0..length).map(|_| self.dim()).collect())
            }
            "a float" => Attr::Float(self.float()),
            "a list of floats" => Attr::Floats((0..length).map(|_| self.float()).collect()),
            "an element type" => Attr::Name(self.dtype().name().to_owned()),
            "a text" => {
                const PARTS: [&str; 10] = ["i", "i", "j", "j", "k", ",", ",", "->", "...", "é"];
                let parts = (0..length.min(9)).map(|_| *PARTS.choose(&mut self.rng).unwrap());
                Attr::Name(parts.collect())
            }
            "a tensor" => {
                let (dtype, dims) = (self.dtype(), self.few_sizes());
                Attr::Tensor(self.tensor(dtype, &dims))
            }
            _ if expected.starts_with("a function: ") => {
                const FUNCTIONS: [&str; 6] =
                    ["tanh", "relu", "softplus", "elu(nan)", "leaky_relu(0.01)", "affine(inf, -1)"];
                Attr::Name((*FUNCTIONS.choose(&mut self.rng).unwrap()).to_owned())
            }
            _ if expected.starts_with("an assumption, ") => {
                let axis = self.rng.random_range(0..3);
                Attr::Name(if self.one_in(4) {
                    "none".to_owned()
                } else {
                    format!("rowwise({axis})")
                })
            }
            _ if expected.starts_with("the types of all results") => {
                let types: Vec<String> = self.types().iter().map(ToString::to_string).collect();
                Attr::Name(types.join(", "))
            }
            _ if expected.starts_with("an integer (") => Attr::Int(self.integer().into()),
            _ if expected.starts_with("a list of integers (") => {
                Attr::Ints((0..length).map(|_| self.integer().into()).collect())
            }
            _ => {
                let words: Vec<&str> =
                    expected.strip_prefix("one of ").unwrap().split(' ').collect();
                Attr::Name((*words.choose(&mut self.rng).unwrap()).to_owned())
            }
        }
    }

    /// The operator with some of its attributes.
    fn op(&mut self, operator: &Operator) -> Op {
        let chosen = operator.attributes.iter().filter(|_| self.rng.random());
        let mut attrs: Vec<(String, Attr)> =
            chosen.map(|name| (name.clone(), Attr::Floats(vec![0.0]))).collect();
        for _ in 0..200 {
            let (wrong, expected) = match Op::read(&operator.name, attrs.clone()) {
                Ok(op) => return op,
                Err(AttrError::Kind { attr, expected, .. }) => (attr, expected),
                Err(AttrError::Missing { attr, .. }) => {
                    attrs.push((attr.to_owned(), Attr::Floats(vec![0.0])));
                    continue;
                }
                Err(other) => panic!("{other}"),
            };
            let value = self.attr(expected);
            attrs
                .iter_mut()
                .filter(|(name, _)| name == wrong)
                .for_each(|(_, v)| *v = value.clone());
        }
        panic!("`{}` takes none of the attributes tried", operator.name)
    }

    fn few_sizes(&mut self) -> Vec<usize> {
        (0..self.rng.random_range(0..4)).map(|_| self.rng.random_range(0..4)).collect()
    }

    fn tensor(&mut self, dtype: DType, dims: &[usize]) -> Tensor {
        let mut tensor = Tensor::zeros(dtype, dims).unwrap();
        let few = dtype == DType::Bool || self.rng.random();
        tensor.bytes_mut().chunks_exact_mut(dtype.bytes()).for_each(|element| {
            if few {
                element[0] = self.rng.random_range(0..2);
            } else {
                self.rng.fill(element);
            }
        });
        tensor
    }

    fn shape(&mut self) -> Shape {
        let plain = self.rng.random();
        let rank = if self.one_in(60) { 70 } else { self.rng.random_range(0..6) };
        (0..rank)
            .map(|_| if plain { Dim::from(self.rng.random_range(0..6)) } else { self.dim() })
            .collect()
    }

    /// Types that values of a graph may have.
    fn types(&mut self) -> Vec<TensorType> {
        let (shape, dtype) = (self.shape(), self.dtype());
        let count = self.rng.random_range(0..6);
        let mut types = Vec::new();
        for _ in 0..count {
            let dtype = if self.one_in(4) { self.dtype() } else { dtype };
            let shape = match self.rng.random_range(0..4) {
                0 => self.shape(),
                1 => shape.iter().skip(1).cloned().collect(),
                2 => shape.iter().take(1).cloned().collect(),
                _ => shape.clone(),
            };
            if shape.is_valid() && shape.iter().all(Dim::is_nonnegative) {
                types.push(TensorType { dtype, shape });
            }
        }
        types
    }

    /// Elements that an operand may be known to have.
    fn known(&mut self, ty: &TensorType) -> Option<Vec<Dim>> {
        let count = ty.shape.elements().as_const().filter(|c| *c <= 64)?;
        let fits = matches!(ty.dtype, DType::I64 | DType::I32) && self.rng.random();
        let wide = ty.dtype == DType::I64;
        fits.then(|| {
            (0..count)
                .map(|_| if wide { self.dim() } else { Dim::from(self.rng.random_range(-3..4)) })
                .collect()
        })
    }

    fn claim(&mut self, ty: &TensorType) -> Claim {
        let axes = ty.shape.iter().enumerate().filter_map(|(axis, d)| {
            let inner = d.exact_div(&Dim::n())?.as_const()?;
            let inner = u64::try_from(inner).ok().filter(|i| *i > 0)?;
            let outer = if inner % 2 == 0 && self.rng.random() { 2 } else { 1 };
            Some(Shard { axis, outer, inner: inner / outer })
        });
        let axes: Vec<Shard> = axes.collect();
        axes.choose(&mut self.rng).map_or(Claim::Invariant, |shard| Claim::Shard(*shard))
    }
}

fn timed<T>(what: &dyn std::fmt::Debug, types: &[TensorType], call: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = call();
    assert!(start.elapsed() < LONG, "{what:?} on {types:?} takes {:?}", start.elapsed());
    result
}

/// What inference promises of its results.
fn check_results(op: &Op, types: &[TensorType], results: &Results) {
    assert!(!results.is_empty(), "{op:?}");
    for result in results {
        assert!(result.ty.shape.is_valid(), "{op:?} on {types:?}: {}", result.ty);
        // A batch for which an operand is too large cannot be run.
        let possible =
            |n: &i64| types.iter().all(|ty| ty.shape.iter().all(|d| d.eval(*n) <= MAX_SIZE));
        for n in (0..6).filter(possible) {
            let negative = result.ty.shape.iter().find(|d| d.eval(n) < 0);
            assert_eq!(negative, None, "{op:?} on {types:?}: {} at N = {n}", result.ty);
        }
        if let Some(ints) = &result.ints {
            let count = i64::try_from(ints.len()).unwrap();
            assert_eq!(result.ty.shape.elements().as_const(), Some(count), "{op:?} on {types:?}");
        }
    }
}

/// Evaluates on operands of constant sizes, where all is small.
fn evaluate(
    cases: &mut Cases,
    op: &Op,
    types: &[TensorType],
    ints: &[Option<Vec<Dim>>],
    results: &Results,
) {
    let count = |ty: &TensorType| {
        let dims = ty.shape.as_const()?;
        dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= ELEMENTS)
    };
    let small = types.iter().chain(results.iter().map(|r| &r.ty)).all(|ty| count(ty).is_some());
    if !small || ints.iter().flatten().flatten().any(|d| d.as_const().is_none()) {
        return;
    }
    let tensors: Vec<Tensor> = types
        .iter()
        .zip(ints)
        .map(|(ty, ints)| {
            let mut tensor = cases.tensor(ty.dtype, &ty.shape.as_const().unwrap());
            for (i, d) in ints.iter().flatten().enumerate() {
                let value = d.as_const().unwrap();
                if ty.dtype == DType::I64 {
                    tensor.as_mut_slice::<i64>()[i] = value;
                } else {
                    tensor.as_mut_slice::<i32>()[i] = i32::try_from(value).unwrap();
                }
            }
            tensor
        })
        .collect();
    let operands: Vec<&Tensor> = tensors.iter().collect();
    // Data may be wrong, such as an index beyond its axis; what is evaluated has the inferred type.
    let Ok(values) = timed(op, types, || op.eval(&operands)) else { return };
    assert_eq!(values.len(), results.len(), "{op:?} on {types:?}");
    for (value, result) in values.iter().zip(results) {
        assert_eq!(value.tensor_type(), result.ty, "{op:?} on {types:?}");
        if let Some(ints) = &result.ints {
            let known: Vec<i64> = ints.iter().map(|d| d.as_const().unwrap()).collect();
            assert_eq!(value.to_i64(), Some(known), "{op:?} on {tensors:?}");
        }
    }
}

#[test]
fn hostile_attributes_and_operands_are_refused_or_right() {
    let mut accepted = 0u64;
    for (i, operator) in (0u64..).zip(declared()) {
        let mut cases = Cases { rng: ChaCha8Rng::seed_from_u64(i) };
        for _ in 0..CASES {
            let mut op = cases.op(&operator);
            let types = cases.types();
            let ints: Vec<Option<Vec<Dim>>> = types.iter().map(|ty| cases.known(ty)).collect();
            let operands: Vec<Operand<'_>> = types
                .iter()
                .zip(&ints)
                .map(|(ty, ints)| Operand { ty, ints: ints.as_deref() })
                .collect();
            let attrs = op.attrs().into_iter().map(|(name, attr)| (name.to_owned(), attr));
            assert_eq!(Op::read(op.name(), attrs.collect()).as_ref(), Ok(&op));
            let claims: Vec<Claim> = types.iter().map(|ty| cases.claim(ty)).collect();
            match timed(&op, &types, || op.infer(&operands)) {
                Err(error) => assert!(!error.to_string().is_empty()),
                Ok(results) => {
                    accepted += 1;
                    check_results(&op, &types, &results);
                    evaluate(&mut cases, &op, &types, &ints, &results);
                    let split = types.iter().zip(&claims);
                    let split: Vec<SplitOperand<'_>> =
                        split.map(|(ty, claim)| SplitOperand { claim: *claim, ty }).collect();
                    let results: Vec<TensorType> = results.into_iter().map(|r| r.ty).collect();
                    if let Ok(claims) = timed(&op, &types, || op.split(&split, &results)) {
                        assert_eq!(claims.len(), results.len(), "{op:?} on {types:?}");
                    }
                }
            }
            op.at_rows(&Dim::n().floor_div(&3.into()));
        }
    }
    assert!(accepted > 1000, "{accepted}");
}
