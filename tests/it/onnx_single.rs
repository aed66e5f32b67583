//! Models of one ONNX operator each, with random attributes and operands: what the replicas compute
//! is what one device does, in every bit where that is promised, and what ONNX Runtime gives.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fanwise::analysis::prove;
use fanwise::backend::{Backend, Cpu, CpuExecutable, Executable, RunOptions};
use fanwise::format::onnx::{ExportError, ImportError, ImportOptions, export, import_bytes};
use fanwise::internal::agree;
use fanwise::ir::Model;
use fanwise::ir::{Graph, Weights, verify};
use fanwise::lower::lower;
use fanwise::model::{LoadOptions, ModelError, load};
use fanwise::pass::{PassError, Repair, repair, replicate};
use fanwise::types::Tensor;
use prost::Message;
use serde_json::Value;
use support::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

use crate::onnx_runtime::read;
use crate::programs::{assert_promised, options};
use crate::python::python;

/// Cases of each operator.
const CASES: &str = "8";

/// Replicas, at most.
const REPLICAS: u32 = 5;

const REPAIRS: [Repair; 3] = [Repair::None, Repair::Local, Repair::Comm];

/// Imported operators without a case that is compared, and why.
const UNCOMPARED: [(&str, &str); 2] = [
    ("Bernoulli", "ONNX Runtime draws 1 with the probability that the standard gives 0"),
    ("CausalConvWithState", "ONNX Runtime does not have it; the node cases of the standard do"),
];

/// Operators none of whose cases is split unless values are exchanged, and why.
const TOGETHER: [(&str, &str); 2] = [
    ("DynamicQuantizeLinear", "the range is that of all samples"),
    ("MaxUnpool", "indices number the elements of all samples"),
];

/// Operators of which no case is written as ONNX, and all reasons for which cases are not.
const NEVER_WRITTEN: [&str; 8] = [
    "Bernoulli",
    "BitCast",
    "CumProd",
    "RandomNormalLike",
    "RandomUniformLike",
    "ai.onnx.ml.TreeEnsemble",
    "ai.onnx.ml.TreeEnsembleClassifier",
    "ai.onnx.ml.TreeEnsembleRegressor",
];
const UNWRITTEN: [&str; 9] = [
    "bit_cast: no operator of operator set 21 computes it",
    "celu: ONNX has it only for f32",
    "cumprod: no operator of operator set 21 computes it",
    "pair_probabilities: no operator of operator set 21 computes it",
    "random_normal: no operator of operator set 21 computes it",
    "random_uniform: no operator of operator set 21 computes it",
    "resize: its rounding is that of operator sets before 11",
    "slice: the size max(0,N-2) is not a multiple of N plus a number",
    "tree_ensemble: no operator of operator set 21 computes it",
];

/// Operators that are written as several, which round in between.
const IN_STEPS: [&str; 2] = ["RMSNormalization", "Swish"];

/// What ONNX Runtime says of element types that it has no implementation for.
const NOT_RUN: &str = "NOT_IMPLEMENTED";

/// One model with its arrays.
struct Case {
    name: String,
    op: String,
    text: String,
    /// The largest error as a share of the largest value, where it is not that of the element type.
    tolerance: Option<f64>,
}

/// What became of a case.
#[derive(Default)]
struct Tally {
    /// Outputs of batches that were compared with ONNX Runtime.
    compared: usize,
    /// Whether it may be split, for each of [`REPAIRS`].
    split: [bool; 3],
    /// Whether it is no model, for its batch may be too small.
    refused: bool,
    /// Why it is not written as ONNX.
    unwritten: Option<String>,
}

/// The arrays of a batch.
type Arrays = BTreeMap<String, Tensor>;

/// A batch: its inputs, and what one device gives.
struct Batch {
    rows: i64,
    inputs: Arrays,
    one: Vec<Tensor>,
}

fn prepare(cpu: &Cpu, graph: &Graph, weights: &Weights) -> CpuExecutable {
    let verified = verify(graph).unwrap_or_else(|e| panic!("{e}"));
    let program = lower(&verified, cpu.kernels()).unwrap_or_else(|e| panic!("{e}"));
    cpu.executable(program, weights).unwrap_or_else(|e| panic!("{e}"))
}

/// The arrays `ROWS.KIND.NAME`, by name.
fn of(arrays: &Arrays, rows: i64, kind: &str) -> Arrays {
    let prefix = format!("{rows}.{kind}.");
    let named = |(name, tensor): (&String, &Tensor)| {
        Some((name.strip_prefix(&prefix)?.to_owned(), tensor.clone()))
    };
    arrays.iter().filter_map(named).collect()
}

/// The batches on one device, each compared with ONNX Runtime where that has results. An empty
/// batch may be an error.
fn batches(
    case: &Case,
    model: &Model,
    cpu: &Cpu,
    arrays: &Arrays,
    tally: &mut Tally,
) -> Vec<Batch> {
    let one = prepare(cpu, &model.graph, &model.weights);
    let mut batches = Vec::new();
    for rows in [7, 2, 1, 0] {
        let (inputs, expected) = (of(arrays, rows, "in"), of(arrays, rows, "out"));
        let given = model.graph.inputs().map(|v| model.graph.info(v).name.to_string());
        let inputs: Arrays = given.map(|name| (name.clone(), inputs[&name].clone())).collect();
        let output = match one.run(&inputs, &RunOptions::default()) {
            Ok(output) => output,
            Err(_) if expected.is_empty() => continue,
            Err(error) => panic!("{rows} rows on one device: {error}"),
        };
        for (name, found) in &output.outputs {
            let Some(wanted) = expected.get(&**name) else { continue };
            if UNCOMPARED.iter().any(|(op, _)| *op == case.op) {
                continue;
            }
            agree(found, wanted, case.tolerance).unwrap_or_else(|difference| {
                panic!(
                    "{rows} rows, {name} is not that of ONNX Runtime: \
                    {difference}\n{inputs:?}\n{found:?}\n{wanted:?}"
                )
            });
            tally.compared += 1;
        }
        let one = output.outputs.into_iter().map(|(_, tensor)| tensor).collect();
        batches.push(Batch { rows, inputs, one });
    }
    batches
}

/// Checks that what was written as ONNX is read back as a model that gives the same, bit by bit
/// where it is one operator.
fn check_written(case: &Case, folder: &Path, cpu: &Cpu, written: Vec<u8>, batches: &[Batch]) {
    let path = folder.join(format!("{}.written.onnx", case.name));
    std::fs::write(&path, written).unwrap();
    let again = load(&path.to_string_lossy(), &LoadOptions::default());
    let again = again.unwrap_or_else(|e| panic!("what was written is not read: {e}"));
    let again = prepare(cpu, &again.graph, &again.weights);
    for Batch { rows, inputs, one } in batches {
        let output = again.run(inputs, &RunOptions::default());
        let output = output.unwrap_or_else(|e| panic!("what was written, {rows} rows: {e}"));
        let found: Vec<Tensor> = output.outputs.into_iter().map(|(_, t)| t).collect();
        if !IN_STEPS.contains(&&*case.op) {
            assert_eq!(found, *one, "what was written, {rows} rows");
        }
        for (found, one) in found.iter().zip(one) {
            agree(found, one, case.tolerance)
                .unwrap_or_else(|difference| panic!("what was written, {rows} rows: {difference}"));
        }
    }
}

/// Checks a case on one device and on several.
fn check(case: &Case, folder: &Path, cpu: &Cpu, variant: u64) -> Tally {
    let mut tally = Tally::default();
    let path = folder.join(format!("{}.onnx", case.name));
    let model = match load(&path.to_string_lossy(), &LoadOptions::default()) {
        Ok(model) => model,
        Err(ModelError::Onnx(_)) => return Tally { refused: true, ..tally },
        Err(error) => panic!("{error}"),
    };
    let arrays = read(&folder.join(format!("{}.npz", case.name)));
    let batches = batches(case, &model, cpu, &arrays, &mut tally);
    match export(&model.graph, &model.weights) {
        Ok(written) => check_written(case, folder, cpu, written, &batches),
        Err(ExportError::Operator { op, reason, .. }) => {
            tally.unwritten = Some(format!("{op}: {reason}"));
        }
        Err(error) => panic!("{error}"),
    }
    let (mut seen, mut before) = (false, false);
    for (split, allowed) in tally.split.iter_mut().zip(REPAIRS) {
        let repaired = repair(&model.graph, allowed).unwrap();
        let (repairs, template) = (repaired.repairs().to_vec(), repaired.into_graph());
        // What needs no repair is the same graph as before.
        if repairs.is_empty() && seen {
            *split = before;
            continue;
        }
        seen = true;
        for count in 1..=REPLICAS {
            let what = format!("{count} devices, {allowed:?}");
            let how = options(count, variant + u64::from(count), allowed);
            let graph = match replicate(&model.graph, &how) {
                Ok(graph) => graph,
                Err(PassError::Refused(_)) => break,
                Err(error) => panic!("{what}: {error}"),
            };
            // One device has all rows, whatever its operators do.
            if count > 1 {
                (*split, before) = (true, true);
            }
            let verified = verify(&graph).unwrap_or_else(|e| panic!("{what}: {e}"));
            prove(&template, &verified).unwrap_or_else(|e| panic!("{what}: {e}"));
            let many = prepare(cpu, &graph, &model.weights);
            for Batch { rows, inputs, one } in &batches {
                let what = format!("{what}, {rows} rows");
                let output = many.run(inputs, &RunOptions::default());
                let output = output.unwrap_or_else(|e| panic!("{what}: {e}"));
                let found: Vec<Tensor> = output.outputs.into_iter().map(|(_, t)| t).collect();
                assert_promised(&graph, one, &found, &what);
            }
        }
    }
    tally
}

/// Checks all cases, and reports those that fail.
fn check_all(cases: &[Case], folder: &Path) -> Vec<Tally> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        let cpu = Cpu::new(1).unwrap();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(i) else { break };
            let variant = u64::try_from(i).unwrap();
            let result = catch_unwind(AssertUnwindSafe(|| check(case, folder, &cpu, variant)));
            done.lock().unwrap().push((i, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|(i, _)| *i);
    let (mut tallies, mut failed) = (Vec::new(), String::new());
    for (i, result) in done {
        match result {
            Ok(tally) => tallies.push(tally),
            Err(payload) => {
                let message = payload.downcast_ref::<String>().map_or("a panic", String::as_str);
                writeln!(failed, "{}: {}\n  {message}", cases[i].name, cases[i].text).unwrap();
            }
        }
    }
    assert!(failed.is_empty(), "\n{failed}");
    tallies
}

/// Whether an operator of the standard is imported; that a node of it lacks operands is another
/// matter.
fn is_imported(op: &str) -> bool {
    let (domain, name) = op.rsplit_once('.').unwrap_or(("", op));
    let node = NodeProto {
        op_type: Some(name.to_owned()),
        domain: Some(domain.to_owned()),
        output: vec!["y".to_owned()],
        ..NodeProto::default()
    };
    let graph = GraphProto { node: vec![node], ..GraphProto::default() };
    let opset =
        |domain: Option<String>, version| OperatorSetIdProto { domain, version: Some(version) };
    let opset_import = vec![opset(None, 18), opset(Some("ai.onnx.ml".to_owned()), 3)];
    let model = ModelProto { graph: Some(graph), opset_import, ..ModelProto::default() };
    let result = import_bytes(model.encode_to_vec().into(), "probe", &ImportOptions::default());
    !matches!(result, Err(ImportError::Unsupported(_)))
}

/// The cases that a script wrote into a folder.
fn cases(list: &Value) -> Vec<Case> {
    let text = |case: &Value, key: &str| case[key].as_str().expect(key).to_owned();
    let read = |case: &Value| Case {
        name: text(case, "name"),
        op: text(case, "op"),
        text: text(case, "text"),
        tolerance: case["tolerance"].as_f64(),
    };
    list["cases"].as_array().expect("cases").iter().map(read).collect()
}

/// Checks that ONNX Runtime runs what was written, to the results of what it was read from.
fn written_run_elsewhere(cases: &[Case], folder: &Path) {
    python("written.py", &[folder]);
    let text = std::fs::read(folder.join("written.json")).unwrap();
    let results: BTreeMap<String, Option<String>> = serde_json::from_slice(&text).unwrap();
    let mut failed = String::new();
    for case in cases {
        let Some(Some(wrong)) = results.get(&case.name) else { continue };
        if !wrong.contains(NOT_RUN) {
            writeln!(failed, "{}: {}\n  {wrong}", case.name, case.text).unwrap();
        }
    }
    assert!(results.len() > cases.len() / 2, "{} of {}", results.len(), cases.len());
    assert!(failed.is_empty(), "\n{failed}");
}

#[test]
#[ignore = "needs Python: cargo xtask test"]
fn every_operator_splits_as_its_rule_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let count = std::env::var("FANWISE_CASES").unwrap_or_else(|_| CASES.to_owned());
    python("single.py", &[folder.path(), Path::new(&count)]);
    let text = std::fs::read(folder.path().join("cases.json")).unwrap();
    let list: Value = serde_json::from_slice(&text).unwrap();
    let cases = cases(&list);
    let (mut compared, mut alone) = (BTreeSet::new(), BTreeSet::new());
    let (mut written, mut unwritten) = (BTreeSet::new(), BTreeSet::new());
    for (case, tally) in cases.iter().zip(check_all(&cases, folder.path())) {
        let [_, local, comm] = tally.split;
        assert!(comm || tally.refused, "{}: {} is not split", case.name, case.text);
        if tally.compared > 0 {
            compared.insert(&*case.op);
        }
        if local {
            alone.insert(&*case.op);
        }
        match tally.unwritten {
            Some(reason) => drop(unwritten.insert(reason)),
            None if !tally.refused => drop(written.insert(case.op.clone())),
            None => {}
        }
    }
    written_run_elsewhere(&cases, folder.path());
    assert_eq!(unwritten.into_iter().collect::<Vec<_>>(), UNWRITTEN);
    let standard = list["standard"].as_array().unwrap().iter().map(|op| op.as_str().unwrap());
    let imported: BTreeSet<&str> = standard.filter(|op| is_imported(op)).collect();
    assert!(imported.len() > 150, "{imported:?}");
    let without = |some: &BTreeSet<&str>| -> Vec<String> {
        imported.difference(some).map(|op| (*op).to_owned()).collect()
    };
    let written: BTreeSet<&str> = written.iter().map(String::as_str).collect();
    assert_eq!(without(&written), NEVER_WRITTEN);
    assert_eq!(without(&compared), UNCOMPARED.map(|(op, _)| op));
    assert_eq!(without(&alone), TOGETHER.map(|(op, _)| op));
}
