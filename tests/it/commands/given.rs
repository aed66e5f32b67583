//! The files that the pages take for granted, small ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use fanwise::format::npz;
use fanwise::ir::Builder;
use fanwise::model::{self, GraphForm};
use fanwise::op::MatMul;
use fanwise::types::Tensor;
use prost::Message;
use support::proto::attribute_proto::AttributeType;
use support::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
use support::proto::type_proto::{Tensor as TensorKind, Value as Kind};
use support::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto,
};
use zip::ZipArchive;

use crate::fit_cli::{command, texts};
use crate::python::set;
use crate::{data_sets, embed, predictions};

/// What the model of some commands takes, and their data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// Three numbers, and gives one: the model of a Keras file.
    Numbers,
    /// Small images, and gives four numbers: the model of a file that PyTorch exported.
    Exported,
    /// The digits of `zoo:mlp`, and gives ten classes.
    Digits,
    /// Images of files in folders.
    Images,
    /// CIFAR-10.
    Cifar,
}

/// A folder that commands run in.
pub(super) struct Place {
    pub(super) folder: PathBuf,
    pub(super) of: Of,
}

/// The model in three forms, as Keras writes it.
const KERAS: &str = "tests/fuzz/corpus/keras_file";

/// A model as the exporter of PyTorch writes it.
const EXPORTED: &str = "tests/models/exported/torch_script_separable.onnx";

/// Elements between 0 and 1, others for each `seed`.
pub(super) fn numbers(dims: &[usize], seed: u64) -> Tensor {
    let count = dims.iter().product::<usize>() as u64;
    let element = |i: u64| ((i * 2_654_435_761 + seed * 97) % 1009) as f32 / 1009.0;
    Tensor::new(dims, &(0..count).map(element).collect::<Vec<f32>>()).unwrap()
}

/// The class of each row, one-hot.
fn classes(rows: usize) -> Tensor {
    let hot = |i: usize| f32::from(u8::from(i / 10 % 10 == i % 10));
    Tensor::new(&[rows, 10], &(0..rows * 10).map(hot).collect::<Vec<f32>>()).unwrap()
}

impl Place {
    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs a command that makes a file.
    fn fanwise(&self, line: &str) {
        let args: Vec<&str> = line.split(' ').collect();
        let mut command = command(env!("CARGO_BIN_EXE_fanwise"), &args);
        let output = command.current_dir(&self.folder).output().unwrap();
        assert!(output.status.success(), "{line}: {}", texts(&output).1);
    }

    /// The model of the place, as an argument.
    fn model(&self) -> String {
        match self.of {
            Of::Numbers => support::root(KERAS).join("mlp.keras").display().to_string(),
            Of::Exported => support::root(EXPORTED).display().to_string(),
            Of::Digits => "zoo:mlp:narrow=8".to_owned(),
            Of::Images => predictions::of_images(&self.folder),
            Of::Cifar => "zoo:mini_googlenet:narrow=8".to_owned(),
        }
    }

    /// Makes a file or folder that a command names, unless it is there; false if no page may take
    /// it for granted.
    pub(super) fn give(&self, name: &str) -> bool {
        let name = name.trim_end_matches('/');
        let first = name.split('/').next().unwrap();
        let is_of_run = first == "run" && ["run", "run/best"].contains(&name);
        let of_folder = ["test_data_set_0", "resnet50", "models", "onnx-model"].contains(&first);
        if self.at(name).exists() {
            return true;
        }
        match name {
            "in.npz" if self.of == Of::Exported => {
                self.write(name, &[("image", numbers(&[8, 3, 16, 16], 3))]);
            }
            "in.npz" => self.data_set("onnx-model"),
            _ if of_folder => self.data_set(first),
            "model.onnx" if self.of == Of::Exported => {
                fs::copy(support::root(EXPORTED), self.at(name)).unwrap();
            }
            "model.onnx" => {
                self.fanwise(&format!("compile {} --emit onnx={name}", self.model()));
            }
            "model.fan" | "trained.fan" => {
                self.fanwise(&format!("compile {} --emit graph={name}", self.model()));
            }
            "out.fan" => {
                self.give("model.onnx");
                self.fanwise("compile model.onnx --gpus 8 --emit graph=out.fan");
            }
            "two.onnx" => self.two(),
            "dense.onnx" => self.dense(),
            "gate.onnx" => fs::write(self.at(name), embed::model()).unwrap(),
            "vad.onnx" => fs::write(self.at(name), rated()).unwrap(),
            "model.keras" | "model.h5" => {
                let from = support::root(KERAS).join(name.replace("model", "mlp"));
                fs::copy(from, self.at(name)).unwrap();
            }
            "model.json" => self.of_archive("config.json", name),
            "model.weights.h5" => self.of_archive(name, name),
            "words.json" => fs::write(self.at(name), WORDS).unwrap(),
            "train.npz" => self.rows(name, 40, 1),
            "val.npz" | "test.npz" => self.rows(name, 12, 2),
            "train.csv" | "test.csv" => self.table(name),
            "cat.png" | "pictures" | "train" => self.images(),
            _ if is_of_run => self.run(),
            _ if name.starts_with("cifar") => self.cifar(first),
            _ if first == "digits" => self.scaled(),
            _ => return false,
        }
        true
    }

    /// A model with a data set in this folder, or in folders in it; also `in.npz`.
    fn data_set(&self, name: &str) {
        let model = self.model();
        let case = |name: &str| data_sets::case(&self.folder, name, &model);
        match name {
            "models" => ["models/a", "models/b"].into_iter().for_each(case),
            "test_data_set_0" => {
                case("of_set");
                fs::rename(self.at("of_set/test_data_set_0"), self.at(name)).unwrap();
            }
            other => case(other),
        }
    }

    fn write(&self, name: &str, arrays: &[(&str, Tensor)]) {
        let arrays = arrays.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone()));
        npz::write(&self.at(name), &arrays.collect::<BTreeMap<_, _>>()).unwrap();
    }

    fn rows(&self, name: &str, rows: usize, seed: u64) {
        match self.of {
            Of::Numbers => {
                let (x, y) = (numbers(&[rows, 3], seed), numbers(&[rows, 1], seed + 9));
                self.write(name, &[("x", x), ("y", y)]);
            }
            Of::Exported => {
                let (x, y) = (numbers(&[rows, 3, 16, 16], seed), numbers(&[rows, 4], seed + 9));
                self.write(name, &[("x", x), ("y", y)]);
            }
            Of::Digits => {
                let [a, b] = [3, 4].map(|seed| numbers(&[rows, 1], seed));
                let x = numbers(&[rows, 784], seed);
                self.write(name, &[("x", x), ("y", classes(rows)), ("a", a), ("b", b)]);
            }
            Of::Images | Of::Cifar => panic!("{name}: the data of this place are images"),
        }
    }

    /// Digits as a table, with names of their classes.
    fn table(&self, name: &str) {
        let mut text = String::new();
        (0..784).for_each(|i| write!(text, "p{i},").unwrap());
        text += "label\n";
        for row in 0..20 {
            (0..784).for_each(|i| write!(text, "0.{},", (row * 7 + i) % 10).unwrap());
            writeln!(text, "class{}", row % 10).unwrap();
        }
        fs::write(self.at(name), text).unwrap();
    }

    /// A folder of images for each class, one of images alone, and an image.
    fn images(&self) {
        predictions::images(&self.folder);
        fs::copy(self.at("flat/baseline.png"), self.at("cat.png")).unwrap();
        fs::rename(self.at("flat"), self.at("pictures")).unwrap();
    }

    /// The images of digits of the experiment, by its script.
    pub(super) fn digits(&self) {
        let script = support::root("examples/digits.py");
        let mut process = Command::new(set("FANWISE_PYTHON"));
        let output = process.arg(script).arg(self.at("digits")).output().unwrap();
        assert!(output.status.success(), "{}", texts(&output).1);
    }

    /// Images of digits, which are those of the experiment in kind only.
    fn scaled(&self) {
        fs::create_dir(self.at("digits")).unwrap();
        let y = Tensor::new(&[16], &(0..16i64).map(|i| i % 10).collect::<Vec<_>>()).unwrap();
        for name in ["digits/train.npz", "digits/test.npz"] {
            self.write(name, &[("x", numbers(&[16, 32, 32, 3], 7)), ("y", y.clone())]);
        }
    }

    /// Eight images to train on, and eight to test with.
    fn cifar(&self, folder: &str) {
        fs::create_dir(self.at(folder)).unwrap();
        for name in ["data_batch_1.bin", "test_batch.bin"] {
            let image = |class: u8| {
                let pixels = (0..3072u16).map(move |i| i.to_le_bytes()[0] ^ (class * 21));
                std::iter::once(class).chain(pixels)
            };
            let bytes: Vec<u8> = (0..8).flat_map(image).collect();
            fs::write(self.at(folder).join(name), bytes).unwrap();
        }
    }

    /// The checkpoints of a run.
    fn run(&self) {
        let (data, loss) = match self.of {
            Of::Images => ("train", "scce"),
            Of::Numbers | Of::Exported | Of::Digits | Of::Cifar => ("train.npz", "mse"),
        };
        self.give(data);
        self.fanwise(&format!(
            "fit {} --data {data} --loss {loss} --checkpoint run --keep best -q",
            self.model()
        ));
    }

    /// The entry of the archive that a Keras file is.
    fn of_archive(&self, entry: &str, name: &str) {
        let archive = File::open(support::root(KERAS).join("mlp.keras")).unwrap();
        let mut archive = ZipArchive::new(archive).unwrap();
        let mut entry = archive.by_name(entry).unwrap();
        std::io::copy(&mut entry, &mut File::create(self.at(name)).unwrap()).unwrap();
    }

    /// A model as an ONNX file, by way of one of ours.
    fn built(&self, b: Builder, name: &str) {
        let (graph, weights) = b.finish();
        let fan = self.at(name).with_extension("fan");
        model::save(&fan, &graph, &weights, GraphForm::Text).unwrap();
        self.fanwise(&format!("compile {} --emit onnx={name}", fan.display()));
    }

    /// A model with two outputs.
    fn two(&self) {
        let mut b = Builder::new("two");
        let x = b.input("x", "f32[N,784]".parse().unwrap());
        for (output, weight) in [("a", "body"), ("b", "head")] {
            let w = b.param(weight, numbers(&[784, 1], 5));
            let y = b.op(output, MatMul {}, &[x, w]).unwrap();
            b.output(output, y);
        }
        self.built(b, "two.onnx");
    }

    /// The model of the front page.
    fn dense(&self) {
        let mut b = Builder::new("dense");
        let x = b.input("x", "f32[N,8]".parse().unwrap());
        let w = b.param("w", numbers(&[8, 3], 6));
        let y = b.op("y", MatMul {}, &[x, w]).unwrap();
        b.output("y", y);
        self.built(b, "dense.onnx");
    }
}

/// A model of Keras with layers that are not read.
const WORDS: &str = r#"{"class_name": "Functional", "config": {"name": "words", "layers": [
    {"module": "keras.layers", "class_name": "InputLayer", "name": "x", "config":
        {"batch_shape": [null, 4], "dtype": "float32", "name": "x"}, "inbound_nodes": []},
    {"module": "keras.layers", "class_name": "Hashing", "name": "hash", "config":
        {"name": "hash", "trainable": true}, "inbound_nodes": [{"args": [{"class_name":
        "__keras_tensor__", "config": {"shape": [null, 4], "dtype": "float32",
        "keras_history": ["x", 0, 0]}}], "kwargs": {}}]},
    {"module": "keras.layers", "class_name": "Lambda", "name": "lambda", "config":
        {"name": "lambda", "trainable": true}, "inbound_nodes": [{"args": [{"class_name":
        "__keras_tensor__", "config": {"shape": [null, 4], "dtype": "float32",
        "keras_history": ["x", 0, 0]}}], "kwargs": {}}]}],
    "input_layers": ["x", 0, 0], "output_layers": [["hash", 0, 0], ["lambda", 0, 0]]}}"#;

/// A model that computes something else at a rate of 16000 than at others: `sr` decides.
fn rated() -> Vec<u8> {
    let value = |name: &str, elem_type: i32, dims: Vec<Size>| {
        let dim = dims.into_iter().map(|d| Dimension { value: Some(d), denotation: None });
        let shape = Some(TensorShapeProto { dim: dim.collect() });
        let kind = Kind::TensorType(TensorKind { elem_type: Some(elem_type), shape });
        let ty = Some(TypeProto { value: Some(kind), denotation: None });
        ValueInfoProto { name: Some(name.to_owned()), r#type: ty, ..Default::default() }
    };
    let rows = |name: &str| value(name, 1, vec![Size::DimParam("N".to_owned()), Size::DimValue(4)]);
    let node = |op: &str, input: &[&str], output: &str, attribute: Vec<AttributeProto>| NodeProto {
        op_type: Some(op.to_owned()),
        input: input.iter().map(|name| (*name).to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute,
        ..Default::default()
    };
    let branch = |name: &str, op: &str| {
        let graph = GraphProto {
            name: Some(name.to_owned()),
            node: vec![node(op, &["x"], op, vec![])],
            output: vec![rows(op)],
            ..Default::default()
        };
        AttributeProto {
            name: Some(name.to_owned()),
            r#type: Some(AttributeType::Graph as i32),
            g: Some(graph),
            ..Default::default()
        }
    };
    let known = TensorProto {
        name: Some("known".to_owned()),
        data_type: Some(7),
        raw_data: Some(16_000i64.to_le_bytes().to_vec().into()),
        ..Default::default()
    };
    let branches = vec![branch("then_branch", "Relu"), branch("else_branch", "Neg")];
    let graph = GraphProto {
        name: Some("vad".to_owned()),
        input: vec![rows("x"), value("sr", 7, vec![])],
        initializer: vec![known],
        node: vec![
            node("Equal", &["sr", "known"], "is", vec![]),
            node("If", &["is"], "y", branches),
        ],
        output: vec![rows("y")],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(18) }];
    let model =
        ModelProto { ir_version: Some(9), opset_import, graph: Some(graph), ..Default::default() };
    model.encode_to_vec()
}
