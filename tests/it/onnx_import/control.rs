//! Branches and loops: what is known before the run decides them.

use std::fs;

use fanwise::Session;
use fanwise::model::{self, LoadOptions};
use fanwise::types::{DType, Tensor};
use prost::Message;

use super::*;

/// The attribute that is a graph.
fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(graph),
        ..AttributeProto::default()
    }
}

/// A graph whose inputs are declared by name only.
pub(super) fn inner(inputs: &str, nodes: Vec<NodeProto>, outputs: &str) -> GraphProto {
    let input =
        |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() };
    graph(words(inputs).into_iter().map(input).collect(), vec![], nodes, &words(outputs))
}

pub(super) fn branches(
    condition: &str,
    yes: GraphProto,
    no: GraphProto,
    results: &str,
) -> NodeProto {
    let node = node("If", &[condition], &words(results));
    with(with(node, body("then_branch", yes)), body("else_branch", no))
}

pub(super) fn scalar(name: &str, value: i64) -> TensorProto {
    TensorProto { dims: vec![], ..ints(name, &[value]) }
}

fn truth(name: &str) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(DataType::Bool as i32),
        raw_data: Some(vec![1].into()),
        ..TensorProto::default()
    }
}

/// A model of `x: f32[N,4]` with these other inputs.
fn of(others: Vec<ValueInfoProto>, known: Vec<TensorProto>, nodes: Vec<NodeProto>) -> ModelProto {
    let mut inputs = vec![value("x", &["N", "4"])];
    inputs.extend(others);
    model(graph(inputs, known, nodes, &["y"]))
}

fn rate() -> ValueInfoProto {
    typed("sr", DataType::Int64, &[])
}

/// `y` is `exp` of `x` where `sr` is 16000, and else `tanh`.
fn by_rate() -> ModelProto {
    let yes = inner("", nodes_of("t = Exp x"), "t");
    let no = inner("", nodes_of("t = Tanh x"), "t");
    let mut nodes = nodes_of("c = Equal sr known");
    nodes.push(branches("c", yes, no, "y"));
    of(vec![rate()], vec![scalar("known", 16_000)], nodes)
}

fn set(name: &str, value: Tensor) -> ImportOptions {
    ImportOptions { set: [(name.to_owned(), value)].into(), ..ImportOptions::default() }
}

#[test]
fn a_value_that_is_set_decides_the_branch() {
    for (rate, ops) in [(16_000i64, "exp"), (8000, "tanh")] {
        let model = load_with(&by_rate(), &set("sr", Tensor::scalar(rate))).unwrap();
        assert_eq!(operators(&model), ops);
        assert_eq!(model.graph.inputs().count(), 1);
        let labels: Vec<&str> = model.graph.ids().map(|n| model.graph.node(n).label()).collect();
        let label = if rate == 8000 { "the_y/else/the_t" } else { "the_y/then/the_t" };
        assert!(labels.contains(&label), "{labels:?}");
    }
    let error = refusal(load(&by_rate()));
    let expected = "node `the_y` (If): its condition must be known before the run, and depends on \
        input `sr`";
    assert!(error.starts_with(expected), "{error}");
    assert!(error.contains("(`LoadOptions::set sr=1`)"), "{error}");
    let error = refusal(load_with(&by_rate(), &set("rate", Tensor::scalar(1i64))));
    assert!(error.contains("no such input; the inputs are `x`, `sr`"), "{error}");
    let error = refusal(load_with(&by_rate(), &set("sr", Tensor::scalar(0.5f32))));
    assert!(error.contains("i64 does not hold it"), "{error}");
}

#[test]
fn sizes_decide_branches_and_the_batch_does_not() {
    // As exporters write a squeeze: where the size is 1, and the rank is another behind it.
    let squeezed = |axis: i64, size: &str| {
        let yes = inner("", nodes_of("s = Squeeze x at"), "s");
        let no = inner("", nodes_of("s = Identity x"), "s");
        let mut nodes = nodes_of("sizes = Shape x; size = Gather sizes at; c = Equal size one");
        nodes.push(branches("c", yes, no, "y"));
        let known = vec![ints("at", &[axis]), ints("one", &[1])];
        model(graph(vec![value("x", &["N", size, "4"])], known, nodes, &["y"]))
    };
    assert_eq!(outputs(&load(&squeezed(1, "1")).unwrap()), "f32[N,4]");
    assert_eq!(outputs(&load(&squeezed(1, "3")).unwrap()), "f32[N,3,4]");
    let error = refusal(load(&squeezed(0, "3")));
    assert!(error.contains("its condition must be known"), "{error}");
    assert!(error.contains("depends on the batch size\n"), "{error}");
}

#[test]
fn what_holds_for_every_batch_is_decided() {
    let compared = |op: &str, with: i64| {
        let text = format!("sizes = Shape x; n = Gather sizes zero; c = {op} n bound");
        let mut nodes = nodes_of(&text);
        let (yes, no) = ("t = Exp x", "t = Tanh x");
        let [yes, no] = [yes, no].map(|text| inner("", nodes_of(text), "t"));
        nodes.push(branches("c", yes, no, "y"));
        load(&of(vec![], vec![scalar("zero", 0), scalar("bound", with)], nodes))
    };
    assert_eq!(operators(&compared("GreaterOrEqual", 0).unwrap()), "exp");
    assert_eq!(operators(&compared("Less", -1).unwrap()), "tanh");
    // An empty batch is one, too.
    for (op, bound) in [("Greater", 0), ("Equal", 1), ("Equal", 0), ("Less", 8)] {
        assert!(refusal(compared(op, bound)).contains("depends on the batch size"), "{op} {bound}");
    }
}

#[test]
fn branches_that_compute_the_same_need_no_condition() {
    let go = || vec![typed("go", DataType::Bool, &["3"])];
    let of_branches = |yes: &str, no: &str| {
        let constant = |value: f32| {
            let value = AttributeProto {
                t: Some(floats("", &[4], &[value; 4])),
                r#type: Some(AttributeType::Tensor as i32),
                i: None,
                ..int("value", 0)
            };
            with(node("Constant", &[], &["k"]), value)
        };
        let branch = |text: &str| {
            let (value, text) = text.split_once(": ").unwrap();
            let nodes = [vec![constant(value.parse().unwrap())], nodes_of(text)].concat();
            inner("", nodes, "t")
        };
        let all = int("keepdims", 0);
        let mut nodes = vec![with(node("ReduceMin", &["whole"], &["c"]), all)];
        let whole = with(node("Cast", &["go"], &["whole"]), int("to", 6));
        let truth = with(node("Cast", &["c"], &["condition"]), int("to", 9));
        nodes.insert(0, whole);
        nodes.push(truth);
        nodes.push(branches("condition", branch(yes), branch(no), "y"));
        load(&of(go(), vec![], nodes))
    };
    let found = of_branches("2: u = Add x k; t = Relu u", "2: w = Add x k; t = Relu w").unwrap();
    assert_eq!(operators(&found), "add relu");
    let said = "node `the_y` (If): both branches compute the same";
    assert!(notes(&found).iter().any(|note| note.starts_with(said)), "{:?}", notes(&found));
    for no in [
        "3: w = Add x k; t = Relu w",
        "2: w = Add k x; t = Relu w",
        "2: w = Add x k; t = Neg w",
        "2: t = Relu x",
    ] {
        let error = refusal(of_branches("2: u = Add x k; t = Relu u", no));
        assert!(error.contains("its condition must be known"), "{no}: {error}");
    }
    let drawn = "0: t = RandomUniformLike x";
    assert!(refusal(of_branches(drawn, drawn)).contains("its condition must be known"));
}

/// A loop of `trips` over `a`, whose body is `nodes` with the results `outputs`.
fn looping(operands: &str, inputs: &str, nodes: Vec<NodeProto>, outputs: &str) -> NodeProto {
    let count = words(outputs).len() - 1;
    let results = ["y", "z", "w"];
    let node = node("Loop", &words(operands), &results[..count]);
    with(node, body("body", inner(inputs, nodes, outputs)))
}

#[test]
fn trips_become_nodes_whose_labels_number_them() {
    let weight = AttributeProto {
        t: Some(floats("", &[4, 4], &[0.5; 16])),
        r#type: Some(AttributeType::Tensor as i32),
        i: None,
        ..int("value", 0)
    };
    let mut nodes = vec![with(node("Constant", &[], &["k"]), weight)];
    nodes.extend(nodes_of("t = MatMul a k; b = Add t x"));
    let body = looping("three yes x", "i c a", nodes, "c b");
    let file = of(vec![], vec![scalar("three", 3), truth("yes")], vec![body]);
    let model = load(&file).unwrap();
    assert_eq!(operators(&model), "matmul add matmul add matmul add");
    // The constant of the body is one.
    let constants = model.graph.ids().filter_map(|n| model.graph.node(n).op());
    assert_eq!(constants.filter(|op| op.name() == "constant").count(), 1);
    let labels: Vec<&str> = model.graph.ids().map(|n| model.graph.node(n).label()).collect();
    for trip in 0..3 {
        assert!(labels.contains(&&*format!("the_y/{trip}/the_t")), "{labels:?}");
    }
}

#[test]
fn loops_end_by_their_condition_and_are_limited() {
    let counted = |most: &str, first: &str| {
        let nodes = nodes_of("n = Add i one; c = Less n bound; b = Relu a; r = Neg b");
        let node = looping(&format!("{most} {first} x"), "i h a", nodes, "c b r");
        let (one, bound) = (scalar("one", 1), scalar("bound", 3));
        let known = vec![one, bound, scalar("most", i64::MAX), truth("yes")];
        load(&model(graph(vec![value("x", &["N", "4"])], known, vec![node], &["y", "z"])))
    };
    for most in ["-", "most"] {
        let error = refusal(counted(most, "-"));
        assert!(error.contains("the standard ignores it, ONNX Runtime obeys it"), "{error}");
        // The condition ends it after 3 trips.
        assert_eq!(outputs(&counted(most, "yes").unwrap()), "f32[N,4] f32[3,N,4]");
    }
    let holds = |most: i64, condition: &str, nodes: &str| {
        let node = looping(&format!("most {condition} x"), "i h a", nodes_of(nodes), "h b r");
        load(&model(graph(
            vec![value("x", &["N", "4"]), typed("go", DataType::Bool, &[])],
            vec![scalar("most", most)],
            vec![node],
            &["y", "z"],
        )))
    };
    let found = holds(3, "-", "b = Relu a; r = Neg b").unwrap();
    assert_eq!(outputs(&found), "f32[N,4] f32[3,N,4]");
    // No trip gives nothing, of the type that one would give.
    assert_eq!(outputs(&holds(0, "-", "b = Relu a; r = Neg b").unwrap()), "f32[N,4] f32[0,N,4]");
    assert_eq!(outputs(&holds(-7, "-", "b = Relu a; r = Neg b").unwrap()), "f32[N,4] f32[0,N,4]");
    let error = refusal(holds(1 << 62, "-", "b = Relu a; r = Neg b"));
    let text = "4611686018427387904 trips of 4 nodes, more than 131072 nodes, is not";
    assert!(error.contains(text), "{error}");
    let error = refusal(holds(3, "go", "b = Relu a; r = Neg b"));
    assert!(error.contains("its condition must be known"), "{error}");
    assert!(error.contains("depends on input `go`"), "{error}");
}

#[test]
fn names_of_bodies_are_their_own() {
    // The inner body hides `t`, and takes `x` and `u` from around both.
    let deep = inner("", nodes_of("t = Neg u; v = Add t x"), "v");
    let also = inner("", nodes_of("v = Abs t"), "v");
    let mut nodes = nodes_of("t = Exp a; u = Tanh t");
    nodes.push(branches("h", deep, also, "b"));
    let node = looping("two - x", "i h a", nodes, "h b");
    let model = load(&of(vec![], vec![scalar("two", 2)], vec![node])).unwrap();
    assert_eq!(operators(&model), "exp tanh neg add exp tanh neg add");
    let labels: Vec<&str> = model.graph.ids().map(|n| model.graph.node(n).label()).collect();
    assert!(labels.contains(&"the_y/1/the_b/then/the_v"), "{labels:?}");
    let lost = inner("", nodes_of("v = Abs nothing"), "v");
    let nodes = vec![branches("h", lost.clone(), lost, "b")];
    let node = looping("two - x", "i h a", nodes, "h b");
    let error = refusal(load(&of(vec![], vec![scalar("two", 2)], vec![node])));
    assert_eq!(error, "node `the_y` uses `nothing`, which is not defined");
}

#[test]
fn scans_are_refused_along_the_batch() {
    let scanned = |axis: i64, version: i64| {
        let node = with(node("Scan", &["s", "x"], &["y", "z"]), int("num_scan_inputs", 1));
        let axes = AttributeProto {
            ints: vec![axis],
            r#type: Some(AttributeType::Ints as i32),
            ..int("scan_input_axes", 0)
        };
        let inside = inner("a b", nodes_of("c = Add a b; d = Neg c"), "c d");
        let node = with(with(node, axes), body("body", inside));
        let mut model = of(vec![value("s", &["N"])], vec![], vec![node]);
        model.opset_import[0].version = Some(version);
        load(&model)
    };
    assert_eq!(outputs(&scanned(1, 18).unwrap()), "f32[N]");
    let error = refusal(scanned(0, 18));
    assert!(error.contains("a scan along axis 0 of operand 1, whose size N depends"), "{error}");
    assert!(refusal(scanned(1, 8)).contains("Scan of operator set 8"));
}

#[test]
fn a_value_of_each_run_is_compiled_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, by_rate().encode_to_vec()).unwrap();
    let path = path.to_str().unwrap();
    let model = model::load(path, &LoadOptions::default()).unwrap();
    assert!(notes(&model).iter().any(|note| note.starts_with("input `sr` decides")));
    assert_eq!(model.open_sizes().count(), 0);
    let session = Session::builder(model).gpus(3).build().unwrap();
    let x = Tensor::new(&[5, 4], &[0.5f32; 20]).unwrap();
    let run = |rate: i64| {
        let found = session.run([("x", x.clone()), ("sr", Tensor::scalar(rate))]).unwrap();
        let options = LoadOptions {
            set: [("sr".to_owned(), Tensor::scalar(rate))].into(),
            ..LoadOptions::default()
        };
        let fixed = Session::new(model::load(path, &options).unwrap()).unwrap();
        assert_eq!(found["y"], fixed.run([("x", x.clone())]).unwrap()["y"], "{rate}");
        session.readied()
    };
    // The graph that stands in is that of 1.
    assert_eq!([16_000, 8000, 16_000, 1, 8000].map(run), [2, 3, 3, 3, 3]);
    let error = session.run([("x", x.clone())]).unwrap_err().to_string();
    assert!(error.contains("`sr`"), "{error}");
    let wrong = Tensor::new(&[1], &[16_000i64]).unwrap();
    assert!(session.run([("x", x), ("sr", wrong)]).is_err());
}

#[test]
fn a_value_that_says_a_size_is_taken_from_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    let mut nodes = nodes_of("m = Cast n; p = Concat one m; y = Tile x p");
    nodes[0] = with(nodes[0].clone(), int("to", DataType::Int64 as i64));
    nodes[1] = with(nodes[1].clone(), int("axis", 0));
    let file = of(vec![typed("n", DataType::Int32, &["1"])], vec![ints("one", &[1])], nodes);
    fs::write(&path, file.encode_to_vec()).unwrap();
    let model = model::load(path.to_str().unwrap(), &LoadOptions::default()).unwrap();
    let session = Session::builder(model).gpus(2).build().unwrap();
    let x = Tensor::zeros(DType::F32, &[3, 4]).unwrap();
    for times in [2i32, 5, 1] {
        let n = Tensor::new(&[1], &[times]).unwrap();
        let found = session.run([("x", x.clone()), ("n", n)]).unwrap();
        assert_eq!(found["y"].dims(), [3, 4 * usize::try_from(times).unwrap()]);
    }
    assert_eq!(session.readied(), 3);
}

#[test]
fn weights_of_branches_are_found_again_by_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let large = |first: f32| (0..100u8).map(|i| first + f32::from(i)).collect::<Vec<f32>>();
    let branch = |first: f32| {
        let weight = AttributeProto {
            t: Some(floats("", &[4, 25], &large(first))),
            r#type: Some(AttributeType::Tensor as i32),
            i: None,
            ..int("value", 0)
        };
        let mut nodes = vec![with(node("Constant", &[], &["w"]), weight)];
        nodes.extend(nodes_of("p = MatMul x w; t = MatMul p turned"));
        let turned = floats("turned", &[25, 4], &large(first + 0.5));
        GraphProto { initializer: vec![turned], ..inner("", nodes, "t") }
    };
    let mut nodes = nodes_of("c = Equal sr known");
    nodes.push(branches("c", branch(1.0), branch(2.0), "y"));
    let file = of(vec![rate()], vec![scalar("known", 16_000)], nodes);
    let (path, graph) = (folder.path().join("m.onnx"), folder.path().join("m.fan"));
    fs::write(&path, file.encode_to_vec()).unwrap();
    for rate in [16_000i64, 8000] {
        let options = LoadOptions {
            set: [("sr".to_owned(), Tensor::scalar(rate))].into(),
            ..LoadOptions::default()
        };
        let model = model::load(path.to_str().unwrap(), &options).unwrap();
        model::save(&graph, &model.graph, &model.weights, model::GraphForm::Text).unwrap();
        let again = model::load(graph.to_str().unwrap(), &LoadOptions::default()).unwrap();
        assert_eq!(again.weights.len(), 2);
        assert_eq!(again.graph, model.graph);
    }
}
