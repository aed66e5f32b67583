//! Two inputs, two outputs: a classifier and a score that share their first layer, 40 parameters.

use super::layers::{Activation, Layer, Net};

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let x = net.input("x", &[8]);
    let aux = net.input("aux", &[2]);
    let h = net.activation("h", x, Activation::Relu)?;
    let logits = net.linear("logits", h, 3)?;
    // As many features as `aux` has: the score is their dot product.
    let p = net.linear("p", h, 2)?;
    let q = net.multiply("q", [p, aux])?;
    let score = net.sum_features("score", q)?;
    net.output("logits", logits);
    net.output("score", score);
    Ok(())
}
