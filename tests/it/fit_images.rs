//! Training on folders of images from the command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fanwise::format::{npz, safetensors};
use fanwise::ir::Builder;
use fanwise::op::{Flatten, MatMul, Softmax};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};

use crate::fit_cli::{good, path};

/// Images of a folder get the sizes that the model takes, in colours or grey, whichever axis its
/// channels are on.
#[test]
fn folders_of_images_are_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/images");
    for (i, name) in ["baseline.png", "grey.png", "progressive.jpg", "grey.jpg"].iter().enumerate()
    {
        let class = folder.path().join(["data/cats", "data/dogs"][i % 2]);
        fs::create_dir_all(&class).unwrap();
        fs::copy(images.join(name), class.join(name)).unwrap();
    }
    for (name, sizes) in [("first", [3, 8, 6]), ("last", [6, 8, 1])] {
        let count: usize = sizes.iter().product();
        let axes = sizes.map(|size| Dim::from(i64::try_from(size).unwrap()));
        let shape: Shape = std::iter::once(Dim::n()).chain(axes).collect();
        let mut b = Builder::new(name);
        b.set_source(format!("{name}.safetensors"));
        let image = b.input("image", TensorType::new(DType::F32, shape));
        let w = b.param("w", Tensor::new(&[count, 2], &vec![0.01f32; 2 * count]).unwrap());
        let flat = b.op("flat", Flatten { axis: 1 }, &[image]).unwrap();
        let logits = b.op("logits", MatMul {}, &[flat, w]).unwrap();
        let p = b.op("p", Softmax::Softmax { axis: -1 }, &[logits]).unwrap();
        b.output("p", p);
        let (graph, weights) = b.finish();
        let model = at(&format!("{name}.fan"));
        fs::write(&model, graph.to_string()).unwrap();
        safetensors::write(Path::new(&at(&format!("{name}.safetensors"))), &weights).unwrap();
        let args = ["fit", &model, "--data", &at("data"), "--loss", "categorical_crossentropy"];
        let more = ["--normalize", "unit", "--batch", "3", "--epochs", "2", "--gpus", "2"];
        let (out, _) = good(&[&args[..], &more, &["--format", "json"]].concat());
        let losses = out.lines().map(|line| {
            let epoch: serde_json::Value = serde_json::from_str(line).unwrap();
            epoch["loss"].as_f64().unwrap()
        });
        let losses: Vec<f64> = losses.collect();
        assert!(losses.len() == 2 && losses[1] < losses[0], "{name}: {losses:?}");
    }
}

/// Images of bytes go to devices as bytes. That changes no bit: neither of the losses nor of the
/// weights, with steps that move pixels and with those that compute with them, on any number of
/// devices.
#[test]
fn bytes_train_as_the_numbers_that_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| path(folder.path(), name);
    let pixel = |i: usize| u8::try_from((i * 37 + i / 91) % 256).unwrap();
    let pixels: Vec<u8> = (0..7 * 3 * 32 * 32).map(pixel).collect();
    let numbers: Vec<f32> = pixels.iter().map(|x| f32::from(*x)).collect();
    let classes: Vec<i64> = (0..7).map(|i| i % 10).collect();
    let y = Tensor::new(&[7], &classes).unwrap();
    let dims = [7, 3, 32, 32];
    for (name, x) in [
        ("bytes", Tensor::new(&dims, &pixels).unwrap()),
        ("numbers", Tensor::new(&dims, &numbers).unwrap()),
    ] {
        let arrays = [("x", &x), ("y", &y)].map(|(name, t)| (name.to_owned(), t.clone()));
        npz::write(Path::new(&at(&format!("{name}.npz"))), &BTreeMap::from(arrays)).unwrap();
    }
    let model = ["fit", "zoo:mini_googlenet:narrow=16", "--loss", "scce"];
    let how = ["--epochs", "2", "--batch", "4", "--validation-split", "0.3", "--format", "json"];
    for (steps, devices) in [
        (&[][..], &[][..]),
        (&["--normalize", "unit"], &["--gpus", "2"]),
        (&["--normalize", "channels", "--augment", "shift=0.1,flip"], &["--gpus", "3"]),
        (&["--normalize", "mean", "--augment", "flip"], &[]),
    ] {
        let [bytes, numbers] = ["bytes", "numbers"].map(|name| {
            let (data, save) = (at(&format!("{name}.npz")), at(&format!("{name}.safetensors")));
            let of = ["--data", &data, "--save", &save];
            let (out, _) = good(&[&model[..], &how, steps, devices, &of].concat());
            let losses = out.lines().map(|line| {
                let epoch: serde_json::Value = serde_json::from_str(line).unwrap();
                (epoch["loss"].as_f64().unwrap(), epoch["val_loss"].as_f64().unwrap())
            });
            (losses.collect::<Vec<_>>(), fs::read(&save).unwrap())
        });
        assert_eq!(bytes.0, numbers.0, "{steps:?}");
        assert!(bytes.0.len() == 2 && bytes.1 == numbers.1, "{steps:?}");
    }
}
