//! Options of the command line that were ignored, or answered with another cause.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fanwise::format::{npz, safetensors};
use fanwise::model::{LoadOptions, load};
use fanwise::types::Tensor;

/// A command in a folder.
fn command(folder: &Path, args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    command.args(args.split(' ')).current_dir(folder).env_remove("RUST_BACKTRACE");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output and standard error of a command that succeeds.
fn good(folder: &Path, args: &str) -> (String, String) {
    let Output { status, stdout, stderr } = command(folder, args).output().unwrap();
    assert!(status.success(), "{args}: {}", text(&stderr));
    (text(&stdout), text(&stderr))
}

/// Standard error of a command that is refused.
fn refused(folder: &Path, args: &str) -> String {
    let Output { status, stdout, stderr } = command(folder, args).output().unwrap();
    assert_eq!(status.code(), Some(2), "{args}: {}", text(&stdout));
    text(&stderr)
}

fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
}

/// A folder with data for `zoo:mlp`, 32 rows.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let x: Vec<f32> = (0..32 * 784).map(|i| (i % 17) as f32 / 17.0).collect();
    let y: Vec<i64> = (0..32).map(|i| i % 10).collect();
    let arrays = [
        ("x".to_owned(), Tensor::new(&[32, 784], &x).unwrap()),
        ("y".to_owned(), Tensor::new(&[32], &y).unwrap()),
    ];
    npz::write(&folder.path().join("data.npz"), &arrays.into()).unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

/// The line of a run that shows its output.
fn shown(folder: &Path, args: &str) -> String {
    let (out, _) = good(folder, args);
    out.lines().find(|line| line.starts_with("predictions")).unwrap().to_owned()
}

#[test]
fn weights_of_a_file_are_those_of_every_kind_of_model() {
    let (_kept, folder) = folder();
    let fit =
        "fit zoo:mlp --data data.npz --loss sparse_categorical_crossentropy --epochs 1 --batch 16";
    good(&folder, &format!("{fit} --save w.safetensors"));
    good(&folder, "compile zoo:mlp --emit onnx=m.onnx");
    good(&folder, "compile zoo:mlp --emit graph=m.fan,json=m.json");
    let weights = safetensors::read(
        &folder.join("w.safetensors"),
        &mut fanwise::format::Budget::new(u64::MAX),
        |_| true,
    );
    let arrays = weights.unwrap().iter().map(|(k, t)| (k.to_string(), t.clone())).collect();
    npz::write(&folder.join("w.npz"), &arrays).unwrap();
    let before = shown(&folder, "run zoo:mlp --batch 1");
    let after = shown(&folder, "run zoo:mlp --batch 1 --params w.safetensors");
    assert_ne!(before, after);
    for file in ["w.safetensors", "w.npz"] {
        for model in ["zoo:mlp", "m.onnx", "m.fan", "m.json"] {
            let unchecked = if model.starts_with("m.") && model != "m.onnx" {
                let refused = refused(&folder, &format!("run {model} --batch 1 --params {file}"));
                says(&refused, &["E0112", "--params-unchecked"]);
                " --params-unchecked"
            } else {
                ""
            };
            let args = format!("run {model} --batch 1 --params {file}{unchecked}");
            assert_eq!(shown(&folder, &args), after, "{args}");
        }
    }
    for model in ["zoo:mlp", "m.onnx", "m.fan"] {
        for what in ["run", "check", "compile", "summary"] {
            let missing = refused(&folder, &format!("{what} {model} --params none.safetensors"));
            says(&missing, &["none.safetensors"]);
        }
    }
    let wrong = |name: &str, tensor: Tensor| {
        npz::write(&folder.join("wrong.npz"), &[(name.to_owned(), tensor)].into()).unwrap();
        refused(&folder, "run zoo:mlp --batch 1 --params wrong.npz")
    };
    let ones = |dims: &[usize]| Tensor::new(dims, &vec![1.0f32; dims.iter().product()]).unwrap();
    says(&wrong("none", ones(&[2])), &["wrong.npz", "`none`", "no such parameter"]);
    says(&wrong("dense_1.bias", ones(&[2])), &["f32[2] instead of f32[256]"]);
    fs::write(folder.join("w.txt"), "weights").unwrap();
    says(&refused(&folder, "run zoo:mlp --params w.txt"), &[".safetensors and .npz"]);
    npz::write(&folder.join("part.npz"), &[("dense_1.bias".to_owned(), ones(&[256]))].into())
        .unwrap();
    let (_, note) = good(&folder, "run zoo:mlp --batch 1 --params part.npz");
    says(&note, &["part.npz has no", "keep their own elements"]);
}

#[test]
fn graphs_find_their_weights_from_every_folder() {
    let (_kept, folder) = folder();
    let inner = folder.join("a/b");
    fs::create_dir_all(&inner).unwrap();
    let fit = "fit zoo:mlp --data data.npz --loss sparse_categorical_crossentropy --batch 16";
    good(&folder, &format!("{fit} --epochs 1 --save a/trained.fan"));
    good(&folder, &format!("{fit} --epochs 2 --save other.safetensors"));
    good(&folder, "compile a/trained.fan --emit onnx=m.onnx");
    let expected = shown(&folder, "run m.onnx --batch 1");
    for from in ["a/trained.fan", "m.onnx"] {
        for to in ["here.fan", "a/same.fan", "a/b/below.json"] {
            let kind = if to.contains("json") { "json" } else { "graph" };
            good(&folder, &format!("compile {from} --gpus 2 --emit {kind}={to}"));
            assert_eq!(shown(&folder, &format!("run {to} --batch 1")), expected, "{from} {to}");
            let seen = format!("run ../../{to} --batch 1");
            assert_eq!(shown(&inner, &seen), expected, "{from} {to}");
        }
    }
    // A file of the command line is not looked for beside the graph, and the graph that is written
    // has what was taken.
    fs::copy(folder.join("a/trained.safetensors"), folder.join("a/other.safetensors")).unwrap();
    let params = "--params other.safetensors --params-unchecked";
    let other = shown(&folder, "run m.onnx --batch 1 --params other.safetensors");
    assert_eq!(shown(&folder, &format!("run a/trained.fan --batch 1 {params}")), other);
    good(&folder, &format!("compile a/trained.fan {params} --emit graph=a/b/other.fan"));
    assert_eq!(shown(&inner, "run other.fan --batch 1"), other);
}

#[test]
fn rows_that_nothing_is_learned_from_are_refused_before_the_step() {
    let (_kept, folder) = folder();
    let rows = load("zoo:mlp", &LoadOptions::default()).unwrap();
    assert_eq!(rows.graph.inputs().len(), 1);
    let write = |name: &str, row: usize, x: f32, class: i64| {
        let mut arrays =
            npz::read(&folder.join("data.npz"), &mut fanwise::format::Budget::new(1 << 30))
                .unwrap();
        let mut data = arrays["x"].as_slice::<f32>().to_vec();
        data[row * 784 + 3] = x;
        let mut classes = arrays["y"].as_slice::<i64>().to_vec();
        classes[row] = class;
        arrays.insert("x".to_owned(), Tensor::new(&[32, 784], &data).unwrap());
        arrays.insert("y".to_owned(), Tensor::new(&[32], &classes).unwrap());
        npz::write(&folder.join(name), &arrays).unwrap();
    };
    write("class.npz", 17, 0.5, 99);
    write("nan.npz", 5, f32::NAN, 0);
    let loss = "--loss sparse_categorical_crossentropy --batch 8";
    for what in ["fit", "evaluate"] {
        let told = refused(&folder, &format!("{what} zoo:mlp --data class.npz {loss}"));
        says(&told, &["E0601", "class.npz, row 17", "class 99", "0 to 9"]);
        let told = refused(&folder, &format!("{what} zoo:mlp --data nan.npz {loss}"));
        says(&told, &["E0601", "nan.npz, row 5", "NaN at place 3"]);
    }
    let told =
        refused(&folder, &format!("fit zoo:mlp --data data.npz --validation class.npz {loss}"));
    says(&told, &["class.npz, row 17"]);
    // The last quarter of the rows validates: a row has its number in the file all the same.
    write("late.npz", 30, 0.5, -1);
    let told =
        refused(&folder, &format!("fit zoo:mlp --data late.npz --validation-split 0.25 {loss}"));
    says(&told, &["late.npz, row 30", "class -1"]);
    fs::create_dir_all(folder.join("images/a")).unwrap();
    says(&refused(&folder, &format!("fit zoo:mlp --data images {loss}")), &["folder of images"]);
}

#[test]
fn what_has_no_effect_is_refused() {
    let (_kept, folder) = folder();
    says(&refused(&folder, "run zoo:mlp --threads 0"), &["--threads 0", "1 or more"]);
    says(&refused(&folder, "run zoo:mlp --threads 100000"), &["--threads 100000", "more than"]);
    let traced = refused(&folder, "run zoo:mlp --logical 2 --trace t.json --target cpu");
    says(&traced, &["`--logical` requires a GPU"]);
    assert!(!traced.contains("libcuda") && !folder.join("t.json").exists());
    let drawn = refused(&folder, "run zoo:mlp --timeline t.png");
    says(&drawn, &["cannot draw to t.png: timelines are .svg or .html files"]);
    let drawn = refused(&folder, "compile zoo:mlp --emit timeline=plan.txt");
    says(&drawn, &["cannot draw to plan.txt: timelines are .svg or .html files"]);
    let drawn = refused(&folder, "compile zoo:mlp --emit memory=plan.png");
    says(&drawn, &["cannot write a memory plan to plan.png", ".svg", ".txt"]);
    let told = refused(&folder, "compile zoo:mlp --emit graph=a,json=a");
    says(&told, &["`--emit graph=a` and `--emit json=a` name one path; give each its own"]);
    let told = refused(&folder, "compile zoo:mlp --emit graph=b.fan,graph:input=./b.fan");
    says(&told, &["`--emit graph:input=./b.fan` name one path"]);
    assert!(!folder.join("a").exists());
    let told = refused(&folder, "predict zoo:mlp --data data.npz --outputs p.txt");
    says(&told, &[".npz", "p.txt"]);
    assert!(!folder.join("p.txt").exists());
    let (one, _) = good(&folder, "run zoo:mlp --batch 1");
    says(&one, &["\n1 row in "]);
    let (table, _) = good(&folder, "compile zoo:mlp --gpus 3 --repair comm");
    says(&table, &["devices     3, rows N/3", "split on axis 0", "of weights, held once"]);
    for (args, count) in [
        ("fit zoo:mlp --data data.npz --loss sparse_categorical_crossentropy --gpus 2", 2),
        ("evaluate zoo:mlp --data data.npz --loss sparse_categorical_crossentropy --gpus 3", 3),
        ("predict zoo:mlp --data data.npz --outputs o.npz --gpus 4", 4),
    ] {
        let (_, note) = good(&folder, args);
        says(&note, &[&format!("{count} virtual devices run on the CPU")]);
    }
}

#[test]
fn a_simplification_can_be_left_out() {
    let (_kept, folder) = folder();
    let constants = |option: &str| {
        let graph = good(&folder, &format!("compile zoo:transformer --emit graph{option}")).0;
        graph.matches(" = constant()").count()
    };
    // Each block has a constant of its own for the factor of its scores.
    assert!(constants("") < constants(" --without-pass merge_equal"));
    let said = refused(&folder, "compile zoo:mlp --without-pass replicate");
    says(&said, &["replicate", "merge_equal"]);
}

/// As Python, Node.js and daemons give it to a process whose output nobody wants.
#[cfg(unix)]
#[test]
fn output_that_nobody_wants_is_no_failure() {
    let (_kept, folder) = folder();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let status = command(&folder, "run zoo:mlp --batch 1").stdout(Stdio::from(null)).status();
    assert!(status.unwrap().success());
}

#[test]
fn files_of_other_kinds_are_told_by_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let keras: &[u8] = b"PK\x03\x04 config.json metadata.json model.weights.h5";
    for (name, bytes, parts) in [
        ("model.keras", keras, ["damaged Keras", "again"]),
        ("model.pt", b"PK\x03\x04 archive/data.pkl", ["PyTorch", "torch.onnx.export"]),
        ("model.tflite", b"\x1c\0\0\0TFL3", ["Lite", "tf2onnx"]),
        ("model.engine", b"ptrt\0\0", ["TensorRT", "ONNX"]),
        ("model.py", b"import torch\nprint(1)\n", ["script", "ONNX"]),
        ("model.tar.gz", b"\x1f\x8b\x08", ["gzip", "unpack"]),
        ("empty.onnx", b"", ["empty", "again"]),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
        let told = refused(folder, &format!("run {name}"));
        says(&told, &["E0106", name, parts[0], parts[1]]);
    }
    fs::write(folder.join("model.h5"), b"\x89HDF\r\n\x1a\n").unwrap();
    says(&refused(folder, "run model.h5"), &["E0110", "it is not a valid HDF5 file"]);
    fs::create_dir(folder.join("saved")).unwrap();
    fs::write(folder.join("saved/saved_model.pb"), b"\x08\x01").unwrap();
    says(&refused(folder, "run saved"), &["SavedModel", "tf2onnx"]);
    // Forms of ONNX files that are not known: -1, and one of a far future.
    for version in [&b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..], b"\x08\xe8\x07"] {
        fs::write(folder.join("future.onnx"), [version, b"\x3a\x00"].concat()).unwrap();
        says(&refused(folder, "run future.onnx"), &["ir_version"]);
    }
}

/// A model whose input `s: i64[1]` says the shape of its result: `x: f32[N,4]` beside `s` columns.
fn sized(folder: &Path) {
    use prost::Message;
    use support::proto::tensor_shape_proto::{Dimension, dimension::Value as Size};
    use support::proto::type_proto::{Tensor as Of, Value as Kind};
    use support::proto::*;

    let input = |name: &str, elem_type: i32, sizes: Vec<Size>| {
        let dim = |value| Dimension { value: Some(value), denotation: None };
        let shape = Some(TensorShapeProto { dim: sizes.into_iter().map(dim).collect() });
        let of = Of { elem_type: Some(elem_type), shape };
        let ty = TypeProto { value: Some(Kind::TensorType(of)), denotation: None };
        ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..Default::default() }
    };
    let axis = AttributeProto {
        name: Some("axis".to_owned()),
        r#type: Some(attribute_proto::AttributeType::Int as i32),
        i: Some(0),
        ..Default::default()
    };
    let node =
        |op: &str, inputs: [&str; 2], output: &str, attribute: Vec<AttributeProto>| NodeProto {
            op_type: Some(op.to_owned()),
            input: inputs.map(str::to_owned).into(),
            output: vec![output.to_owned()],
            attribute,
            ..Default::default()
        };
    let one = TensorProto {
        name: Some("one".to_owned()),
        dims: vec![1],
        data_type: Some(7),
        raw_data: Some(1i64.to_le_bytes().to_vec().into()),
        ..Default::default()
    };
    let output = ValueInfoProto { name: Some("y".to_owned()), ..Default::default() };
    let graph = GraphProto {
        input: vec![
            input("x", 1, vec![Size::DimParam("N".to_owned()), Size::DimValue(4)]),
            input("s", 7, vec![Size::DimValue(1)]),
        ],
        initializer: vec![one],
        node: vec![
            node("Concat", ["one", "s"], "times", vec![axis]),
            node("Tile", ["x", "times"], "y", vec![]),
        ],
        output: vec![output],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(18) }];
    let model = ModelProto { graph: Some(graph), opset_import, ..Default::default() };
    fs::write(folder.join("m.onnx"), model.encode_to_vec()).unwrap();
}

#[test]
fn an_input_that_decides_is_set_or_taken_from_the_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    sized(folder);
    let error = refused(folder, "check m.onnx --gpus 2 --batch 5");
    says(&error, &["input `s` decides it", "(`--set s=1`)", "give the inputs of a run"]);
    says(&refused(folder, "compile m.onnx --emit graph"), &["input `s` decides it"]);
    let (out, _) = good(folder, "check m.onnx --gpus 2 --batch 5 --set s=3");
    says(&out, &["f32[5,12]", "equal in every bit"]);
    for times in [2i64, 4] {
        let arrays = [
            ("x".to_owned(), Tensor::new(&[3, 4], &[0.5f32; 12]).unwrap()),
            ("s".to_owned(), Tensor::new(&[1], &[times]).unwrap()),
        ];
        npz::write(&folder.join("in.npz"), &arrays.into()).unwrap();
        let (out, _) = good(folder, "check m.onnx --gpus 2 --inputs in.npz");
        says(&out, &[&format!("f32[3,{}]", 4 * times)]);
    }
    // What is set is no input any more.
    let error = refused(folder, "run m.onnx --inputs in.npz --set s=4");
    says(&error, &["there is no input `s`"]);
    says(&refused(folder, "check m.onnx --set s=three"), &["`three` is not a number"]);
    says(&refused(folder, "check m.onnx --set s=1,2"), &["does not suit an input of 1 axes"]);
}
