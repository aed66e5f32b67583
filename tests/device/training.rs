//! Training: the losses and the weights of GPUs are those of the CPU.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use fanwise::backend::cuda::Cuda;
use fanwise::backend::{Backend, Cpu};
use fanwise::ir::Model;
use fanwise::ir::{Builder, Value, Weights};
use fanwise::op::{
    BatchNorm, CellKind, CellSettings, Conv, Direction, Dropout, Flatten, Gemm, Pool, Recurrent,
    Reshape, Softmax, Unary,
};
use fanwise::pass::{
    BatchStatistics, Metric, Repair, Replicate, Training, WeightPlacement, Weighted,
};
use fanwise::train::data::{Arrays, Feed, Images, Layout, LoaderOptions, Step};
use fanwise::train::{
    Distribution, Epoch, FitOptions, History, Logs, Trainer, TrainerOptions, Validation,
};
use fanwise::types::{DType, Device, Dim, Shape, ShardRule, Tensor, TensorType};
use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::turn::turns;

use crate::results::trial;
use crate::setup::options;

/// The models, and the sizes of a sample of each.
const MODELS: [Sample; 2] = [("mlp", mlp, &[10]), ("cnn", cnn, &[2, 8, 8])];

/// A model of recurrent cells, trained by one optimizer.
const CELLS: Sample = ("cells", cells, &[5, 4]);

const OPTIMIZERS: [(&str, &str); 3] =
    [("sgd", "sgd:momentum=0.9"), ("rmsprop", "rmsprop"), ("adam", "adam:global_clipnorm=1")];

/// An optimizer that takes a step for two batches and keeps moving averages: its updates choose
/// among values.
const CHOOSING: &str = "adamw:gradient_accumulation_steps=2,use_ema=true";

const CLASSES: usize = 3;

/// What one step after the other takes: they do not divide, and some devices have no row.
const BATCHES: [usize; 4] = [9, 6, 2, 7];

/// The epochs of a fit, its rows to train on, which batches do not divide, and those that validate.
const EPOCHS: usize = 2;
const ROWS: usize = 22;
const VALIDATING: usize = 7;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for model in MODELS {
        for optimizer in OPTIMIZERS {
            let name = format!("training_{}_{}", model.0, optimizer.0);
            trials.push(trial(name, move || check(model, optimizer.1)));
        }
    }
    trials.push(trial("training_mlp_choosing", || check(MODELS[0], CHOOSING)));
    trials.push(trial("training_cells", || check(CELLS, OPTIMIZERS[0].1)));
    for model in MODELS {
        trials.push(trial(format!("training_{}_fit", model.0), move || check_fit(model)));
    }
    for model in MODELS {
        trials.push(trial(format!("training_{}_invariant", model.0), move || {
            check_invariant(model);
        }));
    }
    trials.push(trial("training_cnn_ghost", || check_ghost(MODELS[1])));
    trials.push(trial("training_cnn_bytes", || check_bytes(MODELS[1])));
    trials
}

type Sample = (&'static str, fn() -> Model, &'static [usize]);

/// One to four GPUs train as one CPU does, and with statistics of their own rows as the CPU does
/// with such; where the parameters are the template's, by the first optimizer alone.
fn check((name, model, sizes): Sample, optimizer: &str) {
    let cpu = Cpu::new(2).unwrap();
    let alone = trained(model(), sizes, optimizer, Distribution::default(), &cpu);
    assert!(alone.0.iter().all(|l| l.is_finite() && *l > 0.0), "{:?}", alone.0);
    let ways = [
        (1, WeightPlacement::Template, BatchStatistics::Sync),
        (2, WeightPlacement::Mirrored, BatchStatistics::Sync),
        (3, WeightPlacement::Cpu, BatchStatistics::Sync),
        (4, WeightPlacement::Mirrored, BatchStatistics::Sync),
        (4, WeightPlacement::Template, BatchStatistics::Sync),
        (1, WeightPlacement::Mirrored, BatchStatistics::Local),
        (3, WeightPlacement::Mirrored, BatchStatistics::Local),
    ];
    let is_first = optimizer == OPTIMIZERS[0].1;
    let (always, others): (Vec<_>, Vec<_>) = ways
        .into_iter()
        .filter(|(_, _, of)| *of != BatchStatistics::Local || name == "cnn")
        .filter(|(_, weights, _)| is_first || *weights != WeightPlacement::Template)
        .partition(|(count, ..)| *count == 2);
    for (count, weights, statistics) in turns(&always, &others, optimizer) {
        let what = format!("{name}, {optimizer}, {weights:?} and {statistics:?} on {count}");
        let local = statistics == BatchStatistics::Local;
        let place = || place(count, weights, statistics);
        let cuda = Cuda::new(options(count)).unwrap_or_else(|e| panic!("{e}"));
        let found = trained(model(), sizes, optimizer, place(), &cuda);
        if local {
            let wanted = trained(model(), sizes, optimizer, place(), &cpu);
            assert_near(&found, &wanted, &what);
        } else {
            assert_near(&found, &alone, &what);
        }
    }
}

/// Eight shards give the same weights, bit by bit, on one, two, four and eight GPUs. Those of the
/// CPU are the same, too, where no operator has bits of its own: statistics of batches and
/// gradients of kernels sum in other orders there.
fn check_invariant((name, model, sizes): Sample) {
    let place = |count| {
        let place = place(count, WeightPlacement::Mirrored, BatchStatistics::Sync);
        Distribution { invariant: true, ..place }
    };
    let optimizer = OPTIMIZERS[2].1;
    let on =
        |count, backend: &dyn Backend| trained(model(), sizes, optimizer, place(count), backend);
    let wanted = on(1, &Cpu::new(2).unwrap());
    let gpus = |count| Cuda::new(options(count)).unwrap_or_else(|e| panic!("{e}"));
    let alone = on(1, &gpus(1));
    let what = format!("{name} on one GPU");
    if name == "cnn" {
        assert_near(&alone, &wanted, &what);
    } else {
        assert_same(&alone, &wanted, &what);
    }
    for count in turns(&[2], &[4, 8], name) {
        assert_same(&on(count, &gpus(count)), &alone, &format!("{name} on {count}"));
    }
}

/// Bytes that devices make numbers of train on GPUs nearly as on the CPU, and there as the numbers
/// do, bit by bit.
fn check_bytes((name, model, sizes): Sample) {
    let (mean, deviation) = (vec![100.0, 3.5], vec![57.25, 81.0]);
    let layout = Layout::ChannelsFirst;
    let steps = vec![Step::Normalise { mean: mean.clone(), deviation: deviation.clone() }];
    let images = Images { column: "x".to_owned(), layout, result: layout, steps };
    let bytes = BTreeMap::from([("x".to_owned(), images)]);
    let place = |count, bytes| {
        let place = place(count, WeightPlacement::Mirrored, BatchStatistics::Sync);
        Distribution { bytes, ..place }
    };
    let on = |place, are_bytes: bool, backend: &dyn Backend| -> Trained {
        let mut trainer = trainer(model(), OPTIMIZERS[0].1, place, backend);
        let mut rng = ChaCha8Rng::seed_from_u64(17);
        let rate = trainer.learning_rate();
        let losses = BATCHES.into_iter().map(|n| {
            let mut feed = batch(&mut rng, n, sizes);
            let dims = [&[n], sizes].concat();
            let pixels: Vec<u8> = (0..dims.iter().product()).map(|_| rng.random()).collect();
            let plane: usize = sizes[1..].iter().product();
            let number = |(i, pixel): (usize, &u8)| {
                let channel = i / plane % sizes[0];
                (f32::from(*pixel) - mean[channel]) / deviation[channel]
            };
            let numbers: Vec<f32> = pixels.iter().enumerate().map(number).collect();
            let x = if are_bytes {
                Tensor::new(&dims, &pixels).unwrap()
            } else {
                Tensor::new(&dims, &numbers).unwrap()
            };
            feed.inputs.insert("x".to_owned(), x);
            trainer.train_on_batch(&feed, rate).unwrap_or_else(|e| panic!("{e}")).loss
        });
        (losses.collect(), trainer.weights().unwrap())
    };
    let cpu = Cpu::new(2).unwrap();
    let wanted = on(Distribution::default(), false, &cpu);
    let found = on(Distribution { bytes: bytes.clone(), ..Distribution::default() }, true, &cpu);
    assert_eq!(bits(&found.0), bits(&wanted.0), "{name} on the CPU");
    for count in turns(&[2], &[1, 3], name) {
        let gpus = Cuda::new(options(count)).unwrap_or_else(|e| panic!("{e}"));
        let found = on(place(count, bytes.clone()), true, &gpus);
        let what = format!("bytes of {name} on {count}");
        assert_near(&found, &wanted, &what);
        assert_same(&found, &on(place(count, BTreeMap::new()), false, &gpus), &what);
    }
}

fn bits(losses: &[f64]) -> Vec<u64> {
    losses.iter().map(|loss| loss.to_bits()).collect()
}

/// Groups of rows with statistics of their own give on GPUs nearly what they give on the CPU, also
/// where a GPU has more groups than one.
fn check_ghost((name, model, sizes): Sample) {
    const GROUPS: NonZeroU32 = NonZeroU32::new(4).unwrap();
    let cpu = Cpu::new(2).unwrap();
    for count in turns(&[2], &[1, 4], name) {
        let statistics = BatchStatistics::Ghost(GROUPS);
        let place = || place(count, WeightPlacement::Mirrored, statistics);
        let on = |backend: &dyn Backend| trained(model(), sizes, OPTIMIZERS[0].1, place(), backend);
        let gpus = Cuda::new(options(count)).unwrap_or_else(|e| panic!("{e}"));
        assert_near(&on(&gpus), &on(&cpu), &format!("{name}, {GROUPS} groups on {count}"));
    }
}

/// One to four GPUs go through epochs as one CPU does: shuffled batches of which the last is
/// smaller, with rows that validate.
fn check_fit((name, model, sizes): Sample) {
    let (alone, wanted) = fitted(model(), sizes, Distribution::default(), &Cpu::new(2).unwrap());
    let logs = |history: &History| -> Vec<Logs> {
        let both = |epoch: &Epoch| [Some(epoch.training.clone()), epoch.validation.clone()];
        history.epochs.iter().flat_map(both).flatten().collect()
    };
    let alone = logs(&alone);
    let rows: Vec<u64> = alone.iter().map(|logs| logs.rows).collect();
    assert_eq!(rows, [ROWS as u64, VALIDATING as u64].repeat(EPOCHS));
    let always = [(3, WeightPlacement::Cpu)];
    let others = [
        (1, WeightPlacement::Template),
        (2, WeightPlacement::Mirrored),
        (4, WeightPlacement::Mirrored),
    ];
    for (count, weights) in turns(&always, &others, name) {
        let what = format!("{name}, {weights:?} on {count}");
        let cuda = Cuda::new(options(count)).unwrap_or_else(|e| panic!("{e}"));
        let place = place(count, weights, BatchStatistics::Sync);
        let (history, found) = fitted(model(), sizes, place, &cuda);
        let many = logs(&history);
        assert_eq!(many.len(), alone.len(), "{what}");
        for (many, one) in many.iter().zip(&alone) {
            assert_eq!(many.rows, one.rows, "{what}");
            assert!((many.loss - one.loss).abs() <= 1e-5, "{what}: {many:?}, not {one:?}");
            assert_eq!(many.metrics.len(), one.metrics.len(), "{what}");
            for (a, b) in many.metrics.iter().zip(&one.metrics) {
                let near = a.0 == b.0 && (a.1 - b.1).abs() <= 1e-6;
                assert!(near, "{what}: {many:?}, not {one:?}");
            }
        }
        assert_weights_near(&found, &wanted, &what);
    }
}

/// The history of some epochs, and all weights after them.
fn fitted(
    model: Model,
    sizes: &[usize],
    place: Distribution,
    backend: &dyn Backend,
) -> (History, Weights) {
    let mut trainer = trainer(model, OPTIMIZERS[0].1, place, backend);
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let mut rows = |n: usize| {
        let Feed { inputs, targets, weights, masks: _ } = batch(&mut rng, n, sizes);
        let weights = weights.into_values().map(|t| ("sample_weight".to_owned(), t));
        let arrays = inputs.into_iter().chain(targets).chain(weights);
        Arc::new(Arrays::new(arrays).unwrap())
    };
    let (data, validating) = (rows(ROWS), rows(VALIDATING));
    let options = FitOptions {
        batches: LoaderOptions { batch: 9, seed: 3, ..LoaderOptions::default() },
        epochs: EPOCHS as u64,
        validation: Validation::Data(validating.into()),
        ..FitOptions::default()
    };
    let history = trainer.fit(data, options).unwrap_or_else(|e| panic!("{e}"));
    (history, trainer.weights().unwrap())
}

fn place(count: u32, weights: WeightPlacement, statistics: BatchStatistics) -> Distribution {
    let rule = if count.is_multiple_of(2) { ShardRule::Balanced } else { ShardRule::RemainderLast };
    let over = Replicate::over((0..count).map(Device::gpu).collect());
    Distribution {
        replicate: Some(Replicate { weights, rule, repair: Repair::Comm, ..over }),
        batch_norm: Some(statistics),
        ..Distribution::default()
    }
}

fn trainer(model: Model, optimizer: &str, place: Distribution, backend: &dyn Backend) -> Trainer {
    let loss = "categorical_crossentropy".parse().unwrap();
    let mut training = Training::new("p", loss, optimizer.parse().unwrap());
    (training.losses[0].weighted, training.metrics) = (Weighted::Rows, vec![Metric::Accuracy]);
    Trainer::new(model, &TrainerOptions { training, distribution: place }, backend)
        .unwrap_or_else(|e| panic!("{e}"))
}

/// The losses of some steps, and all weights after them.
type Trained = (Vec<f64>, Weights);

fn trained(
    model: Model,
    sizes: &[usize],
    optimizer: &str,
    place: Distribution,
    backend: &dyn Backend,
) -> Trained {
    let mut trainer = trainer(model, optimizer, place, backend);
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let rate = trainer.learning_rate();
    let losses = BATCHES
        .into_iter()
        .map(|n| {
            let batch = batch(&mut rng, n, sizes);
            trainer.train_on_batch(&batch, rate).unwrap_or_else(|e| panic!("{e}")).loss
        })
        .collect();
    (losses, trainer.weights().unwrap())
}

/// Fails unless the losses and the weights have the same bits.
fn assert_same(found: &Trained, wanted: &Trained, what: &str) {
    assert_eq!(bits(&found.0), bits(&wanted.0), "{what}");
    for (parameter, tensor) in wanted.1.iter() {
        let found = found.1.get(parameter).unwrap();
        assert!(found.bytes() == tensor.bytes(), "{what}: `{parameter}` differs");
    }
}

fn assert_near(found: &Trained, wanted: &Trained, what: &str) {
    for (a, b) in found.0.iter().zip(&wanted.0) {
        assert!((a - b).abs() <= 1e-5, "{what}: losses {:?}, not {:?}", found.0, wanted.0);
    }
    assert_weights_near(&found.1, &wanted.1, what);
}

fn assert_weights_near(found: &Weights, wanted: &Weights, what: &str) {
    for (name, tensor) in wanted.iter() {
        let (a, b) = (found.get(name).unwrap().to_f64(), tensor.to_f64());
        assert_eq!(a.len(), b.len(), "{what}: `{name}`");
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            // What is no number is near nothing.
            assert!((a - b).abs() <= 1e-4, "{what}: `{name}`, element {i}: {a}, not {b}");
        }
    }
}

fn floats(rng: &mut ChaCha8Rng, dims: &[usize], from: f32, to: f32) -> Tensor {
    let data: Vec<f32> = (0..dims.iter().product()).map(|_| rng.random_range(from..to)).collect();
    Tensor::new(dims, &data).unwrap()
}

/// Random samples, a class of each, and weights of which one is 0.
fn batch(rng: &mut ChaCha8Rng, n: usize, sizes: &[usize]) -> Feed {
    let x = floats(rng, &[&[n], sizes].concat(), -1.0, 1.0);
    let mut classes = vec![0.0f32; n * CLASSES];
    for row in classes.chunks_exact_mut(CLASSES) {
        row[rng.random_range(0..CLASSES)] = 1.0;
    }
    let mut weights = floats(rng, &[n], 0.1, 2.0);
    weights.as_mut_slice::<f32>()[0] = 0.0;
    let one = |name: &str, t: Tensor| BTreeMap::from([(name.to_owned(), t)]);
    Feed {
        inputs: one("x", x),
        targets: one("p", Tensor::new(&[n, CLASSES], &classes).unwrap()),
        weights: one("p", weights),
        masks: BTreeMap::new(),
    }
}

/// A model under construction.
struct Net {
    builder: Builder,
    rng: ChaCha8Rng,
}

impl Net {
    fn new(name: &str, sizes: &[i64]) -> (Self, Value) {
        let mut builder = Builder::new(name);
        let sizes = sizes.iter().map(|d| Dim::from(*d));
        let shape: Shape = std::iter::once(Dim::n()).chain(sizes).collect();
        let x = builder.input("x", TensorType::new(DType::F32, shape));
        (Self { builder, rng: ChaCha8Rng::seed_from_u64(5) }, x)
    }

    fn param(&mut self, name: &str, dims: &[usize], from: f32, to: f32) -> Value {
        let tensor = floats(&mut self.rng, dims, from, to);
        self.builder.param(name, tensor)
    }

    fn op(&mut self, name: &str, op: impl Into<fanwise::op::Op>, operands: &[Value]) -> Value {
        self.builder.op(name, op, operands).unwrap_or_else(|e| panic!("{e}"))
    }

    fn ops<const N: usize>(
        &mut self,
        names: [&str; N],
        op: impl Into<fanwise::op::Op>,
        operands: &[Value],
    ) -> Vec<Value> {
        self.builder.ops(&names, op, operands).unwrap_or_else(|e| panic!("{e}"))
    }

    fn dense(&mut self, name: &str, x: Value, [from, to]: [usize; 2]) -> Value {
        let weight = self.param(&format!("{name}.weight"), &[from, to], -0.5, 0.5);
        let bias = self.param(&format!("{name}.bias"), &[to], -0.1, 0.1);
        let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false };
        self.op(name, gemm, &[x, weight, bias])
    }

    /// Batch normalisation and ReLU.
    fn norm(&mut self, name: &str, x: Value, channels: usize) -> Value {
        let of = |part: &str| format!("{name}.{part}");
        let scale = self.param(&of("scale"), &[channels], 0.5, 1.5);
        let shift = self.param(&of("shift"), &[channels], -0.5, 0.5);
        let mean = self.param(&of("running_mean"), &[channels], -0.1, 0.1);
        let var = self.param(&of("running_var"), &[channels], 0.9, 1.1);
        let y = self.op(
            name,
            BatchNorm { epsilon: 1e-3, ..BatchNorm::default() },
            &[x, scale, shift, mean, var],
        );
        self.op(&of("relu"), Unary::Relu, &[y])
    }

    fn finish(mut self, logits: Value) -> Model {
        let p = self.op("p", Softmax::Softmax { axis: -1 }, &[logits]);
        self.builder.output("p", p);
        let (graph, weights) = self.builder.finish();
        Model::new(graph, weights)
    }
}

fn mlp() -> Model {
    let (mut net, x) = Net::new("mlp", &[10]);
    let h = net.dense("first", x, [10, 12]);
    let h = net.op("relu", Unary::Relu, &[h]);
    let h = net.op("drop", Dropout { mask: false, rate: 0.25 }, &[h]);
    let h = net.dense("second", h, [12, 8]);
    let h = net.op("tanh", Unary::Tanh, &[h]);
    let h = net.dense("logits", h, [8, CLASSES]);
    net.finish(h)
}

/// Convolutions of all channels, of single ones, and with strides; both pools.
fn cnn() -> Model {
    let (mut net, x) = Net::new("cnn", &[2, 8, 8]);
    let same = |groups: i64| Conv { pads: vec![1; 4], groups, ..Conv::default() };
    let w = net.param("wide", &[4, 2, 3, 3], -0.5, 0.5);
    let h = net.op("conv", same(1), &[x, w]);
    let h = net.norm("norm", h, 4);
    let max = Pool::Max {
        kernel: vec![3, 3],
        strides: vec![2, 2],
        dilations: Vec::new(),
        pads: vec![1; 4],
        ceil_mode: false,
        column_major: false,
        indices: false,
    };
    let h = net.op("max", max, &[h]);
    let w = net.param("deep", &[4, 1, 3, 3], -0.5, 0.5);
    let h = net.op("depthwise", same(4), &[h, w]);
    let h = net.norm("norm2", h, 4);
    let w = net.param("strided", &[6, 4, 2, 2], -0.5, 0.5);
    let bias = net.param("strided.bias", &[6], -0.1, 0.1);
    let strided = Conv { strides: vec![2, 1], ..Conv::default() };
    let h = net.op("strided", strided, &[h, w, bias]);
    let h = net.op("relu", Unary::Relu, &[h]);
    let average = Pool::Average {
        kernel: vec![2, 2],
        strides: vec![1, 1],
        dilations: Vec::new(),
        pads: vec![0, 1, 0, 1],
        ceil_mode: false,
        count_include_pad: false,
    };
    let h = net.op("average", average, &[h]);
    let h = net.op("flat", Flatten { axis: 1 }, &[h]);
    let h = net.op("drop", Dropout { mask: false, rate: 0.25 }, &[h]);
    let logits = net.dense("logits", h, [24, CLASSES]);
    net.finish(logits)
}

/// A GRU in both directions, the whole sequences of which an LSTM takes; both with biases of their
/// own.
fn cells() -> Model {
    let (mut net, x) = Net::new("cells", &[5, 4]);
    let mut weights = |name: &str, directions: usize, [width, from, hidden]: [usize; 3]| {
        let mut param =
            |part: &str, dims: &[usize]| net.param(&format!("{name}.{part}"), dims, -0.5, 0.5);
        let kernel = param("kernel", &[directions, width, from]);
        let recurrent = param("recurrent", &[directions, width, hidden]);
        [kernel, recurrent, param("bias", &[directions, 2 * width])]
    };
    let [first, second] = [weights("gru", 2, [18, 4, 6]), weights("lstm", 1, [32, 12, 8])];
    let settings = CellSettings {
        direction: Direction::Both,
        batch_first: true,
        bias: true,
        reset_after: true,
        ..CellSettings::default()
    };
    let gru = Recurrent { kind: CellKind::Gru, settings };
    let settings = CellSettings { batch_first: true, bias: true, ..CellSettings::default() };
    let lstm = Recurrent { kind: CellKind::Lstm, settings };
    let h = net.ops(["gru", "gru.last"], gru, &[&[x], &first[..]].concat())[0];
    let h = net.op("both", Reshape { shape: vec![Dim::n(), 5.into(), 12.into()] }, &[h]);
    let h = net.ops(["lstm", "lstm.last", "lstm.cell"], lstm, &[&[h], &second[..]].concat())[1];
    let h = net.op("flat", Flatten { axis: 1 }, &[h]);
    let logits = net.dense("logits", h, [8, CLASSES]);
    net.finish(logits)
}
