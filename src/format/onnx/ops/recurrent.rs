//! Operators on sequences.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::Line;
use crate::ir::Value;
use crate::op::{Activation, ConstantOfShape, Direction, Recurrent, ReverseSequence};
use crate::types::{Dim, Tensor};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "ReverseSequence" => (2, |n| {
            let (batch_axis, time_axis) = (n.int("batch_axis", 1)?, n.int("time_axis", 0)?);
            let operands = [n.operand(0)?, n.operand(1)?];
            n.result(ReverseSequence { batch_axis, time_axis }, &operands)
        }),
        "LSTM" => (8, lstm),
        "GRU" => (6, gru),
        "RNN" => (6, rnn),
        _ => return None,
    })
}

/// What all cells have.
#[expect(clippy::struct_excessive_bools, reason = "which operands there are")]
struct Common {
    direction: Direction,
    batch_first: bool,
    clip: Option<f32>,
    bias: bool,
    lengths: bool,
    initial: bool,
    operands: Vec<Value>,
}

fn common(n: &mut Node<'_, '_>) -> Result<Common, NodeError> {
    let direction = match n.string("direction", "forward")?.as_str() {
        "forward" => Direction::Forward,
        "reverse" => Direction::Reverse,
        "bidirectional" => Direction::Both,
        other => return Err(wrong("direction", format!("is `{other}`"))),
    };
    let batch_first = n.opset >= 14 && n.flag("layout", false)?;
    // Said which results there are, which the node says too.
    if n.opset < 7 {
        n.opt_int("output_sequence")?;
    }
    let clip = n.opt_float("clip")?;
    let mut operands = vec![n.operand(0)?, n.operand(1)?, n.operand(2)?];
    let hidden = n.shape(operands[2]).last().cloned();
    if let Some(given) = n.opt_int("hidden_size")?
        && hidden.is_some_and(|size| size != Dim::from(given))
    {
        let reason = format!("is {given}, which is not the last size of operand 2");
        return Err(wrong("hidden_size", reason));
    }
    let (bias, lengths, initial) = (n.optional(3), n.optional(4), n.optional(5));
    operands.extend(bias.into_iter().chain(lengths).chain(initial));
    let [bias, lengths, initial] = [bias, lengths, initial].map(|o| o.is_some());
    Ok(Common { direction, batch_first, clip, bias, lengths, initial, operands })
}

/// The functions of one direction, those in `defaults` where the node names none. Of the lists of parameters each
/// function takes the next number, if it has such a parameter.
fn functions<const K: usize>(
    n: &mut Node<'_, '_>,
    direction: Direction,
    defaults: [&str; K],
) -> Result<[Activation; K], NodeError> {
    let names = n.opt_strings("activations")?;
    let names = names.unwrap_or_else(|| {
        (0..direction.count()).flat_map(|_| defaults.map(str::to_owned)).collect()
    });
    let mut alphas = n.opt_floats("activation_alpha")?.unwrap_or_default().into_iter();
    let mut betas = n.opt_floats("activation_beta")?.unwrap_or_default().into_iter();
    let mut all = Vec::with_capacity(names.len());
    for name in &names {
        let (own, parameters) = match name.to_ascii_lowercase().as_str() {
            "relu" => ("relu", 0),
            "tanh" => ("tanh", 0),
            "sigmoid" => ("sigmoid", 0),
            "softsign" => ("softsign", 0),
            "softplus" => ("softplus", 0),
            "leakyrelu" => ("leaky_relu", 1),
            "thresholdedrelu" => ("thresholded_relu", 1),
            "elu" => ("elu", 1),
            "hardsigmoid" => ("hard_sigmoid", 2),
            "affine" => ("affine", 2),
            "scaledtanh" => ("scaled_tanh", 2),
            _ => return Err(wrong("activations", format!("names `{name}`, which is no function"))),
        };
        let alpha = if parameters > 0 { alphas.next() } else { None };
        let beta = if parameters > 1 { betas.next() } else { None };
        if parameters > 1 && own != "hard_sigmoid" && (alpha.is_none() || beta.is_none()) {
            let reason = format!("names `{name}`, whose parameters are not given");
            return Err(wrong("activations", reason));
        }
        all.extend(Activation::new(own, alpha, beta));
    }
    if all.len() != K * direction.count() {
        let reason = format!("names {}, not {}", all.len(), K * direction.count());
        return Err(wrong("activations", reason));
    }
    let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
    if texts[..K] != texts[texts.len() - K..] {
        let text = "directions with different functions".to_owned();
        return Err(NodeError::Unsupported(text));
    }
    all.truncate(K);
    all.try_into().map_err(|_| wrong("activations", "are not as many as the cell needs"))
}

fn lstm(n: &mut Node<'_, '_>) -> Done {
    let Common { direction, batch_first, clip, bias, lengths, mut initial, mut operands } =
        common(n)?;
    let [gate, candidate, hidden] = functions(n, direction, ["sigmoid", "tanh", "tanh"])?;
    let coupled = n.flag("input_forget", false)?;
    let cell = n.optional(6);
    let zeros = |n: &mut Node<'_, '_>, like: Value| {
        let (shape, value) = (n.shape(like).to_vec(), Tensor::zeros(n.dtype(like), &[])?);
        n.emit(ConstantOfShape { shape, value }, &[])
    };
    match (initial, cell) {
        (false, None) => {}
        (true, Some(cell)) => operands.push(cell),
        (true, None) => {
            let state = *operands.last().ok_or(NodeError::Missing { operand: 5 })?;
            let cell = zeros(n, state)?;
            operands.push(cell);
        }
        (false, Some(cell)) => {
            let state = zeros(n, cell)?;
            operands.extend([state, cell]);
            initial = true;
        }
    }
    let peepholes = n.optional(7);
    operands.extend(peepholes);
    let peepholes = peepholes.is_some();
    let op = Recurrent::Lstm {
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
    };
    n.results(3, op, &operands)
}

fn gru(n: &mut Node<'_, '_>) -> Done {
    let Common { direction, batch_first, clip, bias, lengths, initial, operands } = common(n)?;
    let [gate, candidate] = functions(n, direction, ["sigmoid", "tanh"])?;
    let reset_after = n.flag("linear_before_reset", false)?;
    let op = Recurrent::Gru {
        direction,
        batch_first,
        bias,
        lengths,
        initial,
        reset_after,
        clip,
        gate,
        candidate,
    };
    n.results(2, op, &operands)
}

fn rnn(n: &mut Node<'_, '_>) -> Done {
    let Common { direction, batch_first, clip, bias, lengths, initial, operands } = common(n)?;
    let [candidate] = functions(n, direction, ["tanh"])?;
    let op = Recurrent::Rnn { direction, batch_first, bias, lengths, initial, clip, candidate };
    n.results(2, op, &operands)
}
