//! A multi-layer perceptron for images of 28×28 pixels, 242,762 parameters.

use super::layers::{Activation, Layer, Net};

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let mut x = net.input("image", &[784]);
    x = net.dense("dense_1", x, 256, Activation::Relu)?;
    x = net.dropout("dropout_1", x)?;
    x = net.dense("dense_2", x, 128, Activation::Tanh)?;
    x = net.dense("dense_3", x, 64, Activation::Sigmoid)?;
    x = net.dense("predictions", x, 10, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
