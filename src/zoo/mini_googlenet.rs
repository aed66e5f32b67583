//! MiniGoogLeNet for images of 32×32 pixels in 10 classes, 1,656,250 parameters (Zhang et al. 2016,
//! "Understanding deep learning requires rethinking generalization", figure 3).

use super::layers::{Activation, Conv, Layer, Net};
use crate::ir::Value;

/// Convolution (with "same" padding where the stride is 1), batch normalization, ReLU.
fn conv(net: &mut Net, x: Value, filters: usize, kernel: usize, stride: usize) -> Layer<Value> {
    let conv = Conv::new(net.width(filters), kernel).stride(stride);
    let conv = if stride == 1 { conv.same() } else { conv };
    let x = net.conv2d("conv2d", x, conv)?;
    let x = net.batch_norm("batch_normalization", x, 1e-3)?;
    net.activation("activation", x, Activation::Relu)
}

/// Convolutions of 1×1 and of 3×3 side by side.
fn inception(net: &mut Net, x: Value, ones: usize, threes: usize) -> Layer<Value> {
    let a = conv(net, x, ones, 1, 1)?;
    let b = conv(net, x, threes, 3, 1)?;
    net.concat("concatenate", &[a, b])
}

/// Half the size: a convolution and a pooling side by side.
fn downsample(net: &mut Net, x: Value, filters: usize) -> Layer<Value> {
    let a = conv(net, x, filters, 3, 2)?;
    let b = net.max_pool("max_pooling2d", x, 3, 2)?;
    net.concat("concatenate", &[a, b])
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    net.number_layers();
    let mut x = net.image("image", 32, 3)?;
    x = conv(net, x, 96, 3, 1)?;
    x = inception(net, x, 32, 32)?;
    x = inception(net, x, 32, 48)?;
    x = downsample(net, x, 80)?;
    for (ones, threes) in [(112, 48), (96, 64), (80, 80), (48, 96)] {
        x = inception(net, x, ones, threes)?;
    }
    x = downsample(net, x, 96)?;
    x = inception(net, x, 176, 160)?;
    x = inception(net, x, 176, 160)?;
    let rest = net.size(x, 2);
    x = net.average_pool("average_pooling2d", x, rest, rest)?;
    x = net.dropout("dropout", x, 0.5)?;
    x = net.flatten("flatten", x)?;
    x = net.dense("dense", x, 10, Activation::None)?;
    x = net.activation("activation", x, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
