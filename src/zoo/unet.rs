//! A small U-Net that divides images of 64×64 pixels into 2 segments, 482,050 parameters
//! (Ronneberger, Fischer and Brox 2015, "U-Net: Convolutional Networks for Biomedical Image
//! Segmentation", figure 1, with "same" padding and a quarter of the depth).

use super::layers::{Activation, Conv, Layer, Net};
use crate::ir::Value;

/// Two convolutions of 3×3 taps, each with ReLU.
fn block(net: &mut Net, mut x: Value, filters: usize) -> Layer<Value> {
    for i in 1..=2 {
        x = net.conv2d(&format!("conv2d_{i}"), x, Conv::new(filters, 3).same())?;
        x = net.activation(&format!("relu_{i}"), x, Activation::Relu)?;
    }
    Ok(x)
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let filters = [16, 32, 64].map(|filters| net.width(filters));
    let bottom = net.width(128);
    let mut x = net.image("image", 64, 3)?;
    let mut skipped = Vec::new();
    for (level, filters) in (1..).zip(filters) {
        let (kept, pooled) = net.scope(&format!("down_{level}"), |net| {
            let x = block(net, x, filters)?;
            Ok((x, net.max_pool("max_pooling2d", x, 2, 2)?))
        })?;
        // What a level keeps returns on the way up: pooling loses where things are.
        skipped.push((level, filters, kept));
        x = pooled;
    }
    x = net.scope("bottom", |net| {
        let x = block(net, x, bottom)?;
        net.dropout("dropout", x, 0.5)
    })?;
    // The way up meets the levels in reverse.
    for (level, filters, kept) in skipped.into_iter().rev() {
        x = net.scope(&format!("up_{level}"), |net| {
            let x = net.conv2d_transpose("conv2d_transpose", x, filters, 2)?;
            let x = net.concat("concatenate", &[kept, x])?;
            block(net, x, filters)
        })?;
    }
    x = net.conv2d("scores", x, Conv::new(2, 1))?;
    // The softmax is over the classes of each pixel, the last axis.
    x = net.channels_last("pixels", x)?;
    x = net.activation("segments", x, Activation::Softmax)?;
    net.output("segments", x);
    Ok(())
}
