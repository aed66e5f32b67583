//! Predictions in files of several forms, of arrays and of images.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fanwise::format::{Budget, npy, npz};
use fanwise::ir::Builder;
use fanwise::model::{self, GraphForm};
use fanwise::op::{Flatten, MatMul, Softmax};
use fanwise::types::Tensor;

use crate::fit_cli::{good, path, refused};

/// A model of images of 3 channels of 2 by 2 pixels, and three classes.
pub(crate) fn of_images(folder: &Path) -> String {
    let mut b = Builder::new("of_images");
    let x = b.input("x", "f32[N,3,2,2]".parse().unwrap());
    let flat = b.op("flat", Flatten { axis: 1 }, &[x]).unwrap();
    let weight: Vec<f32> = (0..36u8).map(|i| f32::from(i % 5) * 0.01 - 0.02).collect();
    let w = b.param("w", Tensor::new(&[12, 3], &weight).unwrap());
    let logits = b.op("logits", MatMul {}, &[flat, w]).unwrap();
    let p = b.op("p", Softmax::Softmax { axis: -1 }, &[logits]).unwrap();
    b.output("p", p);
    let (graph, weights) = b.finish();
    let file = path(folder, "m.fan");
    model::save(Path::new(&file), &graph, &weights, GraphForm::Text).unwrap();
    file
}

/// A folder with three classes of images.
pub(crate) fn images(folder: &Path) -> String {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/images");
    for (class, image) in [("ant", "baseline.png"), ("bee", "grey.png"), ("cat", "progressive.jpg")]
    {
        fs::create_dir_all(folder.join("train").join(class)).unwrap();
        fs::copy(images.join(image), folder.join("train").join(class).join(image)).unwrap();
        fs::create_dir_all(folder.join("flat")).unwrap();
        fs::copy(images.join(image), folder.join("flat").join(image)).unwrap();
    }
    path(folder, "train")
}

fn array(file: &str, name: &str) -> Tensor {
    npz::read(Path::new(file), &mut Budget::new(1 << 20)).unwrap().remove(name).unwrap()
}

#[test]
fn images_are_predicted_with_the_names_of_their_classes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (model, train) = (of_images(folder.path()), images(folder.path()));
    let predict = |data: &str, outputs: &str, more: &[&str]| {
        let args = ["predict", &model, "--data", data, "--outputs", outputs];
        good(&[&args[..], more].concat());
    };
    predict(&at("flat"), &at("p.npz"), &[]);
    let expected = array(&at("p.npz"), "p");
    assert_eq!(*expected.dims(), [3, 3]);
    predict(&at("flat"), &at("p.npy"), &[]);
    let alone = npy::map(Path::new(&at("p.npy")), &mut Budget::new(1 << 20)).unwrap();
    assert_eq!((alone.dims(), alone.bytes()), (expected.dims(), expected.bytes()));
    predict(&at("flat"), &at("p.csv"), &["--classes-by", &train]);
    let text = fs::read_to_string(at("p.csv")).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["row", "file", "class", "probability", "ant", "bee", "cat"]);
    assert_eq!(lines.len(), 4);
    for (row, line) in lines[1..].iter().enumerate() {
        let numbers: Vec<f32> = line[4..].iter().map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(numbers, expected.as_slice::<f32>()[row * 3..][..3]);
        let best = (0..3).max_by(|a, b| numbers[*a].total_cmp(&numbers[*b])).unwrap();
        assert_eq!((line[2], line[3]), (["ant", "bee", "cat"][best], line[4 + best]));
        assert_eq!(line[0], row.to_string());
    }
    assert!(lines[1][1].ends_with("flat/baseline.png"), "{text}");
    // One image, whose classes have numbers only.
    predict(&at("flat/grey.png"), &at("p.json"), &[]);
    let text = fs::read_to_string(at("p.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = &json["rows"][0];
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(1));
    assert!(row["file"].as_str().unwrap().ends_with("flat/grey.png"), "{text}");
    let values: Vec<f32> = row["p"]["values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.to_string().parse().unwrap())
        .collect();
    assert_eq!(values, expected.as_slice::<f32>()[3..6]);
    let index = usize::try_from(row["p"]["index"].as_u64().unwrap()).unwrap();
    assert_eq!(row["p"]["class"], index.to_string());
    assert_eq!(row["p"]["probability"], row["p"]["values"][index]);
    // A checkpoint knows the names.
    let fit = ["fit", &model, "--data", &train, "--loss", "scce", "--checkpoint", &at("run")];
    good(&fit);
    let run = ["predict", &at("run"), "--data", &at("flat"), "--outputs", &at("q.csv")];
    good(&run);
    assert!(
        fs::read_to_string(at("q.csv")).unwrap().starts_with("row,file,class,probability,ant,")
    );
    let error = refused(&["fit", &model, "--data", &at("flat"), "--loss", "scce"]);
    assert!(error.contains("no array for the output `p`"), "{error}");
}

#[test]
fn classes_with_the_names_of_columns_have_other_columns() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let (model, train) = (of_images(folder.path()), images(folder.path()));
    let predict = || {
        let args = ["predict", &model, "--data", &at("flat/grey.png"), "--outputs", &at("p.csv")];
        let (_, said) = good(&[&args[..], &["--classes-by", &train]].concat());
        let text = fs::read_to_string(at("p.csv")).unwrap();
        (text.lines().next().unwrap().to_owned(), said)
    };
    for (before, class) in [("ant", "row"), ("bee", "class"), ("cat", "probability")] {
        fs::rename(at(&format!("train/{before}")), at(&format!("train/{class}"))).unwrap();
    }
    let (head, said) = predict();
    assert_eq!(head, "row,file,class,probability,p[class],p[probability],p[row]");
    assert!(said.contains("OUTPUT[CLASS], because two would have the name `class`"), "{said}");
    for (before, class) in [("row", "rows"), ("class", "classes"), ("probability", "p")] {
        fs::rename(at(&format!("train/{before}")), at(&format!("train/{class}"))).unwrap();
    }
    let (head, said) = predict();
    assert_eq!(head, "row,file,class,probability,classes,p,rows");
    assert!(!said.contains("OUTPUT[CLASS]"), "{said}");
}

#[test]
fn forms_hold_what_they_can() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let numbers = |dims: &[usize]| {
        let count: usize = dims.iter().product();
        let values: Vec<f32> = (0..count).map(|i| (i % 5) as f32 * 0.25).collect();
        Tensor::new(dims, &values).unwrap()
    };
    let arrays = [("x".to_owned(), numbers(&[3, 8])), ("aux".to_owned(), numbers(&[3, 2]))];
    npz::write(Path::new(&at("in.npz")), &BTreeMap::from(arrays)).unwrap();
    let predict = |outputs: &str| {
        let (data, outputs) = (at("in.npz"), at(outputs));
        ["predict", "zoo:two_head", "--data", &data, "--outputs", &outputs].map(str::to_owned)
    };
    let args = |all: &[String; 6]| all.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let run = |name: &str| good(&args(&predict(name)).split('\n').collect::<Vec<_>>());
    let wrong = |name: &str| refused(&args(&predict(name)).split('\n').collect::<Vec<_>>());
    run("p.csv");
    let text = fs::read_to_string(at("p.csv")).unwrap();
    let head = text.lines().next().unwrap();
    assert_eq!(head, "row,logits[0],logits[1],logits[2],score");
    assert_eq!(text.lines().count(), 4);
    run("p.json");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(at("p.json")).unwrap()).unwrap();
    assert_eq!(json["rows"][2]["logits"]["values"].as_array().map(Vec::len), Some(3));
    assert!(json["rows"][2].get("file").is_none());
    let error = wrong("p.npy");
    assert!(error.contains("the model has the outputs `logits`, `score`; use .npz"), "{error}");
    let error = wrong("p.txt");
    assert!(error.contains(".npz, .npy, .csv or .json"), "{error}");
    assert!(!Path::new(&at("p.npy")).exists() && !Path::new(&at("p.txt")).exists());
}
