//! The architectures that people bring, as exporters write them: `tests/models/architectures` holds
//! their graphs without weights (`tests/models/strip.py`), and here they get random ones.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use fanwise::Session;
use fanwise::ir::NodeKind;
use fanwise::model::{self, LoadOptions};
use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::proto::{ModelProto, TensorProto};
use support::turn::part;
use zip::ZipArchive;

use crate::python::{python, set};

/// The archives of the graphs, in the order of their names.
fn archives() -> Vec<PathBuf> {
    let folder = support::root("tests/models/architectures");
    let mut archives: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    archives.sort();
    assert!(archives.len() >= 32, "{archives:?}");
    archives
}

/// Writes the model of an archive with random weights to `folder`.
fn filled(archive: &Path, folder: &Path) -> PathBuf {
    let mut archive = ZipArchive::new(File::open(archive).unwrap()).unwrap();
    let mut entry = archive.by_index(0).unwrap();
    let (path, mut bytes) = (folder.join(entry.name()), Vec::new());
    entry.read_to_end(&mut bytes).unwrap();
    let mut model = ModelProto::decode(&*bytes).unwrap();
    let tensors = &mut model.graph.as_mut().unwrap().initializer;
    let drawn = tensors
        .iter_mut()
        .enumerate()
        .map(|(i, tensor)| draw(tensor, i))
        .filter(|drawn| *drawn)
        .count();
    assert!(drawn > 4, "{}: {drawn} tensors are drawn", path.display());
    fs::write(&path, model.encode_to_vec()).unwrap();
    path
}

/// Gives a tensor whose documentation says `uniform LOW HIGH` elements between these.
fn draw(tensor: &mut TensorProto, seed: usize) -> bool {
    let Some(between) = tensor.doc_string().strip_prefix("uniform ") else { return false };
    let ends: Vec<f32> = between.split(' ').map(|end| end.parse().unwrap()).collect();
    let [low, high] = ends[..] else { panic!("{between}") };
    let count: i64 = tensor.dims.iter().product();
    let mut rng = ChaCha8Rng::seed_from_u64(seed.try_into().unwrap());
    let elements = (0..count).flat_map(|_| rng.random_range(low..=high).to_le_bytes());
    tensor.raw_data = Some(elements.collect::<Vec<u8>>().into());
    true
}

#[test]
fn models_that_people_bring_split_without_options_and_without_communication() {
    let folder = tempfile::tempdir().unwrap();
    for archive in archives() {
        let path = filled(&archive, folder.path());
        let loaded = model::load(path.to_str().unwrap(), &LoadOptions::default());
        let model = loaded.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let session = Session::builder(model).gpus(3).build();
        let session = session.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let graph = session.graph();
        let operators = graph.ids().filter_map(|id| match graph.node(id).kind() {
            NodeKind::Op(op) => Some(op.name()),
            NodeKind::Input | NodeKind::Param(_) => None,
        });
        let combined: Vec<&str> = operators
            .filter(|op| ["all_gather", "all_reduce", "exclusive_scan"].contains(op))
            .collect();
        assert!(combined.is_empty(), "{}: {combined:?}", path.display());
        fs::remove_file(path).unwrap();
    }
}

/// Of how many models one is compared in a turn.
const TURNS: usize = 5;

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn models_that_people_bring_give_what_onnx_runtime_gives() {
    let (folder, binary) = (tempfile::tempdir().unwrap(), set("FANWISE_BIN"));
    let files: Vec<PathBuf> = part(archives().into_iter(), TURNS, 0)
        .map(|archive| filled(&archive, folder.path()))
        .collect();
    let args: Vec<&Path> =
        [binary.as_path()].into_iter().chain(files.iter().map(PathBuf::as_path)).collect();
    python("compare.py", &args);
}
