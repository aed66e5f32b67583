//! The cases of the package `onnx`: each is a small model, its inputs and what they give.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use fanwise::format::FileError;
use fanwise::format::onnx::{ImportError, ImportOptions, NodeError, import_bytes};
use fanwise::ir::Model;
use fanwise::ir::NodeKind;
use fanwise::types::{DType, Tensor};
use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::proto::{GraphProto, ModelProto, OperatorSetIdProto, TensorProto};
use support::proto::{TypeProto, ValueInfoProto};
use support::snap;

/// The folder of the data that the package brings.
pub(crate) fn data() -> PathBuf {
    std::env::var_os("FANWISE_ONNX_DATA").expect("run `cargo xtask test`").into()
}

/// What became of a case.
enum Outcome {
    Passed,
    /// Refused, with the reason.
    Refused(String),
    /// Imported, but the values differ or could not be computed.
    Wrong(String),
}

/// Computes the outputs of a model whose sizes are all constants by the reference evaluations.
pub(crate) fn evaluate(model: &Model, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let graph = &model.graph;
    let mut inputs = inputs.iter();
    let mut results: BTreeMap<_, Vec<Tensor>> = BTreeMap::new();
    for value in graph.inputs() {
        let given = inputs.next().ok_or("too few inputs")?;
        let (ty, found) = (graph.ty(value), given.tensor_type());
        if *ty != found {
            return Err(format!("input {} is {found}, not {ty}", graph.info(value).name));
        }
        results.insert(value.node, vec![given.clone()]);
    }
    for id in graph.order().map_err(|e| e.to_string())? {
        let node = graph.node(id);
        let made = match node.kind() {
            NodeKind::Input => continue,
            NodeKind::Param(param) => {
                let name = &graph.param(*param).name;
                vec![model.weights.get(name).ok_or("a parameter is missing")?.clone()]
            }
            NodeKind::Op(op) => {
                let operands = graph.operands(id);
                let operands: Vec<&Tensor> =
                    operands.iter().map(|v| &results[&v.node][v.output as usize]).collect();
                op.eval(&operands).map_err(|e| format!("{}: {e}", op.name()))?
            }
        };
        for (info, tensor) in node.results().iter().zip(&made) {
            if info.ty != tensor.tensor_type() {
                return Err(format!(
                    "`{}` is {}, not {}",
                    info.name,
                    tensor.tensor_type(),
                    info.ty
                ));
            }
        }
        results.insert(id, made);
    }
    let outputs = graph.outputs().iter();
    Ok(outputs.map(|o| results[&o.value.node][o.value.output as usize].clone()).collect())
}

/// The model whose output is the tensor of a `.pb` file, under the tensor's own name.
fn tensor_model(bytes: Vec<u8>) -> Result<ModelProto, String> {
    let mut tensor = TensorProto::decode(bytes::Bytes::from(bytes)).map_err(|e| e.to_string())?;
    tensor.name = Some("t".to_owned());
    let output = ValueInfoProto { name: Some("t".to_owned()), ..ValueInfoProto::default() };
    let graph =
        GraphProto { initializer: vec![tensor], output: vec![output], ..GraphProto::default() };
    let opset = OperatorSetIdProto { domain: None, version: Some(13) };
    Ok(ModelProto { graph: Some(graph), opset_import: vec![opset], ..ModelProto::default() })
}

/// Reads the tensors `input_0.pb`, … of a data set.
fn tensors(folder: &Path, kind: &str) -> Result<Vec<(Tensor, TensorProto)>, String> {
    let mut found = Vec::new();
    while let Ok(bytes) = fs::read(folder.join(format!("{kind}_{}.pb", found.len()))) {
        let model = tensor_model(bytes)?;
        let proto = model.graph.as_ref().map(|g| g.initializer[0].clone()).unwrap_or_default();
        let model = import_bytes(model.encode_to_vec().into(), "t", &ImportOptions::default());
        let values = evaluate(&model.map_err(|e| e.to_string())?, &[])?;
        found.push((values[0].clone(), proto));
    }
    Ok(found)
}

/// Makes the input `name` an initializer with these elements: its values are known before the run
/// then.
fn make_known(model: &mut ModelProto, name: &str, tensor: &TensorProto) {
    let graph = model.graph.as_mut().unwrap();
    graph.input.retain(|i| i.name() != name);
    graph.initializer.push(TensorProto { name: Some(name.to_owned()), ..tensor.clone() });
}

/// The inputs whose values have to be known.
fn needed(error: &ImportError) -> Vec<String> {
    let ImportError::Node { error, .. } = error else { return Vec::new() };
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others need none")]
    match error {
        NodeError::NotKnown { value, inputs, .. } if inputs.is_empty() => vec![value.clone()],
        NodeError::NotKnown { inputs, .. } | NodeError::Undecided { inputs, .. } => inputs.clone(),
        _ => Vec::new(),
    }
}

/// A reason without the names and numbers of the case.
fn category(error: &ImportError) -> String {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others name no part of the case")]
    match error {
        ImportError::Unsupported(ops) => {
            let ops: Vec<&str> = ops.iter().map(|o| o.op.as_str()).collect();
            format!("operators {}", ops.join(" "))
        }
        ImportError::Node { op, error: NodeError::NotKnown { operand, .. }, .. } => {
            format!("{op}: operand {operand} is not known before the run")
        }
        ImportError::Node { op, error, .. } => format!("{op}: {error}"),
        ImportError::Input { reason, .. } => format!("input: {reason}"),
        ImportError::Opset { version, .. } => format!("opset {version}"),
        ImportError::File(FileError::Read { .. }) => "file".to_owned(),
        other => other.to_string(),
    }
}

/// Cases whose expected values are written with four digits.
const FOUR_DIGITS: [&str; 1] = ["test_averagepool_2d_ceil_last_window_starts_on_pad"];

/// Compares by `max |a - b| <= tolerance * max |b|`, where `b` is expected and finite; without a
/// tolerance by the one of the element type.
pub(crate) fn agree(
    found: &Tensor,
    expected: &Tensor,
    tolerance: Option<f64>,
) -> Result<(), String> {
    if found.tensor_type() != expected.tensor_type() {
        let (found, expected) = (found.tensor_type(), expected.tensor_type());
        return Err(format!("{found} where {expected} is expected"));
    }
    let tolerances =
        [(DType::F64, 1e-7), (DType::F32, 1e-5), (DType::F16, 2e-3), (DType::Bf16, 1e-2)];
    let own = tolerances.iter().find(|(dtype, _)| *dtype == found.dtype());
    let tolerance = tolerance.unwrap_or(own.map_or(0.0, |(_, t)| *t));
    let (a, b) = (found.to_f64(), expected.to_f64());
    let finite = |x: &&f64| x.is_finite();
    let scale = b.iter().filter(finite).fold(0.0f64, |m, x| m.max(x.abs()));
    let close = |(x, y): (&f64, &f64)| {
        let same = x.partial_cmp(y) == Some(std::cmp::Ordering::Equal);
        same || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * scale
    };
    match a.iter().zip(&b).position(|pair| !close(pair)) {
        None => Ok(()),
        Some(i) => Err(format!("element {i} is {}, not {}", a[i], b[i])),
    }
}

fn run_case(folder: &Path) -> Outcome {
    let bytes = fs::read(folder.join("model.onnx")).unwrap();
    let data = folder.join("test_data_set_0");
    let inputs = match tensors(&data, "input") {
        Ok(inputs) => inputs,
        Err(reason) => return Outcome::Refused(format!("data: {reason}")),
    };
    let mut proto = ModelProto::decode(bytes.as_slice()).unwrap();
    let mut given: Vec<(String, Tensor)> = Vec::new();
    if let Some(graph) = &proto.graph {
        let names = graph.input.iter().map(|i| i.name().to_owned());
        given = names.zip(inputs.iter().map(|(t, _)| t.clone())).collect();
    }
    let protos: BTreeMap<String, TensorProto> =
        given.iter().map(|(n, _)| n.clone()).zip(inputs.into_iter().map(|(_, p)| p)).collect();
    // The sizes that some cases leave open are those of the data.
    let mut options = ImportOptions::default();
    let model = loop {
        let imported = import_bytes(proto.encode_to_vec().into(), "case", &options);
        match imported {
            Ok(model) => break model,
            Err(ref error) if needed(error).iter().any(|name| protos.contains_key(name)) => {
                for name in needed(error) {
                    make_known(&mut proto, &name, &protos[&name]);
                    given.retain(|(n, _)| *n != name);
                }
            }
            Err(error @ (ImportError::UnboundDims(_) | ImportError::Batches(_)))
                if options.dims.is_empty() =>
            {
                bind(&proto, &given, &mut options);
                if options.dims.is_empty() {
                    return Outcome::Refused(category(&error));
                }
            }
            Err(error) => return Outcome::Refused(category(&error)),
        }
    };
    let inputs: Vec<Tensor> = given.into_iter().map(|(_, t)| t).collect();
    check(&model, &inputs, &data)
}

/// Binds every size that the file leaves open to that of the data.
fn bind(proto: &ModelProto, given: &[(String, Tensor)], options: &mut ImportOptions) {
    use support::proto::tensor_shape_proto::dimension::Value as Size;
    use support::proto::type_proto::Value as Kind;
    let inputs = proto.graph.iter().flat_map(|g| &g.input);
    for (info, (name, tensor)) in inputs.zip(given) {
        let Some(TypeProto { value: Some(Kind::TensorType(ty)), .. }) = &info.r#type else {
            continue;
        };
        let dims = ty.shape.iter().flat_map(|s| &s.dim).zip(tensor.dims());
        for (axis, (dim, size)) in dims.enumerate() {
            let key = match &dim.value {
                Some(Size::DimParam(param)) => param.clone(),
                Some(Size::DimValue(_)) => continue,
                None => format!("{name}[{axis}]"),
            };
            options.dims.insert(key, i64::try_from(*size).unwrap());
        }
    }
}

fn check(model: &Model, inputs: &[Tensor], data: &Path) -> Outcome {
    let case = data.parent().and_then(Path::file_name).unwrap_or_default();
    let tolerance = FOUR_DIGITS.iter().any(|name| case == *name).then_some(1e-3);
    let expected = match tensors(data, "output") {
        Ok(expected) => expected,
        Err(reason) => return Outcome::Refused(format!("data: {reason}")),
    };
    let found = match evaluate(model, inputs) {
        Ok(found) => found,
        Err(reason) => return Outcome::Wrong(reason),
    };
    let is_drawn =
        |kind: &NodeKind| matches!(kind, NodeKind::Op(op) if op.name().starts_with("random_"));
    let drawn = model.graph.ids().any(|id| is_drawn(model.graph.node(id).kind()));
    for (found, (expected, _)) in found.iter().zip(&expected) {
        // No two implementations draw the same numbers.
        if drawn && found.tensor_type() == expected.tensor_type() {
            continue;
        }
        if let Err(reason) = agree(found, expected, tolerance) {
            return Outcome::Wrong(reason);
        }
    }
    if found.len() == expected.len() {
        Outcome::Passed
    } else {
        Outcome::Wrong(format!("{} outputs, not {}", found.len(), expected.len()))
    }
}

/// Runs all cases of a set and compares which of them pass and which are refused with the snapshot.
fn run_set(set: &str) {
    let folder = data().join(set);
    let mut cases: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    cases.retain(|c| c.join("model.onnx").exists());
    cases.sort();
    let (mut passed, mut refused) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    let mut wrong = String::new();
    for case in &cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        match run_case(case) {
            Outcome::Passed => passed.push(name),
            Outcome::Refused(reason) => refused.entry(reason).or_default().push(name),
            Outcome::Wrong(reason) => writeln!(wrong, "{name}: {reason}").unwrap(),
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    let mut text = format!("{} cases, {} passed\n", cases.len(), passed.len());
    for name in &passed {
        writeln!(text, "  {name}").unwrap();
    }
    for (reason, names) in &refused {
        writeln!(text, "refused: {reason}").unwrap();
        for name in names {
            writeln!(text, "  {name}").unwrap();
        }
    }
    snap::assert("onnx", set, &text);
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn node_cases() {
    run_set("node");
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn converted_models() {
    run_set("pytorch-converted");
    run_set("pytorch-operator");
    run_set("simple");
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn real_models_import() {
    let mut models: Vec<PathBuf> =
        fs::read_dir(data().join("light")).unwrap().map(|e| e.unwrap().path()).collect();
    models.retain(|m| m.extension().is_some_and(|e| e == "onnx"));
    models.sort();
    assert_eq!(models.len(), 9);
    let mut text = String::new();
    for path in models {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        for free_batch in [false, true] {
            let options = ImportOptions { free_batch, ..ImportOptions::default() };
            let model = import_bytes(fs::read(&path).unwrap().into(), &name, &options)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let graph = &model.graph;
            let types = |value| graph.ty(value).to_string();
            let inputs: Vec<String> = graph.inputs().map(types).collect();
            let outputs: Vec<String> = graph.outputs().iter().map(|o| types(o.value)).collect();
            let (inputs, outputs) = (inputs.join(" "), outputs.join(" "));
            writeln!(text, "{name}: {} nodes, {inputs} -> {outputs}", graph.len()).unwrap();
        }
    }
    snap::assert("onnx", "light", &text);
}

#[test]
#[ignore = "needs the package onnx: cargo xtask test"]
fn damaged_real_models_are_models_or_errors() {
    let whole = fs::read(data().join("light/light_squeezenet.onnx")).unwrap();
    let options = ImportOptions { max_memory: 1 << 24, ..ImportOptions::default() };
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for i in 0..1000 {
        let mut bytes = whole.clone();
        if i % 4 == 0 {
            bytes.truncate(rng.random_range(0..whole.len()));
        } else {
            for _ in 0..rng.random_range(1..16) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
        }
        // Either result is right; a panic or a hang is not.
        drop(import_bytes(bytes.into(), "damaged", &options).map_err(|e| e.to_string()));
    }
}
