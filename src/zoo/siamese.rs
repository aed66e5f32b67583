//! One tower applied to two inputs, with the same weights: 161 parameters.
//!
//! The model with which Keras tests that outputs of a layer used twice keep their names.

use super::layers::{Activation, Layer, Net};
use crate::ir::Value;

fn tower(net: &mut Net, x: Value) -> Layer<Value> {
    net.scope("nested", |net| {
        let x = net.dense("dense_1", x, 32, Activation::None)?;
        net.dense("dense_2", x, 1, Activation::None)
    })
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let left = net.input("left", &[3]);
    let right = net.input("right", &[3]);
    let left = tower(net, left)?;
    let right = tower(net, right)?;
    let sum = net.add("add", [left, right])?;
    net.output("add", sum);
    net.output("nested", left);
    net.output("nested_1", right);
    Ok(())
}
