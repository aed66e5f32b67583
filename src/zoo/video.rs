//! Classes of short videos `[N, time, height, width, channels]`: a small convolutional net on every
//! image, then an LSTM over the images; 30,570 parameters.

use super::layers::{Activation, Conv, Layer, Net};
use super::recurrent::Recurrent;

/// The features of one image; time is part of the batch here.
fn image(net: &mut Net, x: crate::ir::Value) -> Layer<crate::ir::Value> {
    let mut x = net.channels_first("images", x)?;
    for (i, filters) in [16, 32].into_iter().enumerate() {
        let filters = net.width(filters);
        x = net.conv2d(&format!("conv_{}", i + 1), x, Conv::new(filters, 3).same())?;
        x = net.activation(&format!("relu_{}", i + 1), x, Activation::Relu)?;
        x = net.max_pool(&format!("pool_{}", i + 1), x, 2, 2)?;
    }
    net.average_all("features", x)
}

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let (steps, size, units) = (net.steps(8), net.pixels(32), net.width(64));
    let video = net.input("video", &[steps, size, size, 3]);
    let x = net.time_distributed("time_distributed", video, image)?;
    let x = net.recurrent("lstm", x, Recurrent::lstm(units))?;
    let x = net.dropout("dropout", x, 0.5)?;
    let x = net.dense("predictions", x, 10, Activation::Softmax)?;
    net.output("predictions", x);
    Ok(())
}
