//! Loading and saving models: graphs with their weights.
//!
//! A model is an ONNX or Keras file, a graph in text or JSON form, or `zoo:NAME`. A graph names its
//! parameters by source and content; [`load`] reads them from there, and refuses weights with
//! another content hash.

mod batch;
mod error;
mod head;
#[cfg(feature = "keras")]
pub(crate) mod keras;
mod kind;
mod open;
mod options;
mod params;
mod places;
pub(crate) mod traced;
mod untie;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::format::onnx::{self, ImportError};
use crate::format::{self, Budget, FileError, safetensors};
use crate::ir::{self, ContentHash, Graph, Param, ParamId, Source, Weights};
use crate::pass::without_training;
use crate::types::{Note, Quoted, Setting, Tensor, subnormals};
#[cfg(feature = "zoo")]
use crate::zoo;

pub use self::error::ModelError;
use self::head::{head, io};
use self::options::simplified;
pub use self::options::{FreeBatch, LoadOptions};
use self::params::parameterised;
pub(crate) use self::places::locate;
pub use crate::ir::Model;

/// The file form of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphForm {
    /// The text form.
    Text,
    /// The text form with equal replicas once.
    Folded,
    /// The JSON form.
    Json,
}

/// Loads the built-in model of this name.
fn of_zoo(name: &str, options: &LoadOptions) -> Result<Model, ModelError> {
    let Model { graph, weights, .. } = built_in(name)?;
    let bytes = weights.iter().map(|(_, tensor)| tensor.byte_len() as u64).sum();
    if bytes > options.max_memory {
        let (path, limit) = (format!("zoo:{name}"), options.max_memory);
        return Err(ModelError::TooLarge { path, bytes, limit });
    }
    let mut notes = unused(options);
    notes.extend(unchecked(options));
    parameterised(Model { notes, ..Model::new(graph, weights) }, options)
}

/// Loads a model and simplifies it. A graph in text or JSON form is not simplified.
pub fn load(spec: &str, options: &LoadOptions) -> Result<Model, ModelError> {
    // Readers compute constants.
    let _kept = subnormals::kept();
    if let Some(name) = spec.strip_prefix("zoo:") {
        return of_zoo(name, options);
    }
    let path = Path::new(spec);
    if let Some(kind) = kind::of_folder(path) {
        return Err(ModelError::foreign(kind, path));
    }
    let head = head(path)?;
    #[cfg(feature = "keras")]
    if format::keras::is_keras(path, &head) {
        let mut model = keras::read(path, &head, options)?;
        model.notes.extend(unchecked(options));
        return Ok(model);
    }
    let is_json = head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    if !head.starts_with(b"fanwise ") && !is_json {
        if let Some(kind) = kind::of_file(path, &head) {
            return Err(ModelError::foreign(kind, path));
        }
        let read = open::read(path, options);
        let unread = matches!(
            read,
            Err(ModelError::Onnx(ImportError::Malformed { .. } | ImportError::Graphs { .. }))
        );
        let kind = || kind::of_text(&head).or_else(|| kind::of_name(path));
        if let Some(kind) = unread.then(kind).flatten() {
            return Err(ModelError::foreign(kind, path));
        }
        let mut model = read?;
        model.notes.extend(unchecked(options));
        return Ok(model);
    }
    let text = read(path, options)?;
    let name = || path.display().to_string();
    let mut graph = if is_json {
        ir::from_json_with(&text, &options.ops)
            .map_err(|error| ModelError::Json { path: name(), error: Box::new(error) })?
    } else {
        let left = options.max_memory.saturating_sub(text.len() as u64);
        ir::parse_within(&text, &options.ops, left)
            .map_err(|error| ModelError::Text { path: name(), error: Box::new(error) })?
    };
    if let Err(errors) = ir::verify(&graph) {
        return Err(ModelError::Invalid { path: name(), errors: errors.to_string() });
    }
    // Only what is no file has no parent.
    let folder = path.parent().unwrap_or(Path::new(""));
    let weights = find_weights(&mut graph, folder, options)?;
    Ok(Model { notes: unused(options), ..Model::new(graph, weights) })
}

/// The notes about ONNX options that do not apply to other models.
fn unused(options: &LoadOptions) -> Vec<Note> {
    let LoadOptions { batch_axis, dims, set, free_batch, assume, .. } = options;
    let given = [
        (Setting::BatchAxis, !batch_axis.is_empty()),
        (Setting::Dim, !dims.is_empty()),
        (Setting::Set, !set.is_empty()),
        (Setting::FreeBatch, *free_batch == FreeBatch::Always),
        (Setting::Assume, !assume.is_empty()),
    ];
    let given: Vec<Setting> = given.iter().filter(|(_, set)| *set).map(|(s, _)| *s).collect();
    let why = "the model is not an ONNX file; its batch is N; leave out what only such files take";
    if given.is_empty() { Vec::new() } else { vec![Note::ignored(given, why)] }
}

/// The note about unchecked weights for a model whose weights have no hash.
fn unchecked(options: &LoadOptions) -> Option<Note> {
    let why = "only graphs in text or JSON form state which weights they were made for";
    let ignored = || Note::ignored(vec![Setting::ParamsUnchecked], why);
    options.params_unchecked.then(ignored)
}

/// The graph with new elements of its parameters. Changed parameters lose their source, so that
/// [`save`] writes them.
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
    // Only what is no file has no parent.
    let folder = path.parent().unwrap_or(Path::new(""));
    let all: Vec<ParamId> = (0u32..).map(ParamId).take(graph.params().len()).collect();
    for id in &all {
        let Source { file, key } = graph.param(*id).source.clone();
        let seen = named_in(folder, &file);
        if seen != file {
            graph.to_mut().set_source(*id, Source { file: seen, key });
        }
    }
    let has_no_file = |source: &Source| source.file.is_empty() || source.is_folded();
    let own: Vec<ParamId> =
        all.into_iter().filter(|id| has_no_file(&graph.param(*id).source)).collect();
    if !own.is_empty() {
        let beside = path.with_extension("safetensors");
        // A path without a name is a folder: writing the weights fails below.
        let file: Arc<str> = beside.file_name().unwrap_or_default().to_string_lossy().into();
        let lost = |p: &&Param| *p.source.file == *file && !p.source.is_folded();
        if let Some(param) = graph.params().iter().find(lost) {
            let reason = format!(
                "the graph would name {file} for the weights of two files, among them those of {}; \
                 give it another name",
                Quoted(&param.name)
            );
            return Err(FileError::content(path, reason).into());
        }
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
        GraphForm::Folded => ir::folded(&ir::Printer::default().print(&graph)),
        GraphForm::Json => ir::to_json(&graph),
    };
    Ok(format::write_text(path, &text)?)
}

/// A loaded model with new elements of some of its parameters.
pub(crate) struct Retrained<'a> {
    /// The MODEL argument of [`load`].
    pub spec: &'a str,
    /// Its graph.
    pub graph: &'a Graph,
    /// The elements of its parameters.
    pub weights: &'a Weights,
    /// The changed parameters.
    pub changed: &'a BTreeSet<String>,
    /// The limit for the bytes of the file and its tensors.
    pub max_memory: u64,
}

impl Retrained<'_> {
    /// Writes it as an ONNX file.
    ///
    /// If `spec` is an ONNX file with the changed parameters as initializers, everything else in it
    /// stays the same, and tensors of external files are included. Otherwise a new file is written,
    /// operator by operator.
    ///
    /// # Errors
    /// If an operator has no counterpart in ONNX, or the file cannot be written.
    pub(crate) fn save_onnx(&self, path: &Path) -> Result<(), ModelError> {
        let bytes = match self.initializers()? {
            Some(names) => {
                let tensors = names.into_iter().map(|(param, name)| {
                    let elements = self.weights.get(&param).cloned();
                    Ok((name, elements.ok_or(onnx::ExportError::NoWeights(param))?))
                });
                let tensors = tensors.collect::<Result<_, onnx::ExportError>>()?;
                onnx::with_initializers(Path::new(self.spec), &tensors, self.max_memory)?
            }
            None => onnx::export(without_training(self.graph)?.as_ref(), self.weights)?,
        };
        Ok(format::write_bytes(path, &bytes)?)
    }

    /// Checks [`Self::save_onnx`] without writing.
    ///
    /// # Errors
    /// Those of [`Self::save_onnx`], except errors of the file system.
    pub(crate) fn check_onnx(&self) -> Result<(), ModelError> {
        if self.initializers()?.is_none() {
            onnx::export(without_training(self.graph)?.as_ref(), self.weights)?;
        }
        Ok(())
    }

    /// The changed parameters with the names of their initializers in the ONNX file `spec`; `None`
    /// if `spec` is not an ONNX file or stores one of them in another form.
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
/// If the graph is replicated, an operator has no counterpart in ONNX, or the file cannot be
/// written.
pub fn export_onnx(path: &Path, graph: &Graph, weights: &Weights) -> Result<(), ModelError> {
    Ok(format::write_bytes(path, &onnx::export(graph, weights)?)?)
}

/// The model of the zoo with this name.
#[cfg(feature = "zoo")]
fn built_in(name: &str) -> Result<Model, ModelError> {
    let (graph, weights) = zoo::build(name)?;
    Ok(Model::new(graph, weights))
}

/// The model of the zoo with this name; an error in a build without the feature `zoo`.
#[cfg(not(feature = "zoo"))]
fn built_in(name: &str) -> Result<Model, ModelError> {
    Err(ModelError::NoZoo(name.to_owned()))
}

/// The ONNX file of a MODEL argument.
fn onnx_file(spec: &str) -> Result<Option<&Path>, ModelError> {
    if spec.starts_with("zoo:") {
        return Ok(None);
    }
    let path = Path::new(spec);
    let head = head(path)?;
    #[cfg(feature = "keras")]
    if format::keras::is_keras(path, &head) {
        return Ok(None);
    }
    let is_json = head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    Ok((!head.starts_with(b"fanwise ") && !is_json).then_some(path))
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
        let reason = format!("it is not valid text: byte {at} is not UTF-8");
        io(path, std::io::Error::new(std::io::ErrorKind::InvalidData, reason))
    })
}

/// The elements of every parameter, from the files that the graph names.
fn find_weights(
    graph: &mut Graph,
    folder: &Path,
    options: &LoadOptions,
) -> Result<Weights, ModelError> {
    name_sources(graph, folder);
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
        let held = Held::open(&file, &params, options)?;
        for param in params {
            weights.insert(param.name.clone(), held.take(&file, param, options.params_unchecked)?);
        }
    }
    Ok(weights)
}

/// Names the files of weights as they are seen from the working folder: a graph names those beside
/// it. What lies elsewhere, or is not there, keeps its name.
fn name_sources(graph: &mut Graph, folder: &Path) {
    let mut seen: HashMap<Arc<str>, Option<Arc<str>>> = HashMap::new();
    let ids: Vec<ParamId> = (0u32..).map(ParamId).take(graph.params().len()).collect();
    for id in ids {
        let Source { file, key } = graph.param(id).source.clone();
        let beside = seen.entry(file).or_insert_with_key(|file| {
            let path = folder.join(&**file);
            // A path that is no text has no other name.
            path.is_file().then(|| path.to_str().map(Into::into)).flatten()
        });
        if let Some(file) = beside.clone() {
            graph.set_source(id, Source { file, key });
        }
    }
}

/// The name by which a graph in `folder` finds a file that has this name from the working folder.
fn named_in(folder: &Path, file: &str) -> Arc<str> {
    let is_found_anywhere =
        file.is_empty() || file.starts_with("zoo:") || Path::new(file).is_absolute();
    if is_found_anywhere || folder.as_os_str().is_empty() {
        return file.into();
    }
    // Links are followed: behind one, `..` is not the folder that has it.
    let (Ok(from), Ok(to)) = (folder.canonicalize(), Path::new(file).canonicalize()) else {
        return file.into();
    };
    let shared = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    let path: PathBuf = match shared {
        // On another drive.
        0 => to,
        _ => up.chain(to.components().skip(shared)).collect(),
    };
    path.to_str().map_or_else(|| file.into(), Into::into)
}

/// What a source has, by key.
#[derive(Default)]
struct Held {
    tensors: BTreeMap<String, Tensor>,
    /// The hashes of tensors that were computed just now.
    hashes: BTreeMap<String, ContentHash>,
}

impl From<BTreeMap<String, Tensor>> for Held {
    fn from(tensors: BTreeMap<String, Tensor>) -> Self {
        Self { tensors, ..Self::default() }
    }
}

impl Held {
    fn open(file: &str, params: &[&Param], options: &LoadOptions) -> Result<Self, ModelError> {
        if let Some(name) = file.strip_prefix("zoo:") {
            return Self::of_model(built_in(name)?, options);
        }
        let path = Path::new(file);
        if !path.is_file() {
            let param = params.first().map_or_else(String::new, |p| p.name.to_string());
            return Err(ModelError::NoSource { param, file: file.to_owned() });
        }
        let keys: BTreeSet<&str> = params.iter().map(|p| &*p.source.key).collect();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let mut budget = Budget::new(options.max_memory);
            let names: HashSet<&str> = params.iter().map(|p| &*p.name).collect();
            let wanted = |key: &str| keys.contains(key) || names.contains(key);
            let weights = safetensors::read(path, &mut budget, wanted)?;
            let tensors = weights.iter().map(|(k, t)| (k.to_string(), t.clone()));
            return Ok(tensors.collect::<BTreeMap<_, _>>().into());
        }
        if path.extension().is_some_and(|e| e == "npz") {
            return Ok(params::read(path, options.max_memory)?.into());
        }
        #[cfg(feature = "keras")]
        {
            let head = head(path)?;
            if format::keras::is_keras(path, &head) {
                let read = |again: &LoadOptions| keras::read(path, &head, again);
                return Self::of_file(BTreeMap::new(), params, options, read);
            }
        }
        let held = onnx::initializers(path, &mut Budget::new(options.max_memory), &keys)?;
        let held = held.iter().map(|(k, t)| (k.to_string(), t.clone())).collect();
        Self::of_file(held, params, options, |again| open::read(path, again))
    }

    /// The tensors that were `found` in a file, and those that are computed of the model in it.
    fn of_file(
        mut found: BTreeMap<String, Tensor>,
        params: &[&Param],
        options: &LoadOptions,
        read: impl Fn(&LoadOptions) -> Result<Model, ModelError>,
    ) -> Result<Self, ModelError> {
        // What was computed is so again, of the model as it is read where nothing more is said; for
        // training, for which sizes must be bound, less of it is.
        for for_training in [options.for_training, !options.for_training] {
            if params.iter().all(|p| found.contains_key(&*p.source.key)) {
                break;
            }
            let again = LoadOptions { for_training, params: None, ..options.clone() };
            let Model { graph, weights, .. } = match read(&again) {
                Err(_) if for_training != options.for_training => break,
                read => read?,
            };
            let tensor =
                |p: &Param| Some((p.source.key.to_string(), weights.get(&p.name)?.clone()));
            found.extend(graph.params().iter().filter_map(tensor));
        }
        Ok(found.into())
    }

    /// The parameters of a model before and after its simplification.
    fn of_model(model: Model, options: &LoadOptions) -> Result<Self, ModelError> {
        let mut held = Self::default();
        let mut collect = |model: &Model| {
            for param in model.graph.params() {
                if let Some(tensor) = model.weights.get(&param.name) {
                    let key = param.source.key.to_string();
                    held.hashes.insert(key.clone(), param.hash);
                    held.tensors.insert(key, tensor.clone());
                }
            }
        };
        collect(&model);
        collect(&simplified(model, options)?);
        Ok(held)
    }

    /// The parameter's elements, if they are those that the graph was made for.
    fn take(&self, file: &str, param: &Param, unchecked: bool) -> Result<Tensor, ModelError> {
        // A file written for the graph holds parameters by name, whatever their first source was.
        let found = |key: &str| self.tensors.get_key_value(key);
        let found = found(&param.source.key).or_else(|| found(&param.name));
        let (key, tensor) = found.ok_or_else(|| ModelError::Missing {
            param: param.name.to_string(),
            file: file.to_owned(),
            key: param.source.key.to_string(),
        })?;
        let changed = |what, fits| ModelError::Changed {
            param: param.name.to_string(),
            file: file.to_owned(),
            what,
            fits,
        };
        if tensor.tensor_type() != param.ty {
            let what = format!("{} instead of {}", tensor.tensor_type(), param.ty);
            return Err(changed(what, false));
        }
        let hash = self.hashes.get(key).copied().unwrap_or_else(|| ContentHash::of(tensor));
        if hash != param.hash && !unchecked {
            return Err(changed(format!("their hash is {hash}, not {}", param.hash), true));
        }
        Ok(tensor.clone())
    }
}
