//! The loop of training through the library: what `fit` does with rows, what its observers see and
//! do, and that it goes on from every batch as if it had not stopped.

use std::sync::{Arc, Mutex};

use fanwise::Error;
use fanwise::backend::Cpu;
use fanwise::internal::SAMPLE_WEIGHT;
use fanwise::ir::Model;
use fanwise::ir::{Builder, Weights};
use fanwise::op::{Gemm, Softmax};
use fanwise::pass::{Optimizer, Training, Weighted};
use fanwise::train::data::{
    Arrays, Column, Data, DataError, LoaderOptions, RowMut, Source, Stream,
};
use fanwise::train::{
    Checkpoint, CsvLog, Distribution, EarlyStopping, EventLog, FitOptions, History, Keep,
    LearningRate, ModelCheckpoint, Monitor, Observer, Progress, ProgressMeter, TrainError,
    TrainState, Trainer, TrainerOptions, Validation,
};
use fanwise::types::{DType, Diagnostic, Tensor};

use crate::fit::{line, rows, through_a_folder};

fn trainer(model: Model, training: Training) -> Trainer {
    let options = TrainerOptions { training, distribution: Distribution::default() };
    Trainer::new(model, &options, &Cpu::new(1).unwrap()).unwrap()
}

/// `y = x * p` with a loss of mean squares and Keras' optimizer.
fn of_line() -> Trainer {
    trainer(line(), Training::new("y", "mse".parse().unwrap(), Optimizer::default()))
}

/// Rows of a user's own: `x` and `y` follow from the number of the row.
#[derive(Clone)]
struct Waves {
    columns: [Column; 2],
    rows: usize,
    next: usize,
}

fn waves(rows: usize) -> Waves {
    let columns = [Column::new("x", DType::F64, &[1]), Column::new("y", DType::F64, &[1])];
    Waves { columns, rows, next: 0 }
}

impl Source for Waves {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        let x = (row as f64 * 0.7).sin();
        into.write(0, &[x])?;
        into.write(1, &[3.0 * x + (row as f64 * 0.3).cos()])
    }
}

/// The same rows one after another.
struct Flow(Waves);

impl Stream for Flow {
    fn columns(&self) -> &[Column] {
        &self.0.columns
    }

    fn start(&mut self, _: u64, row: u64) -> Result<(), DataError> {
        self.0.next = usize::try_from(row).map_err(DataError::source)?;
        Ok(())
    }

    fn next(&mut self, into: &mut RowMut<'_>) -> Result<bool, DataError> {
        if self.0.next >= self.0.rows {
            return Ok(false);
        }
        self.0.read(self.0.next, into)?;
        self.0.next += 1;
        Ok(true)
    }
}

fn batches(batch: usize) -> LoaderOptions {
    LoaderOptions { batch, seed: 3, ..LoaderOptions::default() }
}

/// Keeps a checkpoint after every batch and every epoch, and the rates of all batches.
#[derive(Default)]
struct All {
    kept: Vec<Checkpoint>,
    rates: Vec<f64>,
}

impl Observer for All {
    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        self.rates.extend(watch.rate);
        self.kept.push(watch.checkpoint()?);
        Ok(())
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.kept.push(watch.checkpoint()?);
        Ok(true)
    }
}

/// Three epochs of five batches, with a schedule of batches and a learning rate of the user's own.
fn run(data: impl Into<Data>, resume: Option<Checkpoint>) -> (History, Weights, All) {
    let (mut trainer, mut all) = (of_line(), All::default());
    let mut own = LearningRate::new(|watch, rate| {
        let last = watch.history().epochs.last().map_or(1.0, |epoch| epoch.training.loss);
        rate * last.min(2.0) * if watch.at.step.is_multiple_of(2) { 1.0 } else { 0.5 }
    });
    let options = FitOptions {
        batches: batches(5),
        epochs: 3,
        validation: Validation::Data(waves(7).into()),
        schedule: "cosine:steps=15,warmup=4,per=step".parse().unwrap(),
        resume,
        observers: vec![&mut own, &mut all],
        ..FitOptions::default()
    };
    let history = trainer.fit(data, options).unwrap();
    (history, trainer.weights().unwrap(), all)
}

#[test]
fn a_run_goes_on_from_every_batch_with_a_users_rows_and_rates() {
    for stream in [false, true] {
        let data = || {
            if stream { Data::stream(Flow(waves(23))) } else { Data::from(waves(23)) }
        };
        let (history, weights, all) = run(data(), None);
        assert_eq!((all.rates.len(), all.kept.len()), (15, 18));
        // The rates rise over four batches, and every second one is halved.
        assert!(all.rates[0] < all.rates[2] && all.rates[1] < all.rates[2], "{:?}", all.rates);
        assert!(all.rates[14] < all.rates[8], "{:?}", all.rates);
        for (i, kept) in all.kept.iter().enumerate() {
            let kept = if i.is_multiple_of(2) { through_a_folder(kept) } else { kept.clone() };
            let (at, done) = (kept.at, i - i / 6);
            let (again, found, rest) = run(data(), Some(kept));
            assert!(weights == found, "{stream} from {at:?}");
            assert_eq!(history.csv(), again.csv(), "{stream} from {at:?}");
            let from = if i % 6 == 5 { done } else { done + 1 };
            assert_eq!(rest.rates[..], all.rates[from.min(15)..], "{stream} from {at:?}");
        }
    }
}

/// Ends a training in its first validation, and keeps what there is then.
#[derive(Default)]
struct Ends(Option<Checkpoint>);

impl Observer for Ends {
    fn validation_batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        assert!(self.0.is_none(), "nothing follows");
        self.0 = Some(watch.checkpoint()?);
        Err(TrainError::Watch("that is enough".to_owned()).into())
    }
}

/// Two epochs of four batches, each with a validation.
fn fit(
    trainer: &mut Trainer,
    resume: Option<Checkpoint>,
    observers: Vec<&mut dyn Observer>,
) -> Result<History, Error> {
    let validation = Validation::Data(waves(7).into());
    let own = FitOptions { batches: batches(5), epochs: 2, ..FitOptions::default() };
    trainer.fit(waves(16), FitOptions { validation, resume, observers, ..own })
}

#[test]
fn a_training_ends_in_its_validation_and_goes_on_from_there() {
    let mut whole = of_line();
    let history = fit(&mut whole, None, Vec::new()).unwrap();
    let mut ends = Ends::default();
    let error = fit(&mut of_line(), None, vec![&mut ends]).unwrap_err();
    assert_eq!(error.to_string(), "that is enough");
    let kept = ends.0.unwrap();
    assert_eq!((kept.at.epoch, kept.at.step, kept.history.epochs.len()), (0, 4, 0));
    let mut rest = of_line();
    let again = fit(&mut rest, Some(kept), Vec::new()).unwrap();
    assert_eq!(history.csv(), again.csv());
    assert!(whole.weights().unwrap() == rest.weights().unwrap());
}

#[test]
fn what_is_not_given_is_as_in_keras() {
    let mut all = All::default();
    let options = FitOptions { observers: vec![&mut all], ..FitOptions::default() };
    let history = of_line().fit(waves(70), options).unwrap();
    assert_eq!((history.epochs.len(), all.kept.len()), (1, 4));
    let terms = &all.kept[0].terms;
    assert_eq!(terms["batches"], "batch=32,shuffle=true,seed=0,drop_last=false");
    assert!(terms["optimizer"].starts_with("rmsprop:learning_rate=0.001,momentum=0,rho=0.9,"));
    assert_eq!(terms["schedule"], "constant");
    assert_eq!(
        all.rates.iter().map(|rate| rate.to_bits()).collect::<Vec<_>>(),
        [0.001f64.to_bits(); 3]
    );
}

#[test]
fn the_last_rows_validate_and_an_epoch_may_be_cut() {
    let mut trainer = of_line();
    let options = FitOptions {
        batches: LoaderOptions { steps: Some(2), ..batches(4) },
        epochs: 2,
        validation: Validation::Split(0.3),
        ..FitOptions::default()
    };
    let history = trainer.fit(waves(20), options).unwrap();
    let last = history.epochs.last().unwrap();
    let (_, end) = Data::from(waves(20)).split(0.3).unwrap();
    let found = trainer.evaluate(end, batches(4)).unwrap();
    assert_eq!((last.training.rows, found.rows), (8, 6));
    assert_eq!(last.validation.as_ref(), Some(&found));
    let options = FitOptions { validation: Validation::Split(0.5), ..FitOptions::default() };
    let error = trainer.fit(Data::stream(Flow(waves(9))), options).unwrap_err().to_string();
    assert!(error.contains("a stream cannot be divided"), "{error}");
    // Predictions stay in the order of the rows.
    let outputs = trainer.predict(waves(9), batches(4)).unwrap();
    let p = trainer.weights().unwrap().get("p").unwrap().to_f64()[0];
    for (row, y) in outputs["y"].to_f64().into_iter().enumerate() {
        assert!((y - (row as f64 * 0.7).sin() * p).abs() < 1e-12, "row {row}");
    }
}

/// A classifier of two numbers in three classes, and rows with their class as a number and as ones.
fn classes() -> (Model, Tensor, Tensor, Tensor) {
    let mut b = Builder::new("classes");
    let x = b.input("x", rows(DType::F64, &[2]));
    let kernel = b.param("w", Tensor::new(&[2, 3], &[0.1f64, -0.2, 0.3, 0.2, 0.1, -0.1]).unwrap());
    let bias = b.param("bias", Tensor::new(&[3], &[0.0f64; 3]).unwrap());
    let logits = b.op("logits", Gemm::default(), &[x, kernel, bias]).unwrap();
    let p = b.op("p", Softmax::Softmax { axis: -1 }, &[logits]).unwrap();
    b.output("p", p);
    let (graph, weights) = b.finish();
    let x: Vec<f64> = (0..22u8).map(|i| f64::from(i * 7 % 11) / 5.0 - 1.0).collect();
    let y: Vec<i64> = (0..11).map(|i| i * i % 3).collect();
    let weights_of_rows: Vec<f64> =
        y.iter().map(|y| [0.5, 1.0, 3.0][usize::try_from(*y).unwrap()]).collect();
    let model = Model::new(graph, weights);
    let x = Tensor::new(&[11, 2], &x).unwrap();
    (model, x, Tensor::new(&[11], &y).unwrap(), Tensor::new(&[11], &weights_of_rows).unwrap())
}

fn arrays(arrays: &[(&str, &Tensor)]) -> Arrays {
    Arrays::new(arrays.iter().map(|(n, t)| ((*n).to_owned(), (*t).clone()))).unwrap()
}

#[test]
fn weights_of_classes_are_weights_of_rows_and_classes_suit_the_loss() {
    let (model, x, y, w) = classes();
    let (plain, weighted) =
        (arrays(&[("x", &x), ("y", &y)]), arrays(&[("x", &x), ("y", &y), (SAMPLE_WEIGHT, &w)]));
    let (plain, weighted) = (Arc::new(plain), Arc::new(weighted));
    let model = || Model::new(model.graph.clone(), model.weights.clone());
    for loss in ["categorical_crossentropy", "sparse_categorical_crossentropy"] {
        let training = Training::new("p", loss.parse().unwrap(), "adam".parse().unwrap());
        let run = |data: Arc<Arrays>, by_class: bool| {
            let (training, place) = (training.clone(), Distribution::default());
            let mut options =
                TrainerOptions { training, distribution: place }.for_columns(data.columns());
            if by_class {
                options.training.losses[0].weighted = Weighted::Rows;
            }
            let mut trainer = Trainer::new(model(), &options, &Cpu::new(1).unwrap()).unwrap();
            let weights = if by_class { [(0, 0.5), (2, 3.0)].into() } else { [].into() };
            let other = if by_class { plain.clone() } else { data.clone() };
            let options = FitOptions {
                batches: batches(4),
                epochs: 2,
                validation: Validation::Data(other.into()),
                class_weights: weights,
                ..FitOptions::default()
            };
            let history = trainer.fit(data, options).unwrap();
            (history, trainer.weights().unwrap())
        };
        let (by_class, by_row, unweighted) =
            (run(plain.clone(), true), run(weighted.clone(), false), run(plain.clone(), false));
        assert!(by_class.1 == by_row.1 && by_class.1 != unweighted.1, "{loss}");
        let losses = |(history, _): &(History, Weights)| {
            let epoch = &history.epochs[0];
            (epoch.training.loss, epoch.validation.as_ref().unwrap().loss)
        };
        let (own, other) = (losses(&by_class), losses(&by_row));
        assert!((own.0 - other.0).abs() < 1e-15, "{loss}");
        // Rows that validate do not weigh what their classes do.
        assert!((own.1 - other.1).abs() > 1e-3, "{loss}: {own:?} {other:?}");
        let class_weights = [(0, 0.5)].into();
        let options = FitOptions { class_weights, ..FitOptions::default() };
        let error = trainer(model(), training.clone()).fit(plain.clone(), options).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("require a loss of `p` that is `weighted`"), "{error}");
    }
}

#[test]
fn observers_keep_log_tell_and_end_a_training() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let told: Mutex<Vec<Progress>> = Mutex::default();
    let mut meter = ProgressMeter::new(|at: &Progress| told.lock().unwrap().push(at.clone()));
    let mut keeper = ModelCheckpoint { keep: Keep::Best, ..ModelCheckpoint::new(at("kept")) };
    let (mut csv, mut events) = (CsvLog { path: at("run.csv") }, EventLog::new(at("events")));
    // After the second epoch nothing is learned.
    let mut ends = LearningRate::new(|watch, rate| if watch.at.epoch < 2 { rate } else { 0.0 });
    let mut stops = EarlyStopping::new("val_loss");
    let options = FitOptions {
        batches: batches(8),
        epochs: 9,
        validation: Validation::Split(0.25),
        observers: vec![&mut meter, &mut keeper, &mut csv, &mut events, &mut ends, &mut stops],
        ..FitOptions::default()
    };
    let history = of_line().fit(waves(24), options).unwrap();
    assert_eq!(history.epochs.len(), 3, "the third epoch does not improve");
    assert_eq!(std::fs::read_to_string(at("run.csv")).unwrap(), history.csv());
    let best = Checkpoint::read(&at("kept/best"), u64::MAX).unwrap().unwrap();
    assert_eq!(best.history.epochs.len(), 2);
    assert_eq!(Checkpoint::read(&at("kept"), u64::MAX).unwrap().unwrap().at.epoch, 3);
    let event = |folder: &str, tag: &[u8]| {
        let files = std::fs::read_dir(at("events").join(folder)).unwrap();
        let bytes: Vec<u8> =
            files.flat_map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        bytes.windows(tag.len()).filter(|part| *part == tag).count()
    };
    assert_eq!(event("train", b"epoch_loss"), 3);
    assert_eq!(event("validation", b"epoch_loss"), 3);
    assert_eq!(event("train", b"Placeholder"), 1);
    assert_eq!(event("batches", b"batch_loss"), 9);
    assert_eq!(event("batches", b"batch_learning_rate"), 9);
    let told = told.into_inner().unwrap();
    let seen: Vec<_> = told.iter().map(|p| (p.epoch, p.step, p.logs.rows, p.ended)).collect();
    let of = |e| [(e, 1, 8, false), (e, 2, 16, false), (e, 3, 18, false), (e, 3, 18, true)];
    assert_eq!(seen, [of(0), of(1), of(2)].concat());
    assert!(told.iter().all(|p| (p.rows, p.steps, p.epochs) == (Some(18), Some(3), 9)));
    assert!(told[0].seconds_left.is_none() && told[1].seconds_left.is_some_and(|s| s >= 0.0));
    assert!(told[2].seconds_left.is_some_and(|s| s.abs() < 1e-12));
}

#[test]
fn what_cannot_be_done_ends_a_training_with_a_reason() {
    let fit = |data: Data, observer: &mut dyn Observer| {
        let options =
            FitOptions { batches: batches(4), observers: vec![observer], ..FitOptions::default() };
        of_line().fit(data, options).unwrap_err()
    };
    let mut none = LearningRate::new(|watch, rate| if watch.done < 2 { rate } else { f64::NAN });
    let error = fit(waves(12).into(), &mut none);
    assert_eq!(Diagnostic::code(&error), "E0613");
    let text = "the learning rate of batch 3 of epoch 1 became NaN; it must be a finite number of \
        at least 0";
    assert_eq!(error.to_string(), text);
    let mut usual = LearningRate::new(|_, rate| rate);
    let error = fit(Data::stream(Flow(waves(0))), &mut usual);
    assert_eq!(error.to_string(), "the data have no row for epoch 1");
    let mut stops = EarlyStopping::new("val_loss");
    let expected = "unknown metric `val_loss`; an epoch has loss, learning_rate; give \
        validation data, or split some off, for those of `val_`";
    assert_eq!(fit(waves(12).into(), &mut stops).to_string(), expected);
    let folder = tempfile::tempdir().unwrap();
    let monitor = Monitor::new("val_loss");
    let mut keeper =
        ModelCheckpoint { keep: Keep::Best, monitor, ..ModelCheckpoint::new(folder.path()) };
    assert_eq!(fit(waves(12).into(), &mut keeper).to_string(), expected);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
