#![expect(clippy::many_single_char_names, reason = "the sizes' usual letters")]

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{Activation, CellKind, CellSettings, Direction, Recurrent};
use crate::op::Op;
use crate::op::testing::{self, random, rng};
use crate::types::{Claim, DType, Tensor};

/// The settings of a case.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an attribute")]
struct Case {
    cell: usize,
    direction: Direction,
    batch_first: bool,
    bias: bool,
    lengths: bool,
    initial: bool,
    peepholes: bool,
    coupled: bool,
    reset_after: bool,
    clip: Option<f32>,
    /// Steps, rows, elements of a step and of the state.
    sizes: [usize; 4],
}

impl Case {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let direction =
            [Direction::Forward, Direction::Reverse, Direction::Both][rng.random_range(0..3)];
        let cell = rng.random_range(0..3);
        Self {
            cell,
            direction,
            batch_first: rng.random_bool(0.5),
            bias: rng.random_bool(0.5),
            lengths: rng.random_bool(0.5),
            initial: rng.random_bool(0.5),
            peepholes: cell == 0 && rng.random_bool(0.5),
            coupled: rng.random_bool(0.5),
            reset_after: rng.random_bool(0.5),
            clip: [None, Some(0.75)][rng.random_range(0..2)],
            sizes: [
                rng.random_range(0..5),
                rng.random_range(0..6),
                rng.random_range(0..4),
                rng.random_range(0..4),
            ],
        }
    }

    fn op(self) -> Op {
        let named = |name| Activation::new(name, Some(0.5), Some(0.25)).unwrap();
        let (kind, other) = (self.kind(), CellSettings::default());
        let settings = CellSettings {
            direction: self.direction,
            batch_first: self.batch_first,
            bias: self.bias,
            lengths: self.lengths,
            initial: self.initial,
            peepholes: self.peepholes,
            coupled: self.coupled && kind == CellKind::Lstm,
            reset_after: self.reset_after && kind == CellKind::Gru,
            clip: self.clip,
            gate: if kind == CellKind::Rnn { other.gate } else { named("hard_sigmoid") },
            candidate: named("scaled_tanh"),
            hidden: if kind == CellKind::Lstm { named("softsign") } else { other.hidden },
        };
        Recurrent { kind, settings }.into()
    }

    fn kind(self) -> CellKind {
        [CellKind::Lstm, CellKind::Gru, CellKind::Rnn][self.cell]
    }

    fn gates(self) -> usize {
        self.kind().gates()
    }

    /// The operands, with the claims that a split batch gives them.
    fn operands(self, rng: &mut ChaCha8Rng, dtype: DType) -> Vec<(Tensor, Claim)> {
        let ([t, b, i, h], g, d) = (self.sizes, self.gates(), self.direction.count());
        let axis = usize::from(!self.batch_first);
        let order = |first: usize, rest: usize| {
            if self.batch_first { [b, first, rest] } else { [first, b, rest] }
        };
        let mut all = vec![
            (random(rng, dtype, &order(t, i)), Claim::rows(axis)),
            (random(rng, dtype, &[d, g * h, i]), Claim::Invariant),
            (random(rng, dtype, &[d, g * h, h]), Claim::Invariant),
        ];
        if self.bias {
            all.push((random(rng, dtype, &[d, 2 * g * h]), Claim::Invariant));
        }
        if self.lengths {
            let lengths: Vec<i64> =
                (0..b).map(|_| rng.random_range(0..=i64::try_from(t).unwrap())).collect();
            all.push((Tensor::new(&[b], &lengths).unwrap(), Claim::rows(0)));
        }
        for _ in 0..usize::from(self.initial) * (1 + usize::from(self.cell == 0)) {
            all.push((random(rng, dtype, &order(d, h)), Claim::rows(axis)));
        }
        if self.peepholes {
            all.push((random(rng, dtype, &[d, 3 * h]), Claim::Invariant));
        }
        all
    }

    /// The results by the formulas, element by element.
    fn expected(self, operands: &[(Tensor, Claim)]) -> Vec<Vec<f64>> {
        let ([t, b, _, h], d) = (self.sizes, self.direction.count());
        let truth = Truth::new(self, operands);
        let mut results =
            vec![vec![0.0; t * d * b * h], vec![0.0; d * b * h], vec![0.0; d * b * h]];
        for (dir, row) in (0..d).flat_map(|dir| (0..b).map(move |row| (dir, row))) {
            let last = truth.state_at(dir, row)..truth.state_at(dir, row) + h;
            let mut state = truth.initial.each_ref().map(|s| match s.get(last.clone()) {
                Some(given) => given.to_vec(),
                None => vec![0.0; h],
            });
            let length = truth.lengths.get(row).copied().unwrap_or(t);
            for step in 0..length {
                let reverse = self.direction == Direction::Reverse || dir == 1;
                let time = if reverse { length - 1 - step } else { step };
                state = truth.step(dir, row, time, &state);
                let at = if self.batch_first {
                    (row * t + time) * d + dir
                } else {
                    (time * d + dir) * b + row
                };
                results[0][at * h..][..h].copy_from_slice(&state[0]);
            }
            results[1][last.clone()].copy_from_slice(&state[0]);
            results[2][last].copy_from_slice(&state[1]);
        }
        results.truncate(if self.cell == 0 { 3 } else { 2 });
        results
    }
}

/// The operands of a case as numbers.
struct Truth {
    case: Case,
    x: Vec<f64>,
    w: Vec<f64>,
    r: Vec<f64>,
    bias: Vec<f64>,
    lengths: Vec<usize>,
    initial: [Vec<f64>; 2],
    peepholes: Vec<f64>,
}

impl Truth {
    fn new(case: Case, operands: &[(Tensor, Claim)]) -> Self {
        let mut rest = operands.iter().map(|(tensor, _)| tensor);
        let mut next = |given: bool| if given { rest.next().unwrap().to_f64() } else { Vec::new() };
        let (x, w, r, bias) = (next(true), next(true), next(true), next(case.bias));
        let lengths = next(case.lengths).into_iter().map(|l| format!("{l}").parse().unwrap());
        let lengths = lengths.collect();
        let initial = [next(case.initial), next(case.initial && case.cell == 0)];
        Self { case, x, w, r, bias, lengths, initial, peepholes: next(case.peepholes) }
    }

    /// The position of a state of a direction and a sequence.
    fn state_at(&self, dir: usize, row: usize) -> usize {
        let ([_, b, _, h], d) = (self.case.sizes, self.case.direction.count());
        (if self.case.batch_first { row * d + dir } else { dir * b + row }) * h
    }

    fn clip(&self, x: f64) -> f64 {
        self.case.clip.map_or(x, |c| x.clamp(-f64::from(c), f64::from(c)))
    }

    fn gate(&self, x: f64) -> f64 {
        (0.5 * self.clip(x) + 0.25).clamp(0.0, 1.0)
    }

    fn candidate(&self, x: f64) -> f64 {
        0.5 * (0.25 * self.clip(x)).tanh()
    }

    fn softsign(x: f64) -> f64 {
        x / (1.0 + x.abs())
    }

    /// Element `k` of a bias: the half beside the weights of the operand, or of the state.
    fn bias(&self, half: usize, dir: usize, gate: usize, k: usize) -> f64 {
        let g = self.case.gates();
        let at = ((dir * 2 + half) * g + gate) * self.case.sizes[3] + k;
        self.bias.get(at).copied().unwrap_or(0.0)
    }

    fn product(&self, weights: &[f64], x: &[f64], dir: usize, gate: usize, k: usize) -> f64 {
        let line = (dir * self.case.gates() + gate) * self.case.sizes[3] + k;
        weights[line * x.len()..].iter().zip(x).map(|(w, x)| w * x).sum()
    }

    /// The state and the cell state after one more step.
    fn step(
        &self,
        dir: usize,
        row: usize,
        time: usize,
        [hidden, cell]: &[Vec<f64>; 2],
    ) -> [Vec<f64>; 2] {
        let [t, b, i, h] = self.case.sizes;
        let at = if self.case.batch_first { row * t + time } else { time * b + row } * i;
        let x = &self.x[at..at + i];
        let input = |gate, k| self.product(&self.w, x, dir, gate, k) + self.bias(0, dir, gate, k);
        let from = |state: &[f64], gate, k| self.product(&self.r, state, dir, gate, k);
        let sum = |gate, k| input(gate, k) + from(hidden, gate, k) + self.bias(1, dir, gate, k);
        let peep = |which: usize, k: usize, c: f64| {
            self.peepholes.get((dir * 3 + which) * h + k).map_or(0.0, |p| p * c)
        };
        match self.case.cell {
            0 => {
                let next = (0..h).map(|k| {
                    let i = self.gate(sum(0, k) + peep(0, k, cell[k]));
                    let f = self.gate(sum(2, k) + peep(2, k, cell[k]));
                    let f = if self.case.coupled { 1.0 - i } else { f };
                    f * cell[k] + i * self.candidate(sum(3, k))
                });
                let next: Vec<f64> = next.collect();
                let out =
                    |k: usize| self.gate(sum(1, k) + peep(1, k, next[k])) * Self::softsign(next[k]);
                [(0..h).map(out).collect(), next.clone()]
            }
            1 => {
                let reset: Vec<f64> = (0..h).map(|k| self.gate(sum(1, k))).collect();
                let kept: Vec<f64> = reset.iter().zip(hidden).map(|(r, h)| r * h).collect();
                let state = (0..h).map(|k| {
                    let bias = self.bias(1, dir, 2, k);
                    let from_state = if self.case.reset_after {
                        reset[k] * (from(hidden, 2, k) + bias)
                    } else {
                        from(&kept, 2, k) + bias
                    };
                    let z = self.gate(sum(0, k));
                    (1.0 - z) * self.candidate(input(2, k) + from_state) + z * hidden[k]
                });
                [state.collect(), cell.clone()]
            }
            _ => [(0..h).map(|k| self.candidate(sum(0, k))).collect(), cell.clone()],
        }
    }
}

fn near(found: &Tensor, expected: &[f64], within: f64, what: &str) {
    for (found, expected) in found.to_f64().iter().zip(expected) {
        assert!((found - expected).abs() <= within, "{what}: {found} and {expected}");
    }
}

#[test]
fn the_formulas_hold() {
    let mut rng = rng(1);
    for _ in 0..400 {
        let case = Case::draw(&mut rng);
        for (dtype, within) in [(DType::F64, 1e-13), (DType::F32, 1e-5), (DType::F16, 2e-2)] {
            let operands = case.operands(&mut rng, dtype);
            let refs: Vec<&Tensor> = operands.iter().map(|(t, _)| t).collect();
            let found = testing::eval(&case.op(), &refs);
            let expected = case.expected(&operands);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.len(), expected.len(), "{case:?}");
                near(found, expected, within, &format!("{dtype} {case:?}"));
            }
        }
    }
}
