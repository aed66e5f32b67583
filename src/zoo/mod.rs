//! The models built in code, with weights that follow from their names: `zoo:mlp`, `zoo:xception`,
//! …
//!
//! They are Keras' models layer by layer: the names of layers are the origins of nodes, images
//! arrive as `[N, height, width, channels]` and are transposed once, and "same" padding is
//! TensorFlow's. Kernels are Glorot uniform. A freshly built Keras model has biases of 0 and
//! batch-norm statistics that leave values as they are; here they are small random numbers around
//! those, so that the arithmetic of every layer counts.

mod attention;
mod error;
mod gru;
mod layers;
mod lstm;
mod mini_googlenet;
mod mlp;
mod mobilenet_v2;
mod nested;
mod recurrent;
mod resnet50;
mod scale;
mod siamese;
mod transformer;
mod two_head;
mod unet;
mod video;
mod weights;
mod xception;

use crate::ir::{Graph, Weights};
pub use error::ZooError;
use layers::{Layer, Net};
use scale::Scale;

/// Adds all layers of a model.
type Layers = fn(&mut Net) -> Layer<()>;

/// A model that is built in.
struct Entry {
    name: &'static str,
    about: &'static str,
    layers: Layers,
}

/// The models, by name.
const MODELS: &[Entry] = &[
    Entry {
        name: "gru",
        about: "two stacked GRUs that forecast a temperature",
        layers: gru::layers,
    },
    Entry { name: "lstm", about: "bidirectional LSTM for film reviews", layers: lstm::layers },
    Entry {
        name: "mini_googlenet",
        about: "MiniGoogLeNet for images of 32x32 pixels",
        layers: mini_googlenet::layers,
    },
    Entry {
        name: "mlp",
        about: "multi-layer perceptron for images of 28x28 pixels",
        layers: mlp::layers,
    },
    Entry { name: "mobilenet_v2", about: "MobileNetV2 for ImageNet", layers: mobilenet_v2::layers },
    Entry { name: "nested", about: "encoder with a nested residual block", layers: nested::layers },
    Entry { name: "resnet50", about: "ResNet-50 for ImageNet", layers: resnet50::layers },
    Entry { name: "siamese", about: "one tower applied to two inputs", layers: siamese::layers },
    Entry {
        name: "transformer",
        about: "small encoder in the manner of BERT",
        layers: transformer::layers,
    },
    Entry {
        name: "two_head",
        about: "two inputs and two outputs that share a layer",
        layers: two_head::layers,
    },
    Entry { name: "unet", about: "small U-Net for images of 64x64 pixels", layers: unet::layers },
    Entry {
        name: "video",
        about: "convolutional network and LSTM for short videos",
        layers: video::layers,
    },
    Entry { name: "xception", about: "Xception for ImageNet", layers: xception::layers },
];

/// The names of the models, ascending.
pub fn names() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|entry| entry.name)
}

/// The names of the models, ascending, each with a description of a few words. Nothing is built.
pub(crate) fn descriptions() -> impl Iterator<Item = (&'static str, &'static str)> {
    MODELS.iter().map(|entry| (entry.name, entry.about))
}

/// Builds a model, one of [`names`] in upper or lower case, with its weights. Behind the name,
/// after a `:`, may stand how it is scaled: `xception:narrow=8,pixels=71` has an eighth of the
/// features and takes smaller images.
///
/// ```
/// let (graph, weights) = fanwise::zoo::build("two_head").unwrap();
/// assert_eq!(graph.outputs().len(), 2);
/// assert_eq!(weights.iter().map(|(_, w)| w.len()).sum::<usize>(), 40);
/// ```
pub fn build(model: &str) -> Result<(Graph, Weights), ZooError> {
    let (name, options) = model.split_once(':').map_or((model, None), |(n, o)| (n, Some(o)));
    let Entry { name, layers, .. } = MODELS
        .iter()
        .find(|entry| entry.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| ZooError::Unknown { name: name.to_owned(), known: names().collect() })?;
    let wrong = || ZooError::Options { name, options: options.unwrap_or_default().to_owned() };
    let scale = options.map_or(Some(Scale::default()), Scale::read).ok_or_else(wrong)?;
    // Graphs name the model in one way, however its name was written.
    let model = options.map_or((*name).to_owned(), |options| format!("{name}:{options}"));
    let mut net = Net::new(&model, name, scale);
    layers(&mut net)?;
    if scale.suits(net.has()) { Ok(net.finish()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::{ZooError, build, names};
    use crate::ir::{ContentHash, Node, verify};
    use crate::types::Tensor;

    /// A model: its parameters, how often it has `conv`, `batch_norm`, `concat`, `add`, `max_pool`,
    /// `relu` and `clip`, and the types of some values.
    type Known = (&'static str, usize, [usize; 7], &'static [(&'static str, &'static str)]);

    const OPS: [&str; 7] = ["conv", "batch_norm", "concat", "add", "max_pool", "relu", "clip"];

    const KNOWN: &[Known] = &[
        (
            "gru",
            10_977,
            [0; 7],
            &[("gru_1", "f32[N,120,32]"), ("gru_2", "f32[N,32]"), ("temperature", "f32[N,1]")],
        ),
        (
            "lstm",
            2_757_761,
            [0; 7],
            &[("bidirectional_1", "f32[N,200,128]"), ("bidirectional_2", "f32[N,128]")],
        ),
        (
            "mini_googlenet",
            1_656_250,
            [19, 19, 10, 0, 2, 19, 0],
            &[("concatenate_3", "f32[N,160,15,15]"), ("concatenate_8", "f32[N,240,7,7]")],
        ),
        ("mlp", 242_762, [0, 0, 0, 0, 0, 1, 0], &[("predictions", "f32[N,10]")]),
        (
            "mobilenet_v2",
            3_538_984,
            [35 + 17, 52, 0, 10, 0, 0, 35],
            &[("block_13_depthwise", "f32[N,576,7,7]"), ("out_relu", "f32[N,1280,7,7]")],
        ),
        ("nested", 6_298, [2, 1, 0, 1, 0, 3, 0], &[("encoder.block.add", "f32[N,16,8,8]")]),
        (
            "resnet50",
            25_636_712,
            [53, 53, 0, 16, 1, 49, 0],
            &[("pool1_pool", "f32[N,64,56,56]"), ("conv5_block3_out", "f32[N,2048,7,7]")],
        ),
        ("siamese", 161, [0, 0, 0, 1, 0, 0, 0], &[("nested.dense_2_1", "f32[N,1]")]),
        (
            "transformer",
            40_137,
            [0, 0, 0, 1 + 2 * 9 + 1, 0, 0, 0],
            &[("classes", "f32[N,2]"), ("tags", "f32[N,16,7]")],
        ),
        ("two_head", 40, [0, 0, 0, 0, 0, 1, 0], &[("score", "f32[N,1]")]),
        (
            "unet",
            482_050,
            [15, 0, 3, 0, 3, 14, 0],
            &[
                ("bottom.relu_2", "f32[N,128,8,8]"),
                ("up_3.concatenate", "f32[N,128,16,16]"),
                ("up_1.conv2d_transpose", "f32[N,16,64,64]"),
                ("segments", "f32[N,64,64,2]"),
            ],
        ),
        (
            "video",
            30_570,
            [2, 0, 0, 0, 2, 2, 0],
            &[("time_distributed.pool_2", "f32[8*N,32,8,8]"), ("time_distributed", "f32[N,8,32]")],
        ),
        (
            "xception",
            22_910_480,
            [6 + 2 * 34, 40, 0, 12, 4, 35, 0],
            &[("block1_conv2", "f32[N,64,109,109]"), ("block13_pool", "f32[N,1024,7,7]")],
        ),
    ];

    #[test]
    fn models_are_what_their_originals_are() {
        assert!(names().eq(KNOWN.iter().map(|(name, ..)| *name)));
        for (name, parameters, counts, types) in KNOWN {
            let (graph, weights) = build(name).unwrap();
            verify(&graph).unwrap_or_else(|e| panic!("{name}: {e}"));
            let elements: usize = weights.iter().map(|(_, w)| w.len()).sum();
            assert_eq!(elements, *parameters, "{name}");
            assert_eq!(graph.params().len(), weights.len(), "{name}");
            let nodes = || graph.ids().map(|id| graph.node(id));
            let count = |op| nodes().filter(|n| n.op().is_some_and(|o| o.name() == op)).count();
            assert_eq!(OPS.map(count), *counts, "{name}: {OPS:?}");
            for (value, ty) in *types {
                let found = nodes().flat_map(Node::results).find(|r| r.name.as_ref() == *value);
                assert_eq!(
                    found.map(|r| r.ty.to_string()).as_deref(),
                    Some(*ty),
                    "{name}: {value}"
                );
            }
        }
    }

    #[test]
    fn hashes_are_those_of_weights_that_nobody_has_read() {
        let (graph, weights) = build("mini_googlenet").unwrap();
        for param in graph.params() {
            let tensor = weights.get(&param.name).unwrap();
            assert!(tensor.unread().is_some(), "{}", param.name);
            let kept = Tensor::new(tensor.dims(), tensor.as_slice::<f32>()).unwrap();
            assert_eq!(param.hash, ContentHash::of(&kept), "{}", param.name);
        }
    }

    #[test]
    fn a_model_used_twice_keeps_one_set_of_weights() {
        let (graph, weights) = build("siamese").unwrap();
        assert_eq!(weights.len(), 4);
        let outputs: Vec<&str> = graph.outputs().iter().map(|o| o.name.as_ref()).collect();
        assert_eq!(outputs, ["add", "nested", "nested_1"]);
    }

    #[test]
    fn scaled_models_are_well_formed_or_refused() {
        for (name, pixels) in
            [("xception", 71), ("resnet50", 32), ("mobilenet_v2", 32), ("unet", 8)]
        {
            let model = format!("{name}:pixels={pixels},narrow=16");
            let (graph, weights) = build(&model).unwrap();
            verify(&graph).unwrap();
            let whole = KNOWN.iter().find(|k| k.0 == name).unwrap().1;
            assert!(weights.iter().map(|(_, w)| w.len()).sum::<usize>() < whole / 2, "{name}");
        }
        for name in names() {
            for size in [1, 2, 3, 7, 20, 33] {
                for option in ["pixels", "steps"] {
                    if let Ok((graph, _)) = build(&format!("{name}:narrow=500,{option}={size}")) {
                        verify(&graph).unwrap();
                    }
                }
            }
        }
        let refused =
            ["mlp:pixels=8", "mlp:", "mlp:narrow=0", "mlp:narrow=2,narrow=2", "gru:wide=2"];
        for model in refused {
            assert!(matches!(build(model), Err(ZooError::Options { .. })), "{model}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = build("resnet").unwrap_err();
        assert_eq!(
            error,
            ZooError::Unknown { name: "resnet".to_owned(), known: names().collect() }
        );
        let last = error.to_string();
        assert!(last.ends_with(
            "are gru, lstm, mini_googlenet, mlp, mobilenet_v2, nested, \
            resnet50, siamese, transformer, two_head, unet, video, xception"
        ));
    }
}
