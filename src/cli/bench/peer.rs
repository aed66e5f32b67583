//! Other programs that run the same model, each in a Python process of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

use super::report::Measured;

/// Loads a model, and runs it as often as it is told to.
const SCRIPT: &str = include_str!("peer.py");

/// A library of Python that runs the same model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Library {
    /// ONNX Runtime: inference of any model, as an ONNX file
    Onnxruntime,
    /// Keras on TensorFlow: a Keras file
    Tensorflow,
    /// Keras on PyTorch: a Keras file
    Torch,
    /// Keras on JAX: a Keras file
    Jax,
}

impl Library {
    /// Its name, in Python and on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Onnxruntime => "onnxruntime",
            Self::Tensorflow => "tensorflow",
            Self::Torch => "torch",
            Self::Jax => "jax",
        }
    }

    /// What `pip install` needs for it.
    const fn packages(self) -> &'static str {
        match self {
            Self::Onnxruntime => "onnxruntime numpy",
            Self::Tensorflow => "keras tensorflow",
            Self::Torch => "keras torch",
            Self::Jax => "keras jax",
        }
    }
}

/// What a peer is asked to do.
pub(super) struct Asked<'a> {
    pub(super) library: Library,
    pub(super) python: &'a Path,
    /// The model, as the library reads it.
    pub(super) file: &'a Path,
    pub(super) rows: u32,
    pub(super) threads: usize,
    /// The loss and the optimizer of a step, if steps are measured.
    pub(super) train: Option<Value>,
}

/// A process that has loaded a model.
pub(super) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    library: Library,
    pub(super) version: String,
}

/// A line that a peer writes.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Version(String),
    Error(String),
    #[serde(untagged)]
    Ran {
        seconds: Vec<f64>,
        memory: Option<u64>,
    },
}

impl Peer {
    /// Starts it, and waits until it has run the model.
    ///
    /// # Errors
    /// If there is no such Python, it lacks the library, or this cannot run the model.
    pub(super) fn start(asked: &Asked<'_>) -> anyhow::Result<Self> {
        let Asked { library, python, file, rows, threads, train } = asked;
        let told = json!({
            "peer": library.name(), "file": file, "rows": rows, "threads": threads, "train": train,
        });
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT, &told.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let missing = || {
            format!("{} cannot be started; name a Python with `--python FILE`", python.display())
        };
        let mut child = command.spawn().with_context(missing)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the pipes of {} are missing", python.display());
        };
        let output = BufReader::new(output);
        let mut peer = Self { child, input, output, library: *library, version: String::new() };
        match peer.answer()? {
            Answer::Version(version) => peer.version = version,
            Answer::Error(error) if error.starts_with("ModuleNotFoundError") => bail!(
                "{} lacks a package ({error}): `{0} -m pip install {}`",
                python.display(),
                library.packages()
            ),
            Answer::Error(_) | Answer::Ran { .. } => {
                bail!("{} answered out of turn", library.name())
            }
        }
        Ok(peer)
    }

    /// Runs the model so many times.
    ///
    /// # Errors
    /// If the process fails.
    pub(super) fn run(&mut self, times: u32) -> anyhow::Result<Measured> {
        let name = self.library.name();
        writeln!(self.input, "{times}").with_context(|| format!("{name} has ended"))?;
        match self.answer()? {
            Answer::Ran { seconds, memory } => Ok(Measured { seconds, memory }),
            Answer::Version(_) | Answer::Error(_) => bail!("{name} answered out of turn"),
        }
    }

    fn answer(&mut self) -> anyhow::Result<Answer> {
        let name = self.library.name();
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            bail!("{name} ended without an answer: {}", self.child.wait()?);
        }
        let answer = serde_json::from_str(&line);
        match answer.with_context(|| format!("{name} answered {line:?}"))? {
            Answer::Error(error) if !error.starts_with("ModuleNotFoundError") => {
                bail!("{name} cannot run the model: {error}")
            }
            answer @ (Answer::Version(_) | Answer::Error(_) | Answer::Ran { .. }) => Ok(answer),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It has nothing to keep, and may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
