//! Training on shards of any size: whose statistics count, what counts once, and what a mean of the
//! shards' means would give instead.

use std::collections::BTreeMap;

use fanwise::backend::Cpu;
use fanwise::internal::SAMPLE_WEIGHT;
use fanwise::ir::Model;
use fanwise::ir::{Builder, Weights};
use fanwise::op::{
    BatchNorm, Dropout, MatMul, Reduce, Reshape, Softmax, Squeeze, Transpose, Unary,
};
use fanwise::pass::{
    BatchStatistics, Mode, Repair, Replicate, Training, WeightPlacement, Weighted,
};
use fanwise::train::data::{Arrays, Feed, LoaderOptions};
use fanwise::train::{Distribution, FitOptions, Trainer, TrainerOptions};
use fanwise::types::{DType, Device, Dim, ShardRule, Tensor};

use crate::fit::{batch, cnn, feed, rows, training};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) const LOSS: &str = "categorical_crossentropy";

/// Two layers with batch normalisation between them.
pub(crate) fn normed() -> Model {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut random = |dims: &[usize]| {
        let values: Vec<f64> =
            (0..dims.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        Tensor::new(dims, &values).unwrap()
    };
    let mut b = Builder::new("normed");
    let x = b.input("x", rows(DType::F64, &[3]));
    let first = b.param("first", random(&[3, 4]));
    let h = b.op("h", MatMul {}, &[x, first]).unwrap();
    let [scale, shift, mean] = ["scale", "shift", "mean"].map(|name| b.param(name, random(&[4])));
    let var = b.param("var", Tensor::new(&[4], &[1.0f64; 4]).unwrap());
    let h = b
        .op("norm", BatchNorm { epsilon: 1e-3, momentum: 0.75 }, &[h, scale, shift, mean, var])
        .unwrap();
    let last = b.param("last", random(&[4, 3]));
    let h = b.op("logits", MatMul {}, &[h, last]).unwrap();
    let p = b.op("p", Softmax::Softmax { axis: -1 }, &[h]).unwrap();
    b.output("p", p);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

/// Rows of three numbers, their classes and weights.
pub(crate) fn three(seed: u64, n: usize) -> Feed {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let x: Vec<f64> = (0..n * 3).map(|_| rng.random_range(-1.0..1.0)).collect();
    let mut y = vec![0.0f64; n * 3];
    for row in 0..n {
        y[row * 3 + rng.random_range(0..3)] = 1.0;
    }
    let w: Vec<f64> = (0..n).map(|_| rng.random_range(0.1..2.0)).collect();
    let tensor = |dims: &[usize], values: &[f64]| Tensor::new(dims, values).unwrap();
    feed(tensor(&[n, 3], &x), tensor(&[n, 3], &y), Some(tensor(&[n], &w)), "p")
}

/// Some rows of a batch.
pub(crate) fn part(all: &Feed, from: usize, to: usize) -> Feed {
    let cut = |tensors: &BTreeMap<String, Tensor>| {
        let cut = |t: &Tensor| {
            let width: usize = t.dims()[1..].iter().product();
            let mut dims = t.dims().to_vec();
            dims[0] = to - from;
            Tensor::new(&dims, &t.as_slice::<f64>()[from * width..to * width]).unwrap()
        };
        tensors.iter().map(|(name, t)| (name.clone(), cut(t))).collect()
    };
    Feed {
        inputs: cut(&all.inputs),
        targets: cut(&all.targets),
        weights: cut(&all.weights),
        masks: BTreeMap::new(),
    }
}

pub(crate) fn on(devices: u32, statistics: &str) -> Distribution {
    let list: Vec<Device> = (0..devices).map(Device::gpu).collect();
    let weights = [WeightPlacement::Template, WeightPlacement::Mirrored][devices as usize % 2];
    let rule = ShardRule::RemainderLast;
    let replicate = (devices > 0).then(|| Replicate {
        weights,
        rule,
        repair: Repair::Comm,
        ..Replicate::over(list.clone())
    });
    let batch_norm = Some(statistics.parse::<BatchStatistics>().unwrap());
    Distribution { replicate, batch_norm, ..Distribution::default() }
}

fn trainer(model: Model, training: Training, place: Distribution) -> Trainer {
    let options = TrainerOptions { training, distribution: place };
    Trainer::new(model, &options, &Cpu::new(2).unwrap()).unwrap()
}

/// The losses of steps on these batches, and the weights after them.
pub(crate) fn steps(
    model: Model,
    training: &Training,
    place: Distribution,
    feeds: &[Feed],
) -> (Vec<f64>, Weights) {
    let mut trainer = trainer(model, training.clone(), place);
    let losses = feeds.iter().map(|feed| trainer.train_on_batch(feed, 0.1).unwrap().loss).collect();
    (losses, trainer.weights().unwrap())
}

pub(crate) fn assert_near(found: &(Vec<f64>, Weights), expected: &(Vec<f64>, Weights), what: &str) {
    for (a, b) in found.0.iter().zip(&expected.0) {
        assert!((a - b).abs() < 1e-9, "{what}: {:?} instead of {:?}", found.0, expected.0);
    }
    for (name, tensor) in expected.1.iter() {
        let (a, b) = (tensor.to_f64(), found.1.get(name).unwrap().to_f64());
        let error = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error < 1e-9, "{what}, {name}: {error}");
    }
}

/// The means of what the parts of a batch give alone, by their rows.
fn mean_of_parts(all: &Feed, cuts: &[usize]) -> (Vec<f64>, Weights) {
    let training = training(LOSS, "sgd", "p", true);
    let (mut loss, mut sums) = (0.0, BTreeMap::<String, Vec<f64>>::new());
    let (first, last) = (cuts[0], cuts[cuts.len() - 1]);
    for cut in cuts.windows(2) {
        let share = (cut[1] - cut[0]) as f64 / (last - first) as f64;
        let own = [part(all, cut[0], cut[1])];
        let (losses, weights) = steps(normed(), &training, on(0, "sync"), &own);
        loss += share * losses[0];
        for (name, tensor) in weights.iter() {
            let own = tensor.to_f64();
            let sums = sums.entry(name.to_string()).or_insert_with(|| vec![0.0; own.len()]);
            sums.iter_mut().zip(own).for_each(|(sum, x)| *sum += share * x);
        }
    }
    let mut weights = Weights::default();
    for (name, values) in sums {
        let dims = normed().weights.get(&name).unwrap().dims().to_vec();
        weights.insert(&*name, Tensor::new(&dims, &values).unwrap());
    }
    (vec![loss], weights)
}

/// With statistics of groups, and with those of each device, a step of gradient descent is the mean
/// of the steps that the groups take alone, and so are the running statistics.
#[test]
fn groups_have_their_own_statistics() {
    let training = training(LOSS, "sgd", "p", true);
    let all = three(1, 7);
    let expected = mean_of_parts(&all, &[0, 3, 7]);
    for devices in [0, 1, 2, 3, 8] {
        let found = steps(normed(), &training, on(devices, "ghost:2"), std::slice::from_ref(&all));
        assert_near(&found, &expected, &format!("ghost:2 on {devices}"));
    }
    let local = steps(normed(), &training, on(2, "local"), std::slice::from_ref(&all));
    assert_near(&local, &expected, "local");
    let sync = steps(normed(), &training, on(2, "sync"), std::slice::from_ref(&all));
    assert!((sync.0[0] - expected.0[0]).abs() > 1e-3);
    let one = steps(normed(), &training, on(3, "ghost:1"), std::slice::from_ref(&all));
    assert_near(&one, &sync, "ghost:1");
}

/// Convolutions, dropout, and batches that groups and devices do not divide.
#[test]
fn groups_are_the_same_on_any_number_of_devices() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let feeds = [9usize, 5, 2, 1, 8].map(|n| batch(&mut rng, n, DType::F64));
    let training = training(LOSS, "adam:global_clipnorm=0.5", "p", true);
    let expected = steps(cnn(DType::F64), &training, on(0, "ghost:4"), &feeds);
    for devices in [1, 3, 8] {
        let found = steps(cnn(DType::F64), &training, on(devices, "ghost:4"), &feeds);
        assert_near(&found, &expected, &format!("ghost:4 on {devices}"));
    }
    let mut bits = Vec::new();
    for devices in [1, 2, 8] {
        let place = Distribution { invariant: true, ..on(devices, "ghost:4") };
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let feeds = [9usize, 5, 2].map(|n| batch(&mut rng, n, DType::F32));
        bits.push(steps(cnn(DType::F32), &training, place, &feeds));
    }
    assert!(bits.iter().all(|found| *found == bits[0]), "the same bits on 1, 2 and 8 devices");
}

/// Dropout where the rows are on another axis, share an axis with positions, or are not there at
/// all.
#[test]
fn dropout_drops_the_same_of_a_row_wherever_rows_stand() {
    let drop = || Dropout { mask: false, rate: 0.4 };
    let model = |time_major: bool| {
        let mut b = Builder::new("dropped");
        let x = b.input("x", rows(DType::F64, &[5, 3]));
        let random = |seed, dims: &[usize]| uniform(seed, dims);
        let (first, last) = (b.param("w", random(1, &[3, 4])), b.param("v", random(2, &[4, 3])));
        let first = b.op("thin", drop(), &[first]).unwrap();
        let shape = vec![Dim::n() * 5, 3.into()];
        let h = b.op("flat", Reshape { shape }, &[x]).unwrap();
        let h = b.op("h", MatMul {}, &[h, first]).unwrap();
        let [scale, shift, mean] =
            ["scale", "shift", "mean"].map(|name| b.param(name, random(5, &[4])));
        let var = b.param("var", Tensor::new(&[4], &[1.0f64; 4]).unwrap());
        let norm = BatchNorm { epsilon: 1e-3, ..BatchNorm::default() };
        let h = b.op("norm", norm, &[h, scale, shift, mean, var]).unwrap();
        let h = b.op("drop", drop(), &[h]).unwrap();
        let shape = vec![Dim::n(), 5.into(), 4.into()];
        let mut h = b.op("rows", Reshape { shape }, &[h]).unwrap();
        let turn = || Transpose { perm: vec![1, 0, 2] };
        if time_major {
            h = b.op("turned", turn(), &[h]).unwrap();
        }
        let mut h = b.op("again", drop(), &[h]).unwrap();
        if time_major {
            h = b.op("back", turn(), &[h]).unwrap();
        }
        let sum = Reduce::Sum { axes: vec![1], keepdims: false };
        let h = b.op("sum", sum, &[h]).unwrap();
        let h = b.op("logits", MatMul {}, &[h, last]).unwrap();
        let p = b.op("p", Softmax::Softmax { axis: -1 }, &[h]).unwrap();
        b.output("p", p);
        let (graph, weights) = b.finish();
        Model::new(graph, weights)
    };
    let feeds: Vec<Feed> = [7usize, 2, 9]
        .iter()
        .map(|n| Feed {
            inputs: [("x".to_owned(), uniform(3, &[*n, 5, 3]))].into(),
            ..three(4, *n)
        })
        .collect();
    let training = training(LOSS, "sgd", "p", true);
    let expected = steps(model(true), &training, Distribution::default(), &feeds);
    assert_near(
        &steps(model(false), &training, Distribution::default(), &feeds),
        &expected,
        "rows first",
    );
    let evaluated = steps(model(true), &training, Distribution::default(), &feeds[..1]);
    let other = Training { mode: Mode { seed: 1, ..training.mode }, ..training.clone() };
    let other = steps(model(true), &other, Distribution::default(), &feeds[..1]);
    assert!((evaluated.0[0] - other.0[0]).abs() > 1e-6, "another seed drops others");
    for devices in [1, 2, 3, 8] {
        for time_major in [true, false] {
            let found = steps(model(time_major), &training, on(devices, "sync"), &feeds);
            assert_near(&found, &expected, &format!("{devices} devices, {time_major}"));
        }
    }
}

fn uniform(seed: u64, dims: &[usize]) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let values: Vec<f64> =
        (0..dims.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::new(dims, &values).unwrap()
}

/// A clip of the whole gradient, Adam, and statistics of the whole batch together.
#[test]
fn clipped_adam_with_synchronised_statistics_is_that_of_one_device() {
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    let feeds = [9usize, 5, 2, 1, 8].map(|n| batch(&mut rng, n, DType::F64));
    let training = training(LOSS, "adam:global_clipnorm=0.5", "p", true);
    let expected = steps(cnn(DType::F64), &training, on(0, "sync"), &feeds);
    for devices in 1..=8 {
        let found = steps(cnn(DType::F64), &training, on(devices, "sync"), &feeds);
        assert_near(&found, &expected, &format!("sync on {devices}"));
    }
}

/// Weights of rows, weights of classes and masks together, as data give them; some shards have no
/// row that counts.
#[test]
fn masked_and_weighed_classes_are_those_of_one_device() {
    let mut training = training(LOSS, "adam", "p", true);
    training.losses[0].masked = true;
    let rows = 23;
    let all = batch(&mut ChaCha8Rng::seed_from_u64(11), rows, DType::F64);
    // Of the first batches of 5 rows shards of each kind are left out whole.
    let mask: Vec<f64> = (0..rows).map(|i| f64::from(u8::from(i % 5 > 1 && i != 7))).collect();
    let mask = Tensor::new(&[rows], &mask).unwrap();
    let run = |place: Distribution, weighed: bool| {
        let columns = [
            ("x", &all.inputs["x"]),
            ("y", &all.targets["p"]),
            (SAMPLE_WEIGHT, &all.weights["p"]),
            ("sample_mask", &mask),
        ];
        let columns = columns.map(|(name, t)| (name.to_owned(), t.clone()));
        let source = Arrays::new(columns).unwrap();
        let mut trainer = trainer(cnn(DType::F64), training.clone(), place);
        let options = FitOptions {
            batches: LoaderOptions { batch: 5, seed: 4, ..LoaderOptions::default() },
            epochs: 2,
            class_weights: if weighed { [(0, 0.5), (2, 3.0)].into() } else { BTreeMap::new() },
            ..FitOptions::default()
        };
        let history = trainer.fit(source, options).unwrap();
        let losses = history.epochs.iter().map(|epoch| epoch.training.loss).collect();
        (losses, trainer.weights().unwrap())
    };
    let expected: (Vec<f64>, Weights) = run(on(0, "sync"), true);
    for devices in 1..=8 {
        assert_near(&run(on(devices, "sync"), true), &expected, &format!("{devices} devices"));
    }
    let plain = run(on(0, "sync"), false);
    assert!((plain.0[0] - expected.0[0]).abs() > 1e-3, "the classes count");
}

/// An output of one number for each row is trained as one with an axis of 1 behind the rows.
#[test]
fn outputs_without_a_second_axis_are_trained() {
    let model = |flat: bool| {
        let mut b = Builder::new("line");
        let x = b.input("x", rows(DType::F64, &[3]));
        let w = b.param("w", Tensor::new(&[3, 1], &[0.5f64, -1.0, 2.0]).unwrap());
        let logits = b.op("logits", MatMul {}, &[x, w]).unwrap();
        let logits =
            if flat { b.op("flat", Squeeze { axes: vec![1] }, &[logits]).unwrap() } else { logits };
        let p = b.op("p", Unary::Sigmoid, &[logits]).unwrap();
        b.output("p", p);
        let (graph, weights) = b.finish();
        Model::new(graph, weights)
    };
    let all = three(8, 7);
    let y: Vec<f64> = (0..7u8).map(|i| f64::from(i % 2)).collect();
    let y = Tensor::new(&[7, 1], &y).unwrap();
    let all = feed(all.inputs["x"].clone(), y, None, "p");
    for loss in ["mse", "binary_crossentropy"] {
        let training = training(loss, "adam", "p", false);
        let feeds = std::slice::from_ref(&all);
        let expected = steps(model(false), &training, on(0, "sync"), feeds);
        for devices in [0, 1, 3, 8] {
            let found = steps(model(true), &training, on(devices, "sync"), feeds);
            assert_near(&found, &expected, &format!("{loss} on {devices}"));
        }
    }
}

/// Statistics of each device would differ with the number of devices.
#[test]
fn the_same_bits_are_not_promised_for_local_statistics() {
    let place = Distribution { invariant: true, ..on(2, "local") };
    let options =
        TrainerOptions { training: training(LOSS, "sgd", "p", true), distribution: place };
    let refused = Trainer::new(cnn(DType::F32), &options, &Cpu::new(1).unwrap()).err().unwrap();
    assert!(refused.to_string().contains("`sync` or `ghost:G`"), "{refused}");
}

/// Batches smaller than the number of devices, and of no rows at all.
#[test]
fn shards_without_rows_leave_no_trace() {
    let training = training(LOSS, "sgd", "p", true);
    let feeds = [3, 1, 0, 2].map(|n| three(7 + n as u64, n));
    for statistics in ["sync", "ghost:3", "local"] {
        let expected = steps(normed(), &training, on(0, statistics), &feeds);
        assert!(expected.0[2].abs() < 1e-15, "no rows cost nothing");
        for devices in [1, 4, 8] {
            let found = steps(normed(), &training, on(devices, statistics), &feeds);
            let finite = |t: &Tensor| t.to_f64().iter().all(|x| x.is_finite());
            assert!(found.0.iter().all(|loss| loss.is_finite()), "{statistics} on {devices}");
            assert!(found.1.iter().all(|(_, t)| finite(t)), "{statistics} on {devices}");
            if statistics != "local" {
                assert_near(&found, &expected, &format!("{statistics} on {devices}"));
            }
        }
        let none = steps(normed(), &training, on(4, statistics), &[three(1, 0)]);
        assert!(none.1 == normed().weights, "no rows change nothing");
    }
}

/// The gradient of shards of 1 and 4 rows, weighted, is that of their rows; a mean of the means of
/// the shards is not.
#[test]
fn a_mean_of_the_means_of_replicas_is_something_else() {
    let mut training = training(LOSS, "sgd", "p", true);
    training.frozen = ["scale", "shift"].map(str::to_owned).into();
    let all = three(4, 5);
    let sync = steps(normed(), &training, on(0, "sync"), std::slice::from_ref(&all));
    let found = steps(normed(), &training, on(4, "sync"), std::slice::from_ref(&all));
    assert_near(&found, &sync, "shards of 1, 1, 1 and 2 rows");
    let mut evaluator = trainer(normed(), training, on(0, "sync"));
    let whole = evaluator.test_on_batch(&all).unwrap().loss;
    let of = |evaluator: &mut Trainer, from, to| {
        evaluator.test_on_batch(&part(&all, from, to)).unwrap().loss
    };
    let (few, many) = (of(&mut evaluator, 0, 1), of(&mut evaluator, 1, 5));
    assert!((f64::midpoint(few, many) - whole).abs() > 5e-3, "{few}, {many}, {whole}");
    assert!(((few + 4.0 * many) / 5.0 - whole).abs() < 1e-12);
}

/// Those of all weights, and those of weights by their names; what is frozen costs nothing.
#[test]
fn penalties_count_once() {
    let plain = training(LOSS, "sgd", "p", true);
    let all = three(5, 6);
    let list = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let (without, _) = steps(normed(), &plain, on(0, "sync"), std::slice::from_ref(&all));
    for (l1, l2, frozen, own) in [
        (vec!["0.01"], vec!["0.02"], None, vec![("first", 0.01, 0.02), ("last", 0.01, 0.02)]),
        (
            vec!["s*=0.3"],
            vec!["0.02", "la?t=0.05"],
            Some("fir*"),
            vec![("scale", 0.3, 0.0), ("shift", 0.3, 0.0), ("last", 0.0, 0.05)],
        ),
    ] {
        let frozen = frozen.into_iter().map(str::to_owned).collect();
        let penalised = Training { l1: list(&l1), l2: list(&l2), frozen, ..plain.clone() };
        let cost = |(name, l1, l2): &(&str, f64, f64)| -> f64 {
            let all = normed().weights.get(name).unwrap().to_f64();
            all.iter().map(|x| l1 * x.abs() + l2 * x * x).sum()
        };
        let own: f64 = own.iter().map(cost).sum();
        let expected = steps(normed(), &penalised, on(0, "sync"), std::slice::from_ref(&all));
        assert!((expected.0[0] - without[0] - own).abs() < 1e-12);
        for devices in [1, 3, 4, 8] {
            let found =
                steps(normed(), &penalised, on(devices, "sync"), std::slice::from_ref(&all));
            assert_near(&found, &expected, &format!("{devices} devices"));
        }
    }
    for name in ["none*", "mean"] {
        let l2 = list(&["0.1", &format!("{name}=0.1")]);
        let place = on(2, "sync");
        let options =
            TrainerOptions { training: Training { l2, ..plain.clone() }, distribution: place };
        let error = Trainer::new(normed(), &options, &Cpu::new(1).unwrap()).err().unwrap();
        assert!(error.to_string().contains(&format!("no trained parameter `{name}`")), "{error}");
    }
}

/// Batch normalisation whose scale and bias are frozen is that of inference; its momentum is the
/// layer's own, unless one is given for all.
#[test]
fn frozen_statistics_stay_and_others_move_by_their_momentum() {
    let all = three(6, 7);
    let of = |training: &Training, devices| {
        steps(normed(), training, on(devices, "sync"), std::slice::from_ref(&all)).1
    };
    let plain = training(LOSS, "sgd", "p", true);
    let frozen = |names: &[&str]| Training {
        frozen: names.iter().map(|name| (*name).to_owned()).collect(),
        ..plain.clone()
    };
    let before = normed().weights;
    let stays = |weights: &Weights, name: &str| weights.get(name) == before.get(name);
    for devices in [0, 3] {
        for names in [&["scale", "shift"][..], &["s*", "mean", "var"]] {
            let after = of(&frozen(names), devices);
            assert!(["scale", "shift", "mean", "var"].iter().all(|name| stays(&after, name)));
            assert!(!stays(&after, "first") && !stays(&after, "last"));
        }
        let half = of(&frozen(&["scale"]), devices);
        assert!(stays(&half, "scale") && !stays(&half, "shift") && !stays(&half, "mean"));
        let moved = |momentum: Option<f64>| {
            let mode = Mode { momentum, ..Mode::default() };
            let after = of(&Training { mode, ..plain.clone() }, devices);
            let difference = |name: &str| {
                let pairs = after.get(name).unwrap().to_f64().into_iter();
                let pairs = pairs.zip(before.get(name).unwrap().to_f64());
                pairs.map(|(a, b)| a - b).collect::<Vec<f64>>()
            };
            [difference("mean"), difference("var")].concat()
        };
        let (own, half, none) = (moved(None), moved(Some(0.5)), moved(Some(0.0)));
        for ((own, half), none) in own.iter().zip(half).zip(none) {
            // The layer keeps three quarters.
            assert!((own - none / 4.0).abs() < 1e-12 && (half - none / 2.0).abs() < 1e-12);
        }
    }
}

/// A weight for every place of sequences, of which a shard may have none.
#[test]
fn weights_of_places_count_on_shards_of_any_size() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut random = |dims: &[usize], least: f64| {
        let values: Vec<f64> =
            (0..dims.iter().product()).map(|_| rng.random_range(least..1.0)).collect();
        Tensor::new(dims, &values).unwrap()
    };
    let mut net = Builder::new("places");
    let places = net.input("x", rows(DType::F64, &[4, 3]));
    let factors = net.param("w", random(&[3, 2], -1.0));
    let out = net.op("p", MatMul {}, &[places, factors]).unwrap();
    net.output("p", out);
    let (graph, weights) = net.finish();
    let model = || Model::new(graph.clone(), weights.clone());
    let mut training = training("mse", "adam", "p", true);
    (training.losses[0].weighted, training.metrics) = (Weighted::Costs, Vec::new());
    for n in [1, 2, 7] {
        let (x, y) = (random(&[n, 4, 3], -1.0), random(&[n, 4, 2], -1.0));
        let places = random(&[n, 4], 0.0);
        let all = feed(x.clone(), y.clone(), Some(places.clone()), "p");
        let feeds = std::slice::from_ref(&all);
        let expected = steps(model(), &training, on(0, "sync"), feeds);
        let w = weights.get("w").unwrap().to_f64();
        let cost = |at: usize| -> f64 {
            let x = &x.to_f64()[at * 3..at * 3 + 3];
            let cost = |c: usize| -> f64 {
                let p: f64 = (0..3).map(|i| x[i] * w[i * 2 + c]).sum();
                (p - y.to_f64()[at * 2 + c]).powi(2)
            };
            places.to_f64()[at] * f64::midpoint(cost(0), cost(1))
        };
        // The divisor is the number of places, not the sum of the weights.
        let known = (0..n * 4).map(cost).sum::<f64>() / (n * 4) as f64;
        assert!((expected.0[0] - known).abs() < 1e-12, "{} instead of {known}", expected.0[0]);
        for devices in [1, 3, 4, 8] {
            let found = steps(model(), &training, on(devices, "sync"), feeds);
            assert_near(&found, &expected, &format!("{n} rows on {devices}"));
        }
    }
}

/// `softmax(x * w)` of logits that leave no probability but 0 and 1.
#[test]
fn a_saturated_softmax_has_its_gradient_on_any_number_of_devices() {
    let model = || {
        let mut b = Builder::new("saturated");
        let x = b.input("x", rows(DType::F32, &[2]));
        let w = b.param("w", Tensor::new(&[2, 2], &[1.0f32, 0.0, 0.0, 1.0]).unwrap());
        let logits = b.op("logits", MatMul {}, &[x, w]).unwrap();
        let p = b.op("p", Softmax::Softmax { axis: -1 }, &[logits]).unwrap();
        b.output("p", p);
        let (graph, weights) = b.finish();
        Model::new(graph, weights)
    };
    let x = [300.0f32, -100.0, -50.0, 250.0, 120.0, -80.0, 0.0, 500.0];
    let y = [0.0f32, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    let tensor = |v: &[f32]| Tensor::new(&[4, 2], v).unwrap();
    let all = [feed(tensor(&x), tensor(&y), None, "p")];
    let training = training(LOSS, "sgd", "p", false);
    // Three rows are wrong by 400, 300 and 500.
    let one = steps(model(), &training, on(0, "sync"), &all);
    assert!((one.0[0] - 300.0).abs() < 1e-3, "{}", one.0[0]);
    let w = one.1.get("w").unwrap().to_f64();
    let known = [1.0 - 8.75, 8.75, 21.25, 1.0 - 21.25];
    assert!(w.iter().zip(known).all(|(w, known)| (w - known).abs() < 1e-4), "{w:?}");
    for devices in [1, 4] {
        assert!(steps(model(), &training, on(devices, "sync"), &all) == one, "{devices} devices");
    }
}
