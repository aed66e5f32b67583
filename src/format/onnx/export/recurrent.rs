//! Cells applied to sequences.

use super::super::tensor;
use super::Refused;
use super::writer::{Attribute, Writer};
use crate::op::{Activation, Direction, Op, Recurrent};
use crate::types::DType;

type Done = Option<Result<(), Refused>>;

pub(super) fn write(w: &mut Writer<'_>, op: &Op) -> Done {
    let Op::Recurrent(op) = op else { return None };
    Some(match op {
        Recurrent::Lstm {
            direction,
            batch_first,
            bias,
            lengths,
            initial,
            peepholes,
            coupled,
            clip,
            gate,
            candidate,
            hidden,
        } => Cell {
            name: "LSTM",
            order: (*direction, *batch_first),
            has: [true, true, true, *bias, *lengths, *initial, *initial, *peepholes],
            clip: *clip,
            functions: &[gate, candidate, hidden],
            own: coupled.then_some("input_forget"),
        }
        .write(w),
        Recurrent::Gru {
            direction,
            batch_first,
            bias,
            lengths,
            initial,
            reset_after,
            clip,
            gate,
            candidate,
        } => Cell {
            name: "GRU",
            order: (*direction, *batch_first),
            has: [true, true, true, *bias, *lengths, *initial, false, false],
            clip: *clip,
            functions: &[gate, candidate],
            own: reset_after.then_some("linear_before_reset"),
        }
        .write(w),
        Recurrent::Rnn { direction, batch_first, bias, lengths, initial, clip, candidate } => {
            Cell {
                name: "RNN",
                order: (*direction, *batch_first),
                has: [true, true, true, *bias, *lengths, *initial, false, false],
                clip: *clip,
                functions: &[candidate],
                own: None,
            }
            .write(w)
        }
    })
}

struct Cell<'a> {
    name: &'a str,
    /// The order of the steps, and whether the batch is the first axis.
    order: (Direction, bool),
    /// Which of ONNX's operands there are, the first three always.
    has: [bool; 8],
    clip: Option<f32>,
    /// The functions of one direction.
    functions: &'a [&'a Activation],
    /// A flag that is set.
    own: Option<&'a str>,
}

impl Cell<'_> {
    /// Steps are the first axis, as runtimes expect them; where the batch is, it is moved before and behind.
    fn write(&self, w: &mut Writer<'_>) -> Result<(), Refused> {
        let (direction, batch_first) = self.order;
        let hidden = w.shape(2)?.last().and_then(crate::types::Dim::as_const);
        let hidden = hidden.ok_or("the size of its state is no constant")?;
        let operands = self.operands(w)?;
        let (names, alphas, betas) = self.functions();
        let mut given = vec![
            ("direction", Attribute::Text(direction_name(direction))),
            ("hidden_size", Attribute::Int(hidden)),
            ("activations", Attribute::Texts(names)),
        ];
        if !alphas.is_empty() {
            given.push(("activation_alpha", Attribute::Floats(&alphas)));
        }
        if !betas.is_empty() {
            given.push(("activation_beta", Attribute::Floats(&betas)));
        }
        given.extend(self.clip.map(|clip| ("clip", Attribute::Float(clip))));
        given.extend(self.own.map(|own| (own, Attribute::Int(1))));
        if !batch_first {
            return w.done(self.name, operands, &given);
        }
        let results = w.results();
        let turned: Vec<String> =
            results.iter().map(|name| w.fresh(&format!("{name}.steps"))).collect();
        w.push(self.name, operands, turned.clone(), &given);
        for (i, (from, to)) in turned.into_iter().zip(results).enumerate() {
            let perm: &[i64] = if i == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] };
            w.push("Transpose", vec![from], vec![to], &[("perm", Attribute::Ints(perm))]);
        }
        Ok(())
    }

    /// The operands at ONNX's places; one that is absent is empty.
    fn operands(&self, w: &mut Writer<'_>) -> Result<Vec<String>, Refused> {
        const LENGTHS: usize = 4;
        let (_, batch_first) = self.order;
        let turn = [("perm", Attribute::Ints(&[1, 0, 2]))];
        let given = w.operands();
        let mut all = Vec::new();
        let mut next = 0;
        for (place, has) in self.has.into_iter().enumerate() {
            if !has {
                all.push(String::new());
                continue;
            }
            let name = given.get(next).ok_or_else(|| format!("operand {next} is missing"))?;
            let is_state = place == 5 || place == 6;
            all.push(if place == LENGTHS && w.ty(next)?.dtype != DType::I32 {
                let to = Attribute::Int(tensor::number(DType::I32).into());
                w.emit("Cast", &[name], &[("to", to)])
            } else if batch_first && (place == 0 || is_state) {
                w.emit("Transpose", &[name], &turn)
            } else {
                name.clone()
            });
            next += 1;
        }
        while all.last().is_some_and(String::is_empty) {
            all.pop();
        }
        Ok(all)
    }

    /// The names of the functions of all directions, and their parameters.
    fn functions(&self) -> (Vec<String>, Vec<f32>, Vec<f32>) {
        let (mut names, mut alphas, mut betas) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.order.0.count() {
            for function in self.functions {
                let (name, [alpha, beta]) = function.parts();
                names.push(function_name(name).to_owned());
                alphas.extend(alpha);
                betas.extend(beta);
            }
        }
        (names, alphas, betas)
    }
}

const fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Reverse => "reverse",
        Direction::Both => "bidirectional",
    }
}

fn function_name(own: &str) -> &str {
    match own {
        "relu" => "Relu",
        "tanh" => "Tanh",
        "sigmoid" => "Sigmoid",
        "softsign" => "Softsign",
        "softplus" => "Softplus",
        "leaky_relu" => "LeakyRelu",
        "thresholded_relu" => "ThresholdedRelu",
        "elu" => "Elu",
        "hard_sigmoid" => "HardSigmoid",
        "affine" => "Affine",
        "scaled_tanh" => "ScaledTanh",
        other => other,
    }
}
