//! Reading of models.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::build::{BuildError, Built, build};
use super::error::{Fault, KerasError, LayerError};
use super::file::{Source, weights};
use super::keras1::translated;
use super::options::BuildOptions;
use super::slots::{Learned, Slots};
use super::state::State;
use super::tree::Spec;
use super::variables::{Variable, Variables};
use super::weights::read;
use super::write;
use crate::format::Budget;
use crate::ir::{ContentHash, Graph, Model, ParamId, Source as Place, Weights};
use crate::types::Note;

/// A Keras model whose configuration was read.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    head: Vec<u8>,
    config: serde_json::Value,
    compiled: serde_json::Value,
    is_before_3: bool,
}

/// A file that has weights, and what it begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WeightsFile<'a> {
    pub(crate) path: &'a Path,
    pub(crate) head: &'a [u8],
}

/// A graph and the variables of Keras that are its parameters; these have no elements yet. The
/// other parameters are large constants.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// The graph.
    pub(crate) graph: Graph,
    /// In the order of `model.weights`.
    pub(crate) variables: Variables,
    /// The elements of the constants.
    pub(crate) constants: Weights,
    /// Decisions of the reader.
    pub(crate) notes: Vec<Note>,
    /// For training: the regularizers and constraints that belong to no variable, each behind its
    /// layer.
    unapplied: BTreeSet<String>,
    for_training: bool,
}

impl Architecture {
    /// The decisions of the reader, and what restricts the variables in training.
    fn told(&self) -> Vec<Note> {
        let mut notes = self.notes.clone();
        let restricted = |v: &&Variable| v.regularizer.is_some() || v.constraint.is_some();
        let all: Vec<&str> = self.variables.iter().filter(restricted).map(|v| &*v.name).collect();
        if self.for_training && !all.is_empty() {
            let how = "the command line applies them, a `Training` has to state them";
            let all = all.join(", ");
            notes.push(format!("regularizers or constraints of the file: {all}; {how}").into());
        }
        if !self.unapplied.is_empty() {
            let all: Vec<&str> = self.unapplied.iter().map(String::as_str).collect();
            notes.push(format!("not applied: {}", all.join(", ")).into());
        }
        notes
    }

    /// The parameters that keep their elements in training.
    fn frozen(&self) -> BTreeSet<String> {
        let kept = self.variables.iter().filter(|v| !v.is_trainable && !v.is_running);
        let kept = kept.map(|variable| variable.name.to_string());
        kept.chain(self.constants.iter().map(|(name, _)| name.to_string())).collect()
    }
}

impl Reader {
    /// Reads the configuration of the file at `path`, whose first bytes are `head`.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn open(path: &Path, head: &[u8]) -> Result<Self, KerasError> {
        let source = Source::open(path, head)?;
        let major = source.major();
        let is_before_3 = major < 3;
        let Source { mut config, compiled, .. } = source;
        if is_before_3 {
            config = translated(config, major == 1).map_err(|layers| KerasError::Layers {
                path: path.display().to_string(),
                layers,
            })?;
        }
        let (path, head) = (path.to_owned(), head.to_owned());
        Ok(Self { path, head, config, compiled, is_before_3 })
    }

    /// How the model was compiled, in the form of Keras 3; null if it was not.
    pub(crate) fn compiled(&self) -> &serde_json::Value {
        &self.compiled
    }

    /// Whether the file is of a version before 3.
    pub(crate) fn is_before_3(&self) -> bool {
        self.is_before_3
    }

    /// The variables of the optimizer that trained these variables.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn optimizer(
        &self,
        variables: &Variables,
        max_memory: u64,
    ) -> Result<Slots, KerasError> {
        let budget = &mut Budget::new(max_memory);
        let label = self.path.display().to_string();
        let bytes = variables.bytes(&label)?;
        let Some(file) = weights(&self.path, &self.head, bytes, budget)? else {
            return Ok(Slots::default());
        };
        let slots = Slots::read(&file, budget)?;
        let state = State::of(&file, &label, variables);
        Ok(if let Some(state) = state { state.joined(slots) } else { slots })
    }

    /// Whether the file holds weights.
    fn has_weights(&self) -> bool {
        !self.head.first().is_some_and(|byte| byte.is_ascii_whitespace() || *byte == b'{')
    }

    /// The graph of the file.
    ///
    /// # Errors
    /// If a layer is not supported, or a size of an input is open.
    pub(crate) fn architecture(&self, options: &BuildOptions) -> Result<Architecture, KerasError> {
        let options = BuildOptions { is_before_3: self.is_before_3, ..options.clone() };
        architecture(&self.config, &self.path.display().to_string(), &options)
    }

    /// The model with the weights of the file, or of another file.
    ///
    /// # Errors
    /// As [`Self::architecture`], or if the weights are not those of the architecture.
    pub(crate) fn model(
        &self,
        options: &BuildOptions,
        from: Option<WeightsFile<'_>>,
        budget: &mut Budget,
    ) -> Result<Model, KerasError> {
        let built = self.architecture(options)?;
        let label = self.path.display().to_string();
        let own = || WeightsFile { path: &self.path, head: &self.head };
        let from = from.or_else(|| self.has_weights().then(own));
        let WeightsFile { path, head } = from.ok_or(KerasError::NoWeights(label))?;
        let label = path.display().to_string();
        let bytes = built.variables.bytes(&label)?;
        let file = weights(path, head, bytes, budget)?;
        let file = file.ok_or_else(|| KerasError::NoWeights(label.clone()))?;
        let weights = read(&file, &label, &built.variables, budget)?;
        Ok(filled(built, weights, &label))
    }

    /// The model with the weights of the file, if it has any.
    ///
    /// # Errors
    /// As [`Self::model`].
    pub(crate) fn named(
        &self,
        options: &BuildOptions,
        budget: &mut Budget,
    ) -> Result<Model, KerasError> {
        if self.has_weights() {
            return self.model(options, None, budget);
        }
        let built = self.architecture(options)?;
        let (notes, frozen) = (built.told(), built.frozen());
        Ok(Model { notes, frozen, ..Model::new(built.graph, built.constants) })
    }

    /// The bytes of the file with these elements of its variables, and how they were learned. All
    /// else stays as it is.
    ///
    /// # Errors
    /// As [`Self::model`], and if the file has no weights.
    pub(crate) fn with_weights(
        &self,
        options: &BuildOptions,
        weights: &Weights,
        learned: Option<&Learned>,
        max_memory: u64,
    ) -> Result<Vec<u8>, KerasError> {
        if !self.has_weights() {
            return Err(KerasError::NoWeights(self.path.display().to_string()));
        }
        let built = self.architecture(options)?;
        let new = write::New { variables: &built.variables, weights, learned };
        write::with_weights(&self.path, &new, max_memory)
    }

    /// Fails if a parameter has no elements.
    ///
    /// # Errors
    /// Then.
    pub(crate) fn complete(&self, model: &Model) -> Result<(), KerasError> {
        let missing = model.graph.params().iter().find(|p| model.weights.get(&p.name).is_none());
        let Some(param) = missing else { return Ok(()) };
        Err(KerasError::Weights {
            path: self.path.display().to_string(),
            variable: param.name.to_string(),
            reason: "is in no file of weights".to_owned(),
        })
    }
}

/// The graph of an architecture with its elements.
fn filled(built: Architecture, mut weights: Weights, file: &str) -> Model {
    let (notes, frozen) = (built.told(), built.frozen());
    let Architecture { mut graph, constants, .. } = built;
    let names: Vec<(ParamId, std::sync::Arc<str>)> =
        (0u32..).map(ParamId).zip(graph.params().iter().map(|param| param.name.clone())).collect();
    for (id, name) in names {
        if let Some(tensor) = weights.get(&name) {
            graph.set_hash(id, ContentHash::of(tensor));
            graph.set_source(id, Place { file: file.into(), key: name });
        }
    }
    for (name, tensor) in constants.iter() {
        weights.insert(name.clone(), tensor.clone());
    }
    Model { notes, frozen, ..Model::new(graph, weights) }
}

/// The graph of an architecture as `model.to_json()` gives it; `source` names it.
///
/// # Errors
/// If it is damaged, a layer is not supported, or a size of an input is open.
pub(crate) fn architecture_of(
    text: &str,
    source: &str,
    options: &BuildOptions,
) -> Result<Architecture, KerasError> {
    let config: serde_json::Value = serde_json::from_str(text).map_err(|e| {
        crate::format::FileError::content(Path::new(source), format!("it is not valid JSON: {e}"))
    })?;
    architecture(&config, source, options)
}

fn architecture(
    config: &serde_json::Value,
    source: &str,
    options: &BuildOptions,
) -> Result<Architecture, KerasError> {
    let path = || source.to_owned();
    let spec = Spec::read(config).map_err(|fault: Fault| {
        let layers = vec![LayerError::new("model", "Model", fault)];
        KerasError::Layers { path: path(), layers }
    })?;
    let Built { graph, variables, constants, notes, unapplied } = build(&spec, source, options)
        .map_err(|e| match e {
            BuildError::Layers(layers) => KerasError::Layers { path: path(), layers },
            BuildError::Open(sizes) => KerasError::Open { path: path(), sizes },
        })?;
    let for_training = options.for_training;
    Ok(Architecture { graph, variables, constants, notes, unapplied, for_training })
}
