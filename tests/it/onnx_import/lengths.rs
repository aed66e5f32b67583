//! Sizes that stay open beside the batch: each run chooses them by its inputs.

use std::fs;
use std::path::Path;
use std::process::Command;

use fanwise::Session;
use fanwise::format::{Budget, npz};
use fanwise::model::{self, LoadOptions};
use fanwise::types::Tensor;
use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use support::snap;

use super::sizes::typed_nodes;
use super::*;

/// A softmax over the steps of `x: f32[batch,steps,4]`, to which their numbers are added.
fn of_steps() -> ModelProto {
    let text = "sizes = Shape x; l = Gather sizes one; fl = Cast l; r = Range f0 fl f1; \
        u = Unsqueeze r around; a = Add x u; y = Softmax a";
    let mut nodes = typed_nodes(text);
    let last = nodes.pop().unwrap();
    nodes.push(with(last, int("axis", 1)));
    let one = TensorProto { dims: Vec::new(), ..ints("one", &[1]) };
    let known =
        vec![one, ints("around", &[0, 2]), floats("f0", &[], &[0.0]), floats("f1", &[], &[1.0])];
    model(graph(vec![value("x", &["batch", "steps", "4"])], known, nodes, &["y"]))
}

fn written(folder: &Path, file: &ModelProto) -> String {
    let path = folder.join("m.onnx");
    fs::write(&path, file.encode_to_vec()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn random(rows: usize, steps: usize, rng: &mut ChaCha8Rng) -> Tensor {
    let elements: Vec<f32> = (0..rows * steps * 4).map(|_| rng.random_range(-3.0..3.0)).collect();
    Tensor::new(&[rows, steps, 4], &elements).unwrap()
}

#[test]
fn each_length_is_compiled_once_and_gives_the_bits_of_the_fixed_graph() {
    let (folder, mut rng) = (tempfile::tempdir().unwrap(), ChaCha8Rng::seed_from_u64(5));
    let path = written(folder.path(), &of_steps());
    let open = model::load(&path, &LoadOptions::default()).unwrap();
    assert_eq!(open.open_sizes().collect::<Vec<_>>(), ["steps"]);
    let session = Session::builder(open).gpus(3).build().unwrap();
    let mut run = |steps: usize| {
        let x = random(7, steps, &mut rng);
        let size = i64::try_from(steps).unwrap();
        let dims = [("steps".to_owned(), size)].into();
        let fixed = model::load(&path, &LoadOptions { dims, ..LoadOptions::default() }).unwrap();
        let expected = Session::new(fixed).unwrap().run([("x", x.clone())]).unwrap();
        assert_eq!(session.run([("x", x)]).unwrap()["y"], expected["y"], "{steps} steps");
        session.readied()
    };
    // The first graph has the length that was stated when the model was loaded.
    assert_eq!([5, 12, 12, 7, 5, 12].map(&mut run), [2, 3, 3, 4, 4, 4]);
    // Small graphs are kept: after others the first length is still ready.
    for steps in 20..30 {
        run(steps);
    }
    let before = run(29);
    assert_eq!([5, 5].map(&mut run), [before; 2]);
}

#[test]
fn graphs_that_are_kept_are_bounded_by_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = written(folder.path(), &of_steps());
    let session = |limit: u64| {
        let options = LoadOptions { max_memory: limit, ..LoadOptions::default() };
        Session::new(model::load(&path, &options).unwrap()).unwrap()
    };
    let bytes = |session: &Session, steps: usize| {
        let x = Tensor::new(&[7, steps, 4], &vec![0.5f32; 28 * steps]).unwrap();
        let run = session.run([("x", x)]).unwrap();
        let devices = run.details().devices.iter();
        devices.map(|device| device.planned + device.params).sum::<u64>()
    };
    let free = session(u64::MAX);
    let takes = [200, 300].map(|steps| bytes(&free, steps));
    let again = |session: &Session| {
        for steps in [200, 300, 200, 300] {
            bytes(session, steps);
        }
        session.readied()
    };
    assert_eq!(again(&free), 3);
    let both = takes[0] + takes[1];
    assert_eq!(again(&session(both)), 3);
    // One takes the place of the other.
    assert_eq!(again(&session(both - 1)), 5);
}

#[test]
fn lengths_that_contradict_each_other_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = vec![value("a", &["batch", "steps"]), value("b", &["batch", "steps"])];
    let file = model(graph(inputs, vec![], nodes_of("y = Add a b"), &["y"]));
    let model = model::load(&written(folder.path(), &file), &LoadOptions::default()).unwrap();
    let session = Session::builder(model).gpus(2).build().unwrap();
    let of = |steps: usize| Tensor::new(&[3, steps], &vec![1.0f32; 3 * steps]).unwrap();
    assert_eq!(session.run([("a", of(4)), ("b", of(4))]).unwrap()["y"].dims(), [3, 4]);
    let error = session.run([("a", of(4)), ("b", of(4)), ("a", of(4))]).unwrap_err();
    assert_eq!(error.to_string(), "the input `a` is given twice");
    let error = session.run([("a", of(4)), ("b", of(5))]).unwrap_err().to_string();
    assert!(error.contains("`b`") && error.contains('5'), "{error}");
}

#[test]
fn leading_sizes_that_say_nothing_are_one_where_the_model_splits_so() {
    let folder = tempfile::tempdir().unwrap();
    let load = |names: [&str; 2], nodes: &str| {
        let inputs = vec![value("a", &[names[0], "4"]), value("b", &[names[1], "4"])];
        let file = model(graph(inputs, vec![], nodes_of(nodes), &["y", "z"]));
        model::load(&written(folder.path(), &file), &LoadOptions::default())
    };
    // A shape that a value is given is a list of numbers, which equates no types.
    let rows = "sizes = Shape a; y = Reshape b sizes; z = Relu a";
    for names in [["s0", "s10"], ["?", "?"]] {
        let found = load(names, rows).unwrap();
        assert_eq!(outputs(&found), "f32[N,4] f32[N,4]");
        let said = "they lead inputs, and the model can be split along them together";
        assert!(notes(&found)[0].ends_with(said), "{:?}", notes(&found));
    }
    // Names that say something, and inputs that have nothing to do with each other, are not one.
    assert!(load(["users", "items"], rows).is_err());
    assert!(load(["s0", "s10"], "y = Relu a; z = Relu b").is_err());
}

/// The output of a command in a folder: what it prints, then what it says.
fn printed(folder: &Path, args: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    let output = command.args(args.split_whitespace()).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{args}: {}", text(output.stderr));
    format!("{}{}", text(output.stdout), text(output.stderr))
}

#[test]
fn predictions_take_sizes_from_the_data() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), &of_steps());
    let x = random(9, 12, &mut ChaCha8Rng::seed_from_u64(4));
    npz::write(&folder.path().join("x.npz"), &[("x".to_owned(), x)].into()).unwrap();
    let read = |command: &str, gpus: &str| {
        printed(folder.path(), &format!("{command} --outputs y.npz{gpus}"));
        npz::read(&folder.path().join("y.npz"), &mut Budget::new(1 << 20)).unwrap()
    };
    let expected = read("run m.onnx --inputs x.npz", "");
    for gpus in ["", " --gpus 2"] {
        assert_eq!(read("predict m.onnx --data x.npz --batch 4", gpus), expected, "{gpus}");
    }
}

#[test]
fn open_sizes_are_printed_as_symbols() {
    let folder = tempfile::tempdir().unwrap();
    let twice = with(node("Concat", &["c", "c"], &["z"]), int("axis", 1));
    let nodes = [nodes_of("c = MatMul x w; y = Softmax c"), vec![twice]].concat();
    let weights: Vec<f32> = (0..24).map(|i| ((i * 37) % 23) as f32 / 23.0 - 0.5).collect();
    let x = vec![value("x", &["batch", "steps", "8"])];
    let file = model(graph(x, vec![floats("w", &[8, 3], &weights)], nodes, &["y", "z"]));
    written(folder.path(), &file);
    let compile = |args: &str| printed(folder.path(), &format!("compile m.onnx {args}"));
    let text = compile("--gpus 2 --emit graph");
    // What is read back has the numbers, and computes what the model does.
    fs::write(folder.path().join("m.fan"), text.split("note: ").next().unwrap()).unwrap();
    let ran = |model: &str| {
        let file = folder.path().join("y.npz");
        printed(folder.path(), &format!("run {model} --batch 3 --seed 2 --outputs y.npz"));
        npz::read(&file, &mut Budget::new(1 << 20)).unwrap()
    };
    let read_back = ran("m.fan");
    assert_eq!(read_back["z"].dims(), [3, 256, 3]);
    assert_eq!(read_back, ran("m.onnx"));
    let shown = ["", "--emit claims", "--gpus 2 --emit explain", "--emit graph:input,dot"];
    let texts: Vec<String> = shown.iter().map(|args| compile(args)).collect();
    snap::assert("cli", "symbols", &format!("{text}\n{}", texts.join("\n")));
    // Trials with symbols tell no repairs.
    let softmax = with(node("Softmax", &["x"], &["y"]), int("axis", 0));
    let inputs = || vec![value("x", &["batch", "steps", "4"])];
    written(folder.path(), &model(graph(inputs(), vec![], vec![softmax], &["y"])));
    let text = compile("--gpus 2 --repair comm --emit graph");
    assert_eq!(text.matches("note: all_reduce(max)").count(), 1, "{text}");
    // What is computed before the run is another weight where the size is a number.
    let mut nodes = nodes_of(
        "sizes = Shape x; l = Gather sizes one; s = Concat l four; a = Mul v v; e = Expand a s; \
        y = Add x e",
    );
    nodes[2] = with(nodes[2].clone(), int("axis", 0));
    let known = vec![ints("one", &[1]), ints("four", &[4]), floats("v", &[1, 4], &[0.5; 4])];
    written(folder.path(), &model(graph(inputs(), known, nodes, &["y"])));
    let text = compile("--gpus 2 --emit graph");
    assert!(text.contains("`steps` is printed as 128: what is computed before the run"), "{text}");
    fs::write(folder.path().join("m.fan"), text.split("note: ").next().unwrap()).unwrap();
    let read_back = ran("m.fan");
    assert_eq!(read_back, ran("m.onnx"));
    // A table of 512 rows needs the number; the other size stays a symbol.
    let nodes = nodes_of(
        "sizes = Shape x; l = Gather sizes one; t = Slice table zero l; \
        u = Add x t; a = Unsqueeze u last; y = Mul a b",
    );
    let known =
        vec![ints("one", &[1]), ints("zero", &[0]), ints("last", &[3]), zeros("table", &[512, 4])];
    let inputs =
        vec![value("x", &["batch", "steps", "4"]), value("b", &["batch", "1", "1", "beams"])];
    written(folder.path(), &model(graph(inputs, known, nodes, &["y"])));
    snap::assert("cli", "symbols_and_numbers", &compile("--emit summary"));
}

#[test]
fn a_width_is_no_batch_where_the_batch_is_fixed() {
    let folder = tempfile::tempdir().unwrap();
    let load = |sizes: &[&str], nodes: &str, weights: &[i64]| {
        let known = vec![zeros("w", weights), ints("two", &[2])];
        let file = model(graph(vec![value("x", sizes)], known, nodes_of(nodes), &["y"]));
        model::load(&written(folder.path(), &file), &LoadOptions::default())
    };
    // A convolution needs the number of the width.
    let found = load(&["1", "3", "8", "width"], "y = Conv x w", &[2, 3, 1, 1]).unwrap();
    assert_eq!(outputs(&found), "f32[N,2,8,128]");
    assert_eq!(found.open_sizes().collect::<Vec<_>>(), ["width"]);
    // Only lines of a certain height become one row.
    let line = "c = Conv x w; y = Squeeze c two";
    let found = load(&["batch", "3", "height", "width"], line, &[2, 3, 48, 1]).unwrap();
    assert_eq!(outputs(&found), "f32[N,2,48]");
    // Without a batch to free, the error is that of the width.
    let error = load(&["0", "3", "8", "width"], "y = Conv x w", &[2, 3, 1, 1]).unwrap_err();
    assert!(error.to_string().contains("must be known before the run"), "{error}");
}
