//! The bits of results, as digests that are kept. A change that shows here changes what users
//! compute: it is meant where a decision record says which order of summation changed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use fanwise::format::{Budget, npz};
use fanwise::types::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::turn::part;
use support::{exported, snap};

use crate::isa::MODELS;

fn fanwise(line: &str, folder: &Path) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_fanwise"));
    process.args(line.split(' ')).args(["--target", "cpu"]).current_dir(folder);
    let done = process.output().unwrap();
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The digests of the arrays of a file, each by its name.
fn digests(file: &Path) -> String {
    let arrays = npz::read(file, &mut Budget::new(1 << 30)).unwrap();
    let mut text = String::new();
    for (name, array) in arrays {
        let digest = blake3::hash(array.bytes()).to_hex();
        writeln!(text, "  {name} {} {}", array.dtype(), &digest[..16]).unwrap();
    }
    text
}

#[test]
fn outputs_have_the_bits_that_they_had() {
    let folder = tempfile::tempdir().unwrap();
    let of = |model: &str, devices: u32| {
        let options = format!("--gpus {devices} --batch 9 --outputs o.npz");
        fanwise(&format!("run zoo:{model} {options}"), folder.path());
        digests(&folder.path().join("o.npz"))
    };
    let mut text = String::new();
    for (model, devices) in MODELS.into_iter().zip((2..=8).cycle()) {
        let found = of(model, 1);
        assert_eq!(of(model, devices), found, "{model} on {devices}");
        write!(text, "{model}\n{found}").unwrap();
    }
    snap::assert("bits", "outputs", &text);
}

#[test]
fn outputs_have_the_same_bits_without_each_simplification() {
    let passes = Command::new(env!("CARGO_BIN_EXE_fanwise")).arg("passes").output().unwrap();
    let passes = String::from_utf8(passes.stdout).unwrap();
    let names = passes.lines().filter_map(|line| line.split(' ').next());
    let names: Vec<&str> = names.take_while(|name| *name != "repair").collect();
    assert!(names.len() >= 9, "{passes}");
    let folder = tempfile::tempdir().unwrap();
    for (model, [_, rows, threads]) in part(exported::with_counts(&MODELS), 8, 1) {
        let of = |option: &str| {
            let how = format!("--batch {rows} --threads {threads} --outputs o.npz{option}");
            fanwise(&format!("run {model} --gpus 1 {how}"), folder.path());
            digests(&folder.path().join("o.npz"))
        };
        let expected = of("");
        for name in &names {
            let found = of(&format!(" --without-pass {name}"));
            assert_eq!(found, expected, "{model} of {rows} rows without {name}");
        }
    }
}

/// Models, the dims of a row of their input, and how they are trained: recurrent cells, and
/// convolutions with pooling and normalisation.
const TRAINED: [(&str, &[usize], &str); 2] = [
    ("gru", &[120, 14], "--loss mse --optimizer rmsprop"),
    ("mini_googlenet:narrow=8", &[32, 32, 3], "--loss scce --optimizer adam"),
];

#[test]
fn training_has_the_bits_that_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for (model, dims, how) in TRAINED {
        // The last batch of each epoch has six rows.
        const ROWS: usize = 20;
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let x: Vec<f32> = std::iter::repeat_with(|| rng.random_range(-1.0..1.0))
            .take(ROWS * dims.iter().product::<usize>())
            .collect();
        let y = if how.contains("scce") {
            let classes: Vec<i64> = (0..10).cycle().take(ROWS).collect();
            Tensor::new(&[ROWS], &classes).unwrap()
        } else {
            Tensor::new(&[ROWS, 1], &x[..ROWS]).unwrap()
        };
        let x = Tensor::new(&[&[ROWS], dims].concat(), &x).unwrap();
        let arrays = BTreeMap::from([("x".to_owned(), x), ("y".to_owned(), y)]);
        npz::write(&folder.path().join("train.npz"), &arrays).unwrap();
        for devices in ["", " --gpus 3"] {
            let rest = format!("{how} --batch 7 --epochs 2{devices} --save w.fan");
            fanwise(&format!("fit zoo:{model} --data train.npz {rest}"), folder.path());
            let digest = blake3::hash(&fs::read(folder.path().join("w.safetensors")).unwrap());
            writeln!(text, "{model}{devices}: {}", &digest.to_hex()[..16]).unwrap();
        }
    }
    snap::assert("bits", "training", &text);
}
