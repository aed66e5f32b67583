//! What is run on bytes that may be anything: each reader of the crate, and what must hold of all
//! that it accepts.
//!
//! The fuzz targets of `tests/fuzz` and the tests call the same functions.

use std::io::Cursor;
use std::path::Path;

use fanwise::backend::CPU;
use fanwise::backend::cuda::Arch;
use fanwise::format::onnx::{ImportOptions, import_bytes};
use fanwise::format::{Budget, npy, npz, safetensors};
use fanwise::internal::decode;
use fanwise::internal::keras_architecture;
use fanwise::internal::parse_resources;
use fanwise::internal::read_tensor;
use fanwise::internal::{Cifar, Table};
use fanwise::internal::{Unit, key};
use fanwise::internal::{decode_image, row};
use fanwise::ir::{self, Graph, Weights};
use fanwise::lower::lower;
use fanwise::model::{self, LoadOptions};
use fanwise::pass::{Replicate, SimplifyOptions, replicate, simplify};
use fanwise::train::data::{Source, TableOptions};
use fanwise::types::{Device, Dim};

/// The bytes that tensors may take.
pub const MEMORY: u64 = 16 << 20;

/// Graphs up to this number of nodes are also rewritten and lowered.
const SMALL: usize = 400;

/// A graph in the text form.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ir::parse(text) {
        Ok(graph) => accepted(&graph, &Weights::default()),
        Err(error) => shown(&error),
    }
}

/// A graph in JSON.
pub fn json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ir::from_json(text) {
        Ok(graph) => accepted(&graph, &Weights::default()),
        Err(error) => shown(&error),
    }
}

/// A tensor of ONNX's test data.
pub fn tensor(data: &[u8]) {
    let mut budget = Budget::new(MEMORY);
    match read_tensor(data.to_vec().into(), Path::new("input_0.pb"), &mut budget) {
        Ok((_, tensor)) => assert_eq!(budget.used(), tensor.bytes().len() as u64),
        Err(error) => shown(&error),
    }
}

/// An ONNX model. What is imported is a valid graph, and has its weights.
pub fn onnx(data: &[u8]) {
    for free_batch in [false, true] {
        let options = ImportOptions { max_memory: MEMORY, free_batch, ..Default::default() };
        match import_bytes(data.to_vec().into(), "model.onnx", &options) {
            Ok(model) => {
                ir::verify(&model.graph).unwrap_or_else(|e| panic!("{e}\n{}", model.graph));
                for param in model.graph.params() {
                    let tensor = model.weights.get(&param.name).expect("a parameter has elements");
                    assert_eq!(tensor.tensor_type(), param.ty, "{}", param.name);
                }
                accepted(&model.graph, &model.weights);
            }
            Err(error) => shown(&error),
        }
    }
}

/// An `.npz` archive.
pub fn npz(data: &[u8]) {
    let mut budget = Budget::new(MEMORY);
    let path = Path::new("in.npz");
    let mapped = npz::map_from(&data.to_vec().into(), path, &mut Budget::new(MEMORY));
    match npz::read_from(Cursor::new(data), path, &mut budget) {
        Ok(tensors) => {
            let bytes: usize = tensors.values().map(|t| t.bytes().len()).sum();
            assert_eq!(budget.used(), bytes as u64);
            let mapped = mapped.expect("what is read can be mapped");
            assert!(mapped.values().zip(tensors.values()).all(|(a, t)| a.dims() == t.dims()));
        }
        Err(error) => shown(&error),
    }
    match npy::map_from(&data.to_vec().into(), path, &mut Budget::new(MEMORY)) {
        Ok(array) => assert!(array.bytes().len() < data.len()),
        Err(error) => shown(&error),
    }
}

/// A `.safetensors` file.
pub fn safetensors(data: &[u8]) {
    let mut budget = Budget::new(MEMORY);
    let path = Path::new("w.safetensors");
    match safetensors::read_from(Cursor::new(data), data.len() as u64, path, &mut budget, |_| true)
    {
        Ok(weights) => {
            let bytes: usize = weights.iter().map(|(_, t)| t.bytes().len()).sum();
            assert_eq!(budget.used(), bytes as u64);
            let mapped = safetensors::map_from(&data.to_vec().into(), path);
            assert_eq!(mapped.expect("what is read can be mapped").len(), weights.len());
        }
        Err(error) => shown(&error),
    }
}

/// A formula of the batch size.
pub fn dim(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let dim: Dim = match text.parse() {
        Ok(dim) => dim,
        Err(error) => return shown(&error),
    };
    let printed = dim.to_string();
    assert_eq!(printed.parse().as_ref(), Ok(&dim), "{printed}");
    let least = (0..20).map(|n| dim.eval(n)).min();
    assert!(!dim.is_nonnegative() || least >= Some(0), "{dim} is {least:?}");
    let half = Dim::n().floor_div(&2.into());
    shown(&(dim.at_rows(&half) * dim.minimum(&half).modulo(&dim) - dim));
}

/// An error or another value is displayed without end or panic.
fn shown(value: &dyn std::fmt::Display) {
    assert!(!value.to_string().is_empty());
}

/// What must hold of every graph that was read: it is printed and read back, and checked; a valid
/// one is simplified, replicated and lowered.
fn accepted(graph: &Graph, weights: &Weights) {
    let text = graph.to_string();
    let read = ir::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(read, *graph, "{text}");
    assert_eq!(read.to_string(), text);
    let read = ir::from_json(&ir::to_json(graph)).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(read, *graph, "{text}");
    let verified = match ir::verify(graph) {
        Ok(verified) => verified,
        Err(errors) => return shown(&errors),
    };
    if graph.len() > SMALL {
        return;
    }
    if let Ok(program) = lower(&verified, &CPU) {
        shown(&program);
    }
    let (mut graph, mut weights) = (graph.clone(), weights.clone());
    let most = SimplifyOptions { max_bytes: MEMORY, ..SimplifyOptions::default() };
    match simplify(&mut graph, &mut weights, &most) {
        Ok(()) => valid(&graph, &text),
        Err(error) => shown(&error),
    }
    let devices = (0..3).map(Device::gpu).collect();
    match replicate(&graph, &Replicate::over(devices)) {
        Ok(graph) => valid(&graph, &text),
        Err(error) => shown(&error),
    }
}

/// The graph that a pass made of `before` is valid.
fn valid(graph: &Graph, before: &str) {
    ir::verify(graph).unwrap_or_else(|e| panic!("{e}\n{graph}\nmade of\n{before}"));
}

/// The architecture of a Keras model as JSON. What is built of it is a valid graph.
pub fn keras(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let sizes = ["input_layer[1]", "x[1]"].map(|name| (name.to_owned(), 3)).into();
    match keras_architecture(text, "model.json", sizes) {
        Ok(model) => accepted(&model.graph, &Weights::default()),
        Err(error) => shown(&error),
    }
}

/// A Keras file: an archive or HDF5. What is loaded is a valid graph, and has its weights.
pub fn keras_file(data: &[u8]) {
    let id = (std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(format!("fanwise-fuzz-{id:?}"));
    std::fs::write(&path, data).unwrap();
    let options = LoadOptions { max_memory: MEMORY, ..LoadOptions::default() };
    let loaded = model::load(path.to_str().unwrap(), &options);
    std::fs::remove_file(&path).unwrap();
    match loaded {
        Ok(model) => {
            let has = |name: &str| model.weights.get(name).is_some();
            assert!(model.graph.params().iter().all(|param| has(&param.name)));
            accepted(&model.graph, &model.weights);
        }
        Err(error) => shown(&error),
    }
}

/// What is read back of compiled kernels: a file of the cache, the compiler's log, the name of an
/// architecture.
pub fn kernels(data: &[u8]) {
    let unit = Unit { text: String::new(), entries: Vec::new() };
    let key = key(&unit, &[], "");
    if let Some(compiled) = decode(data, &key) {
        assert!(compiled.image.len() + compiled.log.len() < data.len());
    }
    let text = String::from_utf8_lossy(data);
    let kernels = parse_resources(&text);
    assert!(kernels.iter().map(|kernel| kernel.name.len()).sum::<usize>() <= text.len());
    if let Ok(arch) = text.parse::<Arch>() {
        assert_eq!(arch.to_string(), text);
    }
}

/// Data to train on: a table, images of CIFAR, an image in a file.
pub fn data(data: &[u8]) {
    let (mut budget, options) = (Budget::new(MEMORY), TableOptions::default());
    match Table::read_from(data, Path::new("t.csv"), &options, &mut budget) {
        Ok(table) => rows(&table),
        Err(error) => shown(&error),
    }
    for name in ["data_batch_1.bin", "train.bin"] {
        match Cifar::of(Path::new(name), data.to_vec().into()) {
            Ok(images) => rows(&images),
            Err(error) => shown(&error),
        }
    }
    match decode_image(data, Path::new("a.png"), MAX_PIXELS) {
        Ok(image) => assert!(image.len() as u64 <= 3 * MAX_PIXELS && !image.is_empty()),
        Err(error) => shown(&error),
    }
}

/// The pixels that an image may have.
const MAX_PIXELS: u64 = 1 << 20;

/// The first and the last row are there, and no row after it.
fn rows(source: &dyn Source) {
    assert!(source.rows() > 0);
    for number in [0, source.rows() - 1] {
        match row(source, number) {
            Ok(row) => assert_eq!(row.len(), source.columns().len()),
            Err(error) => shown(&error),
        }
    }
    assert!(row(source, source.rows()).is_err());
}
