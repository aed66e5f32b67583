//! `fanwise verify`: a proof, without running it, that a rewritten graph computes what the model
//! does.

use std::collections::BTreeSet;
use std::process::ExitCode;

use crate::analysis::ProofError;
use crate::backend::CPU;
use crate::ir::{self, Graph};
use crate::lower::{self, LowerError};
use crate::model::ModelError;
use crate::pass::{self, Repair, RepairOptions};
use crate::{Error, analysis::Proof};
use clap::Args;
use serde_json::json;

use crate::cli::args::{Format, FormatArgs, ModelArgs, StatisticsArgs};
use crate::cli::ui;

/// Prove, without running it, that a rewritten graph computes what the model does
#[derive(Args)]
#[command(
    after_help = "The exit code is 0 if the proof holds, 1 if a rule is broken, 2 for bad input.

Examples:
  fanwise compile zoo:xception --gpus 8 --emit graph=out.fan
  fanwise verify out.fan
  fanwise verify out.fan --template model.onnx"
)]
pub(crate) struct VerifyArgs {
    /// Model that the graph was made from [default: the one named by its weights]
    #[arg(long, value_name = "MODEL")]
    template: Option<String>,
    #[command(flatten)]
    statistics: StatisticsArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    graph: ModelArgs,
}

pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let graph = args.graph.load_graph()?.graph;
    let template = match &args.template {
        Some(model) => model.clone(),
        // What was trained is its own model.
        None if args.graph.is_checkpoint()? => args.graph.spec().to_owned(),
        None => source(&graph)?,
    };
    let template = args.graph.load_other(&template)?.graph;
    let verified = ir::verify(&graph).map_err(Error::from)?;
    // The repairs that were allowed are not known, nor whether sums were put into buckets: the
    // graph is right if it is so for one choice.
    let prove = |(allowed, bucket)| -> anyhow::Result<_> {
        let options = RepairOptions { allowed, batch_norm: args.statistics.batch_norm, bucket };
        let repaired = pass::repair(&template, options).map_err(Error::from)?;
        Ok(repaired.prove(verified.clone()).map(|proven| *proven.proof()))
    };
    let most = RepairOptions::BUCKET;
    let mut result = prove((Repair::None, most))?;
    let (local, comm) = (Repair::Local, Repair::Comm);
    for choice in [(local, most), (comm, most), (local, 0), (comm, 0)] {
        if result.is_ok() {
            break;
        }
        let proof = prove(choice)?;
        // A model that may not be split without more repairs says less than a rule that is broken.
        if proof.is_ok() || matches!(result, Err(ProofError::Template(_))) {
            result = proof;
        }
    }
    match result {
        Ok(proof) => {
            let program = lower::lower(&verified, &CPU).map_err(Error::from)?;
            lower::check_batches(&program).map_err(LowerError::from).map_err(Error::from)?;
            proved(args.format.format, proof)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ProofError::Violations(violations)) => {
            match args.format.format {
                Format::Text => {
                    for violation in &violations {
                        ui::out(&violation.to_string())?;
                    }
                }
                Format::Json => {
                    let list: Vec<_> = violations
                        .iter()
                        .map(|v| json!({ "rule": v.rule.to_string(), "message": v.message }))
                        .collect();
                    ui::out(&json!({ "proved": false, "violations": list }).to_string())?;
                }
            }
            Ok(ExitCode::from(1))
        }
        Err(error) => Err(Error::from(error).into()),
    }
}

fn proved(format: Format, proof: Proof) -> anyhow::Result<()> {
    let Proof { replicas, slices, clones, copies, merges, .. } = proof;
    match format {
        Format::Text if replicas == 0 => ui::out("proved: the graph is the model itself"),
        Format::Text => ui::out(&format!("proved: {proof}")),
        Format::Json => ui::out(
            &json!({ "proved": true, "replicas": replicas, "slices": slices, "operators": clones,
                "copies": copies, "merges": merges })
            .to_string(),
        ),
    }
}

/// The model from which all parameters come.
fn source(graph: &Graph) -> anyhow::Result<String> {
    let files: BTreeSet<&str> = graph.params().iter().map(|p| &*p.source.file).collect();
    match files.iter().copied().collect::<Vec<_>>().as_slice() {
        [only] if !only.ends_with(".safetensors") => Ok((*only).to_owned()),
        _ => Err(Error::from(ModelError::NoTemplate).into()),
    }
}
