//! Operators of other frameworks are taken as the file declares them.

use std::collections::BTreeMap;

use super::functions::function;
use super::{
    float, floats, freed, graph, int, load, load_with, model, node, nodes_of, opset, outputs,
    refusal, typed, value, with,
};
use fanwise::format::onnx::{ImportError, ImportOptions};
use fanwise::ir::Model;
use fanwise::ir::Value;
use fanwise::op::{Assume, External, Op};
use fanwise::types::Tensor;
use support::proto::attribute_proto::AttributeType;
use support::proto::tensor_proto::DataType;
use support::proto::{AttributeProto, ModelProto, NodeProto, ValueInfoProto};

/// A node of an operator that is not known.
pub(super) fn gate(inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("com.acme".to_owned()), ..node("Gate", inputs, outputs) }
}

/// A model of these nodes, with declared types of some values inside it.
fn foreign(
    inputs: &[ValueInfoProto],
    nodes: Vec<NodeProto>,
    declared: Vec<ValueInfoProto>,
) -> ModelProto {
    let mut graph = graph(inputs.to_vec(), vec![], nodes, &["y"]);
    graph.value_info = declared;
    let mut model = model(graph);
    model.opset_import.push(opset("com.acme", 1));
    model
}

fn assuming(text: &str) -> BTreeMap<String, Assume> {
    let assume = |one: &str| {
        let (name, value) = one.split_once('=').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    text.split_whitespace().map(assume).collect()
}

fn options(text: &str) -> ImportOptions {
    ImportOptions { assume: assuming(text), ..ImportOptions::default() }
}

fn read(model: &ModelProto, text: &str) -> Result<Model, ImportError> {
    load_with(model, &options(text))
}

/// The foreign operators of a model, in order.
fn found(model: &Model) -> Vec<External> {
    let order = model.graph.order().unwrap();
    let ops = order.into_iter().filter_map(|n| model.graph.node(n).op());
    ops.filter_map(|op| if let Op::External(op) = op { Some(op.clone()) } else { None }).collect()
}

fn x() -> ValueInfoProto {
    value("x", &["batch", "4"])
}

fn relu_after_gate() -> Vec<NodeProto> {
    vec![gate(&["x"], &["g"]), node("Relu", &["g"], &["y"])]
}

#[test]
fn types_are_those_that_the_file_declares() {
    let model = foreign(&[x()], relu_after_gate(), vec![value("g", &["batch", "7"])]);
    let read_as = |text| found(&read(&model, text).unwrap()).remove(0);
    let one = read_as("com.acme.Gate=rowwise(0)");
    assert_eq!((one.op.as_str(), one.assume), ("com.acme.Gate", Assume::Rowwise(0)));
    assert_eq!((one.results.to_string().as_str(), &one.attrs), ("f32[N,7]", &None));
    assert_eq!(read_as("com.acme.Gate=none").assume, Assume::None);
    let text = refusal(load(&model));
    assert!(text.contains("com.acme::Gate: node `the_g`"), "{text}");
    assert!(text.contains("(`LoadOptions::assume com.acme.Gate=rowwise(0)`)"), "{text}");

    let mut outputs_only = foreign(&[x()], vec![gate(&["x"], &["y"])], vec![]);
    let output = typed("y", DataType::Int64, &["batch"]);
    outputs_only.graph.as_mut().unwrap().output = vec![output];
    let model = read(&outputs_only, "com.acme.Gate=rowwise(0)").unwrap();
    assert_eq!(outputs(&model), "i64[N]");
    // An operator of ONNX's own that is not known.
    let unknown = nodes_of("y = NewOp x");
    let model = foreign(&[x()], unknown, vec![value("y", &["batch"])]);
    assert_eq!(found(&read(&model, "NewOp=rowwise(0)").unwrap())[0].op, "NewOp");
}

#[test]
fn open_sizes_follow_from_the_assumption_or_are_refused() {
    let with_sizes = |sizes: &[&str]| foreign(&[x()], relu_after_gate(), vec![value("g", sizes)]);
    let row = |sizes: &[&str]| read(&with_sizes(sizes), "com.acme.Gate=rowwise(0)");
    assert_eq!(outputs(&row(&["?", "3"]).unwrap()), "f32[N,3]");
    assert_eq!(outputs(&row(&["other", "3"]).unwrap()), "f32[N,3]");
    let text = refusal(row(&["batch", "?"]));
    assert!(text.contains("the type of its result `g` is not known"), "{text}");
    assert!(text.contains("leaves the size of axis 1 open"), "{text}");
    let text = refusal(row(&["4", "3"]));
    assert!(text.contains("the rows of the operands and axis 0 of result 0: N is not 4"), "{text}");
    let text = refusal(read(&with_sizes(&["?", "3"]), "com.acme.Gate=none"));
    assert!(text.contains("leaves the size of axis 0 open"), "{text}");
    let text = refusal(read(&foreign(&[x()], relu_after_gate(), vec![]), "com.acme.Gate=none"));
    assert!(
        text.contains("`g` is not known: the file does not declare it (`value_info`)"),
        "{text}"
    );
    let shapeless = ValueInfoProto { r#type: None, ..value("g", &[]) };
    let model = foreign(&[x()], relu_after_gate(), vec![shapeless, ValueInfoProto::default()]);
    let text = refusal(read(&model, "com.acme.Gate=none"));
    assert!(text.contains("the file does not declare its type"), "{text}");
    // A size that the command line binds is bound here too.
    let inputs = [value("x", &["batch", "width"])];
    let model = foreign(&inputs, relu_after_gate(), vec![value("g", &["batch", "width"])]);
    let bound = ImportOptions {
        dims: [("width".to_owned(), 6)].into(),
        ..options("com.acme.Gate=rowwise(0)")
    };
    assert_eq!(outputs(&load_with(&model, &bound).unwrap()), "f32[N,6]");
}

#[test]
fn rows_of_two_operands_are_one_batch() {
    let inputs = [value("a", &["n", "4"]), value("b", &["m", "4"])];
    let nodes = vec![gate(&["a", "b"], &["y"])];
    let model = foreign(&inputs, nodes.clone(), vec![value("y", &["m", "2"])]);
    assert_eq!(outputs(&read(&model, "com.acme.Gate=rowwise(0)").unwrap()), "f32[N,2]");
    assert!(matches!(read(&model, "com.acme.Gate=none"), Err(ImportError::Batches(_))));
    let inputs = [value("x", &["batch", "4"]), value("w", &["3", "4"])];
    let nodes = vec![gate(&["x", "w"], &["y"])];
    let model = foreign(&inputs, nodes, vec![value("y", &["?", "2"])]);
    assert_eq!(outputs(&read(&model, "com.acme.Gate=rowwise(0)").unwrap()), "f32[N,2]");
}

#[test]
fn a_freed_batch_is_told_from_other_sizes() {
    let load = |sizes: &[&str], text| {
        let inputs = [value("x", &["8", "4"])];
        let model = foreign(&inputs, relu_after_gate(), vec![value("g", sizes)]);
        load_with(&model, &ImportOptions { assume: assuming(text), ..freed() })
    };
    assert_eq!(outputs(&load(&["8", "5"], "com.acme.Gate=rowwise(0)").unwrap()), "f32[N,5]");
    for (sizes, text) in
        [(["8", "8"], "com.acme.Gate=rowwise(0)"), (["8", "5"], "com.acme.Gate=none")]
    {
        let text = refusal(load(&sizes, text));
        assert!(text.contains("cannot become symbolic: it may be the batch"), "{text}");
    }
}

#[test]
fn attributes_are_kept_as_text() {
    let string = |name: &str, s: &str| AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(AttributeType::String as i32),
        s: Some(s.as_bytes().to_vec().into()),
        ..AttributeProto::default()
    };
    let table = AttributeProto {
        name: Some("table".to_owned()),
        r#type: Some(AttributeType::Tensor as i32),
        t: Some(floats("", &[2], &[1.0, -0.5])),
        ..AttributeProto::default()
    };
    let other = AttributeProto {
        t: Some(floats("", &[1], &[7.0])),
        name: Some("also".to_owned()),
        ..table.clone()
    };
    let full = [string("mode", "A b"), float("alpha", 0.1), int("k", -3), table, other];
    let node = full.into_iter().fold(gate(&["x"], &["y"]), with);
    let declared = vec![value("y", &["batch"])];
    let model = foreign(&[x()], vec![node.clone()], declared.clone());
    let model = read(&model, "com.acme.Gate=rowwise(0)").unwrap();
    let text = "alpha=0.1, also=f32[1] [7.0], k=-3, mode=\"A b\", table=f32[2] [1.0, -0.5]";
    assert_eq!(found(&model)[0].attrs.as_deref(), Some(text));
    for (attribute, reason) in [
        (int("k", 1), "attribute `k` is given twice"),
        (AttributeProto { r#type: None, ..int("old", 1) }, "attribute `old` is of a kind"),
    ] {
        let model = foreign(&[x()], vec![with(node.clone(), attribute)], declared.clone());
        let text = refusal(read(&model, "com.acme.Gate=rowwise(0)"));
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn assumptions_that_are_of_no_use_are_refused() {
    let model = foreign(&[x()], relu_after_gate(), vec![value("g", &["batch", "7"])]);
    let text = refusal(read(&model, "com.acme.Gate=none com.acme.Gates=none"));
    assert!(
        text.contains("the split rule of `com.acme.Gates`: the model has no such operator"),
        "{text}"
    );
    let text = refusal(read(&model, "com.acme.Gate=none Relu=rowwise(0)"));
    assert!(text.contains("the split rule of `Relu`: the operator is known"), "{text}");
    // A graph in an attribute is not carried over.
    let body = AttributeProto {
        name: Some("body".to_owned()),
        r#type: Some(AttributeType::Graph as i32),
        g: Some(graph(vec![], vec![], vec![], &[])),
        ..AttributeProto::default()
    };
    let model = foreign(&[x()], vec![with(gate(&["x"], &["y"]), body)], vec![]);
    assert!(refusal(read(&model, "com.acme.Gate=none")).contains("not supported"));
}

#[test]
fn operators_inside_functions_have_types_where_the_body_declares_them() {
    let inner = vec![gate(&["a"], &["b"])];
    let mut call = node("Layer", &["x"], &["y"]);
    call.domain = Some("own".to_owned());
    let mut model = foreign(&[x()], vec![call], vec![value("y", &["batch", "2"])]);
    model.opset_import.push(opset("own", 1));
    model.functions = vec![function("Layer", &["a"], &["b"], inner)];
    assert_eq!(outputs(&read(&model, "com.acme.Gate=rowwise(0)").unwrap()), "f32[N,2]");
    let inner = vec![gate(&["a"], &["t"]), node("Relu", &["t"], &["b"])];
    model.functions = vec![function("Layer", &["a"], &["b"], inner)];
    let text = refusal(read(&model, "com.acme.Gate=rowwise(0)"));
    assert!(text.contains("the file does not declare it"), "{text}");
}

#[test]
fn callbacks_are_given_after_the_import() {
    let model = foreign(&[x()], relu_after_gate(), vec![value("g", &["batch", "4"])]);
    let mut graph = read(&model, "com.acme.Gate=rowwise(0)").unwrap().graph;
    let ids: Vec<_> = graph.ids().collect();
    for id in ids {
        let node = graph.node(id);
        let Some(Op::External(op)) = node.op().cloned() else { continue };
        let (place, origin) = (node.place(), node.origin().clone());
        let names: Vec<_> = node.results().iter().map(|r| r.name.clone()).collect();
        let op = op.calling(|operands| Ok(vec![operands[0].clone()]));
        let operands = graph.operands(id);
        let new = graph.add(op.into(), &operands, &names, place, origin).unwrap();
        for output in (0u32..).take(names.len()) {
            graph.replace(Value { node: id, output }, Value { node: new, output }).unwrap();
        }
    }
    graph.remove_unused();
    let ops: Vec<&Op> = graph.ids().filter_map(|n| graph.node(n).op()).collect();
    let external = ops.into_iter().find(|op| matches!(op, Op::External(_))).unwrap();
    let mut external = external.clone();
    external.at_rows(&1.into());
    let x = Tensor::zeros(fanwise::types::DType::F32, &[1, 4]).unwrap();
    assert_eq!(external.eval(&[&x]).unwrap(), [x]);
}
