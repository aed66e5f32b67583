//! Steps, losses, metrics and learning rates of training against Keras.

use fanwise::backend::Cpu;
use fanwise::ir::Builder;
use fanwise::ir::Model;
use fanwise::op::Binary;
use fanwise::pass::{Loss, Metric, Repair, Replicate, Weighted};
use fanwise::train::data::{Arrays, LoaderOptions};
use fanwise::train::{
    Distribution, Epoch, FitOptions, History, Logs, Schedule, Trainer, TrainerOptions,
};
use fanwise::types::{DType, Device, Tensor};

use crate::fit::{feed, given, line, rows, training};

/// What Keras computes (`tests/models/training.py`).
fn keras() -> serde_json::Value {
    serde_json::from_str(include_str!("../models/training.json")).unwrap()
}

fn floats(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn ten_steps_of_every_optimizer_are_those_of_keras() {
    let (cpu, keras) = (Cpu::new(1).unwrap(), keras());
    let gradients = floats(&keras["gradients"]);
    let optimizers = keras["optimizers"].as_object().unwrap();
    for name in fanwise::pass::Optimizer::NAMES {
        assert!(optimizers.contains_key(name), "no steps of {name}");
    }
    for (optimizer, expected) in optimizers {
        let training = training("mae", optimizer, "y", false);
        let options = TrainerOptions { training, distribution: Distribution::default() };
        let mut trainer = Trainer::new(line(), &options, &cpu).unwrap();
        for (step, (g, expected)) in gradients.iter().zip(floats(expected)).enumerate() {
            let one = |x: f64| Tensor::new(&[1, 1], &[x]).unwrap();
            let rate = trainer.learning_rate();
            trainer.train_on_batch(&feed(one(*g), one(-10.0), None, "y"), rate).unwrap();
            let p = trainer.weights().unwrap().get("p").unwrap().to_f64()[0];
            // Keras takes its settings from f32 here and there.
            assert!(
                (p - expected).abs() < 1e-7,
                "{optimizer}, step {step}: {p} instead of {expected}"
            );
        }
    }
}

/// The constraint holds after each step, on one device and on three.
#[test]
fn constrained_parameters_are_those_of_keras() {
    let (cpu, keras) = (Cpu::new(3).unwrap(), keras());
    for (text, known) in keras["constraints"].as_object().unwrap() {
        for devices in [1, 3] {
            let mut training = training("mse", "sgd", "y", false);
            training.constraints = vec![format!("p={text}").parse().unwrap()];
            let replicate = Replicate::over((0..devices).map(Device::gpu).collect());
            let replicate = Some(Replicate { repair: Repair::Comm, ..replicate });
            let distribution = Distribution { replicate, ..Distribution::default() };
            let options = TrainerOptions { training, distribution };
            let mut trainer =
                Trainer::new(plane(&floats(&known["begin"])), &options, &cpu).unwrap();
            let (gradients, steps) = (&known["gradients"], known["steps"].as_array().unwrap());
            for (g, expected) in gradients.as_array().unwrap().iter().zip(steps) {
                // With `x` the unit matrix the mean square's gradient is a third of `x p - y`.
                let p = trainer.weights().unwrap().get("p").unwrap().to_f64();
                let y: Vec<f64> = p.iter().zip(floats(g)).map(|(p, g)| p - 3.0 * g).collect();
                let unit = [1.0f64, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
                let (x, y) = (Tensor::new(&[3, 3], &unit), Tensor::new(&[3, 2], &y));
                trainer.train_on_batch(&feed(x.unwrap(), y.unwrap(), None, "y"), 0.5).unwrap();
                let found = trainer.weights().unwrap().get("p").unwrap().to_f64();
                for (found, expected) in found.iter().zip(floats(expected)) {
                    assert!((found - expected).abs() < 1e-9, "{text}: {found}, not {expected}");
                }
            }
        }
    }
}

/// `y = x * p` with this matrix of three rows.
fn plane(p: &[f64]) -> Model {
    let mut b = Builder::new("plane");
    let x = b.input("x", rows(DType::F64, &[3]));
    let p = b.param("p", Tensor::new(&[3, 2], p).unwrap());
    let y = b.op("y", fanwise::op::MatMul {}, &[x, p]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

/// Where an optimizer keeps moving averages, the parameters are these when training ends.
#[test]
fn training_ends_with_the_moving_averages_of_keras() {
    let (cpu, keras) = (Cpu::new(1).unwrap(), keras());
    let gradients = Tensor::new(&[10, 1], &floats(&keras["gradients"])).unwrap();
    let targets = Tensor::new(&[10, 1], &[-10.0f64; 10]).unwrap();
    let averaged = |(name, _): &(&String, &serde_json::Value)| name.contains("use_ema");
    let optimizers = keras["optimizers"].as_object().unwrap();
    for (optimizer, expected) in optimizers.iter().filter(averaged) {
        let training = training("mae", optimizer, "y", false);
        let options = TrainerOptions { training, distribution: Distribution::default() };
        let mut trainer = Trainer::new(line(), &options, &cpu).unwrap();
        let arrays = [("x", &gradients), ("y", &targets)];
        let arrays = arrays.map(|(name, all)| (name.to_owned(), all.clone()));
        let batches = LoaderOptions { batch: 1, shuffle: false, ..LoaderOptions::default() };
        let options = FitOptions { batches, ..FitOptions::default() };
        trainer.fit(Arrays::new(arrays).unwrap(), options).unwrap();
        let p = trainer.weights().unwrap().get("p").unwrap().to_f64()[0];
        let expected = *floats(expected).last().unwrap();
        assert!((p - expected).abs() < 1e-7, "{optimizer}: {p} instead of {expected}");
    }
}

#[test]
fn losses_and_metrics_are_those_of_keras() {
    let (cpu, keras) = (Cpu::new(1).unwrap(), keras());
    let p: Vec<f64> = keras["outputs"].as_array().unwrap().iter().flat_map(floats).collect();
    let classes: Vec<i64> =
        keras["classes"].as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect();
    let hot: Vec<f64> =
        classes.iter().flat_map(|c| (0..4).map(move |i| f64::from(u8::from(*c == i)))).collect();
    let p = Tensor::new(&[5, 4], &p).unwrap();
    let hot = Tensor::new(&[5, 4], &hot).unwrap();
    let classes = Tensor::new(&[5], &classes).unwrap();
    let weights = Tensor::new(&[5], &floats(&keras["weights"])).unwrap();
    let evaluate = |loss: &str, metrics: Vec<Metric>, weighted: bool| {
        let mut training = training(loss, "sgd", "out", weighted);
        training.metrics = metrics;
        let options = TrainerOptions { training, distribution: Distribution::default() };
        let mut trainer = Trainer::new(given(4), &options, &cpu).unwrap();
        let y = if loss.starts_with("sparse") { &classes } else { &hot };
        let w = weighted.then(|| weights.clone());
        trainer.test_on_batch(&feed(p.clone(), y.clone(), w, "out")).unwrap()
    };
    let losses = keras["losses"].as_object().unwrap();
    for name in Loss::NAMES {
        assert!(losses.contains_key(name), "no loss {name}");
    }
    for (name, expected) in losses {
        let expected = floats(expected);
        for (weighted, expected) in [false, true].into_iter().zip(expected) {
            let found = evaluate(name, Vec::new(), weighted).loss;
            assert!((found - expected).abs() < 1e-7, "{name}: {found} instead of {expected}");
        }
    }
    let metrics = keras["metrics"].as_object().unwrap();
    let all: Vec<Metric> = metrics.keys().map(|name| name.parse().unwrap()).collect();
    for (name, found) in evaluate("mse", all, false).metrics {
        let expected = metrics[&name].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-6, "{name}: {found} instead of {expected}");
    }
}

/// By its rules, on one row at a time: of equal outputs each is among the largest, what is no
/// number is not, and nor is a class that there is not. As a metric a cosine grows with what is
/// alike; as a loss it falls.
#[test]
fn ties_and_cosines_are_taken_as_keras_takes_them() {
    let evaluate = |p: [f64; 4], target: Tensor, (loss, metric): (&str, &str)| {
        let mut training = training(loss, "sgd", "out", false);
        training.metrics = vec![metric.parse().unwrap()];
        let options = TrainerOptions { training, distribution: Distribution::default() };
        let mut trainer = Trainer::new(given(4), &options, &Cpu::new(1).unwrap()).unwrap();
        let p = Tensor::new(&[1, 4], &p).unwrap();
        let row = trainer.test_on_batch(&feed(p, target, None, "out")).unwrap();
        (row.loss, row.metrics[0].1)
    };
    let (third, ties) = ([0.4, 0.3, 0.2, 0.1], [0.25; 4]);
    for (p, class, k, expected) in [
        (ties, 3i64, 1, 1.0),
        ([1.0, 0.0, 0.0, 0.0], 3, 2, 1.0),
        ([1.0, 0.5, 0.0, 0.0], 3, 2, 0.0),
        (third, 1, 2, 1.0),
        (third, 2, 2, 0.0),
        (third, 4, 4, 0.0),
        ([f64::NAN, 0.3, 0.2, 0.1], 0, 4, 0.0),
        ([f64::NAN, 0.3, 0.2, 0.1], 1, 1, 0.0),
        ([f64::NEG_INFINITY, 0.3, 0.2, 0.1], 0, 4, 1.0),
    ] {
        let named = format!("top_{k}_accuracy");
        let of = |target| evaluate(p, target, ("sparse_categorical_crossentropy", &named)).1;
        let found = of(Tensor::new(&[1], &[class]).unwrap());
        assert_eq!(found.to_bits(), f64::to_bits(expected), "{p:?}, {class}, {k}");
    }
    for (y, cosine) in [(third, 1.0), (third.map(|x| -x), -1.0)] {
        let y = Tensor::new(&[1, 4], &y).unwrap();
        let (loss, metric) = evaluate(third, y, ("cosine_similarity", "cosine_similarity"));
        assert!((loss + cosine).abs() < 1e-12 && (metric - cosine).abs() < 1e-12, "{cosine}");
    }
}

/// Sums over batches and over devices, without and with weights of rows.
#[test]
fn metrics_of_thresholds_are_those_of_keras() {
    let (cpu, keras) = (Cpu::new(1).unwrap(), keras());
    let keras = &keras["confusion"];
    let rows = |name: &str| -> Vec<f64> {
        keras[name].as_array().unwrap().iter().flat_map(floats).collect()
    };
    let p = Tensor::new(&[12, 2], &rows("outputs")).unwrap();
    let y = Tensor::new(&[12, 2], &rows("targets")).unwrap();
    let w = Tensor::new(&[12], &floats(&keras["weights"])).unwrap();
    let plain = ["auc", "precision", "recall", "binary_accuracy", "mean_squared_error"];
    let set = [
        "auc:num_thresholds=2",
        "auc:num_thresholds=7",
        "precision:threshold=0.25",
        "recall:threshold=0.75",
        "binary_accuracy:threshold=0.25",
    ];
    let lists = [plain, set];
    for (devices, names) in [0, 1, 3, 8].into_iter().flat_map(|n| lists.map(|list| (n, list))) {
        let metrics: Vec<Metric> = names.iter().map(|name| name.parse().unwrap()).collect();
        let mut training = training("mse", "sgd", "out", true);
        (training.metrics, training.weighted_metrics) = (metrics.clone(), metrics.clone());
        let over = Replicate::over((0..devices).map(Device::gpu).collect());
        let replicate = Replicate { repair: Repair::Comm, ..over };
        let place = Distribution {
            replicate: (devices > 0).then_some(replicate),
            ..Distribution::default()
        };
        let mut trainer =
            Trainer::new(given(2), &TrainerOptions { training, distribution: place }, &cpu)
                .unwrap();
        let arrays = [("x", &p), ("y", &y), ("sample_weight", &w)];
        let arrays = arrays.map(|(name, all)| (name.to_owned(), all.clone()));
        let loader = LoaderOptions { batch: 5, ..LoaderOptions::default() };
        let found = trainer.evaluate(Arrays::new(arrays).unwrap(), loader).unwrap().metrics;
        let expected = names.iter().map(|name| (name.to_string(), floats(&keras[*name])[0]));
        let weighted =
            names.iter().map(|name| (format!("weighted_{name}"), floats(&keras[*name])[1]));
        assert_eq!(found.len(), 10);
        for ((name, found), (known, expected)) in found.iter().zip(expected.chain(weighted)) {
            // The second of a name has a number behind it.
            assert!(*name == known || known.contains(':'), "{name} instead of {known}");
            assert!((found - expected).abs() < 1e-7, "{name}: {found} instead of {expected}");
        }
    }
}

/// Sequences of four times three numbers, which are given as they are.
fn sequences() -> Model {
    let mut b = Builder::new("sequences");
    let x = b.input("x", rows(DType::F64, &[4, 3]));
    let zero = b.param("zero", Tensor::new(&[1], &[0.0f64]).unwrap());
    let out = b.op("out", Binary::Add, &[x, zero]).unwrap();
    b.output("out", out);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

/// Costs and rows that a mask leaves out are not counted, whatever they hold.
#[test]
fn masked_costs_are_those_of_keras() {
    let (cpu, keras) = (Cpu::new(1).unwrap(), keras());
    let keras = &keras["masked"];
    let mask = floats(&keras["mask"]);
    let mut p = floats(&keras["outputs"]);
    let mut classes: Vec<i64> =
        keras["classes"].as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect();
    let first = mask.iter().position(|kept| *kept == 0.0).unwrap();
    (p[first * 3], classes[first]) = (0.0, 7);
    let x = Tensor::new(&[5, 4, 3], &p).unwrap();
    let y = Tensor::new(&[5, 4], &classes).unwrap();
    let mask = Tensor::new(&[5, 4], &mask).unwrap();
    let w = Tensor::new(&[5], &floats(&keras["weights"])).unwrap();
    for (devices, weighted) in [(0, false), (0, true), (3, true), (8, false)] {
        let mut training = training("sparse_categorical_crossentropy", "sgd", "out", weighted);
        (training.losses[0].masked, training.weighted_metrics) = (true, vec![Metric::Accuracy]);
        let over = Replicate::over((0..devices).map(Device::gpu).collect());
        let replicate = Replicate { repair: Repair::Comm, ..over };
        let place = Distribution {
            replicate: (devices > 0).then_some(replicate),
            ..Distribution::default()
        };
        let mut trainer =
            Trainer::new(sequences(), &TrainerOptions { training, distribution: place }, &cpu)
                .unwrap();
        let mut arrays = vec![("x", &x), ("y", &y), ("sample_mask", &mask)];
        arrays.extend(weighted.then_some(("sample_weight", &w)));
        let arrays = arrays.into_iter().map(|(name, all)| (name.to_owned(), all.clone()));
        let data = Arrays::new(arrays).unwrap();
        let found = trainer.evaluate(data, LoaderOptions::default()).unwrap();
        let name = if weighted { "weighted_" } else { "" };
        let number = |name: &str| keras[name].as_f64().unwrap();
        let known = [
            (found.loss, number(&format!("{name}loss"))),
            (found.metrics[0].1, number("accuracy")),
            (found.metrics[1].1, number(&format!("{name}accuracy"))),
        ];
        for (found, known) in known {
            assert!((found - known).abs() < 1e-7, "{devices}, {weighted}: {found}, not {known}");
        }
    }
}

/// Each place of a sequence has a weight of its own, with a mask and without.
#[test]
fn weights_of_places_are_those_of_keras() {
    let (cpu, keras) = (Cpu::new(1).unwrap(), keras());
    let keras = &keras["masked"];
    let classes: Vec<i64> =
        keras["classes"].as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect();
    let arrays = [
        ("x", Tensor::new(&[5, 4, 3], &floats(&keras["outputs"])).unwrap()),
        ("y", Tensor::new(&[5, 4], &classes).unwrap()),
        ("sample_weight", Tensor::new(&[5, 4], &floats(&keras["places"]["weights"])).unwrap()),
        ("sample_mask", Tensor::new(&[5, 4], &floats(&keras["mask"])).unwrap()),
    ];
    for (devices, masked) in [0, 1, 3, 8].into_iter().flat_map(|n| [(n, true), (n, false)]) {
        let mut training = training("sparse_categorical_crossentropy", "sgd", "out", false);
        let loss = &mut training.losses[0];
        (loss.masked, loss.weighted) = (masked, Weighted::Costs);
        loss.weighted_metrics = vec![Metric::Accuracy];
        let over = Replicate::over((0..devices).map(Device::gpu).collect());
        let replicate = Replicate { repair: Repair::Comm, ..over };
        let place = Distribution {
            replicate: (devices > 0).then_some(replicate),
            ..Distribution::default()
        };
        let options = TrainerOptions { training, distribution: place };
        let mut trainer = Trainer::new(sequences(), &options, &cpu).unwrap();
        let given = arrays.iter().take(if masked { 4 } else { 3 });
        let given = given.map(|(name, all)| ((*name).to_owned(), all.clone()));
        let data = Arrays::new(given).unwrap();
        let found = trainer.evaluate(data, LoaderOptions::default()).unwrap();
        let before = if masked { "" } else { "unmasked_" };
        let number = |name: &str| keras["places"][format!("{before}{name}")].as_f64().unwrap();
        assert_eq!(found.metrics[1].0, "weighted_accuracy");
        for (found, known) in
            [(found.loss, number("loss")), (found.metrics[1].1, number("accuracy"))]
        {
            assert!((found - known).abs() < 1e-7, "{devices}, {masked}: {found}, not {known}");
        }
    }
}

#[test]
fn a_learning_rate_falls_where_that_of_keras_does() {
    let keras = keras();
    let text = "plateau:monitor=loss,factor=0.5,patience=2,min_delta=0.05,cooldown=1,min_rate=0.1";
    let schedule: Schedule = text.parse().unwrap();
    let (losses, rates) = (floats(&keras["plateau"]["losses"]), floats(&keras["plateau"]["rates"]));
    let mut history = History::default();
    for (epoch, expected) in (0..).zip(rates) {
        let found = schedule.rate(0.5, epoch, 0, &history);
        assert!((found - expected).abs() < 1e-7, "epoch {epoch}: {found} instead of {expected}");
        if let Some(loss) = losses.get(history.epochs.len()) {
            let training = Logs { loss: *loss, ..Logs::default() };
            history.epochs.push(Epoch { epoch, training, ..Epoch::default() });
        }
    }
}
