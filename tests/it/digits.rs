//! Training on real data: steps on devices are those of one device, and what is learned holds for
//! other rows.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use fanwise::backend::Cpu;
use fanwise::ir::Model;
use fanwise::ir::{Builder, Value, Weights};
use fanwise::model::{self, GraphForm};
use fanwise::op::{BatchNorm, Conv, Dropout, Flatten, Gemm, Pool, Softmax, Unary};
use fanwise::pass::WeightPlacement;
use fanwise::train::data::Feed;
use fanwise::train::{Distribution, Trainer, TrainerOptions};
use fanwise::types::{DType, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::fit::{place, rows, training};
use crate::onnx_runtime::read;
use crate::python::{python, set};

const PLACEMENTS: [WeightPlacement; 3] =
    [WeightPlacement::Template, WeightPlacement::Cpu, WeightPlacement::Mirrored];

const OPTIMIZERS: [&str; 3] = ["sgd:momentum=0.9", "rmsprop", "adam"];

#[expect(clippy::cast_possible_truncation, reason = "rounded to the type of the model")]
fn tensor(dtype: DType, dims: &[usize], values: &[f64]) -> Tensor {
    if dtype == DType::F64 {
        return Tensor::new(dims, values).unwrap();
    }
    Tensor::new(dims, &values.iter().map(|x| *x as f32).collect::<Vec<f32>>()).unwrap()
}

/// A model under construction, with parameters drawn from a seed.
struct Net {
    builder: Builder,
    rng: ChaCha8Rng,
    dtype: DType,
}

impl Net {
    fn new(name: &str, dtype: DType, sizes: &[i64]) -> (Self, Value) {
        let mut builder = Builder::new(name);
        let x = builder.input("x", rows(dtype, sizes));
        (Self { builder, rng: ChaCha8Rng::seed_from_u64(1), dtype }, x)
    }

    fn param(
        &mut self,
        name: &str,
        dims: &[usize],
        mut value: impl FnMut(&mut Self) -> f64,
    ) -> Value {
        let values: Vec<f64> = (0..dims.iter().product()).map(|_| value(self)).collect();
        self.builder.param(name, tensor(self.dtype, dims, &values))
    }

    /// Weights as Glorot and Bengio draw them.
    fn weights(&mut self, name: &str, dims: &[usize], fans: usize) -> Value {
        let bound = (6.0 / fans as f64).sqrt();
        self.param(name, dims, |net| net.rng.random_range(-bound..bound))
    }

    fn dense(&mut self, name: &str, x: Value, [from, to]: [usize; 2]) -> Value {
        let w = self.weights(&format!("{name}.w"), &[from, to], from + to);
        let b = self.param(&format!("{name}.b"), &[to], |_| 0.0);
        let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false };
        self.builder.op(name, gemm, &[x, w, b]).unwrap()
    }

    /// A convolution of 3 by 3 taps, batch normalisation and `relu`.
    fn conv(&mut self, name: &str, x: Value, [from, to]: [usize; 2]) -> Value {
        let w = self.weights(&format!("{name}.w"), &[to, from, 3, 3], 9 * (from + to));
        let [scale, shift, mean, var] =
            [("scale", 1.0), ("shift", 0.0), ("mean", 0.0), ("var", 1.0)]
                .map(|(part, value)| self.param(&format!("{name}.{part}"), &[to], |_| value));
        let conv = Conv { pads: vec![1, 1, 1, 1], ..Conv::default() };
        let h = self.builder.op(name, conv, &[x, w]).unwrap();
        let norm = BatchNorm { epsilon: 1e-3, ..BatchNorm::default() };
        let h =
            self.builder.op(&format!("{name}.norm"), norm, &[h, scale, shift, mean, var]).unwrap();
        self.builder.op(&format!("{name}.relu"), Unary::Relu, &[h]).unwrap()
    }

    fn pool(&mut self, name: &str, x: Value) -> Value {
        let pool = Pool::Max {
            kernel: vec![2, 2],
            strides: vec![2, 2],
            dilations: Vec::new(),
            pads: Vec::new(),
            ceil_mode: false,
            indices: false,
            column_major: false,
        };
        self.builder.op(name, pool, &[x]).unwrap()
    }

    fn finish(mut self, logits: Value) -> Model {
        let p = self.builder.op("p", Softmax::Softmax { axis: -1 }, &[logits]).unwrap();
        self.builder.output("p", p);
        let (graph, weights) = self.builder.finish();
        Model::new(graph, weights)
    }
}

fn mlp(dtype: DType, units: usize) -> Model {
    let (mut net, x) = Net::new("mlp", dtype, &[64]);
    let h = net.dense("first", x, [64, units]);
    let h = net.builder.op("relu", Unary::Relu, &[h]).unwrap();
    let h = net.builder.op("drop", Dropout { mask: false, rate: 0.2 }, &[h]).unwrap();
    let logits = net.dense("second", h, [units, 10]);
    net.finish(logits)
}

fn cnn(dtype: DType, channels: usize) -> Model {
    let (mut net, x) = Net::new("cnn", dtype, &[1, 8, 8]);
    let h = net.conv("conv1", x, [1, channels]);
    let h = net.pool("pool1", h);
    let h = net.conv("conv2", h, [channels, 2 * channels]);
    let h = net.pool("pool2", h);
    let h = net.builder.op("flat", Flatten { axis: 1 }, &[h]).unwrap();
    let h = net.builder.op("drop", Dropout { mask: false, rate: 0.25 }, &[h]).unwrap();
    let logits = net.dense("logits", h, [8 * channels, 10]);
    net.finish(logits)
}

/// Writes the arrays to a folder.
fn digits(folder: &Path) {
    python("digits.py", &[folder]);
}

/// Batches of these sizes, one behind the other.
fn batches(file: &Path, dtype: DType, sizes: &[usize]) -> Vec<Feed> {
    let arrays = read(file);
    let mut from = 0;
    let mut take = |n: usize| {
        let part = |t: &Tensor| {
            let row: usize = t.dims()[1..].iter().product();
            let dims: Vec<usize> = [n].iter().chain(&t.dims()[1..]).copied().collect();
            tensor(dtype, &dims, &t.to_f64()[from * row..(from + n) * row])
        };
        let feed = Feed {
            inputs: BTreeMap::from([("x".to_owned(), part(&arrays["x"]))]),
            targets: BTreeMap::from([("p".to_owned(), part(&arrays["y"]))]),
            ..Feed::default()
        };
        from += n;
        feed
    };
    sizes.iter().map(|n| take(*n)).collect()
}

/// The loss of every step, and the weights after the last.
fn trained(
    model: Model,
    optimizer: &str,
    place: Distribution,
    feeds: &[Feed],
) -> (Vec<f64>, Weights) {
    let training = training("categorical_crossentropy", optimizer, "p", false);
    let options = TrainerOptions { training, distribution: place };
    let mut trainer = Trainer::new(model, &options, &Cpu::new(1).unwrap()).unwrap();
    let rate = trainer.learning_rate();
    let losses =
        feeds.iter().map(|feed| trainer.train_on_batch(feed, rate).unwrap().loss).collect();
    (losses, trainer.weights().unwrap())
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|x| x.to_bits()).collect()
}

/// Every number of devices with every placement and every optimizer, in batches of these sizes.
/// Each is run twice, or where that takes long one placement by turns.
fn steps_are_those_of_one_device(
    file: &str,
    sizes: &[usize],
    long: bool,
    model: impl Fn() -> Model,
) {
    let folder = tempfile::tempdir().unwrap();
    digits(folder.path());
    let feeds = batches(&folder.path().join(file), DType::F64, sizes);
    for (o, optimizer) in OPTIMIZERS.into_iter().enumerate() {
        let run = |devices: u32, weights: WeightPlacement| {
            trained(model(), optimizer, place(devices, weights, false), &feeds)
        };
        let (expected, held) = run(0, PLACEMENTS[0]);
        for devices in 1..=8 {
            for (i, placement) in PLACEMENTS.into_iter().enumerate() {
                let what = format!("{optimizer} on {devices}, {placement:?}");
                let (losses, weights) = run(devices, placement);
                for (a, b) in expected.iter().zip(&losses) {
                    assert!((a - b).abs() < 1e-9, "{what}: {losses:?} instead of {expected:?}");
                }
                for (name, tensor) in held.iter() {
                    let pairs =
                        tensor.to_f64().into_iter().zip(weights.get(name).unwrap().to_f64());
                    let error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(error < 1e-9, "{what}, {name}: {error}");
                }
                if long && (o + devices as usize) % 3 != i {
                    continue;
                }
                let (again, found) = run(devices, placement);
                assert_eq!(bits(&losses), bits(&again), "{what}, repeated");
                assert!(weights == found, "{what}, repeated");
            }
        }
    }
}

#[test]
#[ignore = "needs the Python environment: cargo xtask test"]
fn steps_of_a_perceptron_are_those_of_one_device() {
    let sizes = [64, 65, 64, 65];
    steps_are_those_of_one_device("train.npz", &sizes, false, || mlp(DType::F64, 16));
}

#[test]
#[ignore = "needs the Python environment: cargo xtask test"]
fn steps_of_a_convolutional_network_are_those_of_one_device() {
    steps_are_those_of_one_device("train_images.npz", &[65, 64], true, || cnn(DType::F64, 2));
}

#[test]
#[ignore = "needs the Python environment: cargo xtask test"]
fn eight_shards_of_digits_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    digits(folder.path());
    for (file, images) in [("train.npz", false), ("train_images.npz", true)] {
        let feeds = batches(&folder.path().join(file), DType::F32, &[64, 65, 65, 64]);
        let model = || if images { cnn(DType::F32, 2) } else { mlp(DType::F32, 16) };
        for (i, optimizer) in OPTIMIZERS.into_iter().enumerate() {
            let run = |devices, weights| {
                trained(model(), optimizer, place(devices, weights, true), &feeds)
            };
            let (losses, weights) = run(1, PLACEMENTS[i]);
            for (j, devices) in [1, 2, 4, 8].into_iter().enumerate() {
                // Of images one placement by turns: they take the longest.
                let one = [PLACEMENTS[(i + j + 1) % 3]];
                for placement in if images { &one[..] } else { &PLACEMENTS } {
                    let what = format!("{optimizer} on {devices}, {placement:?}");
                    let (other, found) = run(devices, *placement);
                    assert_eq!(bits(&losses), bits(&other), "{what}");
                    assert!(weights == found, "{what}");
                }
            }
        }
    }
}

/// The part of the rows kept from training whose digit the command line's training on two devices
/// finds.
fn accuracy(model: &Model, data: &str, epochs: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    digits(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let path = at("model.fan");
    model::save(Path::new(&path), &model.graph, &model.weights, GraphForm::Text).unwrap();
    let fanwise = |args: &[&str]| {
        let out = Command::new(set("FANWISE_BIN")).args(args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let aim = ["--loss", "categorical_crossentropy", "--metrics", "accuracy", "--format", "json"];
    let (train, test) = (at(&format!("train{data}.npz")), at(&format!("test{data}.npz")));
    let trained = at("trained.fan");
    let fit = ["fit", &path, "--data", &train, "--optimizer", "adam", "--learning-rate", "0.003"];
    let schedule = format!("polynomial:epochs={epochs},power=1");
    let how = ["--epochs", epochs, "--batch", "64", "--seed", "1", "--batch-norm-momentum", "0.9"];
    let place = ["--schedule", &schedule, "--gpus", "2", "--save", &trained];
    let lines = fanwise(&[&fit[..], &how, &place, &aim].concat());
    assert_eq!(lines.lines().count().to_string(), epochs, "{lines}");
    let told = fanwise(&[&["evaluate", &trained, "--data", &test][..], &aim].concat());
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    told["accuracy"].as_f64().unwrap()
}

#[test]
#[ignore = "runs the command line: cargo xtask test"]
fn a_perceptron_learns_digits() {
    let found = accuracy(&mlp(DType::F32, 64), "", "50");
    assert!(found >= 0.97, "{found}");
}

#[test]
#[ignore = "runs the command line: cargo xtask test"]
fn a_convolutional_network_learns_digits() {
    let found = accuracy(&cnn(DType::F32, 16), "_images", "20");
    assert!(found >= 0.985, "{found}");
}
