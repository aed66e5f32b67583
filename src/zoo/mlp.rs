//! A multi-layer perceptron for images of 28×28 pixels, 242,762 parameters.

use super::layers::{Activation, Layer, Net};

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let mut x = net.input("image", &[784]);
    let [first, second, third] = [256, 128, 64].map(|units| net.width(units));
    x = net.dense("dense_1", x, first, Activation::Relu)?;
    x = net.dropout("dropout_1", x, 0.5)?;
    x = net.dense("dense_2", x, second, Activation::Tanh)?;
    x = net.dense("dense_3", x, third, Activation::Sigmoid)?;
    x = net.dense("predictions", x, 10, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
