//! Random operators of a framework compute on replicas what they do on one device, and read back.

use fanwise::ir::{self, Builder, Graph, Weights};
use fanwise::op::{Attr, AttrError, AttrReader, Custom, CustomOp, CustomOps, Sharding};
use fanwise::pass::{self, Repair};
use fanwise::types::{Combine, DType, Dim, Shape, Tensor, TensorType};
use fanwise::{analysis, ir::from_json_with};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::outputs;
use crate::programs;
use crate::splits::tensor;

const NAME: &str = "com.acme.Mixed";

/// What is said of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Every element of `x` times the first of `w`, plus the sum of its row.
    Rows,
    /// The sum of each row, on axis 0.
    Sums,
    /// Twice `w`.
    Whole,
    /// The sums of all rows times `w`, combined.
    Parts(Combine),
}

/// Every kind, by the word in the attribute.
const KINDS: [(&str, Kind); 9] = [
    ("rows", Kind::Rows),
    ("sums", Kind::Sums),
    ("whole", Kind::Whole),
    ("sum", Kind::Parts(Combine::Sum)),
    ("prod", Kind::Parts(Combine::Prod)),
    ("max", Kind::Parts(Combine::Max)),
    ("min", Kind::Parts(Combine::Min)),
    ("mean", Kind::Parts(Combine::Mean)),
    ("l2", Kind::Parts(Combine::L2)),
];

/// Takes `x`, with rows on `axis`, and a whole vector `w`; has attributes of every type.
#[derive(Clone)]
struct Mixed {
    axis: usize,
    kinds: String,
    flag: bool,
    ints: Vec<i64>,
    number: f64,
    numbers: Vec<f32>,
    table: Tensor,
}

impl Mixed {
    fn read(attrs: &mut AttrReader) -> Result<Self, AttrError> {
        Ok(Self {
            axis: attrs.take("axis", None)?,
            kinds: attrs.take("kinds", None)?,
            flag: attrs.take("flag", Some(false))?,
            ints: attrs.take("ints", None)?,
            number: attrs.take("number", None)?,
            numbers: attrs.take("numbers", None)?,
            table: attrs.take("table", None)?,
        })
    }

    fn random(rng: &mut ChaCha8Rng, axis: usize) -> Self {
        let count = rng.random_range(1..5);
        let kinds: Vec<&str> = (0..count).map(|_| KINDS.choose(rng).unwrap().0).collect();
        let numbers: [f64; 4] = [f64::NAN, f64::NEG_INFINITY, -0.0, rng.random()];
        Self {
            axis,
            kinds: kinds.join(" "),
            flag: rng.random(),
            ints: (0..rng.random_range(0..4)).map(|_| rng.random_range(-9..9)).collect(),
            number: *numbers.choose(rng).unwrap(),
            numbers: (0..rng.random_range(0..4)).map(|_| rng.random()).collect(),
            table: crate::splits::random(rng, DType::I16, &[2, 2]),
        }
    }

    fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.kinds.split(' ').map(|word| KINDS.iter().find(|(name, _)| *name == word).unwrap().1)
    }

    fn result(&self, kind: Kind, x: &Tensor, w: &[f32]) -> Tensor {
        let (rows, inner) =
            (x.dims()[self.axis], x.dims()[self.axis + 1..].iter().product::<usize>());
        let row = |i: usize| i / inner % rows;
        let mut sums = vec![0.0f32; rows];
        for (i, x) in x.as_slice::<f32>().iter().enumerate() {
            sums[row(i)] += x;
        }
        let fold = |w: &f32, start: f32, with: fn(f32, f32) -> f32| {
            sums.iter().map(|sum| sum * w).fold(start, with)
        };
        let part = |w: &f32, by: Combine| match by {
            Combine::Sum => fold(w, 0.0, |a, b| a + b),
            // All signs, so that no product is rounded.
            Combine::Prod => fold(w, 1.0, |a, b| if b < 0.0 { -a } else { a }),
            Combine::Max => fold(w, f32::NEG_INFINITY, f32::max),
            Combine::Min => fold(w, f32::INFINITY, f32::min),
            Combine::Mean => fold(w, 0.0, |a, b| a + b) / rows as f32,
            Combine::L2 => fold(w, 0.0, f32::hypot),
            Combine::Lse | Combine::WideSum | Combine::WideProd | Combine::Moments => {
                panic!("{by:?}")
            }
        };
        match kind {
            Kind::Rows => {
                let elements = x.as_slice::<f32>().iter().enumerate();
                let y: Vec<f32> = elements.map(|(i, x)| x * w[0] + sums[row(i)]).collect();
                Tensor::new(x.dims(), &y).unwrap()
            }
            Kind::Sums => Tensor::new(&[rows], &sums).unwrap(),
            Kind::Whole => {
                Tensor::new(&[w.len()], &w.iter().map(|w| 2.0 * w).collect::<Vec<_>>()).unwrap()
            }
            Kind::Parts(by) => {
                let parts: Vec<f32> = w.iter().map(|w| part(w, by)).collect();
                Tensor::new(&[w.len()], &parts).unwrap()
            }
        }
    }
}

impl CustomOp for Mixed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let numbers = self.numbers.iter().map(|x| f64::from(*x)).collect();
        let mut attrs = vec![
            ("table", Attr::Tensor(self.table.clone())),
            ("axis", Attr::Int(i64::try_from(self.axis).unwrap().into())),
            ("kinds", Attr::Name(self.kinds.clone())),
            ("ints", Attr::Ints(self.ints.iter().map(|i| (*i).into()).collect())),
            ("number", Attr::Float(self.number)),
            ("numbers", Attr::Floats(numbers)),
        ];
        attrs.extend(self.flag.then_some(("flag", Attr::Bool(true))));
        attrs
    }

    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        let [x, w] = operands else { return Err("it takes two operands".to_owned()) };
        let rows = x.shape.get(self.axis).ok_or("there is no such axis")?;
        let rows: Shape = [rows.clone()].into_iter().collect();
        let ty = |kind| match kind {
            Kind::Rows => x.clone(),
            Kind::Sums => TensorType::new(x.dtype, rows.clone()),
            Kind::Whole | Kind::Parts(_) => w.clone(),
        };
        Ok(self.kinds().map(ty).collect())
    }

    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
        let rows = Sharding::Rows { axis: self.axis };
        if operands != [rows, Sharding::Whole] {
            return Err(format!("it takes {rows}, and a vector"));
        }
        let of = |kind| match kind {
            Kind::Rows => rows,
            Kind::Sums => Sharding::Rows { axis: 0 },
            Kind::Whole => Sharding::Whole,
            Kind::Parts(by) => Sharding::Partial(by),
        };
        Ok(self.kinds().map(of).collect())
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        let w = operands[1].as_slice::<f32>();
        Ok(self.kinds().map(|kind| self.result(kind, operands[0], w)).collect())
    }
}

fn ops() -> CustomOps {
    CustomOps::default().with(NAME, Mixed::read)
}

/// A graph of a random operator, and the sizes of its input with 0 rows.
fn drawn(rng: &mut ChaCha8Rng) -> (Mixed, Graph, Weights, Vec<usize>) {
    let rank = rng.random_range(1..4);
    let mut dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
    let op = Mixed::random(rng, rng.clone().random_range(0..rank));
    dims[op.axis] = 0;
    let mut shape = Shape::from(dims.as_slice());
    shape[op.axis] = Dim::n();
    let mut b = Builder::new("g");
    let x = b.input("x", TensorType::new(DType::F32, shape));
    let w = [2.0, -1.0, 3.0].map(|w: f32| w + rng.random_range(0..2) as f32);
    let w = b.param("w", Tensor::new(&[3], &w).unwrap());
    let names: Vec<String> = (0..op.kinds().count()).map(|i| format!("y{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (name, value) in names.iter().zip(b.ops(&names, op.clone(), &[x, w]).unwrap()) {
        b.output(name, value);
    }
    let (graph, weights) = b.finish();
    (op, graph, weights, dims)
}

/// Small whole numbers, which no sum rounds.
fn whole(rng: &mut ChaCha8Rng, dims: &[usize]) -> Tensor {
    let values: Vec<f64> =
        (0..dims.iter().product()).map(|_| rng.random_range(-4..5).into()).collect();
    tensor(DType::F32, dims, &values)
}

fn assert_same(kind: Kind, one: &Tensor, many: &Tensor, what: &str) {
    assert_eq!(one.tensor_type(), many.tensor_type(), "{what}");
    let rounds = matches!(kind, Kind::Parts(Combine::Mean | Combine::L2));
    for (a, b) in one.to_f64().into_iter().zip(many.to_f64()) {
        let near = rounds && (a - b).abs() <= 1e-4 * a.abs().max(1.0);
        let same = a.to_bits() == b.to_bits() || a == 0.0 && b == 0.0 || a.is_nan() && b.is_nan();
        assert!(near || same, "{what}: {a} on one device, {b} on several");
    }
}

#[test]
fn replicas_compute_what_one_device_does() {
    for seed in 0..120u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (op, graph, weights, mut dims) = drawn(&mut rng);
        let count = rng.random_range(1..9);
        let how = programs::options(count, seed, Repair::Local);
        let replicas = pass::replicate(&graph, &how).unwrap_or_else(|e| panic!("{seed}: {e}"));
        let repaired = pass::repair(&graph, Repair::Local).unwrap().into_graph();
        analysis::prove(&repaired, &ir::verify(&replicas).unwrap()).unwrap();
        let most = 2 * usize::try_from(count).unwrap() + 1;
        for rows in [0, 1, rng.random_range(0..=most), most] {
            dims[op.axis] = rows;
            let x = whole(&mut rng, &dims);
            let what = format!("seed {seed}, {rows} rows on {count} devices, {}", op.kinds);
            let one = outputs(&graph, &weights, &x).unwrap_or_else(|e| panic!("{what}: {e}"));
            let many = outputs(&replicas, &weights, &x).unwrap_or_else(|e| panic!("{what}: {e}"));
            for ((kind, one), many) in op.kinds().zip(&one).zip(&many) {
                assert_same(kind, one, many, &what);
            }
            let w = weights.get("w").unwrap();
            let operands = [(&x, Sharding::Rows { axis: op.axis }), (w, Sharding::Whole)];
            Custom::new(op.clone())
                .check_split(&operands)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
}

#[test]
fn graphs_read_back() {
    for seed in 0..60u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (op, graph, ..) = drawn(&mut rng);
        let how = programs::options(3, seed, Repair::Local);
        let replicas = pass::replicate(&graph, &how).unwrap();
        for graph in [&graph, &replicas] {
            let (text, json) = (graph.to_string(), ir::to_json(graph));
            let read = ir::parse_with(&text, &ops()).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((&read, read.to_string()), (graph, text));
            let read = from_json_with(&json, &ops()).unwrap();
            assert_eq!((&read, ir::to_json(&read)), (graph, json));
        }
        // The framework finds its own type again.
        let custom = graph.ids().find_map(|id| match graph.node(id).op() {
            Some(fanwise::op::Op::Custom(custom)) => Some(custom.clone()),
            _ => None,
        });
        let custom = custom.unwrap();
        assert_eq!(custom.get::<Mixed>().map(|found| &found.kinds), Some(&op.kinds));
        assert!(custom.get::<super::Made>().is_none());
        assert_eq!(custom, Custom::new(op.clone()));
        let other = Mixed { ints: vec![17], ..op };
        assert_ne!(custom, Custom::new(other));
    }
}

#[test]
fn the_proof_compares_attributes() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut op = Mixed::random(&mut rng, 0);
    "rows".clone_into(&mut op.kinds);
    op.number = 0.25;
    let mut b = Builder::new("g");
    let x = b.input("x", "f32[N]".parse().unwrap());
    let w = b.param("w", Tensor::new(&[1], &[1.0f32]).unwrap());
    let y = b.op("y", op, &[x, w]).unwrap();
    b.output("y", y);
    let (graph, _) = b.finish();
    let replicas = pass::replicate(&graph, &programs::options(2, 0, Repair::Local)).unwrap();
    let proved = |text: &str| {
        let read = ir::parse_with(text, &ops()).unwrap();
        analysis::prove(&graph, &ir::verify(&read).unwrap()).map(|_| ())
    };
    let text = replicas.to_string();
    proved(&text).unwrap();
    proved(&text.replacen("number=0.25", "number=0.5", 1)).unwrap_err();
}
