//! Trained models as ONNX files.

use std::path::Path;

use fanwise::format::onnx::{self, ImportOptions, import};
use fanwise::format::{Budget, npz, safetensors};
use fanwise::internal::BatchNormTrain;
use fanwise::ir::{Builder, Weights};
use fanwise::op::{Identity, MatMul, Unary};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::fit_cli::{command, good, path, texts, two_head};
use crate::onnx_runtime;

/// An ONNX file of this name that an exporter wrote, trained for an epoch on random rows, and saved
/// as ONNX.
fn trained_onnx(binary: &std::ffi::OsStr, name: &str, folder: &Path) -> std::path::PathBuf {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/exported").join(name);
    let graph = import(&model, &ImportOptions::default()).unwrap().graph;
    let mut arrays = fanwise::internal::random_inputs(&graph, 12, 3).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for output in graph.outputs() {
        let sizes =
            graph.ty(output.value).shape.iter().map(|d| usize::try_from(d.eval(12)).unwrap());
        let dims: Vec<usize> = sizes.collect();
        let values: Vec<f32> =
            (0..dims.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
        arrays.insert(output.name.to_string(), Tensor::new(&dims, &values).unwrap());
    }
    let (data, model) = (path(folder, "data.npz"), model.to_str().unwrap());
    npz::write(Path::new(&data), &arrays).unwrap();
    for end in ["onnx", "safetensors"] {
        let saved = path(folder, &format!("trained.{end}"));
        let args = ["fit", model, "--data", &data, "--loss", "mse", "--optimizer", "adam"];
        let output =
            command(binary, &[&args[..], &["--batch", "5", "--save", &saved]].concat()).output();
        let output = output.unwrap();
        let said = texts(&output).1;
        assert!(output.status.success(), "{name}: {said}");
        assert_eq!(name.contains("convnet"), said.contains("no batch normalisation"), "{said}");
    }
    let trained = folder.join("trained.onnx");
    let (before, after) = (weights(Path::new(model)), weights(&trained));
    let mut kept = Budget::new(1 << 30);
    let expected =
        safetensors::read(&folder.join("trained.safetensors"), &mut kept, |_| true).unwrap();
    // Some of the others are computed from those of the file.
    let both = after.iter().filter(|(name, _)| expected.get(name).is_some());
    let both: Vec<_> = both.collect();
    assert!(both.len() > 1);
    for (name, tensor) in both {
        assert_eq!(Some(tensor), expected.get(name), "{name}");
    }
    assert!(after.iter().any(|(name, tensor)| before.get(name) != Some(tensor)));
    assert_eq!(before.iter().count(), after.iter().count());
    trained
}

fn weights(model: &Path) -> Weights {
    import(model, &ImportOptions::default()).unwrap().weights
}

#[test]
fn a_trained_onnx_file_has_other_weights_and_nothing_else_changed() {
    let folder = tempfile::tempdir().unwrap();
    let binary = env!("CARGO_BIN_EXE_fanwise").as_ref();
    trained_onnx(binary, "torch_script_convnet.onnx", folder.path());
}

/// Batch normalisation in train mode is read as it was written, with its results, in every bit;
/// what ONNX cannot say of it is refused.
#[test]
fn batch_normalisation_in_train_mode_is_written_and_read() {
    let text = |attrs: &str, scale: &str, var: &str| {
        format!(
            "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N,3,2], %s: {scale}[3], %b: f32[3], %m: \
             f32[3], %v: {var}[3]) -> \
             (y: f32[N,3,2], mean: f32[3], var: {var}[3]) {{\n  %y : f32[N,3,2], %mean : f32[3], \
             %var : {var}[3] = \
             batch_norm_train(%x, %s, %b, %m, %v){attrs}\n  return %y, %mean, %var\n}}\n"
        )
    };
    let none = Weights::default();
    let graph = fanwise::ir::parse(&text(" {epsilon=0.003, momentum=0.7}", "f32", "f32")).unwrap();
    let written = onnx::export(&graph, &none).unwrap();
    let read = onnx::import_bytes(written.into(), "norm.onnx", &ImportOptions::default());
    let again = read.unwrap().graph;
    let lines = |graph: &fanwise::ir::Graph| -> Vec<String> {
        let text = graph.to_string();
        text.lines().filter(|line| line.contains("batch_norm_train(")).map(str::to_owned).collect()
    };
    assert_eq!(lines(&again), lines(&graph));
    assert_eq!(lines(&again).len(), 1);
    for (attrs, scale, var, reason) in [
        (" {local=true}", "f32", "f32", "each device's own rows, which ONNX cannot express"),
        ("", "f64", "f32", "its scale and bias are f64 and f32; ONNX takes one type for both"),
        ("", "f32", "f64", "its running mean and variance are f32 and f64; ONNX takes one type"),
    ] {
        let graph = fanwise::ir::parse(&text(attrs, scale, var)).unwrap();
        let error = onnx::export(&graph, &none).unwrap_err().to_string();
        assert!(error.starts_with("`y` (batch_norm_train) cannot be written as ONNX"), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

/// A classifier with batch normalisation as PyTorch exports a fresh one in train mode: its running
/// statistics are initializers of their own, or `Identity` of the scale and bias that they are
/// equal to.
fn normalised(merged: bool) -> Vec<u8> {
    let mut b = Builder::new("net");
    let shape: Shape = [Dim::n(), 4.into()].into_iter().collect();
    let x = b.input("x", TensorType::new(DType::F32, shape));
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut param = |b: &mut Builder, name: &str, dims: &[usize]| {
        let count = dims.iter().product();
        let values: Vec<f32> = (0..count).map(|_| rng.random_range(-0.5..0.5)).collect();
        b.param(name, Tensor::new(dims, &values).unwrap())
    };
    let first = param(&mut b, "first.weight", &[4, 8]);
    let last = param(&mut b, "last.weight", &[8, 2]);
    let fill = |b: &mut Builder, name: &str, value: f32| {
        b.param(name, Tensor::new(&[8], &[value; 8]).unwrap())
    };
    let (gain, bias) = (fill(&mut b, "gain", 1.0), fill(&mut b, "bias", 0.0));
    let (mean, var) = if merged {
        let mean = b.op("running_mean", Identity {}, &[bias]).unwrap();
        (mean, b.op("running_var", Identity {}, &[gain]).unwrap())
    } else {
        (fill(&mut b, "running_mean", 0.0), fill(&mut b, "running_var", 1.0))
    };
    let norm = BatchNormTrain { epsilon: 1e-5, local: false, momentum: 0.9 };
    let h = b.op("h", MatMul {}, &[x, first]).unwrap();
    let h = b.ops(&["n", "n.mean", "n.var"], norm, &[h, gain, bias, mean, var]).unwrap()[0];
    let h = b.op("r", Unary::Relu, &[h]).unwrap();
    let y = b.op("y", MatMul {}, &[h, last]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    onnx::export(&graph, &weights).unwrap()
}

#[test]
fn merged_initializers_learn_what_their_own_learn() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let x: Vec<f32> = (0..64 * 4).map(|_| rng.random_range(20.0..30.0)).collect();
    let y: Vec<i64> = x.chunks(4).map(|row| i64::from(row[0] + row[1] > row[2] + row[3])).collect();
    let arrays = [
        ("x".to_owned(), Tensor::new(&[64, 4], &x).unwrap()),
        ("y".to_owned(), Tensor::new(&[64], &y).unwrap()),
    ];
    let data = path(folder.path(), "data.npz");
    npz::write(Path::new(&data), &arrays.into()).unwrap();
    let told = [false, true].map(|merged| {
        let model = path(folder.path(), if merged { "merged.onnx" } else { "own.onnx" });
        std::fs::write(&model, normalised(merged)).unwrap();
        let loss = "sparse_categorical_crossentropy:from_logits=true";
        let args = ["fit", &model, "--data", &data, "--validation", &data, "--loss", loss];
        let log = path(folder.path(), "log.csv");
        let more = ["--batch", "16", "--epochs", "20", "--optimizer", "adam:learning_rate=0.02"];
        ["1", "3"].map(|gpus| {
            let more = [&args[..], &more, &["--gpus", gpus, "--log", &log]].concat();
            assert_eq!(good(&more).1.contains("running_mean"), merged);
            let log = std::fs::read_to_string(&log).unwrap();
            let column = log.lines().next().unwrap().split(',').position(|name| name == "val_loss");
            let losses = log.lines().skip(1).map(|line| line.split(',').nth(column.unwrap()));
            losses.map(|loss| loss.unwrap().parse::<f64>().unwrap()).collect::<Vec<_>>()
        })
    });
    assert_eq!(told[0], told[1]);
    let [one, three] = &told[0];
    assert!(one[0] > 0.5 && one[19] < 0.3 && three[19] < 0.3, "{told:?}");
}

/// A model that was read from no ONNX file is written as one, with what was learned.
#[test]
fn a_trained_model_of_any_form_is_saved_as_onnx() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    let saved = ["x.onnx", "x.safetensors"].map(|name| path(folder.path(), name));
    for to in &saved {
        let args = ["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse", "--save", to];
        good(&args);
    }
    let learned =
        safetensors::read(Path::new(&saved[1]), &mut Budget::new(1 << 20), |_| true).unwrap();
    let written = weights(Path::new(&saved[0]));
    let zoo = fanwise::zoo::build("two_head").unwrap().1;
    for (name, tensor) in learned.iter() {
        assert_eq!(written.get(name), Some(tensor), "{name}");
    }
    assert!(learned.iter().any(|(name, tensor)| zoo.get(name) != Some(tensor)), "nothing learned");
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn onnx_runtime_computes_what_a_trained_file_says() {
    let binary =
        std::env::var_os("FANWISE_BIN").expect("FANWISE_BIN is set: run `cargo xtask test`");
    for name in ["torch_script_convnet.onnx", "keras_convnet.onnx", "torch_dynamo_convnet.onnx"] {
        let folder = tempfile::tempdir().unwrap();
        let trained = trained_onnx(&binary, name, folder.path());
        onnx_runtime::compare(&trained, "5", &[]);
    }
}
