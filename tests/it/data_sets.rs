//! Folders of ONNX's test data: `--inputs DIR` and `fanwise test`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fanwise::format::{Budget, npz};
use fanwise::model::{LoadOptions, load};
use fanwise::types::{DType, Tensor};
use serde_json::Value;
use support::data_set;

/// What a command does in a folder: its exit code, what it prints, and what it says.
fn fanwise(folder: &Path, args: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.args(args.split(' ')).current_dir(folder).env_remove("RUST_BACKTRACE");
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// What a command prints that succeeds.
fn good(folder: &Path, args: &str) -> String {
    let (code, out, err) = fanwise(folder, args);
    assert_eq!(code, 0, "{args}: {out}{err}");
    out
}

/// Writes a tensor as a file of a data set.
pub(crate) fn write(path: &Path, name: &str, tensor: &Tensor) {
    let numbers = [(DType::F32, 1), (DType::I64, 7)];
    let found = numbers.iter().find(|(dtype, _)| *dtype == tensor.dtype());
    let (_, data_type) = *found.unwrap();
    fs::write(path, data_set::tensor(name, data_type, tensor.dims(), tensor.bytes())).unwrap();
}

/// The folder `name` with a model of the zoo and a data set of five rows: what the model gives is
/// expected.
pub(crate) fn case(folder: &Path, name: &str, model: &str) {
    let set = folder.join(name).join("test_data_set_0");
    fs::create_dir_all(&set).unwrap();
    good(folder, &format!("compile {model} --emit onnx={name}/model.onnx"));
    let file = format!("{name}/model.onnx");
    let path = folder.join(&file);
    let graph = load(path.to_str().unwrap(), &LoadOptions::default()).unwrap().graph;
    let mut inputs = BTreeMap::new();
    for (i, input) in graph.inputs().enumerate() {
        let (name, dims) = (&*graph.info(input).name, graph.ty(input).shape.at(5));
        let count = dims.iter().product::<usize>();
        let elements: Vec<f32> = (0..count).map(|k| ((k * (i + 7)) % 17) as f32 / 9.0).collect();
        let tensor = Tensor::new(&dims, &elements).unwrap();
        write(&set.join(format!("input_{i}.pb")), name, &tensor);
        inputs.insert(name.to_owned(), tensor);
    }
    npz::write(&folder.join("in.npz"), &inputs).unwrap();
    good(folder, &format!("run {file} --inputs in.npz --outputs out.npz"));
    let outputs = npz::read(&folder.join("out.npz"), &mut Budget::new(1 << 30)).unwrap();
    for (i, output) in graph.outputs().iter().enumerate() {
        write(&set.join(format!("output_{i}.pb")), &output.name, &outputs[&*output.name]);
    }
}

#[test]
fn a_run_takes_its_inputs_from_a_data_set_or_from_the_folder_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    case(folder, "model", "zoo:siamese");
    let outputs = || fs::read(folder.join("out.npz")).unwrap();
    let expected = outputs();
    for (inputs, gpus) in [("model", ""), ("model/test_data_set_0", ""), ("model", " --gpus 3")] {
        let args = format!("run model/model.onnx --inputs {inputs} --outputs out.npz{gpus}");
        good(folder, &args);
        assert!(outputs() == expected, "{args}");
    }
    good(folder, "check model/model.onnx --gpus 2 --inputs model");
    let refused = |part: &str| {
        let (code, _, err) = fanwise(folder, "run model/model.onnx --inputs model");
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(part), "{part}: {err}");
    };
    // Which of two inputs a file is for is said twice, and must be so alike.
    let set = folder.join("model/test_data_set_0");
    let other = |from: &str, to: &str| fs::rename(set.join(from), set.join(to)).unwrap();
    other("input_0.pb", "input_2.pb");
    refused("`input_0.pb` is missing");
    other("input_1.pb", "input_0.pb");
    other("input_2.pb", "input_1.pb");
    refused("by its position it is the input");
    fs::create_dir(folder.join("model/test_data_set_3")).unwrap();
    refused("several data sets; name one of `test_data_set_0`, `test_data_set_3`");
}

/// The case of each line, with its result and reason.
fn results(json: &str) -> Vec<(String, String, String)> {
    let json: Value = serde_json::from_str(json).unwrap();
    let text = |case: &Value, key: &str| case[key].as_str().unwrap_or_default().to_owned();
    let cases = json["cases"].as_array().unwrap().iter();
    cases.map(|c| (text(c, "folder"), text(c, "result"), text(c, "reason"))).collect()
}

#[test]
fn models_are_tested_in_folders_of_folders_and_each_case_has_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    case(folder, "all/a", "zoo:siamese");
    case(folder, "all/deep/b", "zoo:nested:narrow=8");
    let passed = "passed   all/a/test_data_set_0\npassed   all/deep/b/test_data_set_0\n\
        passed 2, failed 0, refused 0\n";
    for gpus in ["", " --gpus 1", " --gpus 3 --shards balanced"] {
        assert_eq!(good(folder, &format!("test all{gpus} --quiet")), passed, "{gpus}");
    }
    assert_eq!(good(folder, "test all/a all/deep --quiet"), passed);
    let one = good(folder, "test all/a/test_data_set_0 --quiet");
    assert_eq!(one.lines().count(), 2, "{one}");

    // An element that is not what the model gives; within a tolerance it is.
    let file = folder.join("all/a/test_data_set_0/output_0.pb");
    let bytes = fs::read(&file).unwrap();
    let mut changed = bytes.clone();
    let at = changed.len() - 3;
    changed[at] ^= 0x40;
    fs::write(&file, &changed).unwrap();
    let (code, out, _) = fanwise(folder, "test all --format json");
    let found = results(&out);
    assert_eq!((code, &*found[0].1, &*found[1].1), (1, "failed", "passed"), "{out}");
    assert!(found[0].2.contains("element"), "{out}");
    good(folder, "test all --tolerance 0.9");
    fs::write(&file, &bytes).unwrap();

    // A model that cannot be run, data that cannot be read, a model without data.
    fs::write(folder.join("all/deep/b/test_data_set_0/input_0.pb"), "no tensor").unwrap();
    fs::create_dir_all(folder.join("all/c/test_data_set_0")).unwrap();
    fs::write(folder.join("all/c/model.onnx"), "no model").unwrap();
    fs::create_dir(folder.join("all/e")).unwrap();
    fs::copy(folder.join("all/a/model.onnx"), folder.join("all/e/some.onnx")).unwrap();
    let (code, out, _) = fanwise(folder, "test all --format json");
    let found = results(&out);
    let words: Vec<&str> = found.iter().map(|(_, result, _)| &**result).collect();
    assert_eq!((code, &words[..]), (2, &["passed", "refused", "refused", "refused"][..]), "{out}");
    for (case, part) in [(1, "neither `fanwise` nor"), (2, "not a tensor"), (3, "no data set")] {
        assert!(found[case].2.contains(part), "{part}: {out}");
    }
    let (code, out, err) = fanwise(folder, "test all/c/test_data_set_0 in.npz");
    assert_eq!((code, &*out), (2, ""), "{err}");
    fs::create_dir(folder.join("none")).unwrap();
    let (code, _, err) = fanwise(folder, "test none");
    assert!(code == 2 && err.contains("no ONNX model with a data set"), "{err}");
}
