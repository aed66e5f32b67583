//! Two stacked GRUs that forecast a temperature from five days of weather (Chollet, *Deep Learning
//! with Python*, 2nd edition, listing 10.23), 10,977 parameters.

use super::layers::{Activation, Layer, Net};
use super::recurrent::Recurrent;

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let (steps, units) = (net.steps(120), net.width(32));
    let x = net.input("weather", &[steps, 14]);
    let x = net.recurrent("gru_1", x, Recurrent::gru(units).sequences())?;
    let x = net.recurrent("gru_2", x, Recurrent::gru(units))?;
    let x = net.dropout("dropout", x, 0.5)?;
    let x = net.dense("temperature", x, 1, Activation::None)?;
    net.output("temperature", x);
    Ok(())
}
