//! Repairs and gradients of operators of a framework: what needs other rows gets them, and a
//! gradient that is an operator of the framework gives parts.

use fanwise::analysis;
use fanwise::ir::{self, Builder, Graph, Value, Weights};
use fanwise::op::{
    Attr, Binary, Cast, CustomOp, GradientBuilder, MatMul, Op, Range, Reduce, RuleError, Sharding,
    Term,
};
use fanwise::pass::{self, Repair, Replicate, SimplifyOptions, differentiate, simplify};
use fanwise::types::{Combine, DType, Device, Dim, Tensor, TensorType};

use super::{Made, SAME, outputs};

const ROWS: Sharding = Sharding::Rows { axis: 0 };

/// Replicas on three devices with these repairs, proved.
fn replicas(graph: &Graph, repair: Repair) -> Result<Graph, String> {
    let devices = Replicate::over((0..3).map(Device::gpu).collect());
    let replicas = pass::replicate(graph, &Replicate { repair, ..devices });
    let replicas = replicas.map_err(|e| e.to_string())?;
    let repaired = pass::repair(graph, repair).unwrap().into_graph();
    analysis::prove(&repaired, &ir::verify(&replicas).unwrap()).unwrap();
    Ok(replicas)
}

fn numbers(dims: &[usize]) -> Tensor {
    let numbers = (0..dims.iter().product()).map(|i: usize| ((i * 7 % 13) as f32 - 6.0) / 4.0);
    Tensor::new(dims, &numbers.collect::<Vec<f32>>()).unwrap()
}

/// The graph of `op` of an input of rows, and a value that it is given beside it.
fn beside(op: impl CustomOp, other: impl Fn(&mut Builder) -> Value) -> (Graph, Weights) {
    let mut b = Builder::new("g");
    let x = b.input("x", "f32[N]".parse().unwrap());
    let other = other(&mut b);
    let y = b.op("y", op, &[x, other]).unwrap();
    b.output("y", y);
    b.finish()
}

/// The sum of two vectors, row by row.
const ADD: Made = Made {
    name: "com.acme.Add",
    infer: |operands| match operands {
        [x, y] if x == y => Ok(vec![x.clone()]),
        _ => Err("it takes two vectors of one size".to_owned()),
    },
    split: |operands| match operands {
        [ROWS, ROWS] => Ok(vec![ROWS]),
        _ => Err("it takes rows of both".to_owned()),
    },
    eval: |operands| {
        let mut sum = operands[0].clone();
        let rows = sum.as_mut_slice::<f32>().iter_mut().zip(operands[1].as_slice::<f32>());
        rows.for_each(|(a, b)| *a += b);
        Ok(vec![sum])
    },
};

#[test]
fn what_is_whole_beside_rows_is_cut_to_the_rows() {
    let (graph, weights) = beside(ADD, |b| {
        let range = Range { delta: 1, dtype: DType::I64, limit: Dim::n(), start: Dim::ZERO };
        let places = b.op("places", range, &[]).unwrap();
        b.op("t", Cast { to: DType::F32 }, &[places]).unwrap()
    });
    assert!(replicas(&graph, Repair::None).unwrap_err().contains("it takes rows of both"));
    let three = replicas(&graph, Repair::Local).unwrap();
    let x = numbers(&[7]);
    assert_eq!(outputs(&three, &weights, &x), outputs(&graph, &weights, &x));
}

#[test]
fn rows_of_others_are_gathered_for_an_operator_that_needs_them() {
    // The largest of all rows first.
    let sorts = Made {
        split: |_| Err("it sorts".to_owned()),
        eval: |operands| {
            let mut sorted = operands[0].clone();
            sorted.as_mut_slice::<f32>().sort_by(|a, b| b.total_cmp(a));
            Ok(vec![sorted])
        },
        ..SAME
    };
    let graph = super::graph(sorts, "f32[N]").unwrap();
    assert!(replicas(&graph, Repair::Local).unwrap_err().contains("R0105"));
    let three = replicas(&graph, Repair::Comm).unwrap();
    assert!(three.to_string().contains(": f32[N] = com.acme.Same("), "{three}");
    for rows in [0, 1, 2, 7] {
        let x = numbers(&[rows]);
        let weights = Weights::default();
        assert_eq!(outputs(&three, &weights, &x), outputs(&graph, &weights, &x));
    }
}

#[test]
fn it_is_computed_before_the_run_where_it_can_be() {
    let value = numbers(&[3]);
    let constant = |b: &mut Builder| {
        let w = b.param("w", value.clone());
        b.op("same", SAME, &[w]).unwrap()
    };
    let mut b = Builder::new("g");
    let y = constant(&mut b);
    b.output("y", y);
    let x = b.input("x", "f32[N]".parse().unwrap());
    b.output("x", x);
    let (mut graph, mut weights) = b.finish();
    let before = outputs(&graph, &weights, &numbers(&[2]));
    simplify(&mut graph, &mut weights, &SimplifyOptions::default()).unwrap();
    assert!(!graph.to_string().contains("com.acme.Same"), "{graph}");
    assert_eq!(outputs(&graph, &weights, &numbers(&[2])), before);
}

/// `x * w` for rows `x: [N, C]` and a weight `w: [C]`, or the gradients of both.
struct Weigh {
    is_gradient: bool,
}

impl CustomOp for Weigh {
    fn name(&self) -> &'static str {
        if self.is_gradient { "com.acme.WeighGrad" } else { "com.acme.Weigh" }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("is_gradient", Attr::Bool(self.is_gradient))]
    }

    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(operands[..=usize::from(self.is_gradient)].to_vec())
    }

    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
        match operands {
            [ROWS, Sharding::Whole] => Ok(vec![ROWS]),
            [ROWS, Sharding::Whole, ROWS] => Ok(vec![ROWS, Sharding::Partial(Combine::Sum)]),
            _ => Err("the weight is whole".to_owned()),
        }
    }

    fn partial(&self, operands: &[Sharding]) -> Option<Vec<Sharding>> {
        // The product of a sum is the sum of the products.
        let sum = Sharding::Partial(Combine::Sum);
        (!self.is_gradient && operands == [sum, Sharding::Whole]).then(|| vec![sum])
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        let w = operands[1].as_slice::<f32>();
        let weighed = |x: &Tensor| {
            let mut y = x.clone();
            let elements = y.as_mut_slice::<f32>().iter_mut().zip(w.iter().cycle());
            elements.for_each(|(x, w)| *x *= w);
            y
        };
        let Some(dy) = operands.get(2) else { return Ok(vec![weighed(operands[0])]) };
        let mut dw = vec![0.0f32; w.len()];
        let products = operands[0].as_slice::<f32>().iter().zip(dy.as_slice::<f32>());
        products.enumerate().for_each(|(i, (x, dy))| dw[i % w.len()] += x * dy);
        Ok(vec![weighed(dy), Tensor::new(operands[1].dims(), &dw).map_err(|e| e.to_string())?])
    }

    fn backward(&self, at: &mut GradientBuilder<'_, '_>) -> Result<Vec<Option<Term>>, RuleError> {
        let operands = [at.operand(0)?, at.operand(1)?, at.dy()?];
        let gradients = at.ops(Self { is_gradient: true }, &operands)?;
        Ok(gradients.into_iter().map(Some).collect())
    }
}

/// The gradients of a loss behind `weigh`, an operator that weighs rows.
fn gradients(weigh: fn(&mut Builder, [Value; 2]) -> Value) -> (Graph, Weights) {
    let mut b = Builder::new("g");
    let x = b.input("x", "f32[N,3]".parse().unwrap());
    let params = [b.param("a", numbers(&[3, 4])), b.param("w", numbers(&[4]))];
    let h = b.op("h", MatMul {}, &[x, params[0]]).unwrap();
    let weighed = weigh(&mut b, [h, params[1]]);
    let squares = b.op("squares", Binary::Mul, &[weighed, weighed]).unwrap();
    let loss = b.op("loss", Reduce::Sum { axes: vec![0, 1], keepdims: false }, &[squares]).unwrap();
    let found = differentiate(&mut b, loss, &params).unwrap();
    for (i, gradient) in found.into_iter().enumerate() {
        b.output(&format!("gradient{i}"), gradient.unwrap());
    }
    b.finish()
}

#[test]
fn gradients_are_those_of_the_formula() {
    let own = |b: &mut Builder, operands: [Value; 2]| {
        b.op("own", Weigh { is_gradient: false }, &operands).unwrap()
    };
    let known =
        |b: &mut Builder, operands: [Value; 2]| b.op("known", Binary::Mul, &operands).unwrap();
    let (known, weights) = gradients(known);
    let (graph, _) = gradients(own);
    let three = replicas(&graph, Repair::Comm).unwrap();
    let parts = |graph: &Graph| {
        let is_own = |op: &Op| op.name() == "com.acme.WeighGrad";
        graph.ids().filter(|id| graph.node(*id).op().is_some_and(is_own)).count()
    };
    assert_eq!((parts(&graph), parts(&three)), (1, 3));
    for rows in [1, 2, 7] {
        let x = numbers(&[rows, 3]);
        let wanted = outputs(&known, &weights, &x).unwrap();
        for graph in [&graph, &three] {
            for (found, wanted) in outputs(graph, &weights, &x).unwrap().iter().zip(&wanted) {
                crate::splits::assert_close(found, &wanted.to_f64(), 1e-5);
            }
        }
    }
}

#[test]
fn parts_pass_an_operator_that_says_so() {
    let mut b = Builder::new("g");
    let x = b.input("x", "f32[N,4]".parse().unwrap());
    let w = b.param("w", numbers(&[4]));
    let sums = b.op("sums", Reduce::Sum { axes: vec![0], keepdims: false }, &[x]).unwrap();
    let y = b.op("y", Weigh { is_gradient: false }, &[sums, w]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    let map = analysis::claims(&graph).unwrap();
    assert_eq!(map.get(y).partial(), Some(Combine::Sum));
    let three = replicas(&graph, Repair::Local).unwrap();
    let x = numbers(&[7, 4]);
    let wanted = outputs(&graph, &weights, &x).unwrap();
    let found = outputs(&three, &weights, &x).unwrap();
    crate::splits::assert_close(&found[0], &wanted[0].to_f64(), 1e-5);
}
