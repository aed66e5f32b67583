//! The layers of Keras: each is one entry in the file of its family.

mod activation;
mod arranging;
mod attention;
mod augment;
mod colour;
mod conv;
mod conv_lstm;
mod core;
mod entry;
mod erasing;
mod filters;
mod fourier;
mod functions;
mod keras1;
mod merging;
mod mixing;
mod networks;
mod norm;
mod numeric;
mod patches;
mod pieces;
mod pooling;
mod preprocessing;
mod promotion;
mod random;
mod rearranging;
mod recurrent;
mod reshaping;
mod sampling;
mod slicing;
mod special;
mod spectrograms;
mod statistics;
mod steps;
mod tensorflow;
mod traced;
mod windows;
mod wrappers;

pub(super) use self::entry::{Layer, Masks};
use super::config::Read;
use super::error::Fault;
use super::tree::Spec;
use crate::types::Quoted;

/// The layers of all families, with the title of each family.
const FAMILIES: &[(&str, &[Layer])] = &[
    ("Core", core::LAYERS),
    ("Convolutions", conv::LAYERS),
    ("Pooling", pooling::LAYERS),
    ("Normalisation", norm::LAYERS),
    ("Activations", activation::LAYERS),
    ("Merging", merging::LAYERS),
    ("Recurrent", recurrent::LAYERS),
    ("Recurrent convolutions", conv_lstm::LAYERS),
    ("Wrappers", wrappers::LAYERS),
    ("Attention", attention::LAYERS),
    ("Reshaping", reshaping::LAYERS),
    ("Preprocessing", preprocessing::LAYERS),
    ("Spectrograms", spectrograms::LAYERS),
    ("Random", random::LAYERS),
    ("Mixing of images", mixing::LAYERS),
    ("Operators of TensorFlow inside models of Keras 2", tensorflow::LAYERS),
    ("Layers of Keras 1 that later versions do not have", keras1::LAYERS),
    ("Parts of Python code that the Python package traced", traced::LAYERS),
];

/// The package of the classes that stand for parts of Python code.
const TRACED: &str = "fanwise";

/// The functions of `keras.ops`.
const FUNCTIONS: &[&[Layer]] = &[
    functions::LAYERS,
    numeric::LAYERS,
    arranging::LAYERS,
    special::LAYERS,
    statistics::LAYERS,
    pieces::LAYERS,
    patches::LAYERS,
    networks::LAYERS,
    rearranging::LAYERS,
    filters::LAYERS,
    fourier::LAYERS,
];

/// What to do about a layer that has no counterpart.
const WAY: &str = "replace the layer by stock layers or functions of `keras.ops`, or export the \
    model as ONNX: `model.export(\"model.onnx\", format=\"onnx\")`";

/// The entry of an object.
pub(super) fn find(spec: &Spec<'_>) -> Read<&'static Layer> {
    if let Some(package) = spec.package.filter(|package| *package != TRACED) {
        let reason = format!("a class of {}, not of Keras", Quoted(package));
        return Err(Fault::with_way(reason, WAY));
    }
    if spec.class == "Lambda" {
        let reason = "it holds Python code, which is not run";
        return Err(Fault::with_way(reason, WAY));
    }
    let list = FUNCTIONS.iter().filter(|_| spec.is_function).flat_map(|list| *list);
    // Some layers look like functions in files that do not say which they are.
    let may_be_layer = !spec.is_function || !spec.is_named;
    let layers = FAMILIES.iter().filter(|_| may_be_layer).flat_map(|(_, layers)| *layers);
    let found = list.chain(layers).find(|layer| layer.class == spec.class);
    let what = if spec.is_function { "the function" } else { "the class" };
    found.ok_or_else(|| Fault::with_way(format!("{what} is not supported"), WAY))
}

/// The titles of the families with their layers, and the functions.
pub fn supported() -> Vec<(&'static str, Vec<&'static str>)> {
    let names = |layers: &[Layer]| layers.iter().map(|layer| layer.class).collect();
    let families = FAMILIES.iter().map(|(title, layers)| (*title, names(layers)));
    let functions = FUNCTIONS.iter().flat_map(|layers| *layers).map(|layer| layer.class);
    families.chain([("Functions of `keras.ops`", functions.collect())]).collect()
}
