//! `fanwise summary`, `passes` and `zoo`: what there is.

use std::process::ExitCode;

use crate::model::ModelError;
use crate::{Error, analysis, pass, zoo};
use clap::Args;
use serde_json::json;

use crate::cli::args::{Format, ModelArgs};
use crate::cli::ui;

/// Print a model as a table: layers, output shapes, parameters, connections
#[derive(Args)]
#[command(
    after_help = "Examples:\n  fanwise summary zoo:xception\n  fanwise summary model.onnx --format \
        json"
)]
pub(crate) struct SummaryArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// How to print it
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// List the passes, in the order in which they run
#[derive(Args)]
#[command(after_help = "Example:\n  fanwise passes")]
pub(crate) struct PassesArgs {
    /// How to print it
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// List the models that are built in
#[derive(Args)]
#[command(
    after_help = "Example:\n  fanwise zoo\n  fanwise run zoo:resnet50 --gpus 2 --batch 8\n  \
        fanwise run zoo:xception:narrow=8,pixels=71 --gpus 4 --batch 10"
)]
pub(crate) struct ZooArgs {
    /// How to print it
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub(crate) fn summary(args: &SummaryArgs) -> anyhow::Result<ExitCode> {
    let model = args.model.load()?;
    let summary = analysis::summary(&model.graph).map_err(Error::from)?;
    match args.format {
        Format::Text => ui::out(&summary.to_string())?,
        Format::Json => ui::out(&serde_json::to_string_pretty(&summary)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn passes(args: &PassesArgs) -> anyhow::Result<ExitCode> {
    let rows: Vec<Vec<String>> =
        pass::passes().map(|p| vec![format!("{:17}  {}", p.name, p.about)]).collect();
    match args.format {
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
    let mut models = Vec::new();
    for name in zoo::names() {
        let (graph, _) = zoo::build(name).map_err(ModelError::from).map_err(Error::from)?;
        let parameters = analysis::summary(&graph).map_err(Error::from)?.parameters;
        let types = |values: &mut dyn Iterator<Item = crate::ir::Value>| {
            values.map(|v| graph.ty(v).to_string()).collect::<Vec<_>>().join(", ")
        };
        let inputs = types(&mut graph.inputs());
        let outputs = types(&mut graph.outputs().iter().map(|o| o.value));
        models.push((format!("zoo:{name}"), parameters, inputs, outputs));
    }
    match args.format {
        Format::Text => {
            let rows: Vec<Vec<String>> = models
                .into_iter()
                .map(|(name, parameters, inputs, outputs)| {
                    vec![name, parameters.to_string(), inputs, outputs]
                })
                .collect();
            ui::out(&ui::table(&["model", "parameters", "inputs", "outputs"], &rows))?;
        }
        Format::Json => {
            let list: Vec<_> = models
                .into_iter()
                .map(|(name, parameters, inputs, outputs)| {
                    json!({
                        "name": name,
                        "parameters": parameters,
                        "inputs": inputs,
                        "outputs": outputs,
                    })
                })
                .collect();
            ui::out(&json!(list).to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
