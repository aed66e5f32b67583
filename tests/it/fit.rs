//! Training: steps of optimizers by known numbers, and on devices against one.

use std::collections::BTreeMap;
use std::sync::Arc;

use fanwise::Error;
use fanwise::backend::Cpu;
use fanwise::ir::Model;
use fanwise::ir::{Builder, Weights};
use fanwise::op::{BatchNorm, Conv, Dropout, Flatten, Gemm, Softmax, Unary};
use fanwise::pass::{
    BatchStatistics, Loss, Metric, Repair, Replicate, Training, WeightPlacement, Weighted,
};
use fanwise::train::data::{Arrays, Feed, LoaderOptions};
use fanwise::train::{
    Checkpoint, Distribution, FitOptions, History, Observer, TrainState, Trainer, TrainerOptions,
    Validation,
};
use fanwise::types::{DType, Device, Dim, Shape, ShardRule, Tensor, TensorType};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) fn training(loss: &str, optimizer: &str, output: &str, weighted: bool) -> Training {
    let metrics = vec![Metric::Accuracy];
    let (loss, optimizer) = (loss.parse().unwrap(), optimizer.parse().unwrap());
    let mut training = Training { metrics, ..Training::new(output, loss, optimizer) };
    training.losses[0].weighted = if weighted { Weighted::Rows } else { Weighted::Nothing };
    training
}

pub(crate) fn rows(dtype: DType, sizes: &[i64]) -> TensorType {
    let shape: Shape =
        std::iter::once(Dim::n()).chain(sizes.iter().map(|d| Dim::from(*d))).collect();
    TensorType::new(dtype, shape)
}

/// `y = x * p`, whose mean absolute error against -10 has the gradient `x`.
pub(crate) fn line() -> Model {
    let mut b = Builder::new("line");
    let x = b.input("x", rows(DType::F64, &[1]));
    let p = b.param("p", Tensor::new(&[1, 1], &[1.0f64]).unwrap());
    let y = b.op("y", fanwise::op::MatMul {}, &[x, p]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

pub(crate) fn feed(x: Tensor, y: Tensor, weight: Option<Tensor>, output: &str) -> Feed {
    let one = |name: &str, t: Tensor| BTreeMap::from([(name.to_owned(), t)]);
    Feed {
        inputs: one("x", x),
        targets: one(output, y),
        weights: weight.map(|w| one(output, w)).unwrap_or_default(),
        masks: BTreeMap::new(),
    }
}

/// Three steps with the gradients 0.5, -0.2 and 0.1 from 1.
#[test]
fn optimizers_take_the_steps_that_are_known() {
    let known: [(&str, [f64; 3]); 8] = [
        ("rmsprop:epsilon=outside", [0.996_837_724_34, 0.998_066_313_819, 0.997_431_952_742]),
        ("rmsprop", [0.996_837_728_664, 0.998_066_316_58, 0.997_431_956_377]),
        (
            "adagrad:epsilon=0.01,epsilon=outside,initial_accumulator_value=0",
            [0.999_019_607_843, 0.999_384_227_699, 0.999_204_927_079],
        ),
        ("adam", [0.999_000_006_325, 0.998_654_402_507, 0.998_275_012_915]),
        ("sgd", [0.995, 0.997, 0.996]),
        ("sgd:momentum=0.9", [0.995, 0.9925, 0.98925]),
        ("sgd:momentum=0.9,nesterov=true", [0.9905, 0.99025, 0.986_325]),
        ("lion", [0.999, 1.0, 0.999]),
    ];
    let cpu = Cpu::new(1).unwrap();
    for (optimizer, expected) in known {
        let options = TrainerOptions {
            training: training("mae", optimizer, "y", false),
            distribution: Distribution::default(),
        };
        let mut trainer = Trainer::new(line(), &options, &cpu).unwrap();
        for (g, expected) in [0.5f64, -0.2, 0.1].into_iter().zip(expected) {
            let one = |x: f64| Tensor::new(&[1, 1], &[x]).unwrap();
            let rate = trainer.learning_rate();
            trainer.train_on_batch(&feed(one(g), one(-10.0), None, "y"), rate).unwrap();
            let p = trainer.weights().unwrap().get("p").unwrap().to_f64()[0];
            assert!((p - expected).abs() < 1e-11, "{optimizer}: {p} instead of {expected}");
        }
    }
}

/// Evaluation and prediction have new weights at once; momentum goes on.
#[test]
fn weights_can_be_set_between_steps() {
    let one = |x: f64| Tensor::new(&[1, 1], &[x]).unwrap();
    let only = |name: &str, value: Tensor| {
        let mut weights = Weights::default();
        weights.insert(name, value);
        weights
    };
    let training = training("mae", "sgd:momentum=0.5,learning_rate=1", "y", false);
    let options = TrainerOptions { training, distribution: Distribution::default() };
    let mut trainer = Trainer::new(line(), &options, &Cpu::new(1).unwrap()).unwrap();
    let step = |trainer: &mut Trainer| {
        trainer.train_on_batch(&feed(one(1.0), one(-10.0), None, "y"), 1.0).unwrap();
        trainer.weights().unwrap().get("p").unwrap().to_f64()[0]
    };
    assert_eq!(step(&mut trainer).to_bits(), 0f64.to_bits());
    trainer.set_weights(&only("p", one(8.0))).unwrap();
    let row = BTreeMap::from([("x".to_owned(), one(2.0))]);
    assert_eq!(trainer.predict_on_batch(&row).unwrap()[0].1.to_f64(), [16.0]);
    let found = trainer.test_on_batch(&feed(one(1.0), one(-10.0), None, "y")).unwrap();
    assert_eq!(found.loss.to_bits(), 18f64.to_bits());
    // The velocity was -1 and becomes -1.5.
    assert_eq!(step(&mut trainer).to_bits(), 6.5f64.to_bits());
    let velocity = trainer.variables().unwrap().get("optimizer.momentum.p").unwrap().to_f64();
    assert_eq!(velocity, [-1.5]);
    trainer.set_weights(&only("optimizer.momentum.p", one(0.0))).unwrap();
    assert_eq!(step(&mut trainer).to_bits(), 5.5f64.to_bits());
    let wrong = Tensor::new(&[1, 1], &[1.0f32]).unwrap();
    let error = trainer.set_weights(&only("p", wrong)).unwrap_err().to_string();
    assert!(error.contains("`p`") && error.contains("f32[1,1]"), "{error}");
    let error = trainer.set_weights(&only("q", one(1.0))).unwrap_err().to_string();
    assert!(error.contains("`q`"), "{error}");
    assert_eq!(trainer.weights().unwrap().get("p").unwrap().to_f64(), [5.5]);
}

/// A small image classifier with batch normalisation and dropout.
#[expect(clippy::many_single_char_names, reason = "the values of a graph")]
pub(crate) fn cnn(dtype: DType) -> Model {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut b = Builder::new("cnn");
    let mut random = |dims: &[usize], scale: f64| {
        let values: Vec<f64> =
            (0..dims.iter().product()).map(|_| rng.random_range(-scale..scale)).collect();
        if dtype == DType::F64 {
            return Tensor::new(dims, &values).unwrap();
        }
        #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
        Tensor::new(dims, &values.iter().map(|x| *x as f32).collect::<Vec<f32>>()).unwrap()
    };
    let x = b.input("x", rows(dtype, &[1, 6, 6]));
    let w = b.param("w", random(&[4, 1, 3, 3], 0.5));
    let bias = b.param("bias", random(&[4], 0.1));
    let h = b.op("conv", Conv::default(), &[x, w, bias]).unwrap();
    let scale = b.param("scale", random(&[4], 1.0));
    let shift = b.param("shift", random(&[4], 1.0));
    let mean = b.param("running_mean", random(&[4], 0.0001));
    let one = random(&[4], 0.0001);
    let ones: Vec<f64> = one.to_f64().iter().map(|x| 1.0 + x).collect();
    #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
    let var = if dtype == DType::F64 {
        Tensor::new(&[4], &ones).unwrap()
    } else {
        Tensor::new(&[4], &ones.iter().map(|x| *x as f32).collect::<Vec<f32>>()).unwrap()
    };
    let var = b.param("running_var", var);
    let h = b
        .op(
            "norm",
            BatchNorm { epsilon: 1e-3, ..BatchNorm::default() },
            &[h, scale, shift, mean, var],
        )
        .unwrap();
    let h = b.op("relu", Unary::Relu, &[h]).unwrap();
    let h = b.op("flat", Flatten { axis: 1 }, &[h]).unwrap();
    let h = b.op("drop", Dropout { mask: false, rate: 0.25 }, &[h]).unwrap();
    let dense = b.param("dense", random(&[64, 3], 0.2));
    let offset = b.param("offset", random(&[3], 0.1));
    let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false };
    let h = b.op("logits", gemm, &[h, dense, offset]).unwrap();
    let p = b.op("p", Softmax::Softmax { axis: -1 }, &[h]).unwrap();
    b.output("p", p);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

pub(crate) fn batch(rng: &mut ChaCha8Rng, n: usize, dtype: DType) -> Feed {
    let x: Vec<f64> = (0..n * 36).map(|_| rng.random_range(-1.0..1.0)).collect();
    let mut y = vec![0.0f64; n * 3];
    for row in 0..n {
        y[row * 3 + rng.random_range(0..3)] = 1.0;
    }
    let w: Vec<f64> = (0..n).map(|_| rng.random_range(0.1..2.0)).collect();
    #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
    let tensor = |dims: &[usize], v: &[f64]| {
        if dtype == DType::F64 {
            Tensor::new(dims, v).unwrap()
        } else {
            Tensor::new(dims, &v.iter().map(|x| *x as f32).collect::<Vec<f32>>()).unwrap()
        }
    };
    feed(tensor(&[n, 1, 6, 6], &x), tensor(&[n, 3], &y), Some(tensor(&[n], &w)), "p")
}

pub(crate) fn place(devices: u32, weights: WeightPlacement, invariant: bool) -> Distribution {
    let devices: Vec<Device> = (0..devices).map(Device::gpu).collect();
    let rule = if devices.len().is_multiple_of(2) {
        ShardRule::Balanced
    } else {
        ShardRule::RemainderLast
    };
    let replicate = (!devices.is_empty()).then(|| Replicate {
        weights,
        rule,
        repair: Repair::Comm,
        ..Replicate::over(devices)
    });
    let batch_norm = Some(BatchStatistics::Sync);
    Distribution { replicate, batch_norm, invariant, ..Distribution::default() }
}

/// The losses of some steps and the weights after them.
fn trained(dtype: DType, optimizer: &str, place: Distribution) -> (Vec<f64>, Weights) {
    let cpu = Cpu::new(2).unwrap();
    let training = training("categorical_crossentropy", optimizer, "p", true);
    let mut trainer =
        Trainer::new(cnn(dtype), &TrainerOptions { training, distribution: place }, &cpu).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let rate = trainer.learning_rate();
    let losses = [9usize, 5, 2, 1]
        .into_iter()
        .map(|n| trainer.train_on_batch(&batch(&mut rng, n, dtype), rate).unwrap().loss)
        .collect();
    (losses, trainer.weights().unwrap())
}

#[test]
fn training_on_devices_is_that_on_one() {
    for optimizer in ["sgd:momentum=0.9,global_clipnorm=0.5", "rmsprop", "adam:clipnorm=1"] {
        let (losses, weights) =
            trained(DType::F64, optimizer, place(0, WeightPlacement::Template, false));
        assert!(losses.iter().all(|l| l.is_finite() && *l > 0.0), "{losses:?}");
        let cases = [
            (1, WeightPlacement::Template),
            (2, WeightPlacement::Cpu),
            (3, WeightPlacement::Mirrored),
            (5, WeightPlacement::Template),
            (8, WeightPlacement::Mirrored),
        ];
        for (devices, placement) in cases {
            let (other, found) = trained(DType::F64, optimizer, place(devices, placement, false));
            for (a, b) in losses.iter().zip(&other) {
                assert!(
                    (a - b).abs() < 1e-9,
                    "{optimizer} on {devices}: {other:?} instead of {losses:?}"
                );
            }
            for (name, tensor) in weights.iter() {
                let (a, b) = (tensor.to_f64(), found.get(name).unwrap().to_f64());
                let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(error < 1e-9, "{optimizer} on {devices}, {name}: {error}");
            }
        }
    }
}

#[test]
fn eight_shards_give_the_same_bits_on_any_number_of_devices() {
    let bits =
        |devices| trained(DType::F32, "adam", place(devices, WeightPlacement::Template, true));
    let (losses, weights) = bits(1);
    for devices in [2, 4, 8] {
        let (other, found) = bits(devices);
        assert_eq!(
            losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>(),
            other.iter().map(|l| l.to_bits()).collect::<Vec<_>>()
        );
        assert!(weights == found, "{devices} devices");
    }
}

/// Keeps the checkpoint after one batch, and ends there.
struct Stop {
    at: u64,
    kept: Option<Checkpoint>,
}

impl Observer for Stop {
    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        if watch.at.epoch == 1 && watch.at.step == self.at {
            self.kept = Some(watch.checkpoint()?);
        }
        Ok(())
    }
}

/// A training of three epochs from the beginning or a checkpoint.
fn fitted(
    place: Distribution,
    schedule: &str,
    resume: Option<Checkpoint>,
    stop: &mut Stop,
) -> Result<(History, Weights), Error> {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let all = batch(&mut rng, 23, DType::F32);
    let arrays =
        [("x", &all.inputs["x"]), ("y", &all.targets["p"]), ("sample_weight", &all.weights["p"])];
    let source = Arc::new(Arrays::new(arrays.map(|(n, t)| (n.to_owned(), t.clone()))).unwrap());
    let training = training("categorical_crossentropy", "adam", "p", true);
    let options = TrainerOptions { training, distribution: place };
    let mut trainer = Trainer::new(cnn(DType::F32), &options, &Cpu::new(2).unwrap()).unwrap();
    let options = FitOptions {
        batches: LoaderOptions { batch: 5, seed: 4, ..LoaderOptions::default() },
        epochs: 3,
        validation: Validation::Data(source.clone().into()),
        schedule: schedule.parse().unwrap(),
        resume,
        observers: vec![stop],
        ..FitOptions::default()
    };
    Ok((trainer.fit(source, options)?, trainer.weights().unwrap()))
}

/// The checkpoint as it is read from its folder.
pub(crate) fn through_a_folder(kept: &Checkpoint) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    kept.write(folder.path()).unwrap();
    Checkpoint::read(folder.path(), u64::MAX).unwrap().unwrap()
}

/// The rate falls before the last epoch.
const SCHEDULES: [&str; 2] =
    ["polynomial:epochs=5", "plateau:monitor=val_loss,patience=1,factor=0.5,min_delta=100"];

#[test]
fn a_run_that_is_resumed_is_that_which_was_not_interrupted() {
    let three = || place(3, WeightPlacement::Mirrored, false);
    for (at, schedule) in [3, 5].into_iter().zip(SCHEDULES) {
        let mut stop = Stop { at, kept: None };
        let (history, weights) = fitted(three(), schedule, None, &mut stop).unwrap();
        let kept = through_a_folder(&stop.kept.take().unwrap());
        let (again, found) = fitted(three(), schedule, Some(kept), &mut stop).unwrap();
        assert!(weights == found);
        assert_eq!(history.epochs.len(), 3);
        for (a, b) in history.epochs.iter().zip(&again.epochs) {
            assert_eq!((&a.training, &a.validation), (&b.training, &b.validation));
        }
        assert_eq!(history.csv(), again.csv(), "{schedule}");
        let rates: Vec<u64> = history.epochs.iter().map(|e| e.learning_rate.to_bits()).collect();
        assert!(rates[2] < rates[0], "{schedule}: {rates:?}");
        assert!(
            history
                .csv()
                .starts_with("epoch,loss,accuracy,val_loss,val_accuracy,learning_rate\n1,")
        );
    }
}

#[test]
fn a_run_goes_on_with_the_same_bits_on_another_number_of_devices() {
    let on = |devices| place(devices, WeightPlacement::Mirrored, true);
    let mut stop = Stop { at: 2, kept: None };
    let (history, weights) = fitted(on(2), SCHEDULES[0], None, &mut stop).unwrap();
    let kept = through_a_folder(&stop.kept.take().unwrap());
    let (again, found) = fitted(on(4), SCHEDULES[0], Some(kept), &mut stop).unwrap();
    assert!(weights == found);
    assert_eq!(history.csv(), again.csv());
}

#[test]
fn a_checkpoint_says_what_it_goes_on_with() {
    let one = Distribution::default;
    let mut stop = Stop { at: 3, kept: None };
    fitted(one(), SCHEDULES[0], None, &mut stop).unwrap();
    let kept = through_a_folder(&stop.kept.take().unwrap());
    let terms: Vec<(&str, &str)> = kept.terms.iter().map(|(n, t)| (&**n, &**t)).collect();
    let adam = "adam:learning_rate=0.001,beta_1=0.9,beta_2=0.999,epsilon=0.0000001,amsgrad=false";
    let expected = [
        ("batches", "batch=5,shuffle=true,seed=4,drop_last=false"),
        ("mode", "seed=0,momentum=own"),
        ("optimizer", adam),
        ("schedule", "polynomial:epochs=5,power=1,end=0"),
    ];
    assert_eq!(terms, expected);
    let slots = ["optimizer.momentum.dense", "optimizer.velocity.dense", "optimizer.step"];
    for name in ["dense", "running_mean"].into_iter().chain(slots) {
        assert!(kept.variables.get(name).is_some(), "{name}");
    }
    let error = fitted(one(), "constant", Some(kept), &mut stop).unwrap_err().to_string();
    let before = "polynomial:epochs=5,power=1,end=0";
    let said = format!("the checkpoint is of a run with the schedule `{before}`, not `constant`");
    assert_eq!(error, said);
}

/// A loss, targets and outputs of two rows, their weights, and what it is.
type Known = (Loss, &'static [f64], &'static [f64], Option<[f64; 2]>, f64);

#[test]
fn losses_are_those_that_are_known() {
    let cross = Loss::CategoricalCrossentropy { from_logits: false, smoothing: 0.0 };
    let smooth = Loss::CategoricalCrossentropy { from_logits: false, smoothing: 0.1 };
    let logits = Loss::CategoricalCrossentropy { from_logits: true, smoothing: 0.0 };
    let binary = Loss::BinaryCrossentropy { from_logits: false, smoothing: 0.0 };
    let (y, p): (&'static [f64], &'static [f64]) =
        (&[0.0, 1.0, 0.0, 0.0, 0.0, 1.0], &[0.05, 0.95, 0.0, 0.1, 0.8, 0.1]);
    let eye: (&'static [f64], &'static [f64]) = (&[1.0, 0.0, 0.0, 1.0], &[0.0, 1.0, 0.0, 1.0]);
    let two: (&'static [f64], &'static [f64]) = (&[0.0, 1.0, 0.0, 0.0], &[0.6, 0.4, 0.4, 0.6]);
    let cases: [Known; 6] = [
        (cross, y, p, None, 1.176_939_2),
        (smooth, y, p, None, 1.459_135_9),
        (logits, y, p, None, 0.986_895_1),
        (cross, y, p, Some([0.3, 0.7]), 0.813_598_8),
        (cross, eye.0, eye.1, None, 8.059_048),
        (binary, two.0, two.1, None, 0.814_924_5),
    ];
    let cpu = Cpu::new(1).unwrap();
    for (loss, y, p, weights, expected) in cases {
        let classes = y.len() / 2;
        let mut training = training("mse", "sgd", "out", weights.is_some());
        training.losses[0].loss = loss;
        let options = TrainerOptions { training, distribution: Distribution::default() };
        let mut trainer = Trainer::new(given(classes), &options, &cpu).unwrap();
        let tensor = |v: &[f64]| Tensor::new(&[2, classes], v).unwrap();
        let w = weights.map(|w| Tensor::new(&[2], &w).unwrap());
        let found = trainer.test_on_batch(&feed(tensor(p), tensor(y), w, "out")).unwrap().loss;
        assert!((found - expected).abs() < 1e-6, "{loss}: {found} instead of {expected}");
    }
}

/// A model that gives its input.
pub(crate) fn given(classes: usize) -> Model {
    let mut b = Builder::new("given");
    let x = b.input("x", rows(DType::F64, &[i64::try_from(classes).unwrap()]));
    let zero = b.param("zero", Tensor::new(&[1], &[0.0f64]).unwrap());
    let out = b.op("out", fanwise::op::Binary::Add, &[x, zero]).unwrap();
    b.output("out", out);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

/// The reason why there is no training of a model.
fn refusal(model: Model, training: Training) -> String {
    let options = TrainerOptions { training, distribution: Distribution::default() };
    Trainer::new(model, &options, &Cpu::new(1).unwrap()).err().expect("refused").to_string()
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let fits = || training("categorical_crossentropy", "sgd", "p", false);
    let frozen = |name: &str| Training { frozen: [name.to_owned()].into(), ..fits() };
    let model = || cnn(DType::F32);
    let error = refusal(model(), frozen("none"));
    assert!(
        error.starts_with("there is no parameter `none` to freeze; the model has `"),
        "{error}"
    );
    let error = refusal(model(), frozen("running_mean"));
    assert!(error.starts_with("`running_mean`: it is a running statistic"), "{error}");
    let error = refusal(model(), training("mse", "sgd", "q", false));
    assert_eq!(error, "the output `q` cannot have a loss; the outputs are p");
    let all = ["w", "bias", "scale", "shift", "dense", "offset"].map(str::to_owned);
    let error = refusal(model(), Training { frozen: all.into(), ..fits() });
    let none = "the loss depends on no trained parameter; `w` is not: it is frozen";
    assert!(error.starts_with(none), "{error}");
}

#[test]
fn a_frozen_parameter_stays_and_data_without_weights_have_ones() {
    let cpu = Cpu::new(1).unwrap();
    let mut training = training("categorical_crossentropy", "adam", "p", true);
    training.frozen = ["dense".to_owned()].into();
    let options = TrainerOptions { training, distribution: Distribution::default() };
    let mut trainer = Trainer::new(cnn(DType::F32), &options, &cpu).unwrap();
    let before = trainer.weights().unwrap();
    let given = batch(&mut ChaCha8Rng::seed_from_u64(1), 6, DType::F32);
    trainer.train_on_batch(&given, 0.01).unwrap();
    let after = trainer.weights().unwrap();
    assert_eq!(before.get("dense"), after.get("dense"));
    for name in ["w", "bias", "scale", "shift", "offset", "running_mean", "running_var"] {
        assert_ne!(before.get(name), after.get(name), "{name}");
    }
    let arrays = [("x", &given.inputs["x"]), ("y", &given.targets["p"])];
    let source = Arrays::new(arrays.map(|(n, t)| (n.to_owned(), t.clone()))).unwrap();
    let weights = Tensor::new(&[6], &[1.0f32; 6]).unwrap();
    let ones = Feed { weights: [("p".to_owned(), weights)].into(), ..given };
    let expected = trainer.test_on_batch(&ones).unwrap();
    assert_eq!(trainer.evaluate(source, LoaderOptions::default()).unwrap(), expected);
}
