//! One sequence: its steps forwards, then the gradients of its states backwards.

use crate::op::real::Real;
use crate::op::recurrent::{CellKind, Sequence};

/// The results, in their order.
pub(super) struct Given<R> {
    pub(super) results: Vec<Vec<R>>,
    /// The elements of each result that a step of one direction has, for each of those of every
    /// step.
    widths: Vec<usize>,
}

/// Inputs and results of a step of the forward pass.
struct Step<R> {
    time: usize,
    /// The state and the cell state before it.
    state: Vec<R>,
    cell: Vec<R>,
    /// Pre-activations of the gates, and their activations.
    sums: Vec<R>,
    gates: Vec<R>,
    /// Of a GRU what the reset gate is applied to after the product, or the state that passed it.
    reset: Vec<R>,
    /// The cell state after it, and the function of that.
    next: Vec<R>,
    shown: Vec<R>,
}

/// The gradients of the sums of a step, and of the states before it.
struct Back<R> {
    /// The gradient of the gates' pre-activations.
    sums: Vec<R>,
    /// Of a GRU what the gates' products with the state and their biases get.
    recurrent: Vec<R>,
    state: Vec<R>,
    cell: Vec<R>,
}

/// The products of each row of a matrix with `x`.
fn product<R: Real>(matrix: &[R], rows: usize, x: &[R]) -> Vec<R> {
    let row = |i: usize| {
        let terms = matrix[i * x.len()..][..x.len()].iter().zip(x);
        terms.fold(R::of(0.0), |sum, (a, b)| sum + *a * *b)
    };
    (0..rows).map(row).collect()
}

/// Adds to `dx` the gradient that the products `y` of a matrix with `x` give it.
fn product_back<R: Real>(dx: &mut [R], matrix: &[R], dy: &[R]) {
    for (i, g) in dy.iter().enumerate() {
        let row = &matrix[i * dx.len()..][..dx.len()];
        dx.iter_mut().zip(row).for_each(|(dx, w)| *dx = *dx + *g * *w);
    }
}

fn add<R: Real>(x: &mut [R], y: &[R]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x = *x + *y);
}

impl<R: Real> Given<R> {
    /// Zeros; `widths` are those of the results that every step has a part of, which come first.
    pub(super) fn new(sizes: impl Iterator<Item = usize>, widths: Vec<usize>) -> Self {
        Self { results: sizes.map(|n| vec![R::of(0.0); n]).collect(), widths }
    }

    /// Writes what one sequence of one direction gives; `dys` are the gradients of the cell's
    /// results.
    pub(super) fn sequence(&mut self, sequence: &Sequence<'_, R>, row: usize, dys: &[&[R]]) {
        let (sizes, d) = (sequence.sizes, sequence.direction);
        let (hidden, own) = (sizes.hidden, sizes.state(d, row) * sizes.hidden);
        let last = |i: usize| dys.get(i).map(|dy| dy[own..own + hidden].to_vec());
        let mut state = last(1).unwrap_or_default();
        let mut cell = last(2).unwrap_or_default();
        // The steps are computed again, forwards: the forward pass keeps none of their intermediate
        // values.
        for step in steps(sequence, row).iter().rev() {
            let at = sizes.states(step.time, d, row) * hidden;
            add(&mut state, &dys[0][at..at + hidden]);
            let mut back = match sequence.cell.kind {
                CellKind::Lstm => lstm_back(sequence, step, &state, cell),
                CellKind::Gru => gru_back(sequence, step, &state),
                CellKind::Rnn => rnn_back(sequence, step, &state),
            };
            (state, cell) = (std::mem::take(&mut back.state), std::mem::take(&mut back.cell));
            let kept = match sequence.cell.kind {
                CellKind::Lstm => &step.cell,
                CellKind::Gru if sequence.resets_first() => &step.reset,
                CellKind::Gru | CellKind::Rnn => &back.recurrent,
            };
            let products = match self.widths.len() {
                4 => peephole_products(step, &back.sums, hidden),
                _ => Vec::new(),
            };
            let parts = [&back.sums, &step.state, kept, &products];
            for ((result, width), part) in self.results.iter_mut().zip(&self.widths).zip(parts) {
                let at = (sizes.step(step.time, row) * sizes.directions + d) * width;
                result[at..at + width].copy_from_slice(part);
            }
        }
        let states = self.results.iter_mut().skip(self.widths.len());
        states
            .zip([state, cell])
            .for_each(|(result, x)| result[own..own + hidden].copy_from_slice(&x));
    }
}

/// The contribution of a step to the gradients of the LSTM peepholes (input, output, forget).
fn peephole_products<R: Real>(step: &Step<R>, sums: &[R], hidden: usize) -> Vec<R> {
    let seen = [&step.cell, &step.next, &step.cell];
    let gates = sums.chunks_exact(hidden.max(1)).zip(seen);
    gates.flat_map(|(gate, cell)| gate.iter().zip(cell).map(|(g, c)| *g * *c)).collect()
}

/// The steps of a sequence, in order.
fn steps<R: Real>(sequence: &Sequence<'_, R>, row: usize) -> Vec<Step<R>> {
    let sizes = sequence.sizes;
    let width = sequence.cell.kind.gates() * sizes.hidden;
    // The first half of a bias belongs to the products with the operand, the second to those with
    // the state.
    let (own, _) = sequence.bias.split_at(sequence.bias.len() / 2);
    let mut state = sequence.begin(sequence.initial, row..row + 1);
    let mut cell = sequence.begin(sequence.initial_cell, row..row + 1);
    let mut all = Vec::new();
    while let Some(time) = sequence.time(row, all.len()) {
        let x = &sequence.x[sizes.step(time, row) * sizes.input..][..sizes.input];
        let mut sums = product(sequence.w, width, x);
        add(&mut sums, own);
        let mut step = Step {
            time,
            gates: Vec::new(),
            reset: Vec::new(),
            next: Vec::new(),
            shown: Vec::new(),
            state,
            cell,
            sums,
        };
        (state, cell) = match sequence.cell.kind {
            CellKind::Lstm => lstm(sequence, &mut step),
            CellKind::Gru => (gru(sequence, &mut step), step.cell.clone()),
            CellKind::Rnn => (rnn(sequence, &mut step), step.cell.clone()),
        };
        all.push(step);
    }
    all
}

/// The function of the cell, after the bound, of some sums.
fn applied<R: Real>(sequence: &Sequence<'_, R>, function: usize, sums: &[R]) -> Vec<R> {
    let mut gates = sums.to_vec();
    sequence.functions(function).for_each(|f| f.row(&mut gates));
    gates
}

/// The derivative of what [`applied`] gives.
fn slope<R: Real>(sequence: &Sequence<'_, R>, function: usize, sum: R, gate: R) -> R {
    // Beyond the bound the function sees the bound itself, whatever the sum.
    let beyond = sequence.cell.clip.is_some_and(|bound| sum.abs() > R::of(bound.into()));
    let inside = sequence.cell.functions[function].slope(sum, gate);
    inside.filter(|_| !beyond).unwrap_or_else(|| R::of(0.0))
}

/// A peephole of an LSTM.
fn peephole<R: Real>(sequence: &Sequence<'_, R>, gate: usize, i: usize) -> R {
    let at = gate * sequence.sizes.hidden + i;
    sequence.peepholes.get(at).copied().unwrap_or_else(|| R::of(0.0))
}

/// With the gates input `i`, output `o`, forget `f` and candidate `g`, in this order in memory: `c'
/// = f * c + i * g` and `h' = o * s(c')`.
fn lstm<R: Real>(sequence: &Sequence<'_, R>, step: &mut Step<R>) -> (Vec<R>, Vec<R>) {
    let hidden = sequence.sizes.hidden;
    let (_, bias) = sequence.bias.split_at(sequence.bias.len() / 2);
    add(&mut step.sums, &product(sequence.r, 4 * hidden, &step.state));
    add(&mut step.sums, bias);
    for i in 0..hidden {
        // The input and the forget gate see the cell state before the step, the output gate that
        // after it: its sum is completed further down.
        for gate in [0, 2] {
            let sum = &mut step.sums[gate * hidden + i];
            *sum = *sum + peephole(sequence, gate, i) * step.cell[i];
        }
    }
    let part = |gate: usize| gate * hidden..(gate + 1) * hidden;
    let input = applied(sequence, 0, &step.sums[part(0)]);
    let forget = if sequence.cell.coupled {
        input.iter().map(|i| R::of(1.0) - *i).collect()
    } else {
        applied(sequence, 0, &step.sums[part(2)])
    };
    let candidate = applied(sequence, 1, &step.sums[part(3)]);
    step.next = (0..hidden).map(|i| forget[i] * step.cell[i] + input[i] * candidate[i]).collect();
    for i in 0..hidden {
        let sum = &mut step.sums[hidden + i];
        *sum = *sum + peephole(sequence, 1, i) * step.next[i];
    }
    let output = applied(sequence, 0, &step.sums[part(1)]);
    step.shown.clone_from(&step.next);
    sequence.cell.functions[2].row(&mut step.shown);
    let state = output.iter().zip(&step.shown).map(|(o, c)| *o * *c).collect();
    step.gates = [input, output, forget, candidate].concat();
    (state, step.next.clone())
}

/// `do = dh * s(c')` and `dc' = dc + dh * o * s'(c') + do * P_o`, from which `di = dc' * g`, `df =
/// dc' * c`, `dg = dc' * i`, each times the slope of its gate's function. To the step before goes
/// `dc = dc' * f + di * P_i + df * P_f`; `P` are the peepholes.
fn lstm_back<R: Real>(
    sequence: &Sequence<'_, R>,
    step: &Step<R>,
    dh: &[R],
    mut dc: Vec<R>,
) -> Back<R> {
    let hidden = dh.len();
    let mut sums = vec![R::of(0.0); 4 * hidden];
    let coupled = sequence.cell.coupled;
    for i in 0..hidden {
        let [input, output, forget, candidate] = [0, 1, 2, 3].map(|g| step.gates[g * hidden + i]);
        let peep = |gate: usize| peephole(sequence, gate, i);
        let through = |gate: usize, function: usize, g: R| {
            let at = gate * hidden + i;
            g * slope(sequence, function, step.sums[at], step.gates[at])
        };
        let (next, shown) = (step.next[i], step.shown[i]);
        let d_output = through(1, 0, dh[i] * shown);
        let curve = sequence.cell.functions[2].slope(next, shown).unwrap_or_else(|| R::of(0.0));
        let d_cell = dc[i] + dh[i] * output * curve + d_output * peep(1);
        let (mut d_input, d_forget) = (d_cell * candidate, d_cell * step.cell[i]);
        // The forget gate is `1 - i`: its gradient goes to the input gate, negated.
        if coupled {
            d_input = d_input - d_forget;
        }
        let d_input = through(0, 0, d_input);
        let d_forget = if coupled { R::of(0.0) } else { through(2, 0, d_forget) };
        let d_candidate = through(3, 1, d_cell * input);
        dc[i] = d_cell * forget + d_input * peep(0) + d_forget * peep(2);
        let all = [d_input, d_output, d_forget, d_candidate];
        all.into_iter().enumerate().for_each(|(gate, g)| sums[gate * hidden + i] = g);
    }
    let mut state = vec![R::of(0.0); hidden];
    product_back(&mut state, sequence.r, &sums);
    Back { recurrent: Vec::new(), sums, state, cell: dc }
}

/// With the gates update `z`, reset `r` and candidate `g`, in this order in memory: `h' = (1 - z) *
/// g + z * h`. The candidate sees `R (r * h)`, or `r * (R h + b)` where the reset gate comes after
/// the product.
fn gru<R: Real>(sequence: &Sequence<'_, R>, step: &mut Step<R>) -> Vec<R> {
    let hidden = sequence.sizes.hidden;
    let (_, bias) = sequence.bias.split_at(sequence.bias.len() / 2);
    let (both, last) = sequence.r.split_at(2 * hidden * hidden);
    let (bias, last_bias) = bias.split_at(bias.len() / 3 * 2);
    let (gates, sums) = step.sums.split_at_mut(2 * hidden);
    add(gates, &product(both, 2 * hidden, &step.state));
    add(gates, bias);
    step.gates = applied(sequence, 0, gates);
    let reset = &step.gates[hidden..];
    if sequence.resets_first() {
        step.reset = reset.iter().zip(&step.state).map(|(r, h)| *r * *h).collect();
        add(sums, &product(last, hidden, &step.reset));
        add(sums, last_bias);
    } else {
        step.reset = product(last, hidden, &step.state);
        add(&mut step.reset, last_bias);
        let passed: Vec<R> = reset.iter().zip(&step.reset).map(|(r, x)| *r * *x).collect();
        add(sums, &passed);
    }
    let candidate = applied(sequence, 1, sums);
    step.gates.extend_from_slice(&candidate);
    let mixed = |i: usize| {
        let update = step.gates[i];
        (R::of(1.0) - update) * candidate[i] + update * step.state[i]
    };
    (0..hidden).map(mixed).collect()
}

/// `dz = dh * (h - g)` and `dg = dh * (1 - z)`, each times the slope of its gate's function. The
/// reset gate gets what reaches the product it scales; the state gets `dh * z` and what flows back
/// through all three products.
fn gru_back<R: Real>(sequence: &Sequence<'_, R>, step: &Step<R>, dh: &[R]) -> Back<R> {
    let hidden = dh.len();
    let (both, last) = sequence.r.split_at(2 * hidden * hidden);
    let mut sums = vec![R::of(0.0); 3 * hidden];
    // Update and reset gate have the first function, the candidate the second.
    let through = |gate: usize, i: usize, g: R| {
        let at = gate * hidden + i;
        g * slope(sequence, gate / 2, step.sums[at], step.gates[at])
    };
    let gate = |gate: usize, i: usize| step.gates[gate * hidden + i];
    for i in 0..hidden {
        let update = gate(0, i);
        sums[i] = through(0, i, dh[i] * (step.state[i] - gate(2, i)));
        sums[2 * hidden + i] = through(2, i, dh[i] * (R::of(1.0) - update));
    }
    let candidate = sums[2 * hidden..].to_vec();
    let mut state: Vec<R> = (0..hidden).map(|i| dh[i] * gate(0, i)).collect();
    let mut recurrent = candidate.clone();
    if sequence.resets_first() {
        let mut passed = vec![R::of(0.0); hidden];
        product_back(&mut passed, last, &candidate);
        for i in 0..hidden {
            sums[hidden + i] = through(1, i, passed[i] * step.state[i]);
            state[i] = state[i] + passed[i] * gate(1, i);
        }
    } else {
        for i in 0..hidden {
            sums[hidden + i] = through(1, i, candidate[i] * step.reset[i]);
            recurrent[i] = candidate[i] * gate(1, i);
        }
        product_back(&mut state, last, &recurrent);
    }
    product_back(&mut state, both, &sums[..2 * hidden]);
    let recurrent = [&sums[..2 * hidden], &recurrent].concat();
    Back { sums, recurrent, state, cell: Vec::new() }
}

fn rnn<R: Real>(sequence: &Sequence<'_, R>, step: &mut Step<R>) -> Vec<R> {
    let (_, bias) = sequence.bias.split_at(sequence.bias.len() / 2);
    add(&mut step.sums, &product(sequence.r, sequence.sizes.hidden, &step.state));
    add(&mut step.sums, bias);
    step.gates = applied(sequence, 0, &step.sums);
    step.gates.clone()
}

fn rnn_back<R: Real>(sequence: &Sequence<'_, R>, step: &Step<R>, dh: &[R]) -> Back<R> {
    let through = |((g, sum), gate): ((&R, &R), &R)| *g * slope(sequence, 0, *sum, *gate);
    let sums: Vec<R> = dh.iter().zip(&step.sums).zip(&step.gates).map(through).collect();
    let mut state = vec![R::of(0.0); dh.len()];
    product_back(&mut state, sequence.r, &sums);
    Back { recurrent: Vec::new(), sums, state, cell: Vec::new() }
}
