//! Files that were saved from the model that `multi_gpu_model` gave: the template is inside.
//!
//! Such a model slices each input into as many parts as there are devices, by layers of Python
//! code, calls the template with each part, and concatenates the results. The slices are known by
//! their arguments and by what they stand between; their code is not looked at.

use serde_json::Value as Json;

use super::tree::{Functional, Ref, Tree};

/// The template of a model.
pub(super) struct Template<'c> {
    /// Its position among the layers.
    pub(super) layer: usize,
    /// The names of the outputs, in the order of its results.
    pub(super) outputs: Vec<&'c str>,
}

/// The number of a part, and how many there are, if a layer slices an input.
fn slice(model: &Functional<'_>, call: usize) -> Option<(i64, i64)> {
    let layer = &model.layers[model.calls[call].layer];
    let arguments = layer.config.get("arguments")?.as_object()?;
    let of_input = tensors(&model.calls[call].args);
    let [input] = of_input[..] else { return None };
    let is_input = model.layers[model.calls[input.call].layer].class == "InputLayer";
    let number = |name: &str| arguments.get(name).and_then(Json::as_i64);
    let is_slice = layer.class == "Lambda" && is_input && arguments.len() == 2;
    Some((number("i")?, number("parts")?)).filter(|_| is_slice)
}

/// The tensors of arguments.
fn tensors(args: &[Tree<'_, Ref>]) -> Vec<Ref> {
    let mut found = Vec::new();
    for arg in args {
        arg.each(&mut |of| found.push(*of));
    }
    found
}

/// The template of a model, if it is the model of several devices.
pub(super) fn find<'c>(model: &Functional<'c>) -> Option<Template<'c>> {
    let mut models = (0..model.layers.len()).filter(|layer| model.layers[*layer].is_model());
    let (layer, None) = (models.next()?, models.next()) else { return None };
    let calls: Vec<usize> =
        (0..model.calls.len()).filter(|call| model.calls[*call].layer == layer).collect();
    let parts = i64::try_from(calls.len()).ok().filter(|parts| *parts > 1)?;
    for (number, call) in (0..).zip(&calls) {
        let operands = tensors(&model.calls[*call].args);
        let fits = |of: &Ref| slice(model, of.call) == Some((number, parts));
        if operands.is_empty() || !operands.iter().all(fits) {
            return None;
        }
    }
    let mut ends = Vec::new();
    model.outputs.each(&mut |of| ends.push(*of));
    let mut outputs = Vec::new();
    for (result, end) in ends.into_iter().enumerate() {
        let joined = &model.calls[end.call];
        let join = &model.layers[joined.layer];
        let axis = join.config.get("axis").and_then(Json::as_i64);
        let expected = calls.iter().map(|call| Ref { call: *call, result });
        let is_joined = tensors(&joined.args).into_iter().eq(expected);
        if join.class != "Concatenate" || axis != Some(0) || !is_joined {
            return None;
        }
        outputs.push(join.name);
    }
    Some(Template { layer, outputs })
}
