//! A run allocates as often as it has inputs, outputs and devices, whatever it computes: what
//! kernels need is kept from one run to the next. A test binary of its own, because it counts
//! allocations.

#![allow(clippy::unwrap_used, reason = "tests")]

use fanwise::backend::{Backend, Cpu, RunOptions};
use fanwise::ir;
use fanwise::lower::lower;
use fanwise::types::Tensor;
use fanwise::zoo;

#[test]
fn dbg() {
    for model in zoo::names() {
        let model = if model == "transformer" || model == "mlp" || model=="lstm" || model == "gru" || model == "siamese"|| model == "two_head" || model == "nested" { model.to_owned() } else { format!("{model}:narrow=16") };
        let Ok((graph, weights)) = zoo::build(&model) else { eprintln!("{model}?"); continue };
        let verified = ir::verify(&graph).unwrap();
        let cpu = Cpu::new(1).unwrap();
        let program = lower(&verified, cpu.kernels()).unwrap();
        let inputs = program.inputs.iter().map(|port| {
            let dims = port.ty.shape.at(3);
            (port.name.to_string(), Tensor::zeros(port.ty.dtype, &dims).unwrap())
        }).collect();
        let launches = program.devices.iter().map(|d| d.steps.len()).sum::<usize>();
        let mut text = std::collections::BTreeMap::new();
        for d in &program.devices { for s in &d.steps { if let fanwise::lower::Action::Launch(l) = &s.action { if format!("{:?}", l.class) == "Reference" { *text.entry(format!("{:?}", l.op.as_ref().map(|o| o.name()))).or_insert(0) += 1; } } } }
        let executable = cpu.compile(program, &weights).unwrap();
        let run = || executable.run(&inputs, &RunOptions::default()).unwrap();
        drop(run());
        drop(run());
        let info = allocation_counter::measure(|| drop(run()));
        eprintln!("{model} {launches} {info:?} {text:?}");
    }
}
