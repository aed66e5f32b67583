//! Models inside a model: an encoder whose residual block is a model of its own, 6,298 parameters.

use super::layers::{Activation, Conv, Layer, Net};
use crate::ir::Value;

/// The residual block, a model within the encoder.
fn block(net: &mut Net, x: Value) -> Layer<Value> {
    net.scope("block", |net| {
        let filters = net.width(16);
        let mut y = net.conv2d("conv", x, Conv::new(filters, 3).same())?;
        y = net.batch_norm("bn", y, 1e-3)?;
        y = net.activation("relu", y, Activation::Relu)?;
        net.add("add", [x, y])
    })
}

/// The encoder, a model within the whole.
fn encoder(net: &mut Net, x: Value) -> Layer<Value> {
    net.scope("encoder", |net| {
        let filters = net.width(16);
        let mut y = net.conv2d("conv", x, Conv::new(filters, 3).stride(2).same())?;
        y = net.activation("relu", y, Activation::Relu)?;
        // Its convolution keeps the channels, so that the block can add its operand.
        y = block(net, y)?;
        net.average_all("pool", y)
    })
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let image = net.image("image", 16, 3)?;
    let mut x = encoder(net, image)?;
    x = net.dense("dense", x, 128, Activation::Relu)?;
    x = net.dense("predictions", x, 10, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
