//! Which sizes of the inputs are the batch, and which numbers in the graph follow it.

use super::{
    Kind, Size, freed, graph, int, ints, load, load_with, model, node, nodes_of, notes, outputs,
    refusal, told, value, with, zeros,
};
use std::fs;

use fanwise::format::onnx::{BatchCandidate, ImportError, ImportOptions};
use fanwise::ir::Model;
use fanwise::model::{self, LoadOptions};
use prost::Message;
use support::proto::{ModelProto, NodeProto};

fn add(a: &[&str], b: &[&str]) -> ModelProto {
    let nodes = nodes_of("y = Add a b");
    model(graph(vec![value("a", a), value("b", b)], vec![], nodes, &["y"]))
}

#[test]
fn one_name_is_the_batch() {
    let model = load(&add(&["batch", "4"], &["batch", "4"])).unwrap();
    assert_eq!(outputs(&model), "f32[N,4]");
    assert!(model.notes.is_empty());
    let model = load(&add(&["batch", "4"], &["1", "4"])).unwrap();
    assert_eq!(outputs(&model), "f32[N,4]");
    let model = load(&add(&["2", "4"], &["1", "4"])).unwrap();
    assert_eq!(outputs(&model), "f32[2,4]");
    assert_eq!(notes(&model), ["no input carries a batch"]);
}

#[test]
fn names_that_the_graph_equates_are_one() {
    for (a, b) in [("p", "q"), ("?", "?"), ("p", "?")] {
        let model = load(&add(&[a, "4"], &[b, "4"])).unwrap();
        assert_eq!(outputs(&model), "f32[N,4]");
        assert_eq!(notes(&model), ["open sizes of `a`, `b` are one: the graph equates them"]);
    }
    // By way of a third input, and of multiples.
    let inputs = ["a", "b", "c"].map(|n| value(n, &[n, "4", "3"])).to_vec();
    let nodes = nodes_of(
        "a2 = Reshape a flat; b2 = Reshape b flat; ab = Add a2 b2; \
         c2 = Reshape c flat; y = Mul ab c2",
    );
    let model = model(graph(inputs, vec![ints("flat", &[-1, 3])], nodes, &["y"]));
    assert_eq!(outputs(&load(&model).unwrap()), "f32[4*N,3]");
}

/// The inputs and axes of each size that may be the batch.
fn candidates(error: &ImportError) -> Vec<Vec<String>> {
    let ImportError::Batches(candidates) = error else { panic!("{error}") };
    let sizes = |c: &BatchCandidate| {
        c.sizes.iter().map(|s| format!("{} {}", s.input, s.axis)).collect::<Vec<_>>()
    };
    candidates.iter().map(sizes).collect()
}

#[test]
fn sizes_behind_the_first_are_equated_too() {
    let model = load(&add(&["8", "p"], &["8", "q"])).unwrap();
    assert_eq!(outputs(&model), "f32[8,N]");
    assert_eq!(notes(&model), ["open sizes of `a`, `b` are one: the graph equates them"]);
    let model = load(&add(&["8", "p"], &["8", "p"])).unwrap();
    assert_eq!(notes(&model), ["the batch is `p`, axis 1 of input `a`"]);
    let model = load(&add(&["8", "?"], &["8", "1"])).unwrap();
    assert_eq!(notes(&model), ["the batch is axis 1 of input `a`"]);
    // Two names for the batch and two for the steps.
    let error = load(&add(&["b", "t", "4"], &["b2", "t2", "4"])).unwrap_err();
    assert_eq!(candidates(&error), [["a 0", "b 0"], ["a 1", "b 1"]]);
    let text = told(&error);
    let line = "\n  `t`, `t2`, axis 1 of input `a`, axis 1 of input `b`\n";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("`LoadOptions::batch_axis a=1 b=1`"), "{text}");
}

#[test]
fn equal_numbers_are_not_one_size() {
    let inputs = vec![value("a", &["3", "4"]), value("b", &["3", "5"])];
    let nodes = nodes_of("y = Relu a; z = Relu b");
    let towers = model(graph(inputs, vec![], nodes, &["y", "z"]));
    let error = load_with(&towers, &freed()).unwrap_err();
    assert_eq!(candidates(&error), [["a 0"], ["b 0"]]);
    let one = ImportOptions { batch_axis: [("a".to_owned(), 0)].into(), ..freed() };
    assert_eq!(outputs(&load_with(&towers, &one).unwrap()), "f32[N,4] f32[3,5]");
}

#[test]
fn names_that_nothing_equates_are_an_error() {
    let inputs = vec![value("a", &["p", "4"]), value("b", &["q", "4"])];
    let nodes = nodes_of("y = Relu a; z = Relu b");
    let towers = model(graph(inputs, vec![], nodes, &["y", "z"]));
    let error = load(&towers).unwrap_err();
    assert_eq!(candidates(&error), [["a 0"], ["b 0"]]);
    let declared = |axes: &[(&str, usize)]| ImportOptions {
        batch_axis: axes.iter().map(|(n, a)| ((*n).to_owned(), *a)).collect(),
        ..ImportOptions::default()
    };
    let both = load_with(&towers, &declared(&[("a", 0), ("b", 0)])).unwrap();
    assert_eq!(outputs(&both), "f32[N,4] f32[N,4]");
    let error = refusal(load_with(&towers, &declared(&[("a", 0)])));
    assert!(error.contains("`LoadOptions::dims q=128`"), "{error}");
    let mut one = declared(&[("a", 0)]);
    one.dims.insert("q".to_owned(), 3);
    assert_eq!(outputs(&load_with(&towers, &one).unwrap()), "f32[N,4] f32[3,4]");
}

#[test]
fn an_error_of_the_graph_is_not_hidden_by_the_search_for_the_batch() {
    let inputs = vec![value("a", &["p", "4"]), value("b", &["q", "5"])];
    let nodes = nodes_of("y = Add a b");
    let error = refusal(load(&model(graph(inputs, vec![], nodes, &["y"]))));
    assert!(error.contains("4 is not 5"), "{error}");
}

#[test]
fn the_batch_axis_may_be_another() {
    let inputs = vec![value("x", &["8", "batch", "4"]), value("h", &["batch", "4"])];
    let nodes = nodes_of("y = Add x h");
    let model = model(graph(inputs, vec![], nodes, &["y"]));
    // Equal names are equal sizes wherever they stand.
    assert_eq!(outputs(&load(&model).unwrap()), "f32[8,N,4]");
    let axis = |name: &str, axis| ImportOptions {
        batch_axis: [(name.to_owned(), axis)].into(),
        ..ImportOptions::default()
    };
    assert_eq!(outputs(&load_with(&model, &axis("x", 1)).unwrap()), "f32[8,N,4]");
    for (options, reason) in [
        (axis("x", 0), "axis 0 has the fixed size 8\n  = help: "),
        (axis("x", 3), "it has no axis 3"),
        (axis("z", 0), "the batch axis of `z`: there is no such input; the inputs are `x`, `h`"),
    ] {
        let error = refusal(load_with(&model, &options));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn other_sizes_are_bound_or_refused_all_at_once() {
    let inputs = vec![value("x", &["batch", "seq", "?"]), value("m", &["batch", "heads", "seq"])];
    let nodes = nodes_of("y = Relu x");
    let model = model(graph(inputs, vec![], nodes, &["y"]));
    // Without a word each of them may be the batch.
    let error = load(&model).unwrap_err();
    let found = [&["x 0", "m 0"][..], &["x 1", "m 2"], &["x 2"], &["m 1"]];
    assert_eq!(candidates(&error), found);
    let declared =
        ImportOptions { batch_axis: [("x".to_owned(), 0)].into(), ..ImportOptions::default() };
    let error = load_with(&model, &declared).unwrap_err();
    let ImportError::UnboundDims(dims) = &error else { panic!("{error}") };
    let names: Vec<&str> = dims.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["seq", "x[2]", "heads"]);
    let bind = |dims: &[(&str, i64)]| ImportOptions {
        dims: dims.iter().map(|(n, d)| ((*n).to_owned(), *d)).collect(),
        ..ImportOptions::default()
    };
    let bound = bind(&[("seq", 128), ("x[2]", 64), ("heads", 8)]);
    assert_eq!(outputs(&load_with(&model, &bound).unwrap()), "f32[N,128,64]");
    let error = refusal(load_with(&model, &bind(&[("sequence", 1)])));
    assert_eq!(error, "the size `sequence`: no input has a size of this name");
    let error = refusal(load_with(&model, &bind(&[("seq", -1), ("x[2]", 1), ("heads", 1)])));
    assert!(error.contains("at least 0"), "{error}");
    let error = refusal(load_with(&model, &bind(&[("seq", i64::MAX), ("x[2]", 1), ("heads", 1)])));
    assert!(error.contains("too large"), "{error}");
}

/// A convolution of an image of batch `size` and a reshape of its result to `target`.
fn classifier(size: &str, target: &[i64]) -> ModelProto {
    let nodes = nodes_of("c = Conv x w; flat = Reshape c target; y = MatMul flat m");
    let tensors = vec![zeros("w", &[2, 3, 1, 1]), ints("target", target), zeros("m", &[32, 5])];
    model(graph(vec![value("x", &[size, "3", "4", "4"])], tensors, nodes, &["y"]))
}

#[test]
fn a_batch_that_was_baked_in_is_freed() {
    for (size, target) in
        [("1", [1, 32]), ("1", [1, -1]), ("1", [-1, 32]), ("1", [0, -1]), ("4", [4, 32])]
    {
        let baked = classifier(size, &target);
        assert_eq!(outputs(&load(&baked).unwrap()), format!("f32[{size},5]"));
        let model = load_with(&baked, &freed()).unwrap();
        assert_eq!(outputs(&model), "f32[N,5]", "{target:?}");
        assert_eq!(notes(&model), [format!("the size {size} of `x` was freed: it is the batch")]);
    }
    let error = refusal(load_with(&classifier("0", &[0, 32]), &freed()));
    assert!(error.contains("0, which cannot be freed"), "{error}");
    let open = load_with(&classifier("batch", &[-1, 32]), &freed()).unwrap();
    assert_eq!(
        notes(&open),
        ["`LoadOptions::free_batch` has no effect: the batch is symbolic already"]
    );
}

/// Imports `nodes` over `x: f32[1,2,8]` with its batch freed.
fn baked(nodes: Vec<NodeProto>, constants: &[(&str, &[i64])]) -> Result<String, String> {
    let tensors = constants.iter().map(|(name, data)| ints(name, data)).collect();
    let model = model(graph(vec![value("x", &["1", "2", "8"])], tensors, nodes, &["y"]));
    load(&model).unwrap_or_else(|e| panic!("as it is: {e}"));
    load_with(&model, &freed()).map(|m| outputs(&m)).map_err(|e| e.to_string())
}

#[test]
fn numbers_that_may_stand_for_the_batch_are_refused_by_their_place() {
    let reshape = || nodes_of("y = Reshape x c");
    let error = baked(reshape(), &[("c", &[1, 1, 2, 8])]).unwrap_err();
    let place =
        "node `the_y` (Reshape): the target [1,1,2,8] cannot become symbolic: entries 0 and 1";
    assert!(error.starts_with(place), "{error}");
    let error = baked(reshape(), &[("c", &[16])]).unwrap_err();
    assert!(error.contains("no entry holds the rows of axis 0 of [N,2,8]"), "{error}");
    let nodes = nodes_of("y = Gather x c");
    let error = baked(nodes, &[("c", &[0])]).unwrap_err();
    assert!(error.contains("the positions on axis 0 cannot become symbolic"), "{error}");
    let slice = |axis: i64| {
        let nodes = nodes_of("y = Slice x from to axis");
        baked(nodes, &[("from", &[0]), ("to", &[1]), ("axis", &[axis])])
    };
    assert!(slice(0).unwrap_err().contains("the range 0..1 by 1 of axis 0"));
    assert_eq!(slice(1).as_deref(), Ok("f32[N,1,8]"));
    let nodes = nodes_of("y = Squeeze x");
    let error = baked(nodes, &[]).unwrap_err();
    assert!(error.contains("a squeeze without axes"), "{error}");
    let nodes = nodes_of("y = Squeeze x c");
    let error = baked(nodes, &[("c", &[0])]).unwrap_err();
    assert!(error.contains("a number in the graph stands for the batch"), "{error}");
}

#[test]
fn sizes_that_are_read_from_the_input_follow_it() {
    let nodes = vec![
        node("Shape", &["x"], &["sizes"]),
        with(node("Gather", &["sizes", "zero"], &["rows"]), int("axis", 0)),
        with(node("Concat", &["rows", "rest"], &["target"]), int("axis", 0)),
        node("Reshape", &["x", "target"], &["y"]),
    ];
    let found = baked(nodes, &[("zero", &[0]), ("rest", &[-1])]);
    assert_eq!(found.as_deref(), Ok("f32[N,16]"));
}

#[test]
fn types_that_no_longer_agree_are_refused() {
    // A state of the file's own batch size is joined to the rows.
    let nodes = vec![
        node("ConstantOfShape", &["c"], &["state"]),
        with(node("Concat", &["x", "state"], &["y"]), int("axis", 1)),
    ];
    let error = baked(nodes, &[("c", &[1, 3, 8])]).unwrap_err();
    assert!(error.starts_with("node `the_y` (Concat): "), "{error}");
    assert!(error.contains("a number in the graph stands for the batch"), "{error}");
}

#[test]
fn every_input_of_the_same_leading_size_is_freed() {
    let model = load_with(&add(&["3", "4"], &["3", "4"]), &freed()).unwrap();
    assert_eq!(outputs(&model), "f32[N,4]");
    let model = load_with(&add(&["3", "4"], &["4"]), &freed()).unwrap();
    assert_eq!(outputs(&model), "f32[N,4]");
    let options = ImportOptions { batch_axis: [("a".to_owned(), 1)].into(), ..freed() };
    let model = load_with(&add(&["3", "4"], &["3", "1"]), &options).unwrap();
    assert_eq!(outputs(&model), "f32[3,N]");
}

#[test]
fn entries_that_small_batches_have_not_are_taken() {
    let top = |axis| {
        let nodes = vec![with(node("TopK", &["x", "k"], &["y", "i"]), int("axis", axis))];
        model(graph(vec![value("x", &["batch", "4"])], vec![ints("k", &[5])], nodes, &["y", "i"]))
    };
    assert_eq!(outputs(&load(&top(0)).unwrap()), "f32[5,4] i64[5,4]");
    let error = refusal(load(&top(1)));
    assert!(error.contains("5 is more than the 4 entries of axis 1"), "{error}");
}

#[test]
fn what_exporters_write_for_no_name_is_none() {
    for name in ["?", "-1", "None", " "] {
        let mut x = value("x", &["p", "p"]);
        let Some(Kind::TensorType(tensor)) = x.r#type.as_mut().and_then(|t| t.value.as_mut())
        else {
            panic!("a tensor");
        };
        for dim in &mut tensor.shape.as_mut().unwrap().dim {
            dim.value = Some(Size::DimParam(name.to_owned()));
        }
        let model = model(graph(vec![x], vec![], nodes_of("y = Relu x"), &["y"]));
        assert_eq!(candidates(&load(&model).unwrap_err()), [["x 0"], ["x 1"]], "{name}");
        let one =
            ImportOptions { dims: [("x[1]".to_owned(), 4)].into(), ..ImportOptions::default() };
        assert_eq!(outputs(&load_with(&model, &one).unwrap()), "f32[N,4]");
    }
}

/// The model as it is loaded without options, which frees its batch where that is proved.
fn loaded(proto: &ModelProto) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.onnx");
    fs::write(&path, proto.encode_to_vec()).unwrap();
    model::load(path.to_str().unwrap(), &LoadOptions::default()).unwrap()
}

#[test]
fn a_constant_batch_is_freed_where_the_flow_proves_it() {
    let model = loaded(&add(&["2", "4"], &["1", "4"]));
    assert_eq!(outputs(&model), "f32[N,4]");
    assert_eq!(notes(&model), ["the size 2 of `a` was freed: it is the batch"]);
    // The target of the reshape may stand for another number.
    let inputs = vec![value("x", &["1", "1000"])];
    let nodes = nodes_of("y = Reshape x shape");
    let fixed = super::model(graph(inputs, vec![ints("shape", &[1000])], nodes, &["y"]));
    let model = loaded(&fixed);
    assert_eq!(outputs(&model), "f32[1000]");
    assert_eq!(notes(&model), ["no input carries a batch"]);
    assert!(load_with(&fixed, &freed()).is_err());
    // A size that is open already is the batch.
    let model = loaded(&add(&["batch", "4"], &["batch", "4"]));
    assert!(model.notes.is_empty());
}

#[test]
fn a_state_has_the_batch_on_another_axis() {
    let inputs = vec![value("x", &["1", "1", "8"]), value("h", &["2", "1", "8"])];
    let nodes = nodes_of("first = Gather h zero; rows = Reshape x flat; y = Add rows first");
    let zero = vec![ints("zero", &[0]), ints("flat", &[1, 8])];
    let file = model(graph(inputs, zero, nodes, &["y"]));
    for model in [load_with(&file, &freed()).unwrap(), loaded(&file)] {
        assert_eq!(outputs(&model), "f32[1,N,8]");
        let types: Vec<String> =
            model.graph.inputs().map(|v| model.graph.ty(v).to_string()).collect();
        assert_eq!(types, ["f32[N,1,8]", "f32[2,N,8]"]);
        assert_eq!(notes(&model), ["the size 1 of `x`, `h` was freed: it is the batch"]);
    }
}
