//! Operators that a framework brings along: random ones on random batches, what is wrong with
//! them, and a backend of a framework.

mod backend;
mod random;
mod repaired;
mod wrong;

use fanwise::backend::{Backend, Cpu, RunOptions};
use fanwise::ir::{Builder, Graph, Weights};
use fanwise::op::{CustomOp, Sharding};
use fanwise::types::{Tensor, TensorType};

type Infer = fn(&[TensorType]) -> Result<Vec<TensorType>, String>;
type Split = fn(&[Sharding]) -> Result<Vec<Sharding>, String>;
type Eval = fn(&[&Tensor]) -> Result<Vec<Tensor>, String>;

/// An operator made of functions, of which a test changes one.
#[derive(Clone, Copy)]
struct Made {
    name: &'static str,
    infer: Infer,
    split: Split,
    eval: Eval,
}

/// The operator that gives back what it is given.
const SAME: Made = Made {
    name: "com.acme.Same",
    infer: |operands| Ok(operands.to_vec()),
    split: |operands| Ok(operands.to_vec()),
    eval: |operands| Ok(operands.iter().map(|x| (*x).clone()).collect()),
};

impl CustomOp for Made {
    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        (self.infer)(operands)
    }

    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
        (self.split)(operands)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        (self.eval)(operands)
    }
}

/// The graph of one operator of an input of this type, or why there is none.
fn graph(op: impl CustomOp, ty: &str) -> Result<Graph, String> {
    let mut b = Builder::new("g");
    let x = b.input("x", ty.parse().unwrap());
    let y = b.op("y", op, &[x]).map_err(|e| e.to_string())?;
    b.output("y", y);
    Ok(b.finish().0)
}

/// The outputs of a graph on virtual devices, or the error of the run.
fn outputs(graph: &Graph, weights: &Weights, x: &Tensor) -> Result<Vec<Tensor>, String> {
    let executable = Cpu::new(2).unwrap().ready(graph, weights).map_err(|e| e.to_string())?;
    let run = executable.run(&[("x".to_owned(), x.clone())].into(), &RunOptions::default());
    let run = run.map_err(|e| e.to_string())?;
    Ok(run.outputs.into_iter().map(|(_, tensor)| tensor).collect())
}
