//! Cells applied to sequences.

use super::{
    Attribute, Done, Export, Imports, Node, NodeError, Refused, Writer, Written, word, wrong,
};
use crate::ir::Value;
use crate::op::{Activation, CellKind, CellSettings, Direction, Formula, Recurrent};
use crate::types::{DType, Dim, Tensor};

const DIRECTIONS: [(&str, Direction); 3] = [
    ("forward", Direction::Forward),
    ("reverse", Direction::Reverse),
    ("bidirectional", Direction::Both),
];

/// A function of gates: its names in ONNX and here, and the number of its parameters.
struct Function {
    onnx: &'static str,
    own: &'static str,
    parameters: usize,
}

/// The functions that ONNX names. Names are compared without case, as ONNX Runtime does.
const FUNCTIONS: [Function; 11] = [
    Function { onnx: "Relu", own: "relu", parameters: 0 },
    Function { onnx: "Tanh", own: "tanh", parameters: 0 },
    Function { onnx: "Sigmoid", own: "sigmoid", parameters: 0 },
    Function { onnx: "Softsign", own: "softsign", parameters: 0 },
    Function { onnx: "Softplus", own: "softplus", parameters: 0 },
    Function { onnx: "LeakyRelu", own: "leaky_relu", parameters: 1 },
    Function { onnx: "ThresholdedRelu", own: "thresholded_relu", parameters: 1 },
    Function { onnx: "Elu", own: "elu", parameters: 1 },
    Function { onnx: "HardSigmoid", own: "hard_sigmoid", parameters: 2 },
    Function { onnx: "Affine", own: "affine", parameters: 2 },
    Function { onnx: "ScaledTanh", own: "scaled_tanh", parameters: 2 },
];

pub(super) fn imports(all: &mut Imports) {
    all.add("LSTM", 8, lstm);
    all.add("GRU", 6, gru);
    all.add("RNN", 6, rnn);
}

/// Attributes that all cells share, and the operands.
fn common(n: &mut Node<'_, '_>) -> Result<(CellSettings, Vec<Value>), NodeError> {
    let direction = n.choice("direction", "forward", &DIRECTIONS)?;
    let batch_first = n.opset >= 14 && n.flag("layout", false)?;
    // It says which results there are, which the list of the node's results says too.
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
    let settings = CellSettings {
        direction,
        batch_first,
        bias,
        lengths,
        initial,
        clip,
        ..CellSettings::default()
    };
    Ok((settings, operands))
}

/// The functions of one direction, those in `defaults` where the node names none. Of the lists of
/// parameters each function takes the next number, if it has such a parameter.
fn functions<const K: usize>(
    n: &mut Node<'_, '_>,
    direction: Direction,
    defaults: [&str; K],
) -> Result<[Activation; K], NodeError> {
    let names = n.opt_strings("activations")?;
    let names = names.unwrap_or_else(|| {
        (0..direction.count()).flat_map(|_| defaults.map(str::to_owned)).collect()
    });
    // Functions beyond the end of these lists take their own defaults.
    let mut alphas = n.opt_floats("activation_alpha")?.into_iter().flatten();
    let mut betas = n.opt_floats("activation_beta")?.into_iter().flatten();
    let mut all = Vec::with_capacity(names.len());
    for name in &names {
        let known = FUNCTIONS.iter().find(|known| known.onnx.eq_ignore_ascii_case(name));
        let Some(&Function { own, parameters, .. }) = known else {
            return Err(wrong("activations", format!("names `{name}`, which is not a function")));
        };
        // ONNX's lists have an entry only for the functions that take one, in their order.
        let alpha = if parameters > 0 { alphas.next() } else { None };
        let beta = if parameters > 1 { betas.next() } else { None };
        // ONNX gives defaults for the others; for these two it names none.
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
    // The operator has one set of functions, which both directions apply.
    if texts[..K] != texts[texts.len() - K..] {
        let text = "directions with different functions".to_owned();
        return Err(NodeError::Unsupported(text));
    }
    all.truncate(K);
    all.try_into().map_err(|_| wrong("activations", "are not as many as the cell needs"))
}

/// `LSTM`: gates by `sigmoid`, candidate and output by `tanh` where the node names no functions.
fn lstm(n: &mut Node<'_, '_>) -> Done {
    let (mut settings, mut operands) = common(n)?;
    let functions = functions(n, settings.direction, ["sigmoid", "tanh", "tanh"])?;
    [settings.gate, settings.candidate, settings.hidden] = functions;
    settings.coupled = n.flag("input_forget", false)?;
    let cell = n.optional(6);
    let zeros = |n: &mut Node<'_, '_>, like: Value| {
        let (shape, value) = (n.shape(like).to_vec(), Tensor::zeros(n.dtype(like), &[])?);
        n.filled(shape, value)
    };
    match (settings.initial, cell) {
        (false, None) => {}
        (true, Some(cell)) => operands.push(cell),
        // ONNX takes zeros for a state that is left out; the operator takes both states or none.
        (true, None) => {
            let state = *operands.last().ok_or(NodeError::Missing { operand: 5 })?;
            let cell = zeros(n, state)?;
            operands.push(cell);
        }
        (false, Some(cell)) => {
            let state = zeros(n, cell)?;
            operands.extend([state, cell]);
            settings.initial = true;
        }
    }
    let peepholes = n.optional(7);
    operands.extend(peepholes);
    settings.peepholes = peepholes.is_some();
    n.results(3, Recurrent { kind: CellKind::Lstm, settings }, &operands)
}

/// `GRU`. `linear_before_reset` applies the reset gate behind the product with the state, as cuDNN
/// and Keras do.
fn gru(n: &mut Node<'_, '_>) -> Done {
    let (mut settings, operands) = common(n)?;
    [settings.gate, settings.candidate] = functions(n, settings.direction, ["sigmoid", "tanh"])?;
    settings.reset_after = n.flag("linear_before_reset", false)?;
    n.results(2, Recurrent { kind: CellKind::Gru, settings }, &operands)
}

/// `RNN`: one function and no gates.
fn rnn(n: &mut Node<'_, '_>) -> Done {
    let (mut settings, operands) = common(n)?;
    [settings.candidate] = functions(n, settings.direction, ["tanh"])?;
    n.results(2, Recurrent { kind: CellKind::Rnn, settings }, &operands)
}

impl Export for Recurrent {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let settings = &self.settings;
        let CellSettings { bias, lengths, initial, peepholes, coupled, reset_after, .. } =
            *settings;
        let CellSettings { gate, candidate, hidden, .. } = settings;
        let (name, functions, own): (_, &[_], _) = match self.kind {
            CellKind::Lstm => {
                ("LSTM", &[gate, candidate, hidden], coupled.then_some("input_forget"))
            }
            CellKind::Gru => {
                ("GRU", &[gate, candidate], reset_after.then_some("linear_before_reset"))
            }
            CellKind::Rnn => ("RNN", &[candidate], None),
        };
        let cell = initial && self.kind == CellKind::Lstm;
        let has = [true, true, true, bias, lengths, initial, cell, peepholes];
        Cell { name, settings, has, functions, own }.write(w)
    }
}

/// A cell as ONNX has it.
struct Cell<'a> {
    name: &'a str,
    settings: &'a CellSettings,
    /// Which of ONNX's operands there are, the first three always.
    has: [bool; 8],
    /// The functions of one direction.
    functions: &'a [&'a Activation],
    /// A flag that is set.
    own: Option<&'a str>,
}

impl Cell<'_> {
    /// Steps are the first axis, as runtimes expect them; where the batch is, it is moved before
    /// and behind.
    fn write(&self, w: &mut Writer<'_>) -> Written {
        let hidden = w.shape(2)?.last().and_then(Dim::as_const);
        let hidden = hidden.ok_or("the size of its state is not a constant")?;
        let operands = self.operands(w)?;
        let Functions { names, alphas, betas } = self.functions()?;
        let mut given = vec![
            ("direction", word(&DIRECTIONS, &self.settings.direction)?),
            ("hidden_size", hidden.into()),
            ("activations", Attribute::Texts(names)),
        ];
        if !alphas.is_empty() {
            given.push(("activation_alpha", Attribute::Floats(&alphas)));
        }
        if !betas.is_empty() {
            given.push(("activation_beta", Attribute::Floats(&betas)));
        }
        given.extend(self.settings.clip.map(|clip| ("clip", clip.into())));
        given.extend(self.own.map(|own| (own, true.into())));
        // ONNX Runtime does not run `layout = 1`, so that it is never written.
        if !self.settings.batch_first {
            return w.done(self.name, operands, &given);
        }
        let results = w.results()?;
        let turned: Vec<String> =
            results.iter().map(|name| w.fresh(&format!("{name}.steps"))).collect();
        w.push(self.name, operands, turned.clone(), &given);
        for (i, (from, to)) in turned.into_iter().zip(results).enumerate() {
            // ONNX has `[steps, directions, N, hidden]` and `[directions, N, hidden]`.
            let perm: &[i64] = if i == 0 { &[2, 0, 1, 3] } else { &[1, 0, 2] };
            w.push("Transpose", vec![from], vec![to], &[("perm", Attribute::Ints(perm))]);
        }
        Ok(())
    }

    /// The operands at ONNX's places; one that is absent is empty.
    fn operands(&self, w: &mut Writer<'_>) -> Result<Vec<String>, Refused> {
        const LENGTHS: usize = 4;
        let turn = [("perm", Attribute::Ints(&[1, 0, 2]))];
        let given = w.operands()?;
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
                w.emit("Cast", &[name], &[("to", DType::I32.into())])?
            } else if self.settings.batch_first && (place == 0 || is_state) {
                w.emit("Transpose", &[name], &turn)?
            } else {
                name.clone()
            });
            next += 1;
        }
        // ONNX leaves out operands at the end; the empty name is for those before others.
        while all.last().is_some_and(String::is_empty) {
            all.pop();
        }
        Ok(all)
    }

    /// The functions of all directions.
    fn functions(&self) -> Result<Functions, Refused> {
        let mut all = Functions::default();
        for _ in 0..self.settings.direction.count() {
            for function in self.functions {
                let (own, [alpha, beta]) = function.parts();
                let known = FUNCTIONS.iter().find(|known| known.own == own);
                let known = known.ok_or_else(|| format!("ONNX has no function {own}"))?;
                all.names.push(known.onnx.to_owned());
                all.alphas.extend(alpha);
                all.betas.extend(beta);
            }
        }
        Ok(all)
    }
}

/// The names of functions in ONNX, and their parameters.
#[derive(Default)]
struct Functions {
    names: Vec<String>,
    alphas: Vec<f32>,
    betas: Vec<f32>,
}
