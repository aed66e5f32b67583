//! Train mode and inference of the same model: what files have in train mode already, layers with
//! the same statistics, and the same bits wherever it is trained.

use std::collections::BTreeMap;
use std::path::Path;

use fanwise::Error;
use fanwise::backend::Cpu;
use fanwise::format::npz;
use fanwise::format::onnx::{ImportOptions, import_bytes};
use fanwise::internal::BatchNormTrain;
use fanwise::ir::Model;
use fanwise::ir::{Builder, Value, Weights};
use fanwise::op::{BatchNorm, Binary, Op};
use fanwise::train::data::Feed;
use fanwise::train::{Distribution, Predictor, Trainer, TrainerOptions};
use fanwise::types::{DType, Tensor};
use prost::Message;
use support::proto::tensor_proto::DataType;
use support::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
use support::proto::type_proto::{Tensor as Kind, Value as OneOf};
use support::proto::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};

use crate::fit::{feed, rows, training};
use crate::fit_cli::{good, path, refused};
use crate::fit_shards::{LOSS, normed, on, part, steps, three};

/// A file may have batch normalisation in train mode already: it is trained, evaluated and frozen
/// as one in inference.
#[test]
fn normalisation_of_a_file_in_train_mode_is_that_of_one_in_inference() {
    let in_train_mode = || {
        let plain = normed();
        let mut b = Builder::over(plain.graph, plain.weights);
        let norm =
            b.graph().ids().find(|id| matches!(b.graph().node(*id).op(), Some(Op::BatchNorm(_))));
        let (node, train) =
            (norm.unwrap(), BatchNormTrain { epsilon: 1e-3, local: false, momentum: 0.75 });
        let operands = b.graph().operands(node);
        let new = b.all("batch", train, &operands).unwrap();
        b.replace(Value { node, output: 0 }, new[0]).unwrap();
        let (mut graph, weights) = b.finish();
        graph.remove_unused();
        Model::new(graph, weights)
    };
    let all = three(6, 5);
    for (momentum, frozen) in [(None, ""), (Some(0.9), ""), (None, "s*")] {
        let run = |model: Model| {
            let mut training = training(LOSS, "sgd", "p", true);
            training.mode.momentum = momentum;
            training.frozen = (!frozen.is_empty()).then(|| frozen.to_owned()).into_iter().collect();
            let options = TrainerOptions { training, distribution: on(2, "sync") };
            let mut trainer = Trainer::new(model, &options, &Cpu::new(1).unwrap()).unwrap();
            trainer.train_on_batch(&all, 0.1).unwrap();
            let evaluated = trainer.test_on_batch(&all).unwrap().loss;
            let alone = part(&all, 1, 2).inputs;
            let row = trainer.predict_on_batch(&alone).unwrap()[0].1.to_f64();
            (trainer.weights().unwrap(), evaluated, row)
        };
        assert_eq!(run(in_train_mode()), run(normed()), "{momentum:?}, {frozen}");
    }
}

/// The name and the shape of an input or output of `f32` rows.
fn declared(name: &str, width: i64) -> ValueInfoProto {
    let sizes = [Size::DimParam("N".to_owned()), Size::DimValue(width)];
    let dim = sizes.map(|size| Dimension { value: Some(size), denotation: None }).to_vec();
    let shape = Some(TensorShapeProto { dim });
    let kind = OneOf::TensorType(Kind { elem_type: Some(DataType::Float as i32), shape });
    let ty = TypeProto { value: Some(kind), denotation: None };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// Three layers with dropout between them, in train mode or not; also a mask, if it is asked for.
fn with_dropout(in_train_mode: bool, mask: bool) -> Vec<u8> {
    let tensor = |name: &str, dims: &[i64], dtype: DataType, bytes: Vec<u8>| TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(dtype as i32),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    };
    let floats = |name: &str, dims: &[i64]| {
        let numbers = (0..dims.iter().product()).map(|i: i64| ((i * 7 + 3) % 11 - 5) as f32 / 5.0);
        let bytes = numbers.flat_map(f32::to_le_bytes).collect();
        tensor(name, dims, DataType::Float, bytes)
    };
    let node = |op: &str, inputs: &[&str], outputs: &[&str]| NodeProto {
        op_type: Some(op.to_owned()),
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: outputs.iter().map(|s| (*s).to_owned()).collect(),
        ..NodeProto::default()
    };
    let graph = GraphProto {
        name: Some("g".to_owned()),
        node: vec![
            node("MatMul", &["x", "w"], &["h"]),
            node("Dropout", &["h", "ratio", "mode"], &["thin", "mask"]),
            node("MatMul", &["thin", "v"], &["i"]),
            node("Dropout", &["i", "ratio", "mode"], &["thinner"]),
            node("MatMul", &["thinner", "u"], &["logits"]),
            node("Softmax", &["logits"], &["p"]),
        ],
        initializer: vec![
            floats("w", &[3, 6]),
            floats("v", &[6, 8]),
            floats("u", &[8, 3]),
            tensor("ratio", &[], DataType::Float, 0.4f32.to_le_bytes().to_vec()),
            tensor("mode", &[], DataType::Bool, vec![u8::from(in_train_mode)]),
        ],
        input: vec![declared("x", 3)],
        output: std::iter::once(declared("p", 3))
            .chain(mask.then(|| {
                let name = Some("mask".to_owned());
                ValueInfoProto { name, ..ValueInfoProto::default() }
            }))
            .collect(),
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: Some(String::new()), version: Some(18) }];
    let model = ModelProto {
        ir_version: Some(9),
        opset_import,
        graph: Some(graph),
        ..ModelProto::default()
    };
    model.encode_to_vec()
}

fn read(file: Vec<u8>) -> Model {
    import_bytes(file.into(), "m.onnx", &ImportOptions::default()).unwrap()
}

/// Rows of three numbers and their classes, `f32`.
fn single(seed: u64, n: usize) -> Feed {
    let all = three(seed, n);
    let of = |tensor: &Tensor| {
        #[expect(clippy::cast_possible_truncation, reason = "small numbers")]
        let values: Vec<f32> = tensor.to_f64().iter().map(|x| *x as f32).collect();
        Tensor::new(tensor.dims(), &values).unwrap()
    };
    feed(of(&all.inputs["x"]), of(&all.targets["p"]), None, "p")
}

/// Its step and its seed decide what is dropped; evaluation and prediction drop nothing.
#[test]
fn dropout_of_a_file_in_train_mode_is_that_of_one_in_inference() {
    let all = single(6, 9);
    let run = |in_train_mode: bool, seed: i64, devices: u32| {
        let mut training = training(LOSS, "sgd", "p", false);
        training.mode.seed = seed;
        let options = TrainerOptions { training, distribution: on(devices, "sync") };
        let model = read(with_dropout(in_train_mode, false));
        let mut trainer = Trainer::new(model, &options, &Cpu::new(1).unwrap()).unwrap();
        let mut loss = || trainer.train_on_batch(&all, 0.0).unwrap().loss;
        let losses = [loss(), loss()];
        trainer.train_on_batch(&all, 0.1).unwrap();
        let evaluated = trainer.test_on_batch(&all).unwrap().loss;
        let predicted = trainer.predict_on_batch(&all.inputs).unwrap()[0].1.to_f64();
        (losses, trainer.weights().unwrap(), evaluated, predicted)
    };
    for (seed, devices) in [(0, 0), (3, 0), (3, 2)] {
        let found = run(true, seed, devices);
        assert_eq!(found, run(false, seed, devices), "seed {seed}, {devices} devices");
        assert!((found.0[0] - found.0[1]).abs() > 1e-6, "the second step drops the same");
        let other = run(true, seed + 1, devices);
        assert!((found.0[0] - other.0[0]).abs() > 1e-6, "another seed drops the same");
    }
}

/// Where nothing is dropped the mask is true; training does not give one.
#[test]
fn a_mask_that_is_used_is_that_of_inference() {
    let inputs = single(6, 9).inputs;
    let cpu = Cpu::new(1).unwrap();
    let run = |in_train_mode: bool| {
        let model = read(with_dropout(in_train_mode, true));
        Predictor::new(&model, &Distribution::default(), &cpu)
            .unwrap()
            .predict_on_batch(&inputs)
            .unwrap()
    };
    let found = run(true);
    assert_eq!(found, run(false));
    assert_eq!(&*found[1].0, "mask");
    assert!(found[1].1.bytes().iter().all(|kept| *kept == 1));
    let terms = training(LOSS, "sgd", "p", false);
    let options = TrainerOptions { training: terms, distribution: Distribution::default() };
    let refused = |in_train_mode| {
        let model = read(with_dropout(in_train_mode, true));
        Trainer::new(model, &options, &cpu).err().map(|error: Error| error.to_string()).unwrap()
    };
    assert!(refused(true).contains("its mask is used"), "{}", refused(true));
    assert_eq!(refused(true), refused(false));
}

#[test]
fn a_file_with_dropout_in_train_mode_is_trained_saved_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let all = single(6, 9);
    let mut arrays = all.inputs.clone();
    arrays.insert("p".to_owned(), all.targets["p"].clone());
    npz::write(Path::new(&at("data.npz")), &arrays).unwrap();
    let mut found = Vec::new();
    for in_train_mode in [true, false] {
        let (model, trained) = (at("model.onnx"), at("trained.onnx"));
        std::fs::write(&model, with_dropout(in_train_mode, false)).unwrap();
        let data = at("data.npz");
        let fit = ["fit", &model, "--data", &data, "--loss", LOSS, "--batch", "4"];
        let fit = [&fit[..], &["--validation-split", "0.3", "--format", "json"]].concat();
        good(&[&fit[..], &["--save", &trained]].concat());
        let of = |args: &[&str]| good(args).0;
        let evaluated = of(&["evaluate", &trained, "--data", &data, "--loss", LOSS]);
        good(&["predict", &trained, "--data", &data, "--outputs", &at("out.npz")]);
        found.push((evaluated, std::fs::read(at("out.npz")).unwrap()));
    }
    assert_eq!(found[0], found[1]);
}

/// One layer with batch normalisation, applied to two inputs one after the other.
fn shared() -> Model {
    let mut b = Builder::new("shared");
    let inputs = ["x", "z"].map(|name| b.input(name, rows(DType::F64, &[2])));
    let two = |values: [f64; 2]| Tensor::new(&[2], &values).unwrap();
    let norm = [("scale", [1.5, 0.5]), ("shift", [0.0, 0.25]), ("mean", [8.0, -8.0])];
    let [scale, shift, mean] = norm.map(|(name, values)| b.param(name, two(values)));
    let var = b.param("var", two([1.0, 4.0]));
    let [one, other] = inputs.map(|x| {
        let norm = BatchNorm { epsilon: 1e-3, momentum: 0.75 };
        b.op("norm", norm, &[x, scale, shift, mean, var]).unwrap()
    });
    let sum = b.op("p", Binary::Add, &[one, other]).unwrap();
    b.output("p", sum);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

/// The running statistics follow the first use of the layer, then the second.
#[test]
fn layers_with_the_same_statistics_move_them_one_after_the_other() {
    let count = 7;
    let all = |seed: u64| {
        Tensor::new(&[count, 2], &three(seed, count).inputs["x"].to_f64()[..count * 2]).unwrap()
    };
    let (x, z) = (all(1), all(2));
    let mut batch = feed(x.clone(), all(3), None, "p");
    batch.inputs.insert("z".to_owned(), z.clone());
    let terms = training("mse", "sgd", "p", false);
    let run = |place: Distribution| steps(shared(), &terms, place, std::slice::from_ref(&batch));
    let close = |a: f64, b: f64, what: &str| assert!((a - b).abs() < 1e-12, "{what}: {a} for {b}");
    let expected = run(on(0, "sync"));
    for (channel, (mut mean, mut var)) in [(8.0, 1.0), (-8.0, 4.0)].into_iter().enumerate() {
        for batch in [&x, &z] {
            let values: Vec<f64> = batch.to_f64().into_iter().skip(channel).step_by(2).collect();
            let own = values.iter().sum::<f64>() / count as f64;
            let spread = values.iter().map(|v| (v - own).powi(2)).sum::<f64>() / count as f64;
            mean = 0.75 * mean + 0.25 * own;
            var = 0.75 * var + 0.25 * spread;
        }
        let of = |name: &str| expected.1.get(name).unwrap().to_f64()[channel];
        close(of("mean"), mean, "mean");
        close(of("var"), var, "var");
    }
    let near = |found: &(Vec<f64>, Weights), known: &(Vec<f64>, Weights), what: &str| {
        close(found.0[0], known.0[0], what);
        for (name, tensor) in known.1.iter() {
            let found = found.1.get(name).unwrap().to_f64();
            found.iter().zip(tensor.to_f64()).for_each(|(a, b)| close(*a, b, what));
        }
    };
    for devices in [1, 3] {
        near(&run(on(devices, "sync")), &expected, "sync");
    }
    near(&run(on(3, "ghost:2")), &run(on(0, "ghost:2")), "ghost");
    // The statistics of three and of four rows.
    near(&run(on(2, "local")), &run(on(0, "ghost:2")), "local");
}

/// The same bits as on any number of devices, with what devices may exchange by default.
#[test]
fn training_is_reproducible_where_no_devices_are_given() {
    let training = training(LOSS, "adam", "p", true);
    let feeds = [three(1, 9), three(2, 5)];
    let run = |place: Distribution| {
        steps(normed(), &training, Distribution { invariant: true, ..place }, &feeds)
    };
    let found = run(Distribution::default());
    for devices in [1, 2] {
        assert!(found == run(on(devices, "sync")), "{devices} devices");
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let numbers = |count: usize| (0..count).map(|i| (i * 31 % 17) as f32 / 17.0);
    let image: Vec<f32> = numbers(10 * 784).collect();
    let classes: Vec<i64> = (0..10).collect();
    let arrays = BTreeMap::from([
        ("image".to_owned(), Tensor::new(&[10, 784], &image).unwrap()),
        ("predictions".to_owned(), Tensor::new(&[10], &classes).unwrap()),
    ]);
    let (data, saved) = (at("data.npz"), at("saved.safetensors"));
    npz::write(Path::new(&data), &arrays).unwrap();
    let fit = ["fit", "zoo:mlp:narrow=8", "--data", &data, "--loss", LOSS, "--batch", "6"];
    let fit = [&fit[..], &["--save", &saved, "--reproducible", "n-invariant"]].concat();
    let mut found = Vec::new();
    for devices in [&[][..], &["--gpus", "1"], &["--gpus", "2"]] {
        good(&[&fit[..], devices].concat());
        found.push(std::fs::read(&saved).unwrap());
    }
    assert!(found.iter().all(|bytes| *bytes == found[0]));
    let error = refused(&[&fit[..], &["--repair", "local"]].concat());
    assert!(error.contains("R0111"), "{error}");
}
