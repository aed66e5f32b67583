//! Whole ONNX models against ONNX Runtime, row by row, and against one device, bit by bit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use fanwise::format::onnx::{ImportError, ImportOptions, import};
use fanwise::format::{Budget, npz};
use fanwise::types::Tensor;
use support::exported::{self, models};
use support::turn::part;

use crate::python::{python, set};

/// The largest error, as a share of the largest value of an output.
const TOLERANCE: f64 = 1e-4;

fn run(model: &Path, folder: &Path, gpus: &str, extra: &[&str]) -> BTreeMap<String, Tensor> {
    let out = folder.join("got.npz");
    let output = Command::new(set("FANWISE_BIN"))
        .arg("run")
        .arg(model)
        .args(["--gpus", gpus, "--inputs"])
        .arg(folder.join("in.npz"))
        .arg("--outputs")
        .arg(&out)
        .args(extra)
        .output()
        .expect("the binary runs");
    assert!(
        output.status.success(),
        "{}: {}",
        model.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    read(&out)
}

pub(crate) fn read(path: &Path) -> BTreeMap<String, Tensor> {
    npz::read(path, &mut Budget::new(1 << 30)).expect("arrays")
}

/// Compares a batch of `rows` on three devices with ONNX Runtime and with one device.
pub(crate) fn compare(model: &Path, rows: &str, extra: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    python("reference.py", &[model, folder.path(), Path::new(rows)]);
    let expected = read(&folder.path().join("out.npz"));
    let many = run(model, folder.path(), "3", extra);
    assert_eq!(
        many,
        run(model, folder.path(), "1", extra),
        "{}: one device and three",
        model.display()
    );
    assert_near(model, &expected, &many);
}

/// Fails unless all outputs are those of ONNX Runtime, within the tolerance.
fn assert_near(model: &Path, expected: &BTreeMap<String, Tensor>, many: &BTreeMap<String, Tensor>) {
    assert_eq!(expected.len(), many.len(), "{}: number of outputs", model.display());
    for (name, want) in expected {
        let got = &many[name];
        assert_eq!(got.tensor_type(), want.tensor_type(), "{}: {name}", model.display());
        let (got, want) = (got.to_f64(), want.to_f64());
        let largest = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let error = got.iter().zip(&want).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
        assert!(error <= TOLERANCE * largest, "{}: {name}: {error} of {largest}", model.display());
    }
}

/// Those of the package's models that run with random weights, which show more than their own, all
/// of which are equal.
const DRAWN: [&str; 5] = ["densenet121", "inception_v2", "resnet50", "shufflenet", "squeezenet"];

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn light_models_of_the_onnx_package() {
    let models = models(&set("FANWISE_ONNX_DATA").join("light"));
    assert_eq!(models.len(), 9, "{models:?}");
    let drawn = |model: &PathBuf| DRAWN.iter().any(|n| model.ends_with(format!("light_{n}.onnx")));
    for model in models.into_iter().filter(|model| !drawn(model)) {
        // By far the most multiplications, on three devices of which one has no row.
        let rows = if model.ends_with("light_vgg19.onnx") { "2" } else { "5" };
        compare(&model, rows, &["--free-batch"]);
    }
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn light_models_with_random_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in DRAWN {
        let light = set("FANWISE_ONNX_DATA").join(format!("light/light_{name}.onnx"));
        let model = folder.path().join(format!("{name}.onnx"));
        python("randomise.py", &[&light, &model]);
        compare(&model, "4", &["--free-batch"]);
    }
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn models_with_random_weights_and_a_dynamic_batch() {
    let folder = tempfile::tempdir().expect("a folder");
    python("generate.py", &[folder.path()]);
    let models = models(folder.path());
    assert!(models.len() >= 7, "{models:?}");
    for model in models {
        for rows in ["1", "7"] {
            compare(&model, rows, &[]);
        }
    }
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn operators_that_need_all_rows() {
    for rows in ["7", "2", "1"] {
        let folder = tempfile::tempdir().expect("a folder");
        python("across.py", &[folder.path(), Path::new(rows)]);
        let models = models(folder.path());
        assert_eq!(models.len(), 11, "{models:?}");
        for model in models {
            let arrays = model.with_extension("");
            let expected = read(&arrays.join("out.npz"));
            for devices in ["3", "8"] {
                let many = run(&model, &arrays, devices, &["--repair", "comm"]);
                assert_near(&model, &expected, &many);
            }
        }
    }
}

/// The models of the zoo, the large ones in parts.
fn of_zoo() -> impl Iterator<Item = PathBuf> {
    let models = [
        "gru",
        "lstm",
        "mini_googlenet",
        "mlp",
        "nested",
        "siamese",
        "transformer",
        "two_head",
        "unet",
        "video",
        "mobilenet_v2:narrow=4,pixels=64",
        "resnet50:narrow=8,pixels=64",
        "xception:narrow=8,pixels=71",
    ];
    models.into_iter().map(|name| PathBuf::from(format!("zoo:{name}")))
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn models_of_the_zoo_are_written_as_onnx() {
    let binary = set("FANWISE_BIN");
    let specs: Vec<PathBuf> = of_zoo().collect();
    let args: Vec<&Path> =
        [binary.as_path()].into_iter().chain(specs.iter().map(PathBuf::as_path)).collect();
    python("compare.py", &args);
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn errors_are_those_of_onnx_runtime() {
    let files = part(of_zoo().chain(exported::supported()), 4, 0);
    let args: Vec<PathBuf> = std::iter::once(set("FANWISE_BIN")).chain(files).collect();
    let args: Vec<&Path> = args.iter().map(PathBuf::as_path).collect();
    python("errors.py", &args);
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn models_that_exporters_wrote() {
    let files: Vec<PathBuf> = part(exported::supported().into_iter(), 2, 0).collect();
    let binary = set("FANWISE_BIN");
    let args: Vec<&Path> =
        [binary.as_path()].into_iter().chain(files.iter().map(PathBuf::as_path)).collect();
    python("compare.py", &args);
}

#[test]
#[ignore = "needs Python and the command line: cargo xtask test"]
fn classical_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/classical");
    assert!(models(&folder).len() >= 40, "the models of {}", folder.display());
    python("compare_classical.py", &[&set("FANWISE_BIN"), &folder]);
}

#[test]
fn what_exporters_wrote_and_is_not_supported_is_refused_by_name() {
    for (name, operator) in exported::REFUSED {
        let path = support::root("tests/models/exported").join(name).with_extension("onnx");
        let error = import(&path, &ImportOptions::default()).unwrap_err();
        let ImportError::Unsupported(ops) = &error else { panic!("{error}") };
        let ops: Vec<&str> = ops.iter().map(|o| o.op.as_str()).collect();
        assert_eq!(ops, [operator], "{}", path.display());
    }
}
