//! What `fit` and `evaluate` take of data: names of classes, weights and masks, and files that can
//! be written.

use std::fs;
use std::path::Path;

use fanwise::format::{Budget, npz, safetensors};
use fanwise::ir::Builder;
use fanwise::op::{Flatten, Gemm, Softmax};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};

use crate::fit_cli::{good, path, refused, two_head};

/// A model of rows of these sizes, whose class of three follows from how much of the row's first
/// element and of the others there is.
fn model(folder: &Path, name: &str, sizes: &[i64]) -> String {
    let count = usize::try_from(sizes.iter().product::<i64>()).unwrap();
    let axes = sizes.iter().map(|size| Dim::from(*size));
    let shape: Shape = std::iter::once(Dim::n()).chain(axes).collect();
    let mut b = Builder::new(name);
    b.set_source(format!("{name}.safetensors"));
    let x = b.input("in", TensorType::new(DType::F32, shape));
    let mut kernel = vec![0.0f32; count * 3];
    kernel[..3].copy_from_slice(&[0.0, 1.0, 2.0]);
    let kernel = b.param("kernel", Tensor::new(&[count, 3], &kernel).unwrap());
    let bias = b.param("bias", Tensor::new(&[3], &[0.0f32, -0.5, -2.0]).unwrap());
    let flat = b.op("flat", Flatten { axis: 1 }, &[x]).unwrap();
    let logits = b.op("logits", Gemm::default(), &[flat, kernel, bias]).unwrap();
    let p = b.op("p", Softmax::Softmax { axis: -1 }, &[logits]).unwrap();
    b.output("p", p);
    let (graph, weights) = b.finish();
    let model = path(folder, &format!("{name}.fan"));
    fs::write(&model, graph.to_string()).unwrap();
    safetensors::write(Path::new(&path(folder, &format!("{name}.safetensors"))), &weights).unwrap();
    model
}

/// A number of the only line of JSON.
fn number(out: &str, name: &str) -> f64 {
    let line = out.lines().last().unwrap();
    let all: serde_json::Value = serde_json::from_str(line).unwrap();
    all[name].as_f64().unwrap_or_else(|| panic!("{name}: {out}"))
}

const SCCE: [&str; 6] = ["--loss", "scce", "--metrics", "accuracy", "--format", "json"];

/// `ant` at 0, `bee` at 1, `cat` at 2 of the first column, which the model tells apart from the
/// beginning.
#[test]
fn data_that_lack_a_class_are_scored_against_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let model = model(folder.path(), "table", &[2]);
    let write = |name: &str, lines: &[&str]| {
        fs::write(at(name), format!("a,b,label\n{}\n", lines.join("\n"))).unwrap();
        at(name)
    };
    let train = write("train.csv", &["0,0,ant", "1,0,bee", "2,0,cat"]);
    let test = write("test.csv", &["1,0,bee", "2,0,cat", "2,0,cat"]);
    let fit = ["fit", &model, "--data", &train, "--learning-rate", "0"];
    let run = at("run");
    let more = ["--validation", &test, "--checkpoint", &run];
    let (out, _) = good(&[&fit[..], &SCCE, &more].concat());
    for name in ["accuracy", "val_accuracy"] {
        assert!((number(&out, name) - 1.0).abs() < 1e-12, "{name}: {out}");
    }
    let other = write("other.csv", &["1,0,bee", "2,0,dog"]);
    let error = refused(&[&fit[..], &SCCE, &["--validation", &other]].concat());
    let said = format!(
        "`{other}`: its classes `dog` have no index; the known classes are 0 `ant`, 1 `bee`, 2 \
         `cat`; correct their \
         names or leave their rows out"
    );
    assert!(error.contains(&said), "{error}");
    // Other rows of a run that goes on have the numbers that classes had in its first ones.
    let later = write("later.csv", &["1,0,bee", "2,0,cat", "1,0,bee"]);
    let again = ["fit", &model, "--resume", &run, "--epochs", "2", "--data", &later];
    let (out, _) = good(&[&again[..], &["--format", "json"]].concat());
    assert!((number(&out, "accuracy") - 1.0).abs() < 1e-12, "{out}");

    let evaluate = |more: &[&str]| {
        let begin = ["evaluate", &model, "--data", &test];
        good(&[&begin[..], &SCCE, more].concat())
    };
    let (out, err) = evaluate(&["--classes-by", &train]);
    assert!((number(&out, "accuracy") - 1.0).abs() < 1e-12, "{out}");
    assert!(!err.contains("note: class indices"), "{err}");
    let (out, err) = evaluate(&[]);
    assert!(number(&out, "accuracy").abs() < 1e-12, "{out}");
    assert!(
        err.contains("note: class indices follow the names in `--data`, 0 `bee`, 1 `cat`; use"),
        "{err}"
    );
    let numbers = write("numbers.csv", &["1,0,1", "2,0,2"]);
    let begin = ["evaluate", &model, "--data", &test, "--classes-by", &numbers];
    let error = refused(&[&begin[..], &SCCE].concat());
    assert!(error.contains("its labels are not names of classes"), "{error}");
    let begin = ["fit", &model, "--data", &numbers, "--validation", &test];
    let error = refused(&[&begin[..], &SCCE].concat());
    let said = "number their classes differently, numbers without names and 0 `bee`, 1 `cat`";
    assert!(error.contains(said), "{error}");
}

#[test]
fn folders_that_lack_a_class_are_scored_against_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let model = model(folder.path(), "image", &[3, 1, 1]);
    let write = |set: &str, class: &str, red: u8| {
        let folder = folder.path().join(set).join(class);
        fs::create_dir_all(&folder).unwrap();
        let file = fs::File::create(folder.join("1.png")).unwrap();
        let mut writer = png::Encoder::new(file, 1, 1);
        writer.set_color(png::ColorType::Rgb);
        writer.set_depth(png::BitDepth::Eight);
        writer.write_header().unwrap().write_image_data(&[red, 0, 0]).unwrap();
    };
    for (class, red) in [("ant", 0), ("bee", 1), ("cat", 2)] {
        write("train", class, red);
        if red > 0 {
            write("test", class, red);
        }
    }
    let begin = ["fit", &model, "--data", &at("train"), "--learning-rate", "0"];
    let (out, _) = good(&[&begin[..], &SCCE, &["--validation", &at("test")]].concat());
    assert!((number(&out, "val_accuracy") - 1.0).abs() < 1e-12, "{out}");
    let begin = ["evaluate", &model, "--data", &at("test"), "--classes-by", &at("train")];
    let (out, _) = good(&[&begin[..], &SCCE].concat());
    assert!((number(&out, "accuracy") - 1.0).abs() < 1e-12, "{out}");
}

/// Weights or masks of one of two sets of rows are as if the other had ones.
#[test]
fn rows_without_weights_or_masks_have_ones() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, test) = two_head(folder.path());
    let with = |file: &str, name: &str, column: &str, value: &dyn Fn(u8) -> f32| {
        let mut arrays = npz::read(Path::new(file), &mut Budget::new(1 << 20)).unwrap();
        let rows = u8::try_from(arrays["x"].dims()[0]).unwrap();
        let values: Vec<f32> = (0..rows).map(value).collect();
        arrays.insert(column.to_owned(), Tensor::new(&[values.len()], &values).unwrap());
        npz::write(Path::new(&at(name)), &arrays).unwrap();
        at(name)
    };
    let run = |data: &str, other: &str| {
        let loss = "logits=sparse_categorical_crossentropy:from_logits=true";
        let args = ["fit", "zoo:two_head", "--data", data, "--validation", other, "--loss", loss];
        good(&[&args[..], &["--batch", "8", "--epochs", "2", "--log", &at("log.csv")]].concat());
        fs::read_to_string(at("log.csv")).unwrap()
    };
    for (column, value) in [
        ("sample_weight", &(|row: u8| f32::from(row % 4)) as &dyn Fn(u8) -> f32),
        ("sample_mask:logits", &|row| f32::from(u8::from(row % 3 != 1))),
    ] {
        let own = with(&train, "own.npz", column, value);
        let ones = with(&test, "ones.npz", column, &|_| 1.0);
        assert_eq!(run(&own, &test), run(&own, &ones), "{column}");
        let other = with(&test, "other.npz", column, value);
        let ones = with(&train, "ones.npz", column, &|_| 1.0);
        let log = run(&train, &other);
        assert_eq!(log, run(&ones, &other), "{column}");
        assert_ne!(log, run(&train, &test), "{column}");
    }
}

#[test]
fn whole_numbers_weigh_rows_beside_their_classes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (train, _) = two_head(folder.path());
    let mut arrays = npz::read(Path::new(&train), &mut Budget::new(1 << 20)).unwrap();
    let weights: Vec<i64> = (0..30).map(|row| row % 4).collect();
    let mut write = |name: &str, weights: Tensor| {
        arrays.insert("sample_weight".to_owned(), weights);
        npz::write(Path::new(&at(name)), &arrays).unwrap();
    };
    write("whole.npz", Tensor::new(&[30], &weights).unwrap());
    write("float.npz", Tensor::new(&[30], &[0.0f32, 1.0, 2.0, 3.0].repeat(8)[..30]).unwrap());
    write("places.npz", Tensor::new(&[30, 2], &[1.0f32; 60]).unwrap());
    let loss = ["--loss", "logits=scce:from_logits=true", "--class-weight", "0=0.3,2=1.7"];
    let run = |name: &str| {
        let begin = ["fit", "zoo:two_head", "--data", &at(name), "--log", &at("log.csv")];
        good(&[&begin[..], &loss].concat());
        fs::read_to_string(at("log.csv")).unwrap()
    };
    assert_eq!(run("whole.npz"), run("float.npz"));
    let begin = ["fit", "zoo:two_head", "--data", &at("places.npz")];
    let error = refused(&[&begin[..], &loss].concat());
    let said = "class weights cannot be used if the data have a weight for each element of \
        `logits`: multiply `sample_weight` by the class weights and leave these out, or give one \
        weight for each row";
    assert!(error.contains(said), "{error}");
}

#[test]
fn files_that_cannot_be_written_are_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    fs::write(at("plain"), "a file").unwrap();
    for name in ["folder.fan", "folder.csv", "folder.svg"] {
        fs::create_dir(at(name)).unwrap();
    }
    for (option, name, said) in [
        ("--checkpoint", "plain", "this is a file; name a folder"),
        ("--save", "folder.fan", "the file of `--save` cannot be written"),
        ("--log", "folder.csv", "the file of `--log` cannot be written"),
        ("--plot", "folder.svg", "the file of `--plot` cannot be written"),
    ] {
        // The data are not there: they are not looked for.
        let args = ["fit", "zoo:two_head", "--data", &at("none.npz"), "--loss", "score=mse"];
        let error = refused(&[&args[..], &[option, &at(name)]].concat());
        assert!(error.contains(said) && error.contains(&at(name)), "{error}");
    }
    let (train, _) = two_head(folder.path());
    let args = ["fit", "zoo:two_head", "--data", &train, "--loss", "score=mse"];
    good(&[&args[..], &["--log", &at("log.csv"), "--checkpoint", &at("new/run")]].concat());
    let unfinished = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
    assert!(!fs::read_dir(folder.path()).unwrap().any(|entry| unfinished(entry.unwrap())));
}

#[test]
fn settings_that_would_become_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (train, _) = two_head(folder.path());
    let refused = |more: &[&str]| {
        let begin = ["fit", "zoo:two_head", "--data", &train];
        refused(&[&begin[..], more].concat())
    };
    for part in ["3", "-0.5", "nan"] {
        let option = format!("--batch-norm-momentum={part}");
        let error = refused(&["--loss", "score=mse", &option]);
        assert!(error.contains(&format!("`{part}` is not a number from 0 to 1")), "{error}");
    }
    for (metric, way) in [
        ("sparse_categorical_accuracy", "categorical_accuracy"),
        ("scce", "categorical_crossentropy"),
    ] {
        let error = refused(&["--loss", "logits=cce", "--metrics", metric]);
        let said = format!("its targets have one number for each class; take `{way}`");
        assert!(error.contains(&said), "{error}");
    }
}
