//! A small encoder as BERT's: 40,137 parameters.
//!
//! Token numbers and a padding mask of integers come in; out come two classes for each sample and
//! seven tags for each token. Positions are rows of a table that all samples share.

use super::layers::{Activation, Layer, Net};
use crate::ir::Value;

/// Tokens of a sample.
const LENGTH: i64 = 16;
/// Features of a token.
const WIDTH: usize = 32;
const HEADS: i64 = 4;
/// Tokens that the model knows.
const WORDS: usize = 400;

fn block(net: &mut Net, name: &str, x: Value, mask: Value) -> Layer<Value> {
    net.scope(name, |net| {
        let y = net.attention("attention", x, mask, HEADS)?;
        let x = net.add("attention_add", [x, y])?;
        let x = net.layer_norm("attention_norm", x)?;
        let y = net.dense_last("up", x, 4 * WIDTH, Activation::Gelu)?;
        let y = net.dense_last("down", y, WIDTH, Activation::None)?;
        let x = net.add("mlp_add", [x, y])?;
        net.layer_norm("mlp_norm", x)
    })
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let tokens = net.integers("tokens", &[LENGTH]);
    let mask = net.integers("mask", &[LENGTH]);
    let words = net.embedding("words", tokens, WORDS, WIDTH)?;
    let x = net.positions("positions", words)?;
    let mut x = net.layer_norm("embedding_norm", x)?;
    let mask = net.padding_mask("padding", mask)?;
    for name in ["block_1", "block_2"] {
        x = block(net, name, x, mask)?;
    }
    let first = net.first_token("first", x)?;
    let pooled = net.dense("pooler", first, WIDTH, Activation::Tanh)?;
    let classes = net.dense("classes", pooled, 2, Activation::Softmax)?;
    let tags = net.dense_last("tags", x, 7, Activation::None)?;
    net.output("classes", classes);
    net.output("tags", tags);
    Ok(())
}
