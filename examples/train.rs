//! A framework trains a model of its own on three virtual devices, and evaluates the weights on
//! one.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;

use fanwise::Session;
use fanwise::ir::{Builder, Model};
use fanwise::op::{Gemm, Softmax, Unary};
use fanwise::pass::{Metric, Training};
use fanwise::train::data::{Arrays, Data, LoaderOptions};
use fanwise::train::{EarlyStopping, FitOptions, Validation};
use fanwise::types::{DType, Tensor};

/// Points in a square; the classes are inside and outside of a circle.
fn points() -> Result<Data, Box<dyn Error>> {
    let at = |i: u16| f32::from(i) / 16.0 - 1.0;
    let points: Vec<[f32; 2]> =
        (0..32 * 32).map(|i| i * 37).map(|i| [at(i % 32), at(i / 32 % 32)]).collect();
    let classes: Vec<i64> = points.iter().map(|[x, y]| i64::from(x.hypot(*y) > 0.8)).collect();
    let x = Tensor::new(&[points.len(), 2], points.as_flattened())?;
    let y = Tensor::new(&[classes.len()], &classes)?;
    Ok(Data::from(Arrays::new([("x", x), ("y", y)])?))
}

/// Two dense layers, for every batch size.
fn model() -> Result<Model, Box<dyn Error>> {
    let mut b = Builder::new("circle");
    let mut value = b.input("x", "f32[N,2]".parse()?);
    for (name, rows, columns) in [("hidden", 2u8, 16u8), ("classes", 16, 2)] {
        let dims = [rows, columns].map(usize::from);
        let drawn = (0..rows * columns).map(|i| (f32::from(i) * 2.4).sin() * 0.7);
        let w = b.param(&format!("{name}.weight"), Tensor::new(&dims, &drawn.collect::<Vec<_>>())?);
        let bias = b.param(&format!("{name}.bias"), Tensor::zeros(DType::F32, &dims[1..])?);
        let sums = b.op(name, Gemm::default(), &[value, w, bias])?;
        value = if columns > 2 { b.op("tanh", Unary::Tanh, &[sums])? } else { sums };
    }
    let y = b.op("y", Softmax::Softmax { axis: -1 }, &[value])?;
    b.output("y", y);
    Ok(b.finish().into())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (train, test) = points()?.split(0.2)?;
    let loss = "sparse_categorical_crossentropy".parse()?;
    let training = Training::new("y", loss, "adam:learning_rate=0.01".parse()?);
    let training = Training { metrics: vec![Metric::Accuracy], ..training };
    let mut trainer = Session::builder(model()?).gpus(3).train(training.clone())?;
    let mut stops = EarlyStopping { patience: 10, ..EarlyStopping::new("val_loss") };
    let validation = Validation::Data(test.clone());
    let observers = vec![&mut stops as _];
    trainer
        .fit(train, FitOptions { epochs: 40, validation, observers, ..FitOptions::default() })?;

    let trained = Model::new(model()?.graph, trainer.weights()?);
    let found =
        Session::builder(trained).train(training)?.evaluate(test, LoaderOptions::default())?;
    println!("on one device: loss {:.4}, {:?}", found.loss, found.metrics);
    assert!(found.metrics[0].1 > 0.95, "too few points are told apart");
    Ok(())
}
