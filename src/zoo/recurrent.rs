//! The layers of recurrent models. A sequence is `[N, steps, features]`.

use super::layers::{Layer, Net, int};
use super::weights::Init;
use crate::ir::Value;
use crate::op::{CellKind, CellSettings, Direction, Pad, PadMode, Recurrent as Op, Reshape};
use crate::types::{Dim, Shape};

/// A recurrent layer as Keras makes it: forward, and only the state after the last step, unless
/// said otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recurrent {
    lstm: bool,
    units: usize,
    both: bool,
    sequences: bool,
}

impl Recurrent {
    pub(super) fn lstm(units: usize) -> Self {
        Self { lstm: true, units, both: false, sequences: false }
    }

    pub(super) fn gru(units: usize) -> Self {
        Self { lstm: false, ..Self::lstm(units) }
    }

    /// Both directions, each with parameters of its own, their states side by side.
    pub(super) fn bidirectional(self) -> Self {
        Self { both: true, ..self }
    }

    /// The state after each step.
    pub(super) fn sequences(self) -> Self {
        Self { sequences: true, ..self }
    }

    fn op(self) -> Op {
        let settings = CellSettings {
            direction: if self.both { Direction::Both } else { Direction::Forward },
            batch_first: true,
            bias: true,
            // Keras's GRU applies the reset gate after the product, with a bias of its own.
            reset_after: !self.lstm,
            ..CellSettings::default()
        };
        Op { kind: if self.lstm { CellKind::Lstm } else { CellKind::Gru }, settings }
    }
}

impl Net {
    pub(super) fn recurrent(&mut self, name: &str, x: Value, layer: Recurrent) -> Layer<Value> {
        let name = self.layer(name);
        let at = |kind: &str| format!("{name}.{kind}");
        let Recurrent { lstm, units, both, sequences } = layer;
        let (steps, features) = (self.size(x, 1), self.size(x, 2));
        // The gates of a cell: an LSTM has input, output, forget and candidate; a GRU update, reset
        // and candidate.
        let (directions, width) = (1 + usize::from(both), if lstm { 4 } else { 3 } * units);
        let init = |fan_in| Init::Glorot { fan_in, fan_out: width };
        let kernel = self.param(&at("kernel"), &[directions, width, features], init(features))?;
        let recurrent =
            self.param(&at("recurrent_kernel"), &[directions, width, units], init(units))?;
        // An LSTM has one bias, a GRU one beside each kernel.
        let biases = if lstm { width } else { 2 * width };
        let mut bias = self.param(&at("bias"), &[directions, biases], Init::near(0.0))?;
        // The operator takes a bias beside each kernel: that beside the recurrent one is 0 here.
        if lstm {
            let pads = vec![0, 0, 0, int(width)];
            let both = Pad { mode: PadMode::Constant, pads, value: 0.0 };
            bias = self.op(&at("biases"), both, &[bias])?;
        }
        let results = [at("steps"), at("last"), at("cell")];
        let names: Vec<&str> = results.iter().take(2 + usize::from(lstm)).map(|n| &**n).collect();
        let states = self.ops(&names, layer.op(), &[x, kernel, recurrent, bias])?;
        let features = Dim::from(int(directions * units));
        // `[N, steps, directions, units]` and `[N, directions, units]`: Keras puts the directions
        // side by side, which is a view.
        let (states, shape) = if sequences {
            (states[0], vec![Dim::n(), int(steps).into(), features])
        } else {
            (states[1], vec![Dim::n(), features])
        };
        self.op(&name, Reshape { shape }, &[states])
    }

    /// Applies layers to every step of `[N, steps, …]` as to a sample of its own.
    pub(super) fn time_distributed(
        &mut self,
        name: &str,
        x: Value,
        layers: impl FnOnce(&mut Self, Value) -> Layer<Value>,
    ) -> Layer<Value> {
        let steps = int(self.size(x, 1));
        let shape = |first: &[Dim], rest: &Shape| Reshape { shape: [first, rest].concat() };
        let own = self.layer(name);
        let rest = self.sizes_from(x, 2);
        let x = self.op(&format!("{own}.samples"), shape(&[Dim::n() * steps], &rest), &[x])?;
        let y = self.scope(name, |net| layers(net, x))?;
        let name = self.layer(name);
        let rest = self.sizes_from(y, 1);
        self.op(&name, shape(&[Dim::n(), steps.into()], &rest), &[y])
    }
}
