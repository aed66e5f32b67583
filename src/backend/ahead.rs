//! Runs in a row: while one computes, the inputs of the next are brought to the devices.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::thread;

use super::{Executable, RunError, RunOptions, RunOutput, Staged};
use crate::types::{Device, Tensor};

/// Runs batches in their order. While one computes the next is taken from `batches` and
/// [staged](Executable::stage), by a thread of its own. `done` gets the output of each with what
/// came with its batch.
///
/// # Errors
/// The first one, of a batch, a run or `done`. What comes before it has run, what comes behind it
/// does not.
pub fn run_each<T: Send, E: From<RunError> + Send>(
    executable: &dyn Executable,
    options: &RunOptions,
    batches: impl Iterator<Item = Result<(T, BTreeMap<String, Tensor>), E>> + Send,
    mut done: impl FnMut(T, RunOutput) -> Result<(), E>,
) -> Result<(), E> {
    stage_each(executable, options, batches, |of, staged| done(of, staged.run()?))
}

/// As [`run_each`], where `run` runs each batch: it may set inputs first that follow from the
/// batches before.
///
/// # Errors
/// The first one, of a batch or of `run`. What comes before it has run, what comes behind it does
/// not.
pub(crate) fn stage_each<T: Send, E: From<RunError> + Send>(
    executable: &dyn Executable,
    options: &RunOptions,
    batches: impl Iterator<Item = Result<(T, BTreeMap<String, Tensor>), E>> + Send,
    mut run: impl FnMut(T, Box<dyn Staged + '_>) -> Result<(), E>,
) -> Result<(), E> {
    thread::scope(|scope| {
        // Without room: a batch is staged when the one before it is taken, so there is one ahead.
        let (sender, staged) = mpsc::sync_channel(0);
        let stage = move || {
            for batch in batches {
                let next = batch.and_then(|(of, inputs)| {
                    let staged = executable.stage(&inputs, options)?;
                    Ok((of, staged))
                });
                let is_last = next.is_err();
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("fanwise-inputs".to_owned());
        thread.spawn_scoped(scope, stage).map_err(|error| RunError::Internal {
            device: Device::HOST,
            label: String::new(),
            reason: format!("no thread for the inputs: {error}"),
        })?;
        for next in staged {
            let (of, staged) = next?;
            run(of, staged)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    use super::{run_each, stage_each};
    use crate::backend::{CPU, Cpu, Executable, RunError, RunOptions, RunOutput, Staged};
    use crate::ir::{Weights, parse, verify};
    use crate::lower::{BindError, Bound, Program, lower};
    use crate::types::Tensor;

    const TWICE: &str = "fanwise 1\nsymbol N >= 0\n\
        graph @twice(%x: f32[N]) -> (y: f32[N]) {\n  %y : f32[N] = \
        add(%x, %x)\n  return %y\n}\n";

    type Inputs = BTreeMap<String, Tensor>;

    fn batch(numbers: &[f32]) -> Inputs {
        BTreeMap::from([("x".to_owned(), Tensor::new(&[numbers.len()], numbers).unwrap())])
    }

    /// The staged and run batches, in order.
    #[derive(Default)]
    struct Log {
        lines: Mutex<Vec<String>>,
        grown: Condvar,
    }

    impl Log {
        fn add(&self, line: String) {
            self.lines.lock().unwrap().push(line);
            self.grown.notify_all();
        }

        /// Whether a line comes before long.
        fn comes(&self, line: &str) -> bool {
            let lines = self.lines.lock().unwrap();
            let missing = |lines: &mut Vec<String>| !lines.iter().any(|known| known == line);
            let wait = self.grown.wait_timeout_while(lines, Duration::from_mins(1), missing);
            !wait.unwrap().1.timed_out()
        }
    }

    /// Numbers what is staged, and does not end a run but the last before the next is staged.
    struct Slow {
        program: Box<dyn Executable>,
        log: Arc<Log>,
        staged: Mutex<usize>,
        last: usize,
    }

    struct Numbered<'a> {
        of: &'a Slow,
        number: usize,
        staged: Box<dyn Staged + 'a>,
    }

    impl Executable for Slow {
        fn program(&self) -> &Program {
            self.program.program()
        }

        fn bind(&self, n: i64) -> Result<Arc<Bound>, BindError> {
            self.program.bind(n)
        }

        fn run(&self, inputs: &Inputs, options: &RunOptions) -> Result<RunOutput, RunError> {
            self.program.run(inputs, options)
        }

        fn stage<'a>(
            &'a self,
            inputs: &Inputs,
            options: &RunOptions,
        ) -> Result<Box<dyn Staged + 'a>, RunError> {
            let mut number = self.staged.lock().unwrap();
            *number += 1;
            let staged = self.program.stage(inputs, options)?;
            self.log.add(format!("staged {number}"));
            Ok(Box::new(Numbered { of: self, number: *number, staged }))
        }
    }

    impl Staged for Numbered<'_> {
        fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
            self.staged.set(name, value)
        }

        fn run(self: Box<Self>) -> Result<RunOutput, RunError> {
            let next = self.number + 1;
            assert!(next > self.of.last || self.of.log.comes(&format!("staged {next}")));
            self.of.log.add(format!("ran {}", self.number));
            self.staged.run()
        }
    }

    fn slow(last: usize) -> Slow {
        let graph = parse(TWICE).unwrap_or_else(|e| panic!("{e}"));
        let verified = verify(&graph).unwrap_or_else(|e| panic!("{e}"));
        let program = lower(&verified, &CPU).unwrap();
        let cpu = Cpu::new(1).unwrap().executable(program, &Weights::default()).unwrap();
        Slow { program: Box::new(cpu), log: Arc::default(), staged: Mutex::new(0), last }
    }

    #[test]
    fn the_next_batch_is_staged_while_one_runs() {
        let run = slow(4);
        let batches = (0..4u8).map(|i| Ok((i, batch(&[f32::from(i), 1.0]))));
        let mut found = Vec::new();
        let done = |i: u8, output: RunOutput| {
            found.push((i, output.outputs[0].1.to_f64()));
            Ok::<_, RunError>(())
        };
        run_each(&run, &RunOptions::default(), batches, done).unwrap();
        let expected = (0..4u8).map(|i| (i, vec![2.0 * f64::from(i), 2.0]));
        assert_eq!(found, expected.collect::<Vec<_>>());
        let lines = run.log.lines.lock().unwrap();
        let at = |line: String| lines.iter().position(|known| *known == line).unwrap();
        for i in 1..4 {
            assert!(at(format!("staged {}", i + 1)) < at(format!("ran {i}")), "{lines:?}");
        }
        for i in 1..3 {
            assert!(
                at(format!("staged {}", i + 2)) > at(format!("ran {i}")),
                "one ahead: {lines:?}"
            );
        }
    }

    #[test]
    fn inputs_without_axes_may_follow_from_the_batches_before() {
        let text = "fanwise 1\nsymbol N >= 0\n\
            graph @scaled(%x: f32[N], %by: f32[]) -> (y: f32[N]) {\n  %y : f32[N] = \
            mul(%x, %by)\n  return %y\n}\n";
        let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
        let verified = verify(&graph).unwrap_or_else(|e| panic!("{e}"));
        let program = lower(&verified, &CPU).unwrap();
        let run = Cpu::new(1).unwrap().executable(program, &Weights::default()).unwrap();
        let one = || {
            let mut inputs = batch(&[3.0]);
            inputs.insert("by".to_owned(), Tensor::scalar(0.0f32));
            Ok(((), inputs))
        };
        let mut last = 1.0f32;
        let batches = (0..3).map(|_| one());
        stage_each(&run, &RunOptions::default(), batches, |(), mut staged| {
            staged.set("by", &Tensor::scalar(last))?;
            last = staged.run()?.outputs[0].1.as_slice::<f32>()[0];
            Ok::<_, RunError>(())
        })
        .unwrap();
        assert!((last - 27.0).abs() < 1e-6, "{last}");
        let mut staged = run.stage(&one().unwrap().1, &RunOptions::default()).unwrap();
        for (name, value) in
            [("x", Tensor::new(&[1], &[1.0f32]).unwrap()), ("by", Tensor::scalar(1.0f64))]
        {
            assert!(staged.set(name, &value).is_err(), "{name}");
        }
        assert!(matches!(
            staged.set("z", &Tensor::scalar(1.0f32)),
            Err(RunError::UnknownInput { .. })
        ));
    }

    #[test]
    fn what_comes_before_an_error_has_run_and_what_comes_behind_it_has_not() {
        let run = slow(0);
        let wrong = BTreeMap::from([("z".to_owned(), Tensor::scalar(1.0f32))]);
        let batches = [batch(&[1.0]), batch(&[2.0]), wrong, batch(&[3.0])];
        let mut ran = 0;
        let done = |(), _: RunOutput| {
            ran += 1;
            Ok(())
        };
        let batches = batches.into_iter().map(|inputs| Ok(((), inputs)));
        let error = run_each(&run, &RunOptions::default(), batches, done).unwrap_err();
        assert!(matches!(error, RunError::UnknownInput { .. }), "{error}");
        assert_eq!((ran, *run.staged.lock().unwrap()), (2, 3));
        let refuse = |(), _: RunOutput| Err(error.clone());
        let endless = (0..).map(|_| Ok(((), batch(&[1.0]))));
        assert!(run_each(&run, &RunOptions::default(), endless, refuse).is_err());
    }
}
