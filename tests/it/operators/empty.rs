//! Every operator on a batch of no rows: one device and several answer alike, or refuse alike.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::draw::{Case, Draw};
use super::generators;
use crate::splits::symbolic;
use fanwise::backend::{CPU, Cpu, Executable, RunOptions};
use fanwise::internal::Operand;
use fanwise::ir::{Builder, Graph, Weights, verify};
use fanwise::lower::lower;
use fanwise::op::Op;
use fanwise::pass::{Repair, Replicate, replicate};
use fanwise::types::{Claim, Device, ShardRule, Tensor};

/// Cases of each generator.
const CASES: u64 = 40;

/// The operators that do not always answer.
const OTHERS: [(&str, &str); 15] = [
    ("arg_max", "answers, refused"),
    ("arg_min", "answers, refused"),
    ("batch_moments", "answers, not split"),
    ("batch_norm_apply_grad", "answers, not split"),
    ("concat", "answers, not split"),
    ("constant", "not split"),
    ("constant_of_shape", "not split"),
    ("expand", "answers, not split"),
    ("gather", "answers, refused, not split"),
    ("gather_nd", "answers, refused"),
    ("quantize_range", "not split"),
    ("random_normal", "not split"),
    ("random_uniform", "not split"),
    ("range", "not split"),
    ("where", "answers, not split"),
];

/// The operators without a case: those of replicas, which stand in the graphs of others, and that
/// of other frameworks.
const MISSING: [&str; 8] = [
    "first",
    "all_reduce",
    "all_gather",
    "exclusive_scan",
    "own_rows",
    "dims",
    "merge_top_k",
    "external",
];

/// What became of a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    /// The same outputs.
    Outputs,
    /// An error on one device and on three.
    Refused,
    /// It cannot be split.
    Whole,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outputs => "answers",
            Self::Refused => "refused",
            Self::Whole => "not split",
        })
    }
}

/// The operator alone on its operands: those with rows are inputs, others parameters. None where it
/// does not take them.
fn graph(case: &Case) -> Option<(Graph, Weights, BTreeMap<String, Tensor>)> {
    let mut builder = Builder::new("empty");
    let (mut operands, mut inputs) = (Vec::new(), BTreeMap::new());
    for (i, (tensor, claim)) in case.operands.iter().enumerate() {
        let name = format!("x{i}");
        if *claim == Claim::Invariant {
            operands.push(builder.param(&name, tensor.clone()));
            continue;
        }
        operands.push(builder.input(&name, symbolic(tensor, *claim)));
        inputs.insert(name, tensor.clone());
    }
    let types: Vec<_> = operands.iter().map(|v| builder.graph().ty(*v).clone()).collect();
    let known = types.iter().map(|ty| Operand { ty, ints: None }).collect::<Vec<_>>();
    let results = case.op.infer(&known).ok()?.len();
    let names: Vec<String> = (0..results).map(|i| format!("y{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let values = builder.ops(&names, case.op.clone(), &operands).ok()?;
    for (name, value) in names.iter().zip(values) {
        builder.output(&format!("out_{name}"), value);
    }
    let (graph, weights) = builder.finish();
    Some((graph, weights, inputs))
}

fn run(
    graph: &Graph,
    weights: &Weights,
    inputs: &BTreeMap<String, Tensor>,
    cpu: &Cpu,
) -> Result<Vec<Tensor>, String> {
    let verified = verify(graph).unwrap();
    let program = lower(&verified, &CPU).map_err(|e| e.to_string())?;
    let executable = cpu.executable(program, weights).map_err(|e| e.to_string())?;
    let run = executable.run(inputs, &RunOptions::default()).map_err(|e| e.to_string())?;
    Ok(run.outputs.into_iter().map(|(_, tensor)| tensor).collect())
}

/// What one device and three make of a case, or how they differ.
fn answer(case: &Case, cpu: &Cpu) -> Option<Result<Answer, String>> {
    let (template, weights, inputs) = graph(case)?;
    let how = Replicate {
        repair: Repair::Comm,
        rule: ShardRule::Balanced,
        ..Replicate::over((0..3).map(Device::gpu).collect())
    };
    let one = run(&template, &weights, &inputs, cpu);
    let Ok(graph) = replicate(&template, &how) else { return Some(Ok(Answer::Whole)) };
    let many = run(&graph, &weights, &inputs, cpu);
    Some(match (one, many) {
        (Ok(one), Ok(many)) if one == many => Ok(Answer::Outputs),
        (Err(_), Err(_)) => Ok(Answer::Refused),
        (one, many) => Err(format!("{case}: {one:?} on one device, {many:?} on three")),
    })
}

#[test]
fn no_rows_on_one_device_and_on_many() {
    let cpu = Cpu::new(1).unwrap();
    let mut table: BTreeMap<&str, BTreeSet<Answer>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (name, generator) in generators() {
        for seed in 0..CASES {
            let mut draw = Draw::new(name, seed);
            draw.n = 0;
            let Some(case) = generator(&mut draw) else { continue };
            match answer(&case, &cpu) {
                None => {}
                Some(Ok(answer)) => {
                    table.entry(case.op.name()).or_default().insert(answer);
                }
                Some(Err(error)) => wrong.push(error),
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    let told = |answers: &BTreeSet<Answer>| {
        answers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let table: Vec<(&str, String)> = table.iter().map(|(op, all)| (*op, told(all))).collect();
    let others: Vec<(&str, &str)> = table
        .iter()
        .map(|(op, told)| (*op, told.as_str()))
        .filter(|row| row.1 != "answers")
        .collect();
    assert_eq!(others, OTHERS);
    let missing: Vec<&str> =
        Op::names().filter(|name| !table.iter().any(|(op, _)| op == name)).collect();
    assert_eq!(missing, MISSING);
}
