//! From a MODEL argument to a graph with its weights, and back to files.
//!
//! A model is an ONNX file, a graph in text or JSON form, or `zoo:NAME`. A graph names its
//! parameters by source and content; [`load`] finds them there, and refuses elements that are not
//! those that the graph was made for.

mod batch;
mod kind;
mod params;
mod places;
mod untie;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::onnx::{self, ImportError, ImportOptions};
use crate::format::{self, Budget, FileError, safetensors};
use crate::ir::{self, ContentHash, Graph, Param, ParamId, Source, Weights};
use crate::op::Assume;
use crate::pass::{PassError, SimplifyOptions, simplify};
use crate::types::{Escaped, Quoted, Tensor};
use crate::zoo::{self, ZooError};

pub use self::places::locate;
pub use crate::format::Model;

/// What a file leaves open, and where else to look.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The batch axis of inputs, by name.
    pub batch_axis: BTreeMap<String, usize>,
    /// The sizes that the file names.
    pub dims: BTreeMap<String, i64>,
    /// Whether a batch size that is baked into the inputs becomes `N`.
    pub free_batch: bool,
    /// What is assumed of operators of an ONNX file that are not known, by name.
    pub assume: BTreeMap<String, Assume>,
    /// A file of weights (`.safetensors` or `.npz`): those of an ONNX file or a model of the zoo
    /// take its elements by name; a graph in text or JSON form takes all of them from it, or from
    /// an ONNX file, instead of from those that it names.
    pub params: Option<PathBuf>,
    /// Whether elements may be others than those that a graph in text or JSON form was made for.
    pub params_unchecked: bool,
    /// Whether the model is to be trained: what inference has no use for stays.
    pub for_training: bool,
    /// The bytes that files and weights may take.
    pub max_memory: u64,
}

impl Default for LoadOptions {
    /// Nothing declared, nothing bound, no bound on memory.
    fn default() -> Self {
        Self {
            batch_axis: BTreeMap::new(),
            dims: BTreeMap::new(),
            free_batch: false,
            assume: BTreeMap::new(),
            params: None,
            params_unchecked: false,
            for_training: false,
            max_memory: u64::MAX,
        }
    }
}

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// The path is no regular file.
    #[error("{0} is no regular file")]
    NotAFile(String),
    /// The file, or the weights of a model of the zoo, are larger than the memory that may be used.
    #[error("{path} has {bytes} bytes; {limit} may be used (`--max-memory`)")]
    TooLarge {
        /// The file.
        path: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The ONNX file cannot be imported.
    #[error(transparent)]
    Onnx(#[from] ImportError),
    /// There is no such model.
    #[error(transparent)]
    Zoo(#[from] ZooError),
    /// The file or folder is a model of another kind, or none.
    #[error("{} is {what}; {way}", Escaped(.path))]
    Foreign {
        /// The file.
        path: String,
        /// What it is.
        what: &'static str,
        /// What to do.
        way: &'static str,
    },
    /// The text is no graph.
    #[error("{path}: {error}")]
    Text {
        /// The file.
        path: String,
        /// Where and what.
        error: Box<ir::ParseError>,
    },
    /// The JSON is no graph.
    #[error("{path}: {error}")]
    Json {
        /// The file.
        path: String,
        /// Where and what.
        error: Box<ir::JsonError>,
    },
    /// The graph breaks an invariant.
    #[error("{path}: the graph is damaged\n{errors}")]
    Invalid {
        /// The file.
        path: String,
        /// Every invariant that is broken.
        errors: String,
    },
    /// A file of weights or a graph cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file that holds a parameter is not there.
    #[error(
        "the weights of {} are in {}, which is no regular file; name another file with `--params \
         FILE`",
        Quoted(.param), Quoted(.file)
    )]
    NoSource {
        /// The parameter.
        param: String,
        /// The file that the graph names.
        file: String,
    },
    /// The file does not hold a parameter.
    #[error(
        "{} has no {}, the weights of {}; name another file with `--params FILE`",
        Escaped(.file), Quoted(.key), Quoted(.param)
    )]
    Missing {
        /// The parameter.
        param: String,
        /// The file.
        file: String,
        /// The key looked for.
        key: String,
    },
    /// A file of weights in a form that is not read.
    #[error("{}: weights are read from .safetensors and .npz files", Escaped(.0))]
    ParamsForm(String),
    /// A file of weights that holds none.
    #[error("{} holds no tensor", Escaped(.0))]
    NoParams(String),
    /// A file of weights has a tensor that is no parameter of the model.
    #[error(
        "{} has a tensor {}, and the model has no parameter of this name; `fanwise summary` lists \
         them",
        Escaped(.file), Quoted(.name)
    )]
    UnknownParam {
        /// The file.
        file: String,
        /// The tensor's name.
        name: String,
    },
    /// The elements are not those that the graph was made for.
    #[error(
        "the weights of {} in {} are not those that the graph was made for: {what}",
        Quoted(.param), Escaped(.file)
    )]
    Changed {
        /// The parameter.
        param: String,
        /// The file.
        file: String,
        /// The difference.
        what: String,
    },
    /// The model cannot be written as an ONNX file.
    #[error(transparent)]
    Export(#[from] onnx::ExportError),
    /// Nothing says which model a graph was made from.
    #[error("the graph does not say which model it was made from; name it with `--template MODEL`")]
    NoTemplate,
    /// Simplification failed: a bug in an operator.
    #[error(transparent)]
    Pass(#[from] PassError),
}

/// The form in which a graph is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphForm {
    /// The text form.
    Text,
    /// The JSON form.
    Json,
}

/// Reads a model and simplifies it; a graph in text or JSON form is taken as it is.
pub fn load(spec: &str, options: &LoadOptions) -> Result<Model, ModelError> {
    if let Some(name) = spec.strip_prefix("zoo:") {
        let (graph, weights) = zoo::build(name)?;
        let bytes = weights.iter().map(|(_, tensor)| tensor.bytes().len() as u64).sum();
        if bytes > options.max_memory {
            let limit = options.max_memory;
            return Err(ModelError::TooLarge { path: spec.to_owned(), bytes, limit });
        }
        let mut notes = unused(options);
        notes.extend(unchecked(options));
        return parameterised(Model { graph, weights, notes }, options);
    }
    let path = Path::new(spec);
    if let Some((what, way)) = kind::of_folder(path) {
        return Err(foreign(path, what, way));
    }
    let head = head(path)?;
    let is_json = head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    if !head.starts_with(b"fanwise ") && !is_json {
        if let Some((what, way)) = kind::of_file(path, &head) {
            return Err(foreign(path, what, way));
        }
        let imported = onnx::import(path, &import_options(options));
        if let Err(ImportError::Batches(candidates)) = imported {
            return Err(batch::choose(path, options, candidates).into());
        }
        let unread =
            matches!(imported, Err(ImportError::Malformed(_) | ImportError::Graphs { .. }));
        if let Some((what, way)) = kind::of_text(&head).filter(|_| unread) {
            return Err(foreign(path, what, way));
        }
        let mut model = imported?;
        model.notes.extend(unchecked(options));
        return parameterised(model, options);
    }
    let text = read(path, options)?;
    let name = || path.display().to_string();
    let graph = if is_json {
        ir::from_json(&text)
            .map_err(|error| ModelError::Json { path: name(), error: Box::new(error) })?
    } else {
        ir::parse(&text)
            .map_err(|error| ModelError::Text { path: name(), error: Box::new(error) })?
    };
    if let Err(errors) = ir::verify(&graph) {
        return Err(ModelError::Invalid { path: name(), errors: errors.to_string() });
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let weights = find_weights(&graph, folder, options)?;
    Ok(Model { graph, weights, notes: unused(options) })
}

fn foreign(path: &Path, what: &'static str, way: &'static str) -> ModelError {
    ModelError::Foreign { path: path.display().to_string(), what, way }
}

/// What is said of options that speak of an ONNX file, where the model is none.
fn unused(options: &LoadOptions) -> Vec<String> {
    let LoadOptions { batch_axis, dims, free_batch, assume, .. } = options;
    let given = [
        ("--batch-axis", !batch_axis.is_empty()),
        ("--dim", !dims.is_empty()),
        ("--free-batch", *free_batch),
        ("--assume", !assume.is_empty()),
    ];
    let given: Vec<&str> = given.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    if given.is_empty() {
        return Vec::new();
    }
    vec![format!("{} has no effect: the model is no ONNX file, its batch is N", given.join(", "))]
}

/// What is said of weights that are taken unchecked, where the model has none that are checked.
fn unchecked(options: &LoadOptions) -> Option<String> {
    let says =
        "--params-unchecked has no effect: only graphs in text or JSON form know their weights";
    options.params_unchecked.then(|| says.to_owned())
}

/// The graph with other elements of its parameters: those that changed have no source any more, so
/// that [`save`] writes them.
pub fn with_weights(graph: &Graph, weights: &Weights) -> Graph {
    let mut graph = graph.clone();
    let changed: Vec<(ParamId, ContentHash, Arc<str>)> = (0u32..)
        .zip(graph.params())
        .filter_map(|(i, param)| {
            let hash = ContentHash::of(weights.get(&param.name)?);
            (hash != param.hash).then(|| (ParamId(i), hash, param.name.clone()))
        })
        .collect();
    for (id, hash, key) in changed {
        graph.set_source(id, Source { file: "".into(), key });
        graph.set_hash(id, hash);
    }
    graph
}

/// Writes a graph so that [`load`] reads it back: weights without a source file of their own
/// (folded or generated) go to a `.safetensors` file beside it.
pub fn save(
    path: &Path,
    graph: &Graph,
    weights: &Weights,
    form: GraphForm,
) -> Result<(), ModelError> {
    let mut graph = Cow::Borrowed(graph);
    let own: Vec<ParamId> = (0u32..)
        .zip(graph.params())
        .filter(|(_, p)| p.source.file.is_empty() || p.source.key.starts_with(FOLDED))
        .map(|(i, _)| ParamId(i))
        .collect();
    if !own.is_empty() {
        let beside = path.with_extension("safetensors");
        let file: Arc<str> = beside.file_name().unwrap_or_default().to_string_lossy().into();
        let mut kept = Weights::default();
        for id in own {
            let name = graph.param(id).name.clone();
            if let Some(tensor) = weights.get(&name) {
                kept.insert(name.clone(), tensor.clone());
            }
            graph.to_mut().set_source(id, Source { file: file.clone(), key: name });
        }
        safetensors::write(&beside, &kept)?;
    }
    let text = match form {
        GraphForm::Text => ir::Printer::default().print(&graph),
        GraphForm::Json => ir::to_json(&graph),
    };
    Ok(format::write_text(path, &text)?)
}

/// A model that was loaded, with other elements of some of its parameters.
pub struct Retrained<'a> {
    /// What [`load`] made it of.
    pub spec: &'a str,
    /// Its graph.
    pub graph: &'a Graph,
    /// The elements of its parameters.
    pub weights: &'a Weights,
    /// The parameters that have other elements than before.
    pub changed: &'a BTreeSet<String>,
    /// The bytes that the file and its tensors may take.
    pub max_memory: u64,
}

impl Retrained<'_> {
    /// Writes it as an ONNX file.
    ///
    /// If `spec` is an ONNX file which has the changed parameters as initializers, everything else
    /// stays as it is there, and tensors that lay in other files are put into this one. Else the
    /// file is written anew, operator by operator.
    ///
    /// # Errors
    /// If an operator has no counterpart in ONNX, or the file cannot be written.
    pub fn save_onnx(&self, path: &Path) -> Result<(), ModelError> {
        let bytes = match self.initializers()? {
            Some(names) => {
                let tensors = names.into_iter().map(|(param, name)| {
                    let elements = self.weights.get(&param).cloned();
                    Ok((name, elements.ok_or(onnx::ExportError::NoWeights(param))?))
                });
                let tensors = tensors.collect::<Result<_, onnx::ExportError>>()?;
                onnx::with_initializers(Path::new(self.spec), &tensors, self.max_memory)?
            }
            None => onnx::export(self.graph, self.weights)?,
        };
        Ok(format::write_bytes(path, &bytes)?)
    }

    /// Fails if [`Self::save_onnx`] will, but for what only writing shows.
    ///
    /// # Errors
    /// As there.
    pub fn check_onnx(&self) -> Result<(), ModelError> {
        if self.initializers()?.is_none() {
            onnx::export(self.graph, self.weights)?;
        }
        Ok(())
    }

    /// The changed parameters with the names of their initializers in the ONNX file `spec`; `None`
    /// if it is none, or has one of them in another form.
    fn initializers(&self) -> Result<Option<Vec<(String, String)>>, ModelError> {
        let Some(file) = onnx_file(self.spec)? else { return Ok(None) };
        let known = onnx::initializer_names(file, self.max_memory)?;
        let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
        let params = self.graph.params().iter();
        let own = params.filter(|param| self.changed.contains(&*param.name)).map(|param| {
            let own = *param.source.file == *self.spec && known.contains(&*param.source.key);
            own.then(|| (param.name.to_string(), param.source.key.to_string()))
        });
        Ok(own.collect())
    }
}

/// Writes a model as an ONNX file, operator by operator.
///
/// # Errors
/// If the graph is no model, an operator has no counterpart in ONNX, or the file cannot be written.
pub fn export_onnx(path: &Path, graph: &Graph, weights: &Weights) -> Result<(), ModelError> {
    Ok(format::write_bytes(path, &onnx::export(graph, weights)?)?)
}

/// The ONNX file that a model is.
fn onnx_file(spec: &str) -> Result<Option<&Path>, ModelError> {
    if spec.starts_with("zoo:") {
        return Ok(None);
    }
    let path = Path::new(spec);
    let head = head(path)?;
    let is_json = head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    Ok((!head.starts_with(b"fanwise ") && !is_json).then_some(path))
}

/// How the key of a parameter begins that simplification computed from others.
const FOLDED: &str = "folded:";

/// The model with the parameters that are asked for, simplified.
fn parameterised(mut model: Model, options: &LoadOptions) -> Result<Model, ModelError> {
    let Some(path) = &options.params else { return simplified(model, options) };
    params::replace(&mut model, path, options.max_memory)?;
    let mut model = simplified(model, options)?;
    model.notes.extend(params::missing(&model, path));
    Ok(model)
}

fn simplified(mut model: Model, options: &LoadOptions) -> Result<Model, ModelError> {
    if options.for_training {
        untie::untie(&mut model).map_err(PassError::from)?;
        model.graph.remove_unused();
    }
    let held =
        model.weights.iter().fold(0u64, |sum, (_, t)| sum.saturating_add(t.bytes().len() as u64));
    let left = options.max_memory.saturating_sub(held);
    let limit = SimplifyOptions::default().max_bytes.min(left);
    let options = SimplifyOptions { max_bytes: limit, for_training: options.for_training };
    simplify(&mut model.graph, &mut model.weights, options)?;
    Ok(model)
}

fn import_options(options: &LoadOptions) -> ImportOptions {
    ImportOptions {
        batch_axis: options.batch_axis.clone(),
        dims: options.dims.clone(),
        free_batch: options.free_batch,
        assume: options.assume.clone(),
        max_memory: options.max_memory,
    }
}

fn io(path: &Path, error: std::io::Error) -> ModelError {
    ModelError::Io { path: path.display().to_string(), error }
}

/// The first bytes of a regular file.
fn head(path: &Path) -> Result<Vec<u8>, ModelError> {
    let meta = std::fs::metadata(path).map_err(|e| io(path, e))?;
    if !meta.is_file() {
        return Err(ModelError::NotAFile(path.display().to_string()));
    }
    let mut head = Vec::new();
    let file = File::open(path).map_err(|e| io(path, e))?;
    file.take(64).read_to_end(&mut head).map_err(|e| io(path, e))?;
    Ok(head)
}

/// A text file whose size is checked before memory is taken.
fn read(path: &Path, options: &LoadOptions) -> Result<String, ModelError> {
    let bytes = std::fs::metadata(path).map_err(|e| io(path, e))?.len();
    if bytes > options.max_memory {
        let path = path.display().to_string();
        return Err(ModelError::TooLarge { path, bytes, limit: options.max_memory });
    }
    let text = String::from_utf8(std::fs::read(path).map_err(|e| io(path, e))?);
    text.map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let reason = format!("it is no text: byte {at} is not UTF-8");
        io(path, std::io::Error::new(std::io::ErrorKind::InvalidData, reason))
    })
}

/// The elements of every parameter, from the files that the graph names.
fn find_weights(
    graph: &Graph,
    folder: &Path,
    options: &LoadOptions,
) -> Result<Weights, ModelError> {
    let mut by_file: BTreeMap<String, Vec<&Param>> = BTreeMap::new();
    for param in graph.params() {
        let file = match &options.params {
            Some(path) => path.display().to_string(),
            None => param.source.file.to_string(),
        };
        by_file.entry(file).or_default().push(param);
    }
    let mut weights = Weights::default();
    for (file, params) in by_file {
        let held = Held::open(&file, &params, folder, options)?;
        for param in params {
            weights.insert(param.name.clone(), held.take(&file, param, options.params_unchecked)?);
        }
    }
    Ok(weights)
}

/// The tensors of a source, by key.
struct Held(BTreeMap<String, Tensor>);

impl Held {
    fn open(
        file: &str,
        params: &[&Param],
        folder: &Path,
        options: &LoadOptions,
    ) -> Result<Self, ModelError> {
        if let Some(name) = file.strip_prefix("zoo:") {
            let (graph, weights) = zoo::build(name)?;
            return Self::of_model(Model { graph, weights, notes: Vec::new() }, options);
        }
        let beside = folder.join(file);
        let path = [beside.as_path(), Path::new(file)]
            .into_iter()
            .find(|p| p.is_file() && !file.is_empty());
        let Some(path) = path else {
            let param = params.first().map_or_else(String::new, |p| p.name.to_string());
            return Err(ModelError::NoSource { param, file: file.to_owned() });
        };
        let keys: HashSet<&str> = params.iter().map(|p| &*p.source.key).collect();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let mut budget = Budget::new(options.max_memory);
            let names: HashSet<&str> = params.iter().map(|p| &*p.name).collect();
            let wanted = |key: &str| keys.contains(key) || names.contains(key);
            let weights = safetensors::read(path, &mut budget, wanted)?;
            return Ok(Self(weights.iter().map(|(k, t)| (k.to_string(), t.clone())).collect()));
        }
        if path.extension().is_some_and(|e| e == "npz") {
            return Ok(Self(params::read(path, options.max_memory)?));
        }
        let wanted = |key: &str| keys.contains(key);
        let held = onnx::initializers(path, &mut Budget::new(options.max_memory), wanted)?;
        if params.iter().all(|p| held.get(&p.source.key).is_some()) {
            return Ok(Self(held.iter().map(|(k, t)| (k.to_string(), t.clone())).collect()));
        }
        Self::of_model(onnx::import(path, &import_options(options))?, options)
    }

    /// The parameters of a model before and after its simplification.
    fn of_model(model: Model, options: &LoadOptions) -> Result<Self, ModelError> {
        let mut tensors = BTreeMap::new();
        let mut collect = |model: &Model| {
            for param in model.graph.params() {
                if let Some(tensor) = model.weights.get(&param.name) {
                    tensors.insert(param.source.key.to_string(), tensor.clone());
                }
            }
        };
        collect(&model);
        collect(&simplified(model, options)?);
        Ok(Self(tensors))
    }

    /// The parameter's elements, if they are those that the graph was made for.
    fn take(&self, file: &str, param: &Param, unchecked: bool) -> Result<Tensor, ModelError> {
        // A file written for the graph holds parameters by name, whatever their first source was.
        let found = self.0.get(&*param.source.key).or_else(|| self.0.get(&*param.name));
        let tensor = found.ok_or_else(|| ModelError::Missing {
            param: param.name.to_string(),
            file: file.to_owned(),
            key: param.source.key.to_string(),
        })?;
        let changed = |what| ModelError::Changed {
            param: param.name.to_string(),
            file: file.to_owned(),
            what,
        };
        if tensor.tensor_type() != param.ty {
            return Err(changed(format!("{} instead of {}", tensor.tensor_type(), param.ty)));
        }
        let hash = ContentHash::of(tensor);
        if hash != param.hash && !unchecked {
            let what = format!("their hash is {hash}, not {}", param.hash);
            return Err(changed(format!("{what}; `--params-unchecked` takes them all the same")));
        }
        Ok(tensor.clone())
    }
}
