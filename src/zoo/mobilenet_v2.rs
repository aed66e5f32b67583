//! MobileNetV2 for images of 224×224 pixels in 1000 classes, 3,538,984 parameters (Sandler et al.
//! 2018, table 2).

use super::layers::{Activation, Conv, Layer, Net};
use crate::ir::Value;

/// Keras's own MobileNetV2, whose layer names these are, has an epsilon of 1e-3 in every batch
/// normalization.
fn bn(net: &mut Net, name: &str, x: Value) -> Layer<Value> {
    net.batch_norm(name, x, 1e-3)
}

fn relu6(net: &mut Net, name: &str, x: Value) -> Layer<Value> {
    net.activation(name, x, Activation::Relu6)
}

/// An inverted residual: wider by `expansion`, a depthwise 3×3 with the stride, down to `filters`.
fn block(
    net: &mut Net,
    id: usize,
    x: Value,
    expansion: usize,
    filters: usize,
    stride: usize,
) -> Layer<Value> {
    let prefix = if id == 0 { "expanded_conv".to_owned() } else { format!("block_{id}") };
    let name = |layer: &str| format!("{prefix}_{layer}");
    let (filters, channels) = (net.width(filters), net.channels(x));
    let mut y = x;
    if expansion > 1 {
        y = net.conv2d(&name("expand"), y, Conv::new(expansion * channels, 1).no_bias())?;
        y = bn(net, &name("expand_BN"), y)?;
        y = relu6(net, &name("expand_relu"), y)?;
    }
    let mut depthwise = Conv::new(expansion * channels, 3).stride(stride).no_bias();
    if stride == 1 {
        depthwise = depthwise.same();
    } else {
        // A stride of 2 over an even size needs one column and one row more, at the end: the
        // padding "same" would give the same, here it is a layer of its own as in Keras.
        y = net.zero_pad(&name("pad"), y, [0, 1])?;
    }
    y = net.depthwise_conv2d(&name("depthwise"), y, depthwise)?;
    y = bn(net, &name("depthwise_BN"), y)?;
    y = relu6(net, &name("depthwise_relu"), y)?;
    // No activation follows: the bottleneck is linear (section 3.2).
    y = net.conv2d(&name("project"), y, Conv::new(filters, 1).no_bias())?;
    y = bn(net, &name("project_BN"), y)?;
    // The shortcut has no layer of its own, so it exists only where the shape stays.
    if stride == 1 && channels == filters { net.add(&name("add"), [x, y]) } else { Ok(y) }
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let mut x = net.image("image", 224, 3)?;
    let [first, last] = [32, 1280].map(|filters| net.width(filters));
    x = net.conv2d("Conv1", x, Conv::new(first, 3).stride(2).same().no_bias())?;
    x = bn(net, "bn_Conv1", x)?;
    x = relu6(net, "Conv1_relu", x)?;
    let mut id = 0;
    // The expansion, the filters, the blocks, the stride of the first.
    for (expansion, filters, blocks, stride) in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ] {
        for i in 0..blocks {
            x = block(net, id, x, expansion, filters, if i == 0 { stride } else { 1 })?;
            id += 1;
        }
    }
    x = net.conv2d("Conv_1", x, Conv::new(last, 1).no_bias())?;
    x = bn(net, "Conv_1_bn", x)?;
    x = relu6(net, "out_relu", x)?;
    x = net.average_all("global_average_pooling2d", x)?;
    x = net.dense("predictions", x, 1000, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
