//! The ways out of errors.

use std::collections::BTreeSet;

use super::super::Escaped;
use super::error::LISTED;
use super::{BatchCandidate, ImportError, NodeError, UnboundDim, UnsupportedOp};
use crate::types::{Code, Diagnostic, Hint, Setting};

/// The domains whose operators ONNX Runtime puts in place of others when it optimises a model.
const OPTIMISED: [&str; 3] = ["com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"];

/// The ways out where operators are not supported.
fn without(ops: &[UnsupportedOp]) -> Vec<Hint> {
    let foreign = || ops.iter().filter_map(|op| op.op.split_once("::"));
    let mut hints = Vec::new();
    // The whole file is rewritten for one runtime: what it lacks is in the one that it was made of.
    if foreign().any(|(domain, _)| OPTIMISED.contains(&domain)) {
        let advice = "use the model from before ONNX Runtime optimised it: the optimiser replaced \
            standard operators with these";
        hints.push(Hint::advice(advice));
    }
    // Of ONNX's own operators and those of its runtimes the meaning is known, and nothing runs them
    // by an assumption.
    let known = |domain: &str| OPTIMISED.contains(&domain) || domain.starts_with("ai.onnx");
    if let Some((domain, name)) = foreign().find(|(domain, _)| !known(domain)) {
        let value = format!("{}.{}=rowwise(0)", Escaped(domain), Escaped(name));
        let advice = "if it treats rows independently, assume so: the graph can be rewritten; to \
            run it, a program must supply the operator";
        hints.push(Hint::set(Setting::Assume, [value], advice));
    }
    hints.push(Hint::advice("docs/onnx.md lists the operators that are supported"));
    hints
}

/// The ways out where inputs decide a value.
fn deciding(inputs: &[String]) -> Vec<Hint> {
    let values = inputs.iter().take(HINTED).map(|name| format!("{}=1", Escaped(name)));
    let once = Hint::set(Setting::Set, values, "set it, to 1 for example, for every run");
    let each = Hint::advice("give the inputs of a run, whose graph is made for their values");
    vec![once, each]
}

/// The hint to make these sizes the batch.
fn batch(candidate: &BatchCandidate) -> Hint {
    let axis = |(input, axis)| format!("{}={axis}", Escaped(input));
    let axes: Vec<String> = candidate.axes().take(LISTED).map(axis).collect();
    let advice = format!("if the batch is {}", candidate.text());
    Hint::set(Setting::BatchAxis, axes, advice)
}

/// The hint to bind sizes, the first few by name.
fn bind<'d>(dims: impl Iterator<Item = &'d UnboundDim>) -> Option<Hint> {
    let names: BTreeSet<&str> = dims.map(|dim| dim.name.as_str()).collect();
    let values: Vec<String> =
        names.iter().take(HINTED).map(|name| format!("{}=128", Escaped(name))).collect();
    let advice = "bind sizes that are not the batch to numbers";
    (!values.is_empty()).then(|| Hint::set(Setting::Dim, values, advice))
}

/// The sizes that a hint names.
const HINTED: usize = 4;

/// Explains where a freed batch size is also fixed in the graph.
fn fixed() -> Vec<Hint> {
    vec![
        Hint::advice("export the model with a dynamic batch"),
        Hint::advice("import it with the batch size that it has"),
    ]
}

impl Diagnostic for ImportError {
    fn code(&self) -> &'static str {
        let unclear = matches!(self, Self::Batches(_));
        if unclear { Code::AmbiguousBatchAxis.name() } else { "E0102" }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::File(error) => error.hints(),
            Self::Memory(_) | Self::Node { error: NodeError::Memory(_), .. } => {
                vec![Hint::turn_on(Setting::MaxMemory, "raise the memory limit")]
            }
            Self::Version(_) => vec![Hint::advice("export the model with a supported version")],
            Self::Unsupported(ops) => without(ops),
            Self::UnboundDims(dims) => bind(dims.iter()).into_iter().collect(),
            Self::OtherSizes { others, .. } => bind(others.iter()).into_iter().collect(),
            Self::Batches(candidates) => {
                let listed = candidates.iter().take(HINTED).map(batch);
                let last = candidates.iter().rev().find_map(|c| c.open().next());
                listed.chain(bind(last.into_iter())).collect()
            }
            Self::OpenSizes(_) => vec![Hint::set(
                Setting::BatchAxis,
                ["NAME=AXIS"],
                "name the inputs that carry the batch",
            )],
            Self::Node { error: NodeError::Baked { .. }, .. } => fixed(),
            Self::Node { error: NodeError::Undecided { alone: false, .. }, .. } => {
                let advice = "export the model for one fixed path: a graph takes the same path in \
                    every run";
                vec![Hint::advice(advice)]
            }
            // No input decides: there is nothing to set.
            Self::Node { .. } => self.deciding().map(deciding).unwrap_or_default(),
            Self::Input { fixed: true, .. } => {
                vec![Hint::turn_on(Setting::FreeBatch, "make the fixed size symbolic")]
            }
            Self::Malformed { .. } | Self::Graphs { .. } => {
                vec![Hint::advice("copy or download it again: it may be incomplete or damaged")]
            }
            Self::Opset { .. }
            | Self::Duplicate { .. }
            | Self::Undefined { .. }
            | Self::Unnamed { .. }
            | Self::Cycle { .. }
            | Self::Call { .. }
            | Self::TooManyNodes { .. }
            | Self::Tensor { .. }
            | Self::Input { .. }
            | Self::Setting { .. }
            | Self::Internal(_) => Vec::new(),
        }
    }
}
