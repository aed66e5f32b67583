//! Keras' bidirectional LSTM for the sentiment of film reviews (`bidirectional_lstm_imdb`),
//! 2,757,761 parameters.

use super::layers::{Activation, Layer, Net};
use super::recurrent::Recurrent;

/// Words of a review.
const LENGTH: i64 = 200;
/// Words that the model knows.
const WORDS: usize = 20_000;

pub(super) fn layers(net: &mut Net) -> Layer<()> {
    let (length, known, units) = (net.steps(LENGTH), net.width(WORDS), net.width(64));
    let words = net.integers("words", &[length]);
    // 128 features in the published model, twice the 64 units of each direction.
    let x = net.embedding("embedding", words, known, 2 * units)?;
    let lstm = Recurrent::lstm(units).bidirectional();
    let x = net.recurrent("bidirectional_1", x, lstm.sequences())?;
    let x = net.recurrent("bidirectional_2", x, lstm)?;
    let x = net.dense("predictions", x, 1, Activation::Sigmoid)?;
    net.output("predictions", x);
    Ok(())
}
