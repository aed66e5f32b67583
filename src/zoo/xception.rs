//! Xception for images of 224×224 pixels in 1000 classes, 22,910,480 parameters (Chollet 2017,
//! figure 5).

use super::layers::{Activation, Conv, Layer, Net};
use crate::ir::Value;

/// A batch normalization after the layer `name`.
fn bn(net: &mut Net, name: &str, x: Value) -> Layer<Value> {
    net.batch_norm(&format!("{name}_bn"), x, 1e-3)
}

fn relu(net: &mut Net, name: &str, x: Value) -> Layer<Value> {
    net.activation(&format!("{name}_act"), x, Activation::Relu)
}

fn sepconv(net: &mut Net, name: &str, x: Value, filters: usize) -> Layer<Value> {
    let filters = net.width(filters);
    let x = net.separable_conv2d(name, x, Conv::new(filters, 3).same().no_bias())?;
    bn(net, name, x)
}

/// The strided 1×1 convolution beside a block; `i` counts them.
fn shortcut(net: &mut Net, i: usize, x: Value, filters: usize) -> Layer<Value> {
    let conv = Conv::new(net.width(filters), 1).stride(2).same().no_bias();
    let x = net.conv2d(&format!("conv2d_{i}"), x, conv)?;
    net.batch_norm(&format!("batch_normalization_{i}"), x, 1e-3)
}

/// Half the size: two separable convolutions and a pooling beside the `i`-th shortcut.
fn downsample(
    net: &mut Net,
    block: usize,
    i: usize,
    x: Value,
    filters: [usize; 2],
) -> Layer<Value> {
    let residual = shortcut(net, i, x, filters[1])?;
    let name = |layer: &str| format!("block{block}_{layer}");
    let mut y = x;
    // The first block follows an activation.
    if block > 2 {
        y = relu(net, &name("sepconv1"), y)?;
    }
    y = sepconv(net, &name("sepconv1"), y, filters[0])?;
    y = relu(net, &name("sepconv2"), y)?;
    y = sepconv(net, &name("sepconv2"), y, filters[1])?;
    y = net.max_pool_same(&name("pool"), y, 3, 2)?;
    // Keras numbers additions in order: 1 to 3 in the entry flow, 4 to 11 in the middle, 12 at the
    // exit.
    let add = if block == 13 { 12 } else { i };
    net.add(&format!("add_{add}"), [y, residual])
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let mut x = net.image("image", 224, 3)?;
    let [first, second] = [32, 64].map(|filters| net.width(filters));
    x = net.conv2d("block1_conv1", x, Conv::new(first, 3).stride(2).no_bias())?;
    x = bn(net, "block1_conv1", x)?;
    x = relu(net, "block1_conv1", x)?;
    x = net.conv2d("block1_conv2", x, Conv::new(second, 3).no_bias())?;
    x = bn(net, "block1_conv2", x)?;
    x = relu(net, "block1_conv2", x)?;
    // The rest of the entry flow.
    x = downsample(net, 2, 1, x, [128, 128])?;
    x = downsample(net, 3, 2, x, [256, 256])?;
    x = downsample(net, 4, 3, x, [728, 728])?;
    // The middle flow: eight times the same block, whose shortcut is the identity.
    for block in 5..13 {
        let mut y = x;
        for i in 1..4 {
            let name = format!("block{block}_sepconv{i}");
            y = relu(net, &name, y)?;
            y = sepconv(net, &name, y, 728)?;
        }
        x = net.add(&format!("add_{}", block - 1), [y, x])?;
    }
    x = downsample(net, 13, 4, x, [728, 1024])?;
    // The end of the exit flow, with activations behind the convolutions.
    for (i, filters) in [(1, 1536), (2, 2048)] {
        let name = format!("block14_sepconv{i}");
        x = sepconv(net, &name, x, filters)?;
        x = relu(net, &name, x)?;
    }
    x = net.average_all("avg_pool", x)?;
    x = net.dense("predictions", x, 1000, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
