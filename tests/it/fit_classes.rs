//! Losses and metrics of outputs whose classes are not on the last axis.

use std::sync::Arc;

use fanwise::backend::Cpu;
use fanwise::internal::class_axis;
use fanwise::ir::Builder;
use fanwise::ir::Model;
use fanwise::op::{Binary, Flatten, Identity, MatMul, Op, Reshape, Softmax, Squeeze, Unary};
use fanwise::pass::{Metric, OutputLoss, Training};
use fanwise::train::data::{Arrays, LoaderOptions};
use fanwise::train::{Distribution, FitOptions, Trainer, TrainerOptions};
use fanwise::types::{DType, Dim, Tensor};

use crate::fit::{feed, rows, training};
use crate::fit_shards::on;

const CLASSES: usize = 3;
const PLACES: usize = 4;

/// `p = softmax(x + bias)` over axis 1 of `[N,3,2,2]`, or the logits themselves.
fn segments(softmax: bool) -> Model {
    let mut b = Builder::new("segments");
    let x = b.input("x", rows(DType::F64, &[3, 2, 2]));
    let bias = b.param("bias", Tensor::new(&[3, 1, 1], &[0.0f64; 3]).unwrap());
    let logits = b.op("logits", Binary::Add, &[x, bias]).unwrap();
    let p =
        if softmax { b.op("p", Softmax::Softmax { axis: 1 }, &[logits]).unwrap() } else { logits };
    b.output("out", p);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

fn logit(row: usize, class: usize, place: usize) -> f64 {
    f64::from(u8::try_from((row * 7 + class * 5 + place * 3) % 11).unwrap()) / 3.0 - 1.0
}

fn class(row: usize, place: usize) -> usize {
    (row + place * 2) % CLASSES
}

/// The mean of `-ln p` of each place's class, the gradient of the bias, and the part of places at
/// which the class has the largest logit.
fn known(n: usize) -> (f64, [f64; CLASSES], f64) {
    let (mut loss, mut right, mut gradient) = (0.0, 0.0, [0.0; CLASSES]);
    for (row, place) in (0..n).flat_map(|row| (0..PLACES).map(move |place| (row, place))) {
        let logits: [f64; CLASSES] = std::array::from_fn(|c| logit(row, c, place));
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        let own = class(row, place);
        loss += sum.ln() - logits[own];
        for (c, x) in logits.iter().enumerate() {
            gradient[c] += x.exp() / sum - f64::from(u8::from(c == own));
        }
        right += f64::from(u8::from(logits.iter().all(|x| *x <= logits[own])));
    }
    let count = (n * PLACES) as f64;
    (loss / count, gradient.map(|g| g / count), right / count)
}

#[test]
fn classes_may_be_on_any_axis_but_that_of_the_rows() {
    let n = 5;
    let (loss, gradient, right) = known(n);
    let places = || (0..n).flat_map(|row| (0..PLACES).map(move |place| (row, place)));
    let mut x = vec![0.0; n * CLASSES * PLACES];
    let mut hot = x.clone();
    for (row, place) in places() {
        for c in 0..CLASSES {
            let at = (row * CLASSES + c) * PLACES + place;
            x[at] = logit(row, c, place);
            hot[at] = f64::from(u8::from(c == class(row, place)));
        }
    }
    let numbers: Vec<i64> =
        places().map(|(row, place)| i64::try_from(class(row, place)).unwrap()).collect();
    let image = |values: &[f64]| Tensor::new(&[n, CLASSES, 2, 2], values).unwrap();
    let numbers = Tensor::new(&[n, 2, 2], &numbers).unwrap();
    let cases = [
        ("categorical_crossentropy", image(&hot), true, None, Metric::CategoricalAccuracy),
        ("sparse_categorical_crossentropy", numbers.clone(), true, None, Metric::Accuracy),
        (
            "sparse_categorical_crossentropy:from_logits=true",
            numbers,
            false,
            Some(-3),
            Metric::Accuracy,
        ),
        (
            "categorical_crossentropy:from_logits=true",
            image(&hot),
            false,
            Some(1),
            Metric::Accuracy,
        ),
    ];
    for (name, y, softmax, class_axis, metric) in cases {
        let mut terms = training(name, "sgd:learning_rate=1", "out", false);
        terms.losses[0].class_axis = class_axis;
        terms.metrics = vec![metric];
        for devices in [0, 1, 2, 3] {
            let options =
                TrainerOptions { training: terms.clone(), distribution: on(devices, "sync") };
            let mut trainer =
                Trainer::new(segments(softmax), &options, &Cpu::new(1).unwrap()).unwrap();
            let feed = feed(image(&x), y.clone(), None, "out");
            let found = trainer.train_on_batch(&feed, 1.0).unwrap();
            assert!((found.loss - loss).abs() < 1e-12, "{name}: {} for {loss}", found.loss);
            let accuracy = found.metrics[0].1;
            assert!((accuracy - right).abs() < 1e-12, "{name}: {accuracy} for {right}");
            let bias = trainer.weights().unwrap().get("bias").unwrap().to_f64();
            for (b, g) in bias.iter().zip(gradient) {
                assert!((b + g).abs() < 1e-12, "{name}: {b} for {}", -g);
            }
        }
    }
}

/// Numbers of classes, also with an axis of size 1 where the classes' is, for a loss that takes
/// ones, and the other way round.
#[test]
fn targets_become_what_the_loss_takes_on_the_axis_of_its_classes() {
    let n = 5;
    let (loss, gradient, right) = known(n);
    let all = |f: &dyn Fn(usize, usize, usize) -> f64| -> Vec<f64> {
        let one = |at: usize| f(at / PLACES / CLASSES, at / PLACES % CLASSES, at % PLACES);
        (0..n * CLASSES * PLACES).map(one).collect()
    };
    let image = |values: &[f64]| Tensor::new(&[n, CLASSES, 2, 2], values).unwrap();
    let x = image(&all(&logit));
    let hot = image(&all(&|row, c, place| f64::from(u8::from(c == class(row, place)))));
    let number = |at: usize| i64::try_from(class(at / PLACES, at % PLACES)).unwrap();
    let numbers: Vec<i64> = (0..n * PLACES).map(number).collect();
    let numbers = |dims: &[usize]| Tensor::new(dims, &numbers).unwrap();
    for (name, y, softmax, class_axis) in [
        ("categorical_crossentropy", numbers(&[n, 2, 2]), true, None),
        ("categorical_crossentropy", numbers(&[n, 1, 2, 2]), true, None),
        ("categorical_crossentropy:from_logits=true", numbers(&[n, 2, 2]), false, Some(-3)),
        ("sparse_categorical_crossentropy", hot.clone(), true, None),
        ("sparse_categorical_crossentropy:from_logits=true", hot, false, Some(1)),
    ] {
        let mut terms = training(name, "sgd:learning_rate=1", "out", false);
        terms.losses[0].class_axis = class_axis;
        terms.metrics = vec![Metric::Accuracy];
        let options = TrainerOptions { training: terms, distribution: on(2, "sync") };
        let mut trainer = Trainer::new(segments(softmax), &options, &Cpu::new(1).unwrap()).unwrap();
        let rows = || {
            let arrays = [("x", x.clone()), ("y", y.clone())];
            Arc::new(Arrays::new(arrays.map(|(name, t)| (name.to_owned(), t))).unwrap())
        };
        let found = trainer.evaluate(rows(), LoaderOptions::default()).unwrap();
        assert!((found.loss - loss).abs() < 1e-12, "{name}: {} for {loss}", found.loss);
        trainer.fit(rows(), FitOptions::default()).unwrap();
        assert!((found.metrics[0].1 - right).abs() < 1e-12, "{name}: {found:?} for {right}");
        let bias = trainer.weights().unwrap().get("bias").unwrap().to_f64();
        for (b, g) in bias.iter().zip(gradient) {
            assert!((b + g).abs() < 1e-12, "{name}: {b} for {}", -g);
        }
    }
}

#[test]
fn an_axis_that_has_no_classes_is_refused() {
    let refused = |class_axis: i64| {
        let mut terms: Training = training("categorical_crossentropy", "sgd", "out", false);
        terms.losses[0].class_axis = Some(class_axis);
        let options = TrainerOptions { training: terms, distribution: Distribution::default() };
        Trainer::new(segments(true), &options, &Cpu::new(1).unwrap()).err().unwrap().to_string()
    };
    assert!(refused(0).ends_with("its classes are on the axis of its rows"), "{}", refused(0));
    for axis in [4, -5, i64::MIN] {
        let text = refused(axis);
        assert!(text.ends_with("the output has no such axis of classes"), "{text}");
    }
}

/// An output of one probability for each row, behind a sigmoid that is saturated.
#[test]
fn logits_are_taken_through_a_change_of_shape() {
    let mut b = Builder::new("one");
    let x = b.input("x", rows(DType::F32, &[1]));
    let w = b.param("w", Tensor::new(&[1, 1], &[1.0f32]).unwrap());
    let logits = b.op("logits", MatMul {}, &[x, w]).unwrap();
    let odds = b.op("odds", Unary::Sigmoid, &[logits]).unwrap();
    let out = b.op("out", Squeeze { axes: vec![1] }, &[odds]).unwrap();
    b.output("out", out);
    let (graph, weights) = b.finish();
    let terms = training("binary_crossentropy", "sgd", "out", false);
    let options = TrainerOptions { training: terms, distribution: Distribution::default() };
    let model = Model::new(graph, weights);
    let mut trainer = Trainer::new(model, &options, &Cpu::new(1).unwrap()).unwrap();
    let (x, y) =
        (Tensor::new(&[1, 1], &[20.0f32]).unwrap(), Tensor::new(&[1, 1], &[0.0f32]).unwrap());
    let found = trainer.train_on_batch(&feed(x, y, None, "out"), 0.5).unwrap();
    assert!((found.loss - 20.0).abs() < 1e-5, "{}", found.loss);
    let w = trainer.weights().unwrap().get("w").unwrap().to_f64()[0];
    assert!((w - (1.0 - 0.5 * 20.0)).abs() < 1e-4, "{w}");
}

/// `softmax(x + bias)` over axis 1 of `[N,3,1,1]`, and these changes of its shape.
fn reshaped(views: &[Op]) -> Model {
    let mut b = Builder::new("reshaped");
    let x = b.input("x", rows(DType::F64, &[3, 1, 1]));
    let bias = b.param("bias", Tensor::new(&[3, 1, 1], &[0.0f64; 3]).unwrap());
    let logits = b.op("logits", Binary::Add, &[x, bias]).unwrap();
    let mut out = b.op("p", Softmax::Softmax { axis: 1 }, &[logits]).unwrap();
    for view in views {
        out = b.op("view", view.clone(), &[out]).unwrap();
    }
    b.output("out", out);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

/// A softmax that is saturated, in another shape that has the classes on an axis of their own.
#[test]
fn logits_of_classes_are_taken_through_a_change_of_shape() {
    let flat: Op = Flatten { axis: 1 }.into();
    let shape = |sizes: &[i64]| -> Op {
        let sizes = sizes.iter().map(|size| Dim::from(*size));
        Reshape { shape: std::iter::once(Dim::n()).chain(sizes).collect() }.into()
    };
    for (views, sizes) in [
        (vec![flat.clone()], &[3][..]),
        (vec![shape(&[3])], &[3]),
        (vec![Squeeze { axes: vec![2, 3] }.into()], &[3]),
        (vec![Identity {}.into()], &[3, 1, 1]),
        (vec![shape(&[1, 3, 1]), Identity {}.into()], &[1, 3, 1]),
        (vec![shape(&[1, 3]), flat], &[3]),
    ] {
        for (name, devices) in
            [("categorical_crossentropy", 0), ("sparse_categorical_crossentropy", 3)]
        {
            let terms = training(name, "sgd", "out", false);
            let options = TrainerOptions { training: terms, distribution: on(devices, "sync") };
            let model = reshaped(&views);
            let mut trainer = Trainer::new(model, &options, &Cpu::new(1).unwrap()).unwrap();
            let x = Tensor::new(&[1, 3, 1, 1], &[150.0f64, 0.0, -20.0]).unwrap();
            let one = |sizes: &[usize]| [&[1], sizes].concat();
            let sizes: Vec<usize> = sizes.iter().map(|s| usize::try_from(*s).unwrap()).collect();
            let y = if devices == 0 {
                Tensor::new(&one(&sizes), &[0.0f64, 1.0, 0.0]).unwrap()
            } else {
                Tensor::new(&vec![1; sizes.len()], &[1i64]).unwrap()
            };
            let found = trainer.train_on_batch(&feed(x, y, None, "out"), 1.0).unwrap();
            assert!((found.loss - 150.0).abs() < 1e-9, "{name}, {sizes:?}: {}", found.loss);
            let bias = trainer.weights().unwrap().get("bias").unwrap().to_f64();
            let known = [-1.0, 1.0, 0.0];
            let near = bias.iter().zip(known).all(|(b, known)| (b - known).abs() < 1e-9);
            assert!(near, "{name}, {sizes:?}: {bias:?}");
        }
    }
}

/// Two places of three classes each.
#[test]
fn classes_stay_on_their_axis_or_are_no_longer_told_apart() {
    let of = |shape: &[i64]| {
        let mut b = Builder::new("places");
        let x = b.input("x", rows(DType::F64, &[3, 2]));
        let p = b.op("p", Softmax::Softmax { axis: 1 }, &[x]).unwrap();
        let sizes = shape.iter().map(|size| Dim::from(*size));
        let shape = std::iter::once(Dim::n()).chain(sizes).collect();
        let out = b.op("out", Reshape { shape }, &[p]).unwrap();
        b.output("out", out);
        let loss = "categorical_crossentropy".parse().unwrap();
        class_axis(&b.finish().0, &OutputLoss::new("out", loss))
    };
    assert_eq!(of(&[1, 3, 2]), Some(2));
    assert_eq!(of(&[3, 1, 2, 1]), Some(1));
    // The last axis, as of any other output.
    assert_eq!(of(&[2, 3]), Some(2));
    assert_eq!(of(&[6]), Some(1));
}

/// Logits of minus infinity leave out classes; those that are not asked for add nothing.
#[test]
fn classes_that_are_masked_cost_nothing() {
    const NONE: f64 = f64::NEG_INFINITY;
    let model = |softmax: bool| {
        let mut b = Builder::new("masked");
        let x = b.input("x", rows(DType::F64, &[3]));
        let bias = b.param("bias", Tensor::new(&[3], &[0.0f64; 3]).unwrap());
        let mut out = b.op("logits", Binary::Add, &[x, bias]).unwrap();
        if softmax {
            out = b.op("p", Softmax::Softmax { axis: -1 }, &[out]).unwrap();
        }
        b.output("out", out);
        let (graph, weights) = b.finish();
        Model::new(graph, weights)
    };
    let x = [1.0, 2.0, NONE, 0.5, NONE, 0.25, NONE, 1.0, 2.0];
    let hot = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    let part = |own: f64, other: f64| 1.0 / (1.0 + (other - own).exp());
    let (first, second, third) = (part(2.0, 1.0), part(0.5, 0.25), part(2.0, 1.0));
    let all = |name: &str, y: &Tensor, softmax: bool, (loss, gradient): (f64, [f64; 3])| {
        for devices in [0, 3] {
            let terms = training(name, "sgd", "out", false);
            let options = TrainerOptions { training: terms, distribution: on(devices, "sync") };
            let mut trainer =
                Trainer::new(model(softmax), &options, &Cpu::new(1).unwrap()).unwrap();
            let x = Tensor::new(&[3, 3], &x).unwrap();
            let found = trainer.train_on_batch(&feed(x, y.clone(), None, "out"), 1.0).unwrap();
            assert!((found.loss - loss).abs() < 1e-12, "{name}: {} for {loss}", found.loss);
            let bias = trainer.weights().unwrap().get("bias").unwrap().to_f64();
            let near = bias.iter().zip(gradient).all(|(b, g)| (b + g).abs() < 1e-12);
            assert!(near, "{name}: {bias:?} for the gradient {gradient:?}");
        }
    };
    let loss = -(first.ln() + second.ln() + third.ln()) / 3.0;
    let gradient = [
        (1.0 - first) + (second - 1.0),
        (first - 1.0) + (1.0 - third),
        (1.0 - second) + (third - 1.0),
    ];
    let known = (loss, gradient.map(|g| g / 3.0));
    let hot = Tensor::new(&[3, 3], &hot).unwrap();
    all("categorical_crossentropy", &hot, true, known);
    all("categorical_crossentropy:from_logits=true", &hot, false, known);
    let numbers = Tensor::new(&[3], &[1i64, 0, 2]).unwrap();
    all("sparse_categorical_crossentropy", &numbers, true, known);
    all("sparse_categorical_crossentropy:from_logits=true", &numbers, false, known);
    // A row that is not counted costs nothing, whatever it leaves out.
    let loss = -(first.ln() + second.ln()) / 2.0;
    let gradient = [(1.0 - first) + (second - 1.0), first - 1.0, 1.0 - second];
    let known = (loss, gradient.map(|g| g / 2.0));
    let numbers = Tensor::new(&[3], &[1i64, 0, 7]).unwrap();
    all("sparse_categorical_crossentropy:ignore_class=7", &numbers, true, known);
}
