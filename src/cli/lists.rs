//! `fanwise summary`, `passes` and `zoo`: what there is.

use std::process::ExitCode;

use crate::model::ModelError;
use crate::{Error, analysis, pass, zoo};
use clap::Args;
use serde_json::json;

use crate::cli::args::{Format, FormatArgs, ModelArgs};
use crate::cli::ui;

/// Print a table of layers, output shapes, parameters and connections
#[derive(Args)]
#[command(
    after_help = "Examples:\n  fanwise summary zoo:xception\n  fanwise summary model.onnx --format \
        json"
)]
pub(crate) struct SummaryArgs {
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    model: ModelArgs,
}

/// List the passes in the order in which they run
#[derive(Args)]
#[command(after_help = "Example:\n  fanwise passes")]
pub(crate) struct PassesArgs {
    #[command(flatten)]
    format: FormatArgs,
}

/// List the built-in models, or show one of them
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise zoo
  fanwise zoo resnet50
  fanwise run zoo:resnet50 --gpus 2 --batch 8
  fanwise run zoo:xception:narrow=8,pixels=71 --gpus 4 --batch 10")]
pub(crate) struct ZooArgs {
    /// Show the parameters, inputs and outputs of this model; case does not matter
    name: Option<String>,
    #[command(flatten)]
    format: FormatArgs,
}

pub(crate) fn summary(args: &SummaryArgs) -> anyhow::Result<ExitCode> {
    let model = args.model.load()?;
    let summary = analysis::summary(&model.graph).map_err(Error::from)?;
    match args.format.format {
        Format::Text => ui::out(&summary.to_string())?,
        Format::Json => ui::out(&serde_json::to_string_pretty(&summary)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn passes(args: &PassesArgs) -> anyhow::Result<ExitCode> {
    let rows: Vec<Vec<String>> =
        pass::passes().map(|p| vec![format!("{:17}  {}", p.name, p.about)]).collect();
    match args.format.format {
        Format::Text => ui::out(&rows.concat().join("\n"))?,
        Format::Json => {
            let list: Vec<_> =
                pass::passes().map(|p| json!({ "name": p.name, "about": p.about })).collect();
            ui::out(&json!(list).to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn zoo(args: &ZooArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.name {
        return built_in(name, args.format.format);
    }
    match args.format.format {
        Format::Text => {
            let lines: Vec<String> = zoo::descriptions()
                .map(|(name, about)| format!("{:18}  {about}", format!("zoo:{name}")))
                .collect();
            ui::out(&lines.join("\n"))?;
        }
        Format::Json => {
            let list: Vec<_> = zoo::descriptions()
                .map(|(name, about)| json!({ "name": format!("zoo:{name}"), "about": about }))
                .collect();
            ui::out(&json!(list).to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what one model has.
fn built_in(name: &str, format: Format) -> anyhow::Result<ExitCode> {
    let name = name.strip_prefix("zoo:").unwrap_or(name);
    let build = || zoo::build(name).map_err(ModelError::from);
    let (graph, _) = ui::stage("build", build).map_err(Error::from)?;
    let parameters = analysis::summary(&graph).map_err(Error::from)?.parameters;
    let types = |values: &mut dyn Iterator<Item = crate::ir::Value>| {
        values.map(|v| graph.ty(v).to_string()).collect::<Vec<_>>().join(", ")
    };
    let inputs = types(&mut graph.inputs());
    let outputs = types(&mut graph.outputs().iter().map(|o| o.value));
    let name = format!("zoo:{}", name.to_ascii_lowercase());
    match format {
        Format::Text => {
            let row = vec![name, parameters.to_string(), inputs, outputs];
            ui::out(&ui::table(&["model", "parameters", "inputs", "outputs"], &[row]))?;
        }
        Format::Json => ui::out(
            &json!({
                "name": name,
                "parameters": parameters,
                "inputs": inputs,
                "outputs": outputs,
            })
            .to_string(),
        )?,
    }
    Ok(ExitCode::SUCCESS)
}
