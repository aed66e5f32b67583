//! A framework has an operator of its own, with an attribute that has a type, a split rule, a
//! gradient and a kernel. A model with it is written and read, replicated onto three devices,
//! proved, run there, and trained there.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;

use fanwise::backend::{Backend, Cpu, RunOptions};
use fanwise::ir::{self, Builder, Model};
use fanwise::op::{
    Attr, Custom, CustomOp, CustomOps, GradientBuilder, MatMul, RuleError, Sharding, Term, Unary,
};
use fanwise::pass::{self, Repair, Replicate, Training};
use fanwise::train::data::Arrays;
use fanwise::train::{Distribution, FitOptions, Trainer, TrainerOptions};
use fanwise::types::{Device, Tensor, TensorType};
use fanwise::{analysis, lower};

/// `x * sigmoid(beta * w * x)`, for rows `x: [N, C]` and a weight `w: [C]`.
struct Gate {
    beta: f32,
}

impl CustomOp for Gate {
    fn name(&self) -> &'static str {
        "com.acme.Gate"
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("beta", Attr::Float(self.beta.into()))]
    }

    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        match operands {
            [x, w] if x.rank() == 2 && w.shape[..] == x.shape[1..] => Ok(vec![x.clone()]),
            _ => Err("it takes rows, and a weight for each of their channels".to_owned()),
        }
    }

    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
        match operands {
            [rows @ Sharding::Rows { axis: 0 }, Sharding::Whole] => Ok(vec![*rows]),
            _ => Err("it takes rows on axis 0 and the whole weight".to_owned()),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        let (mut y, w) = (operands[0].clone(), operands[1].as_slice::<f32>());
        for (x, w) in y.as_mut_slice::<f32>().iter_mut().zip(w.iter().cycle()) {
            *x /= 1.0 + (-self.beta * w * *x).exp();
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut GradientBuilder<'_, '_>) -> Result<Vec<Option<Term>>, RuleError> {
        let (x, w, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let product = at.mul(x, w)?;
        let product = at.scale(product, self.beta.into())?;
        let open = at.op(Unary::Sigmoid, &[product])?;
        let opposite = at.scale(product, -1.0)?;
        let shut = at.op(Unary::Sigmoid, &[opposite])?;
        // The gradient of `w * x`: `dy * x * beta * open * (1 - open)`.
        let slope = at.mul(open, shut)?;
        let slope = at.mul(slope, x)?;
        let slope = at.mul(slope, dy)?;
        let inner = at.scale(slope, self.beta.into())?;
        let (through, beside) = (at.mul(inner, w)?, at.mul(open, dy)?);
        let dx = at.add(through, beside)?;
        // Every row has a part in the gradient of the weight.
        let dw = at.mul(inner, x)?;
        let shape = at.shape(w);
        Ok(vec![Some(dx), Some(at.sum_to(dw, &shape)?)])
    }
}

/// Numbers from -1 to 1.
fn numbers(dims: &[usize], seed: usize) -> Result<Tensor, Box<dyn Error>> {
    let number = |i: usize| ((i * 37 + seed * 11) % 41) as f32 / 20.0 - 1.0;
    Ok(Tensor::new(dims, &(0..dims.iter().product()).map(number).collect::<Vec<_>>())?)
}

/// `y = gate(x a, w) b`.
fn model() -> Result<Model, Box<dyn Error>> {
    let mut b = Builder::new("gated");
    let x = b.input("x", "f32[N,3]".parse()?);
    let inner = b.param("a", numbers(&[3, 8], 1)?);
    let weight = b.param("w", numbers(&[8], 2)?);
    let outer = b.param("b", numbers(&[8, 1], 3)?);
    let h = b.op("h", MatMul {}, &[x, inner])?;
    let gated = b.op("gated", Gate { beta: 1.5 }, &[h, weight])?;
    let y = b.op("y", MatMul {}, &[gated, outer])?;
    b.output("y", y);
    let (graph, weights) = b.finish();
    Ok(Model::new(graph, weights))
}

/// The loss of each epoch of a training, of 40 rows in batches of 32 and of 8.
fn losses(replicate: Option<Replicate>) -> Result<Vec<f64>, Box<dyn Error>> {
    let training = Training::new("y", "mse".parse()?, "adam:learning_rate=0.02".parse()?);
    let place = Distribution { replicate, ..Distribution::default() };
    let mut trainer =
        Trainer::new(model()?, &TrainerOptions { training, distribution: place }, &Cpu::new(2)?)?;
    let x = numbers(&[40, 3], 5)?;
    let products: Vec<f32> = x.as_slice::<f32>().chunks(3).map(|row| row[0] * row[1]).collect();
    let y = Tensor::new(&[40, 1], &products)?;
    let data = Arrays::new([("x", x), ("y", y)])?;
    let history = trainer.fit(data, FitOptions { epochs: 60, ..FitOptions::default() })?;
    Ok(history.epochs.iter().map(|epoch| epoch.training.loss).collect())
}

/// Reads, replicates, proves, runs and trains the model.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let rows = (&numbers(&[7, 8], 4)?, Sharding::Rows { axis: 0 });
    Custom::new(Gate { beta: 1.5 }).check_split(&[rows, (&numbers(&[8], 2)?, Sharding::Whole)])?;

    let Model { graph, weights, .. } = model()?;
    let ops = CustomOps::default()
        .with("com.acme.Gate", |attrs| Ok(Gate { beta: attrs.take("beta", None)? }));
    let template = ir::parse_with(&graph.to_string(), &ops)?;
    let devices = Replicate::over((0..3).map(Device::gpu).collect());
    let replicas = pass::replicate(&template, &devices)?;
    println!("{replicas}");

    let (cpu, x) = (Cpu::new(2)?, numbers(&[7, 3], 6)?);
    let (one, three) = (ir::verify(&template)?, ir::verify(&replicas)?);
    analysis::prove(&one, &three)?;
    let mut outputs = Vec::new();
    for graph in [one, three] {
        let executable = cpu.compile(lower::lower(&graph, cpu.kernels())?, &weights)?;
        let run = executable.run(&[("x".to_owned(), x.clone())].into(), &RunOptions::default())?;
        outputs.push(run.outputs);
    }
    assert_eq!(outputs[0], outputs[1], "three devices give the bits of one");

    let alone = losses(None)?;
    let together = losses(Some(Replicate { repair: Repair::Comm, ..devices }))?;
    let (first, last) = (together[0], together[together.len() - 1]);
    println!("the loss on three devices: {first:.5}, then {last:.5}");
    assert!(last < first / 10.0, "it learns");
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-4 * first;
    assert!(alone.iter().zip(&together).all(near), "three devices learn what one does");
    Ok(())
}
