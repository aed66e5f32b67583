//! A run that is not the first allocates what it returns and lists as long as its inputs, outputs
//! and devices: launches find their memory as the run before left it. A test binary of its own,
//! because another allocator counts. It counts those of the test's thread, so one thread computes.

#![allow(clippy::unwrap_used, reason = "tests")]

use fanwise::backend::{Backend, Cpu, RunOptions};
use fanwise::lower::{Action, Port, lower};
use fanwise::types::{KernelClass, Tensor};
use fanwise::{ir, zoo};

/// The allocations of a run without launches, at most.
const RUN: u64 = 24;

/// The launches that allocate, and how often at most: reductions have lists of sums, cells the
/// states of the sequences of each task, and what is evaluated by reference has tensors.
const LAUNCHES: [(KernelClass, u64); 3] =
    [(KernelClass::Reference, 12), (KernelClass::Reduce, 16), (KernelClass::Recurrent, 4)];

#[test]
fn launches_allocate_nothing() {
    for model in zoo::names() {
        let small = format!("{model}:narrow=16");
        let (graph, weights) = zoo::build(&small).or_else(|_| zoo::build(model)).unwrap();
        let cpu = Cpu::new(1).unwrap();
        let program = lower(&ir::verify(&graph).unwrap(), cpu.kernels()).unwrap();
        let input = |port: &Port| {
            let dims = port.ty.shape.at(3);
            (port.name.to_string(), Tensor::zeros(port.ty.dtype, &dims).unwrap())
        };
        let inputs = program.inputs.iter().map(input).collect();
        let steps = program.devices.iter().flat_map(|device| &device.steps);
        let launches = steps.filter_map(|step| {
            let Action::Launch(launch) = &step.action else { return None };
            LAUNCHES.iter().find(|(class, _)| *class == launch.class).map(|(_, most)| most)
        });
        let most = RUN + launches.sum::<u64>();
        let executable = cpu.compile(program, &weights).unwrap();
        let run = || drop(executable.run(&inputs, &RunOptions::default()).unwrap());
        run();
        let counted = allocation_counter::measure(run).count_total;
        assert!(counted <= most, "{model}: {counted} allocations, at most {most}");
    }
}
