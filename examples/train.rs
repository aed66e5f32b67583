//! A framework trains a model of its own on virtual devices: it gives the rows, watches the epochs,
//! and takes the weights, which have the model's names and run on one device.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;

use fanwise::backend::Cpu;
use fanwise::ir::Model;
use fanwise::ir::{Builder, Value};
use fanwise::op::{Gemm, Softmax, Unary};
use fanwise::pass::{Metric, Repair, Replicate, Training};
use fanwise::train::data::{Column, Data, DataError, LoaderOptions, RowMut, Source};
use fanwise::train::{
    EarlyStopping, FitOptions, LearningRate, Observer, Place, Trainer, TrainerOptions, Validation,
    Watch,
};
use fanwise::types::{DType, Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Points in the square from -1 to 1, made when they are read; the classes are inside and outside
/// of a circle.
struct Points {
    columns: [Column; 2],
    rows: usize,
}

impl Source for Points {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        let mut rng = ChaCha8Rng::seed_from_u64(row as u64);
        let point: [f32; 2] = [rng.random_range(-1.0..1.0), rng.random_range(-1.0..1.0)];
        into.write(0, &point)?;
        into.write(1, &[i64::from(point[0].hypot(point[1]) > 0.8)])
    }
}

/// Two dense layers, for every batch size.
fn model() -> Result<Model, Box<dyn Error>> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut b = Builder::new("circle");
    let mut dense = |b: &mut Builder, name: &str, x: Value, [rows, columns]: [usize; 2]| {
        let weights: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-0.7..0.7)).collect();
        let w = b.param(&format!("{name}.weight"), Tensor::new(&[rows, columns], &weights)?);
        let bias = b.param(&format!("{name}.bias"), Tensor::zeros(DType::F32, &[columns])?);
        Ok::<Value, Box<dyn Error>>(b.op(name, Gemm::default(), &[x, w, bias])?)
    };
    let x = b.input("x", "f32[N,2]".parse()?);
    let hidden = dense(&mut b, "hidden", x, [2, 16])?;
    let hidden = b.op("tanh", Unary::Tanh, &[hidden])?;
    let classes = dense(&mut b, "classes", hidden, [16, 2])?;
    let y = b.op("y", Softmax::Softmax { axis: -1 }, &[classes])?;
    b.output("y", y);
    let (graph, weights) = b.finish();
    Ok(Model::new(graph, weights))
}

/// Prints every epoch; ends the training when the validation is good enough.
struct Watcher;

impl Observer for Watcher {
    fn epoch(&mut self, watch: &Watch<'_>) -> Result<bool, fanwise::Error> {
        let Some(epoch) = watch.history().epochs.last() else { return Ok(true) };
        let Some(validation) = &epoch.validation else { return Ok(true) };
        println!("epoch {}: loss {:.4}", epoch.epoch + 1, validation.loss);
        Ok(validation.loss > 0.1)
    }
}

/// Trains on three devices, and says how good one device is with the weights.
///
/// # Errors
/// If anything fails.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let columns = [Column::new("x", DType::F32, &[2]), Column::new("y", DType::I64, &[])];
    let (train, test) = Data::from(Points { columns, rows: 1250 }).split(0.2)?;

    let optimizer = "adam:learning_rate=0.01".parse()?;
    let loss = "sparse_categorical_crossentropy".parse()?;
    let metrics = vec![Metric::Accuracy];
    let training = Training { metrics, ..Training::new("y", loss, optimizer) };
    let devices = Replicate::over((0..3).map(Device::gpu).collect());
    // Devices of training exchange gradients.
    let replicate = Some(Replicate { repair: Repair::Comm, ..devices });
    let place = Place { replicate, ..Place::default() };
    let cpu = Cpu::new(2)?;
    let on_three = TrainerOptions { training: training.clone(), place };
    let mut trainer = Trainer::new(model()?, &on_three, &cpu)?;

    // The first 20 batches rise to the rate of the optimizer.
    let mut rises =
        LearningRate::new(|watch, rate| rate * ((watch.done + 1) as f64 / 20.0).min(1.0));
    let mut stops = EarlyStopping { patience: 10, ..EarlyStopping::new("val_loss") };
    let mut watcher = Watcher;
    let options = FitOptions {
        batches: LoaderOptions { seed: 7, ..LoaderOptions::default() },
        epochs: 40,
        validation: Validation::Data(test.clone()),
        observers: vec![&mut rises, &mut stops, &mut watcher],
        ..FitOptions::default()
    };
    trainer.fit(train, options)?;

    let trained = Model { weights: trainer.weights()?, ..model()? };
    let alone = TrainerOptions { training, place: Place::default() };
    let mut alone = Trainer::new(trained, &alone, &cpu)?;
    let found = alone.evaluate(test, LoaderOptions::default())?;
    println!("on one device: loss {:.4}, {:?}", found.loss, found.metrics);
    let accuracy = found.metrics.first().map_or(0.0, |(_, value)| *value);
    if accuracy < 0.95 {
        return Err(format!("only {accuracy} of the points are told apart").into());
    }
    Ok(())
}
