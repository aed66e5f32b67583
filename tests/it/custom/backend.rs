//! A backend of a framework: it runs what the CPU does, counts, and has a kernel of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fanwise::backend::{
    Backend, CUDA, CompileError, Cpu, Executable, RunError, RunOptions, RunOutput, Staged,
};
use fanwise::ir;
use fanwise::ir::Weights;
use fanwise::lower::{self, Action, BindError, Bound, Kernels, Program, Support, Types};
use fanwise::op::{Custom, Op};
use fanwise::pass::{self, Replicate};
use fanwise::types::{Device, KernelClass, Target, Tensor};

use super::{Made, SAME, graph};

/// The operator that counts as a kernel of its own.
fn is_own(op: &Op) -> bool {
    matches!(op, Op::Custom(custom) if custom.get::<Made>().is_some())
}

/// The kernels of the CPU, and one for the framework's operator.
#[derive(Debug)]
struct OwnKernels;

impl Kernels for OwnKernels {
    fn target(&self) -> &Target {
        fanwise::backend::CPU.target()
    }

    fn supports(&self, op: &Op, types: &Types<'_>) -> Support {
        if is_own(op) {
            return Support::by(KernelClass::Own);
        }
        fanwise::backend::CPU.supports(op, types)
    }
}

/// Virtual devices that count the launches of the framework's kernel.
struct Counting {
    cpu: Cpu,
    launches: Arc<AtomicUsize>,
}

impl Backend for Counting {
    fn kernels(&self) -> &dyn Kernels {
        &OwnKernels
    }

    fn compile(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let executable = self.cpu.compile(program, weights)?;
        Ok(Box::new(Counted { executable, launches: self.launches.clone() }))
    }
}

struct Counted {
    executable: Box<dyn Executable>,
    launches: Arc<AtomicUsize>,
}

impl Executable for Counted {
    fn program(&self) -> &Program {
        self.executable.program()
    }

    fn bind(&self, n: i64) -> Result<Arc<Bound>, BindError> {
        self.executable.bind(n)
    }

    fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<RunOutput, RunError> {
        let own = own(self.program());
        self.launches.fetch_add(own, Ordering::Relaxed);
        self.executable.run(inputs, options)
    }

    fn stage<'a>(
        &'a self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<Box<dyn Staged + 'a>, RunError> {
        self.executable.stage(inputs, options)
    }
}

/// The launches of the framework's kernel.
fn own(program: &Program) -> usize {
    let steps = program.devices.iter().flat_map(|device| &device.steps);
    let launches = steps.filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(launch),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    let own = launches.filter(|launch| launch.class == KernelClass::Own);
    own.inspect(|launch| assert!(launch.op.as_ref().is_some_and(is_own))).count()
}

#[test]
fn a_backend_of_a_framework_runs_its_kernels() {
    let one = graph(SAME, "f32[N]").unwrap();
    let devices = Replicate::over((0..3).map(Device::gpu).collect());
    let three = pass::replicate(&one, &devices).unwrap();
    let launches = Arc::new(AtomicUsize::new(0));
    let backend = Counting { cpu: Cpu::new(2).unwrap(), launches: launches.clone() };
    let x = Tensor::new(&[5], &[1.0f32, 2.0, 3.0, 4.0, 5.0]).unwrap();
    for (graph, count) in [(one, 1), (three, 4)] {
        let executable = backend.ready(&graph, &Weights::default()).unwrap();
        let inputs = [("x".to_owned(), x.clone())].into();
        let run = executable.run(&inputs, &RunOptions::default()).unwrap();
        assert_eq!(run.outputs[0].1, x);
        assert_eq!(launches.load(Ordering::Relaxed), count);
    }
}

#[test]
fn gpus_leave_it_to_the_host() {
    let one = graph(SAME, "f32[N]").unwrap();
    let devices = Replicate::over((0..2).map(Device::gpu).collect());
    let replicas = pass::replicate(&one, &devices).unwrap();
    let program = lower::lower(&ir::verify(&replicas).unwrap(), &CUDA).unwrap();
    let mut found = 0;
    for device in &program.devices {
        for step in &device.steps {
            let Action::Launch(launch) = &step.action else { continue };
            let Some(Op::Custom(custom)) = &launch.op else { continue };
            assert_eq!((launch.class, device.device), (KernelClass::Reference, Device::HOST));
            assert_eq!(*custom, Custom::new(SAME));
            found += 1;
        }
    }
    assert_eq!(found, 2, "{program}");
}
