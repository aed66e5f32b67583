//! The calls of kernels that a program becomes.

use std::collections::BTreeSet;

use fanwise::backend::CUDA;
use fanwise::internal::{Arg, Call, ParamDecl, calls, kernels, units};
use fanwise::ir::{self, Graph};
use fanwise::lower::{Action, Program, lower};
use fanwise::pass::{Replicate, replicate};
use fanwise::types::Device;

/// What the host launches, and every call on the first GPU: its file, its grid, what it is
/// specialised by, the sizes that it is given, and the text of its chain.
pub(crate) fn told(program: &Program) -> Result<String, String> {
    let host = program.devices.iter().filter(|d| d.device == Device::HOST);
    let launches = host.flat_map(|d| &d.steps).filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(format!("host {}\n", launch.class)),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    let mut text: String = launches.collect();
    if let Some(gpu) = program.devices.iter().find(|d| d.device != Device::HOST) {
        let all = calls(gpu).map_err(|e| e.to_string())?;
        text.extend(all.iter().flatten().map(of_call));
    }
    Ok(text)
}

/// Fails unless one GPU and eight run the same kernels.
pub(crate) fn assert_shared(template: &Graph) {
    let [one, eight] = [1, 8].map(|count: u32| {
        let how = Replicate::over((0..count).map(Device::gpu).collect());
        let graph = replicate(template, &how).unwrap_or_else(|e| panic!("{e}"));
        let all = kernels(&lower(&ir::verify(&graph).unwrap(), &CUDA).unwrap()).unwrap();
        let text: String = units(&all).unwrap().into_iter().map(|unit| unit.text).collect();
        assert!(!text.contains("#include"), "a unit has all of its text");
        all.into_iter().collect::<BTreeSet<_>>()
    });
    assert_eq!(one, eight, "replicas share kernels, whatever their rows");
}

fn of_call(call: &Call) -> String {
    let kernel = &call.kernel;
    let grid: Vec<String> = call.grid.iter().map(ToString::to_string).collect();
    let defines = kernel.defines.iter().map(|(name, text)| format!(" {name}={text}"));
    let sizes =
        kernel.params.iter().zip(&call.args).filter_map(|(param, arg)| match (param, arg) {
            (ParamDecl::Size(name), Arg::Size(size)) => Some(format!(" {name}({size})")),
            _ => None,
        });
    let rest: String = defines.chain(sizes).collect();
    let mut text = format!("{} <{}>{rest}\n", kernel.file, grid.join(", "));
    // A chain without steps says nothing.
    if !kernel.expression.contains(" {\n    return x;\n}") {
        text.extend(kernel.expression.lines().map(|line| format!("  | {line}\n")));
    }
    text
}
