//! Inputs of a run that must be known when the file is read.

use std::fs;
use std::path::Path;
use std::process::Command;

use fanwise::Session;
use fanwise::model::{self, LoadOptions};
use fanwise::types::Tensor;
use prost::Message;
use support::data_set;

use super::control::{branches, inner, scalar};
use super::*;

/// Writes a model with a data set: tensors by name, type and sizes.
fn case(folder: &Path, file: &ModelProto, tensors: &[(&str, DataType, &[usize], Vec<u8>)]) {
    let set = folder.join("test_data_set_0");
    fs::create_dir_all(&set).unwrap();
    fs::write(folder.join("model.onnx"), file.encode_to_vec()).unwrap();
    let last = tensors.len() - 1;
    for (i, (name, dtype, dims, data)) in tensors.iter().enumerate() {
        let bytes = data_set::tensor(name, *dtype as i32, dims, data);
        let file = if i < last { format!("input_{i}.pb") } else { "output_0.pb".to_owned() };
        fs::write(set.join(file), bytes).unwrap();
    }
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Whether a command succeeds, and all that it prints.
fn fanwise(folder: &Path, args: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    let output = command.args(args.split_whitespace()).current_dir(folder).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), text.concat())
}

#[test]
fn more_elements_than_are_followed_may_be_set() {
    let folder = tempfile::tempdir().unwrap();
    let keep: Vec<u8> = (0..100u8).map(|i| u8::from(i % 3 == 0)).collect();
    let x: Vec<f32> = (0..100u8).map(f32::from).collect();
    let y: Vec<f32> = (0..100u8).step_by(3).map(f32::from).collect();
    let inputs = vec![value("x", &["100"]), typed("keep", DataType::Bool, &["100"])];
    let file = model(graph(inputs, vec![], nodes_of("y = Compress x keep"), &["y"]));
    case(
        folder.path(),
        &file,
        &[
            ("x", DataType::Float, &[100], bytes(&x)),
            ("keep", DataType::Bool, &[100], keep),
            ("y", DataType::Float, &[34], bytes(&y)),
        ],
    );
    let (passes, text) = fanwise(folder.path(), "test .");
    assert!(passes && text.contains("input `keep` is a constant"), "{text}");
    assert!(fanwise(folder.path(), "run model.onnx --inputs .").0);
}

#[test]
fn lists_decide_branches_where_inputs_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let [yes, no] = ["t = Neg x", "t = Abs x"].map(|text| inner("", nodes_of(text), "t"));
    let mut nodes = nodes_of("m = ReduceMax v; c = Greater m zero");
    nodes[0] = with(nodes[0].clone(), int("keepdims", 0));
    nodes.push(branches("c", yes, no, "y"));
    let inputs = vec![value("x", &["N", "2"]), typed("v", DataType::Int64, &["3"])];
    let file = model(graph(inputs, vec![scalar("zero", 0)], nodes, &["y"]));
    for (list, expected) in [([-1i64, 5, 0], [-1.0, 2.0]), ([-1, 0, -7], [1.0, 2.0])] {
        let list = list.iter().flat_map(|x| x.to_le_bytes()).collect();
        case(
            folder.path(),
            &file,
            &[
                ("x", DataType::Float, &[1, 2], bytes(&[1.0, -2.0])),
                ("v", DataType::Int64, &[3], list),
                ("y", DataType::Float, &[1, 2], bytes(&expected)),
            ],
        );
        for gpus in ["", " --gpus 2"] {
            let (passes, text) = fanwise(folder.path(), &format!("test .{gpus}"));
            assert!(passes && text.contains("input `v` is a constant"), "{text}");
            let (runs, text) =
                fanwise(folder.path(), &format!("run model.onnx --inputs . --outputs o.npz{gpus}"));
            let note = "note: input `v` must be known before the run: it is a constant here";
            assert!(runs && text.contains(note), "{text}");
        }
    }
    let (runs, text) = fanwise(folder.path(), "run model.onnx --batch 1");
    assert!(!runs && text.contains("its condition must be known"), "{text}");
}

#[test]
fn what_a_number_needs_besides_it_is_taken_from_each_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let inputs =
        vec![value("x", &["N", "4"]), value("ratio", &[]), typed("training", DataType::Bool, &[])];
    let file = model(graph(inputs, vec![], nodes_of("y = Dropout x ratio training"), &["y"]));
    fs::write(&path, file.encode_to_vec()).unwrap();
    // A ratio of 1, which stands in first, is refused; without training there is none.
    let model = model::load(path.to_str().unwrap(), &LoadOptions::default()).unwrap();
    let session = Session::builder(model).gpus(2).build().unwrap();
    let x = Tensor::new(&[3, 4], &[2.0f32; 12]).unwrap();
    let run = |ratio: f32, training: u8| {
        let training = Tensor::scalar(training).reinterpreted(fanwise::types::DType::Bool);
        let inputs = [("x", x.clone()), ("ratio", Tensor::scalar(ratio)), ("training", training)];
        session.run(inputs).unwrap()["y"].to_f64()
    };
    assert_eq!(run(0.5, 0), [2.0; 12]);
    assert_eq!(run(0.0, 1), [2.0; 12]);
    assert!(run(0.75, 1).iter().all(|y| [0.0, 8.0].contains(y)));
}
