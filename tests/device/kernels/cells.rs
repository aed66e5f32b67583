//! Recurrent cells, their gradients, and draws.

use fanwise::internal::RecurrentGrad;
use fanwise::ir::Value;
use fanwise::op::{
    Activation, Binary, Cast, CellKind, CellSettings, Direction, Random, Recurrent, Transpose,
};
use fanwise::types::{DType, Dim};

use super::{Net, signed};

/// The functions of a case.
fn functions(i: usize) -> [Activation; 3] {
    let named = |name, alpha, beta| Activation::new(name, alpha, beta).unwrap();
    match i % 5 {
        0 => [
            named("hard_sigmoid", None, None),
            named("scaled_tanh", Some(1.5), Some(0.5)),
            named("softsign", None, None),
        ],
        1 => [
            named("affine", Some(0.25), Some(0.5)),
            named("elu", None, None),
            named("leaky_relu", None, None),
        ],
        _ => [Activation::SIGMOID, Activation::TANH, Activation::TANH],
    }
}

/// The operands that a cell is given.
#[expect(clippy::struct_excessive_bools, reason = "each is an attribute")]
struct Given {
    batch_first: bool,
    bias: bool,
    lengths: bool,
    initial: bool,
    peepholes: bool,
}

impl Given {
    /// An input with these sizes behind the batch, which is the first or the second axis.
    fn input(&self, net: &mut Net, dims: &[usize]) -> Value {
        let x = net.input(dims);
        let mut perm: Vec<usize> = (0..=dims.len()).collect();
        perm[..dims.len()].rotate_left(1);
        if self.batch_first { x } else { net.op(Transpose { perm }, &[x]) }
    }

    fn operands(
        &self,
        net: &mut Net,
        (gates, directions): (usize, usize),
        [steps, input, hidden]: [usize; 3],
    ) -> Vec<Value> {
        let given = |net: &mut Net, dims: &[usize]| self.input(net, dims);
        let scale =
            |net: &mut Net, dims: &[usize]| net.param_within(1.0 / (hidden as f32).sqrt(), dims);
        let mut operands = vec![given(net, &[steps, input])];
        operands.push(scale(net, &[directions, gates * hidden, input]));
        operands.push(scale(net, &[directions, gates * hidden, hidden]));
        if self.bias {
            operands.push(net.param(&[directions, 2 * gates * hidden]));
        }
        if self.lengths {
            operands.push(net.input_of(DType::I64, &[]));
        }
        if self.initial {
            for _ in 0..if gates == 4 { 2 } else { 1 } {
                operands.push(given(net, &[directions, hidden]));
            }
        }
        if gates == 4 && self.peepholes {
            operands.push(net.param(&[directions, 3 * hidden]));
        }
        operands
    }
}

pub(super) fn recurrent(net: &mut Net, i: usize) -> Vec<Value> {
    let Case { op, operands, results, .. } = case(net, i);
    net.ops(results, op, &operands)
}

pub(super) fn gradients(net: &mut Net, i: usize) -> Vec<Value> {
    let Case { op, mut operands, results, given, dims } = case(net, i);
    let [steps, directions, hidden] = dims;
    for result in 0..results {
        let behind = [steps, directions, hidden];
        operands.push(given.input(net, &behind[usize::from(result > 0)..]));
    }
    let grad = RecurrentGrad::of(&op);
    let parts = 2 + usize::from(results == 3 || op.kind != CellKind::Rnn);
    let others =
        usize::from(results == 3 && given.peepholes) + usize::from(given.initial) * (results - 1);
    net.ops(parts + others, grad, &operands)
}

/// A cell with its operands.
struct Case {
    op: Recurrent,
    operands: Vec<Value>,
    results: usize,
    given: Given,
    /// Steps, directions and elements of the state.
    dims: [usize; 3],
}

fn case(net: &mut Net, i: usize) -> Case {
    let (steps, input) = (8 + i % 2, net.size(20));
    // Some whose elements take a block several rounds, and one with two sequences in a block.
    let hidden = match i {
        6 => 133,
        7 => 132,
        11 => 1100,
        _ => net.size(70),
    };
    let all = [(Direction::Forward, 1), (Direction::Reverse, 1), (Direction::Both, 2)];
    let (direction, directions) = all[i / 3 % 3];
    let [batch_first, bias, lengths, initial] =
        [i.is_multiple_of(2), i % 4 != 1, (i / 2).is_multiple_of(2), i % 5 > 1];
    let peepholes = i.is_multiple_of(6);
    let [gate, candidate, state] = functions(i);
    let clip = (i % 4 == 2).then_some(0.75);
    let (lstm, gru) = (i.is_multiple_of(3), i % 3 == 1);
    let settings = CellSettings {
        direction,
        batch_first,
        bias,
        lengths,
        initial,
        peepholes,
        coupled: i % 9 == 3,
        reset_after: gru && (i / 3).is_multiple_of(2),
        clip,
        candidate,
        gate: if lstm || gru { gate } else { Activation::SIGMOID },
        hidden: if lstm { state } else { Activation::TANH },
    };
    let kinds = [(CellKind::Lstm, 4), (CellKind::Gru, 3), (CellKind::Rnn, 1)];
    let (kind, gates) = kinds[i % 3];
    let op = Recurrent { kind, settings };
    let given = Given { batch_first, bias, lengths, initial, peepholes };
    let operands = given.operands(net, (gates, directions), [steps, input, hidden]);
    let results = if gates == 4 { 3 } else { 2 };
    Case { op, operands, results, given, dims: [steps, directions, hidden] }
}

pub(super) fn random(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = if i.is_multiple_of(3) { DType::F64 } else { DType::F32 };
    let seed = signed(net.pick(0, 1000)) - 500;
    let width = net.pick(1, 40);
    let (low, high) = ([0.0, -2.5][i % 2], [1.0, 7.0][i / 2 % 2]);
    let x = net.input(&[width]);
    let turned = net.op(Transpose { perm: vec![1, 0] }, &[x]);
    let mut results = Vec::new();
    for make in [Random::uniform, Random::normal] {
        // The batch on either axis; a result that is an output is drawn whole, others by rows.
        for (x, axis) in [(x, 0), (turned, 1)] {
            let mut shape: Vec<Dim> = vec![signed(width).into()];
            shape.insert(axis, Dim::n());
            let drawn = net.op(make(dtype, low, high, seed, shape), &[]);
            let drawn = net.op(Cast { to: DType::F32 }, &[drawn]);
            if net.chance() {
                results.push(drawn);
            }
            results.push(net.op(Binary::Add, &[x, drawn]));
        }
    }
    results
}
