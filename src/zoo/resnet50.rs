//! ResNet-50 for images of 224×224 pixels in 1000 classes, 25,636,712 parameters (He et al. 2016,
//! table 1; strides on the first convolution of a block, biases on every convolution).

use super::layers::{Activation, Conv, Layer, Net};
use crate::ir::Value;

/// Its batch normalizations add this to the variance.
const EPSILON: f64 = 1.001e-5;

/// The convolution `<name>_conv` and its batch normalization.
fn conv_bn(net: &mut Net, name: &str, x: Value, conv: Conv) -> Layer<Value> {
    let x = net.conv2d(&format!("{name}_conv"), x, conv)?;
    net.batch_norm(&format!("{name}_bn"), x, EPSILON)
}

fn relu(net: &mut Net, name: &str, x: Value) -> Layer<Value> {
    net.activation(name, x, Activation::Relu)
}

/// A bottleneck of 1×1, 3×3 and 1×1 beside `x`, which is projected where its channels differ.
fn block(net: &mut Net, name: &str, x: Value, filters: usize, stride: usize) -> Layer<Value> {
    let filters = net.width(filters);
    let part = |i: usize| format!("{name}_{i}");
    let mut residual = x;
    if net.channels(x) != 4 * filters {
        // A projection, with the block's stride (option B of section 4.1).
        residual = conv_bn(net, &part(0), x, Conv::new(4 * filters, 1).stride(stride))?;
    }
    let mut y = conv_bn(net, &part(1), x, Conv::new(filters, 1).stride(stride))?;
    y = relu(net, &format!("{name}_1_relu"), y)?;
    y = conv_bn(net, &part(2), y, Conv::new(filters, 3).same())?;
    y = relu(net, &format!("{name}_2_relu"), y)?;
    y = conv_bn(net, &part(3), y, Conv::new(4 * filters, 1))?;
    y = net.add(&format!("{name}_add"), [residual, y])?;
    relu(net, &format!("{name}_out"), y)
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let mut x = net.image("image", 224, 3)?;
    x = net.zero_pad("conv1_pad", x, [3, 3])?;
    let first = net.width(64);
    x = conv_bn(net, "conv1", x, Conv::new(first, 7).stride(2))?;
    x = relu(net, "conv1_relu", x)?;
    x = net.zero_pad("pool1_pad", x, [1, 1])?;
    x = net.max_pool("pool1_pool", x, 3, 2)?;
    // The 50-layer column of table 1: conv2_x has no stride, as the pooling before it halves the
    // size.
    for (stack, filters, blocks) in [(2, 64, 3), (3, 128, 4), (4, 256, 6), (5, 512, 3)] {
        for i in 1..=blocks {
            let stride = if i == 1 && stack > 2 { 2 } else { 1 };
            x = block(net, &format!("conv{stack}_block{i}"), x, filters, stride)?;
        }
    }
    x = net.average_all("avg_pool", x)?;
    x = net.dense("predictions", x, 1000, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
