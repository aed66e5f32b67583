//! Training on folders of images from the command line.

use std::fs;
use std::path::Path;

use fanwise::format::safetensors;
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
