//! Cells applied to the steps of sequences.

use std::collections::HashMap;

use super::activation::{Function, apply_to, function};
use super::entry::layers;
use super::random::kept;
use super::steps::{Kernels, Steps};
use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::naming::snake_case;
use crate::format::keras::tree::Spec;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Activation, CellKind, CellSettings, Formula, Recurrent, Reverse, Sort};
use crate::types::invariant::int;
use crate::types::{DType, Dim, Quoted};

layers! {
    "SimpleRNN" Own => |at, args| layer(at, args, CellKind::Rnn);
    "LSTM" Own => |at, args| layer(at, args, CellKind::Lstm);
    "GRU" Own => |at, args| layer(at, args, CellKind::Gru);
    "RNN" Own => of_cells;
}

/// The most units of a cell: the order of its gates is a list.
const MOST: i64 = 1 << 20;

/// Fields that say how Keras computes a layer, not what.
const HOW: &[&str] = &["implementation", "unroll", "use_cudnn", "time_major", "cell"];

/// What a layer does with its sequences.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the layer")]
pub(super) struct Sequences {
    pub(super) returns_all: bool,
    pub(super) returns_state: bool,
    pub(super) is_backwards: bool,
    /// Whether the result of a masked step is 0 instead of that of the step before it.
    pub(super) zeroes_masked: bool,
}

impl Sequences {
    pub(super) fn read(at: &At<'_, '_>) -> Read<Self> {
        at.config.ignore(HOW);
        if at.config.flag("stateful", false)? {
            let way = "build the layer with `stateful=False` and give the state as an input";
            return Err(Fault::with_way("its state stays from batch to batch", way));
        }
        Ok(Self {
            returns_all: at.config.flag("return_sequences", false)?,
            returns_state: at.config.flag("return_state", false)?,
            is_backwards: at.config.flag("go_backwards", false)?,
            zeroes_masked: at.config.flag("zero_output_for_mask", false)?,
        })
    }

    /// What a call gives: the states after all steps or after the last one, and the states at the
    /// end where they are asked for.
    pub(super) fn results<'c>(
        self,
        at: &mut At<'_, 'c>,
        all: Value,
        states: &[Value],
        mask: Option<Value>,
    ) -> Read<Arg<'c>> {
        let y = if self.returns_all {
            Tensor { value: all, is_first: false, mask }
        } else if self.zeroes_masked && mask.is_some() {
            // The result of the last step, which may be 0; the states are those before it then.
            let count = at.extent(all, 1)?;
            let last = at.rows(all, 1, (count - 1).into(), count.into())?;
            at.squeeze(last, vec![1])?.into()
        } else {
            states[0].into()
        };
        if !self.returns_state {
            return Ok(y.into());
        }
        let states = states.iter().map(|state| Arg::from(*state));
        Ok(Arg::List(std::iter::once(Arg::from(y)).chain(states).collect()))
    }

    /// A value with its steps in the order in which they are taken.
    pub(super) fn ordered(self, at: &mut At<'_, '_>, x: Value) -> Read<Value> {
        if self.is_backwards { at.op(Reverse { axes: vec![1] }, &[x]) } else { Ok(x) }
    }
}

/// A cell.
#[derive(Debug)]
pub(super) struct Cell {
    kind: CellKind,
    units: i64,
    has_bias: bool,
    /// The function of the state.
    activation: Function,
    /// The function of the gates.
    gate: Function,
    /// Whether the reset gate of a GRU is applied behind the product.
    resets_after: bool,
    drops: Drops,
}

/// The parts of the input and of the state that training drops, the same at all steps of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drops {
    pub(super) input: f64,
    pub(super) state: f64,
    /// Whether each gate has masks of its own.
    by_gate: bool,
}

impl Drops {
    /// `drops_all` says whether a rate of 1 drops all: cells with gates take it for 0.
    pub(super) fn read(at: &At<'_, '_>, drops_all: bool) -> Read<Self> {
        let rate = |name| {
            let rate = at.config.number(name, 0.0)?.clamp(0.0, 1.0);
            let drops = at.state.for_training && (rate < 1.0 || drops_all);
            Ok::<_, Fault>(if drops { rate } else { 0.0 })
        };
        let (input, state) = (rate("dropout")?, rate("recurrent_dropout")?);
        // Keras takes the first implementation where the state is dropped.
        let is_first = state > 0.0 || at.config.int("implementation", 2)? == 1;
        Ok(Self { input, state, by_gate: is_first })
    }
}

/// What the inputs and the states of a call are multiplied by: nothing, one factor, or one for each
/// gate.
#[derive(Clone, Debug, Default)]
struct Masks {
    input: Vec<Value>,
    state: Vec<Value>,
}

/// The product of a value and a kernel, of which each gate takes a part; the value is multiplied by
/// factors before.
fn product(at: &mut At<'_, '_>, x: Value, kernel: Value, masks: &[Value]) -> Read<Value> {
    let of_gates = match masks {
        [] => return at.matmul(x, kernel),
        [mask] => {
            let x = at.mul(x, *mask)?;
            return at.matmul(x, kernel);
        }
        masks => masks,
    };
    let width = at.extent(kernel, 1)? / int::<i64>(of_gates.len());
    let kernels = at.split(kernel, 1, vec![width.into(); of_gates.len()])?;
    let mut products = Vec::new();
    for (mask, kernel) in of_gates.iter().zip(kernels) {
        let x = at.mul(x, *mask)?;
        products.push(at.matmul(x, kernel)?);
    }
    at.concat(&products, 1)
}

impl Cell {
    fn read(at: &At<'_, '_>, kind: CellKind) -> Read<Self> {
        let drops = Drops::read(at, kind == CellKind::Rnn)?;
        at.config.ignore(&["unit_forget_bias"]);
        let gate = match kind {
            CellKind::Rnn => Function::linear(),
            CellKind::Lstm | CellKind::Gru => function(at, "recurrent_activation")?,
        };
        Ok(Self {
            kind,
            units: at.config.count("units")?,
            has_bias: at.config.flag("use_bias", true)?,
            activation: function(at, "activation")?,
            gate,
            // Files that do not say so are of a time when it was not.
            resets_after: kind == CellKind::Gru && at.config.flag("reset_after", false)?,
            drops,
        })
    }

    /// The masks of a call, drawn once for each of its rows.
    fn masks(&self, at: &mut At<'_, '_>, x: Value) -> Read<Masks> {
        let features = at.extent(x, 2)?;
        let count = if self.drops.by_gate { self.gates() } else { 1 };
        let draw = |at: &mut At<'_, '_>, rate: f64, width: i64| -> Read<Vec<Value>> {
            let count = if rate > 0.0 { count } else { 0 };
            (0..count).map(|_| kept(at, x, &[width], rate)).collect()
        };
        let input = draw(at, self.drops.input, features)?;
        Ok(Masks { input, state: draw(at, self.drops.state, self.units)? })
    }

    fn gates(&self) -> i64 {
        match self.kind {
            CellKind::Lstm => 4,
            CellKind::Gru => 3,
            CellKind::Rnn => 1,
        }
    }

    /// The variables, those of a part of the layer.
    fn kernels(&self, at: &mut At<'_, '_>, features: i64) -> Read<Kernels> {
        let width = self.units.saturating_mul(self.gates());
        let input = at.weight("kernel", &[features, width])?;
        let state = at.weight("recurrent_kernel", &[self.units, width])?;
        let shape = if self.resets_after { vec![2, width] } else { vec![width] };
        let bias = if self.has_bias { Some(at.weight("bias", &shape)?) } else { None };
        Ok(Kernels { input, state, bias })
    }

    /// The operator that the cell is; `None` if it has no such functions.
    fn operator(&self, at: &At<'_, '_>) -> Option<CellSettings> {
        let of = |function: &Function| {
            let name = match function.name.as_str() {
                name @ ("hard_sigmoid" | "elu" | "leaky_relu" | "relu" | "tanh" | "sigmoid"
                | "softsign" | "softplus") => name,
                "linear" => return Some(Activation::Affine(1.0, 0.0)),
                _ => return None,
            };
            let alpha = match name {
                "hard_sigmoid" if !at.state.is_before_3 => Some(1.0 / 6.0),
                "leaky_relu" => Some(0.2),
                _ => None,
            };
            Activation::new(name, alpha, None)
        };
        let candidate = of(&self.activation)?;
        Some(CellSettings {
            batch_first: true,
            bias: self.has_bias,
            reset_after: self.resets_after,
            gate: if self.kind == CellKind::Rnn { Activation::SIGMOID } else { of(&self.gate)? },
            hidden: if self.kind == CellKind::Lstm { candidate.clone() } else { Activation::TANH },
            candidate,
            ..CellSettings::default()
        })
    }

    /// The order of the gates of an operator among Keras' ones.
    fn order(&self) -> &'static [i64] {
        match self.kind {
            // Keras has input, forget, candidate, output.
            CellKind::Lstm => &[0, 3, 1, 2],
            CellKind::Gru => &[0, 1, 2],
            CellKind::Rnn => &[0],
        }
    }

    /// A kernel as the operator takes it: `[1, gates, …]`.
    fn operand(&self, at: &mut At<'_, '_>, kernel: Value, axis: i64) -> Read<Value> {
        if self.units > MOST {
            return Err(Fault::field("units", format!("is {}, above {MOST}", self.units)));
        }
        let kernel = if self.kind == CellKind::Lstm {
            let places = self
                .order()
                .iter()
                .flat_map(|gate| (0..self.units).map(move |unit| gate * self.units + unit));
            let places: Vec<i64> = places.collect();
            let places = super::core::integers(at, &places)?;
            at.gather(kernel, places, axis)?
        } else {
            kernel
        };
        let kernel = if axis == 1 { at.transposed(kernel)? } else { kernel };
        at.unsqueeze(kernel, vec![0])
    }

    /// The bias as the operator takes it: that beside the input, then that beside the state.
    fn bias(&self, at: &mut At<'_, '_>, bias: Value) -> Read<Value> {
        let width = self.units * self.gates();
        if self.resets_after {
            return at.view(bias, vec![Dim::ONE, Dim::from(2 * width)]);
        }
        let bias = self.operand(at, bias, 0)?;
        at.pad(bias, vec![0, 0, 0, width], 0.0)
    }

    /// The states of all steps `[N, T, units]`, and those at the end.
    fn run(
        &self,
        at: &mut At<'_, '_>,
        steps: Steps,
        kernels: Kernels,
    ) -> Read<(Value, Vec<Value>)> {
        let mut masks = self.masks(at, steps.x)?;
        let mut steps = steps;
        if let [mask] = masks.input[..] {
            let mask = at.unsqueeze(mask, vec![1])?;
            steps.x = at.mul(steps.x, mask)?;
            masks.input.clear();
        }
        let drops = !masks.input.is_empty() || !masks.state.is_empty();
        if let Some(settings) = self.operator(at).filter(|_| !drops) {
            return self.by_operator(at, steps, kernels, settings);
        }
        let count = if self.kind == CellKind::Lstm { 2 } else { 1 };
        let shapes = vec![vec![self.units]; count];
        let step = Step { cell: self, kernels, masks };
        steps.one_by_one(at, &shapes, |at, x, states| step.of(at, x, states))
    }

    fn by_operator(
        &self,
        at: &mut At<'_, '_>,
        steps: Steps,
        kernels: Kernels,
        settings: CellSettings,
    ) -> Read<(Value, Vec<Value>)> {
        let Steps { x, mask, initial, zeroes_masked } = steps;
        let compact = mask.map(|mask| Compact::of(at, x, mask)).transpose()?;
        let x = compact.as_ref().map_or(x, |compact| compact.x);
        let mut operands = vec![x];
        operands.push(self.operand(at, kernels.input, 1)?);
        operands.push(self.operand(at, kernels.state, 1)?);
        if let Some(bias) = kernels.bias {
            operands.push(self.bias(at, bias)?);
        }
        operands.extend(compact.as_ref().map(|compact| compact.lengths));
        let settings =
            CellSettings { lengths: compact.is_some(), initial: !initial.is_empty(), ..settings };
        for state in &initial {
            operands.push(at.unsqueeze(*state, vec![1])?);
        }
        let results = at.ops(Recurrent { kind: self.kind, settings }, &operands)?;
        let all = at.squeeze(results[0], vec![2])?;
        let mut states = Vec::new();
        for state in &results[1..] {
            states.push(at.squeeze(*state, vec![1])?);
        }
        let Some(compact) = compact else { return Ok((all, states)) };
        let first = initial.first().copied();
        let all = compact.spread(at, all, first, zeroes_masked)?;
        Ok((all, states))
    }
}

/// What a cell does at each step of a call.
struct Step<'c> {
    cell: &'c Cell,
    kernels: Kernels,
    masks: Masks,
}

impl Step<'_> {
    /// One step: the states behind it.
    fn of(&self, at: &mut At<'_, '_>, x: Value, states: &[Value]) -> Read<Vec<Value>> {
        let Kernels { input, state, bias } = self.kernels;
        let (cell, h) = (self.cell, states[0]);
        let mut from_input = product(at, x, input, &self.masks.input)?;
        if cell.kind == CellKind::Gru {
            return self.gru(at, from_input, h);
        }
        if let Some(bias) = bias {
            from_input = at.add(from_input, bias)?;
        }
        let from_state = product(at, h, state, &self.masks.state)?;
        let sums = at.add(from_input, from_state)?;
        if cell.kind == CellKind::Rnn {
            return Ok(vec![apply_to(at, &cell.activation, sums)?]);
        }
        let gates = at.split(sums, 1, vec![cell.units.into(); 4])?;
        let functions = [&cell.gate, &cell.activation];
        let c = lstm_step(at, [gates[0], gates[1], gates[2]], states[1], functions)?;
        let output = apply_to(at, &cell.gate, gates[3])?;
        let shown = apply_to(at, &cell.activation, c)?;
        Ok(vec![at.mul(output, shown)?, c])
    }

    fn gru(&self, at: &mut At<'_, '_>, from_input: Value, h: Value) -> Read<Vec<Value>> {
        let Self { cell, kernels, masks } = self;
        let thirds = vec![Dim::from(cell.units); 3];
        let width = cell.units * 3;
        let biases = match kernels.bias {
            Some(bias) if cell.resets_after => {
                let parts = at.split(bias, 0, vec![Dim::ONE; 2])?;
                let mut flat = Vec::new();
                for part in parts {
                    flat.push(at.view(part, vec![Dim::from(width)])?);
                }
                flat
            }
            bias => bias.into_iter().collect(),
        };
        let mut from_input = from_input;
        if let Some(bias) = biases.first() {
            from_input = at.add(from_input, *bias)?;
        }
        let x = at.split(from_input, 1, thirds.clone())?;
        let gate = |at: &mut At<'_, '_>, a: Value, b: Value| {
            let sum = at.add(a, b)?;
            apply_to(at, &cell.gate, sum)
        };
        let (update, inner) = if cell.resets_after {
            let mut from_state = product(at, h, kernels.state, &masks.state)?;
            if let Some(bias) = biases.get(1) {
                from_state = at.add(from_state, *bias)?;
            }
            let s = at.split(from_state, 1, thirds)?;
            let (update, reset) = (gate(at, x[0], s[0])?, gate(at, x[1], s[1])?);
            (update, at.mul(reset, s[2])?)
        } else {
            let parts = at.split(kernels.state, 1, thirds)?;
            // Without masks a gate has none.
            let own = |gate: usize| masks.state.get(gate..=gate).unwrap_or_default();
            let of_update = product(at, h, parts[0], own(0))?;
            let of_reset = product(at, h, parts[1], own(1))?;
            let (update, reset) = (gate(at, x[0], of_update)?, gate(at, x[1], of_reset)?);
            let mut kept = at.mul(reset, h)?;
            if let [mask] = own(2) {
                kept = at.mul(kept, *mask)?;
            }
            (update, at.matmul(kept, parts[2])?)
        };
        let sum = at.add(x[2], inner)?;
        let candidate = apply_to(at, &cell.activation, sum)?;
        let old = at.mul(update, h)?;
        let rest = at.complement(update)?;
        let new = at.mul(rest, candidate)?;
        Ok(vec![at.add(old, new)?])
    }
}

/// The cell state behind a step of an LSTM: gates of the input and of what is kept, and the
/// candidate.
pub(super) fn lstm_step(
    at: &mut At<'_, '_>,
    gates: [Value; 3],
    c: Value,
    [gate, activation]: [&Function; 2],
) -> Read<Value> {
    let (input, keep) = (apply_to(at, gate, gates[0])?, apply_to(at, gate, gates[1])?);
    let candidate = apply_to(at, activation, gates[2])?;
    let (new, old) = (at.mul(input, candidate)?, at.mul(keep, c)?);
    at.add(new, old)
}

/// A masked sequence whose steps that count stand first, which operators take with its length.
struct Compact {
    x: Value,
    lengths: Value,
    mask: Value,
    /// For each step the number of steps that count up to it, without itself: -1 before the first.
    places: Value,
}

impl Compact {
    fn of(at: &mut At<'_, '_>, x: Value, mask: Value) -> Read<Self> {
        let steps = at.extent(x, 1)?;
        let counts = at.cast(mask, DType::I64)?;
        let lengths = at.reduce_sum(counts, vec![1], false)?;
        let sums = at.running_sum(counts, 1)?;
        let places = at.shift(sums, -1.0)?;
        // Steps that count get the numbers from 0 on, others those from `steps` on.
        let numbers = at.count_to(steps.into(), DType::I64)?;
        let later = at.shift(numbers, steps as f64)?;
        let keys = at.choose(mask, places, later)?;
        let order = at.ops(Sort { axis: 1, descending: false }, &[keys])?[1];
        Ok(Self { x: along(at, x, order)?, lengths, mask, places })
    }

    /// The results of steps where the steps were.
    fn spread(
        &self,
        at: &mut At<'_, '_>,
        all: Value,
        initial: Option<Value>,
        zeroes_masked: bool,
    ) -> Read<Value> {
        let first = at.number(self.places, 0.0)?;
        let places = at.max(self.places, first)?;
        let y = along(at, all, places)?;
        let begins = at.less(self.places, first)?;
        let condition = if zeroes_masked { at.not(self.mask)? } else { begins };
        let condition = at.unsqueeze(condition, vec![2])?;
        let other = match initial {
            Some(initial) if !zeroes_masked => at.unsqueeze(initial, vec![1])?,
            _ => at.number(y, 0.0)?,
        };
        at.choose(condition, other, y)
    }
}

/// The steps `[N, T, F]` at these places `[N, T]`.
fn along(at: &mut At<'_, '_>, x: Value, places: Value) -> Read<Value> {
    let places = at.unsqueeze(places, vec![2])?;
    let shape = at.shape(x);
    let places = at.expand(places, &shape)?;
    at.gather_elements(x, places, 1)
}

/// The states that a call gives at the beginning.
pub(super) fn initial<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, count: usize) -> Read<Vec<Value>> {
    // Before Keras 3 they may stand behind the sequence.
    let mut given = args.opt(1, "initial_state").map(Arg::tensors).unwrap_or_default();
    if given.is_empty() {
        given = args.first()?.tensors().into_iter().skip(1).collect();
    }
    if !given.is_empty() && given.len() != count {
        return Err(Fault::new(format!("it has {count} states and is given {}", given.len())));
    }
    given.into_iter().map(|state| at.floats(state)).collect()
}

/// The sequence that a call is about, and its mask.
pub(super) fn sequence(at: &At<'_, '_>, args: &Args<'_>) -> Read<(Tensor, Option<Value>)> {
    let x = args.first()?.tensors().first().copied();
    let x = x.ok_or_else(|| Fault::new("it is called without a sequence"))?;
    let mask = args.opt_tensor(2, "mask")?.map(|mask| mask.value);
    // Keras 3 passes the mask of a tensor on to a layer that is called with this tensor alone.
    let states = args.opt(1, "initial_state").map(Arg::tensors).unwrap_or_default();
    let own = x.mask.filter(|_| states.is_empty() || at.state.is_before_3);
    Ok((x, mask.or(own)))
}

fn layer<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, kind: CellKind) -> Read<Arg<'c>> {
    let sequences = Sequences::read(at)?;
    let cell = Cell::read(at, kind)?;
    let name = match kind {
        CellKind::Lstm => "lstm_cell",
        CellKind::Gru => "gru_cell",
        CellKind::Rnn => "simple_rnn_cell",
    };
    let (x, mask) = sequence(at, args)?;
    let x = at.floats(x)?;
    if at.rank(x) != 3 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    let features = at.extent(x, 2)?;
    let kernels = at.part("cell", name, |at| cell.kernels(at, features))?;
    let initial = initial(at, args, if kind == CellKind::Lstm { 2 } else { 1 })?;
    let x = sequences.ordered(at, x)?;
    let taken = mask.map(|mask| sequences.ordered(at, mask)).transpose()?;
    let steps = Steps { x, mask: taken, initial, zeroes_masked: sequences.zeroes_masked };
    let (all, states) = cell.run(at, steps, kernels)?;
    sequences.results(at, all, &states, mask)
}

/// A layer of the class `RNN`: one stock cell, or several on top of one another.
fn of_cells<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let cell = Spec::read(at.config.needed("cell")?)?;
    let sequences = Sequences::read(at)?;
    let (x, mask) = sequence(at, args)?;
    let x = at.floats(x)?;
    let x = sequences.ordered(at, x)?;
    let taken = mask.map(|mask| sequences.ordered(at, mask)).transpose()?;
    // Without states, zeros.
    let initial = args.opt(1, "initial_state").map(Arg::tensors).unwrap_or_default();
    let initial = initial.into_iter().map(|state| at.floats(state)).collect::<Read<Vec<_>>>()?;
    let steps = Steps { x, mask: taken, initial, zeroes_masked: sequences.zeroes_masked };
    if cell.class != "StackedRNNCells" {
        let (all, states) = at.with("cell", &cell, |at| of_cell(at, &cell, steps))?;
        return sequences.results(at, all, &states, mask);
    }
    if mask.is_some() || sequences.returns_state || !steps.initial.is_empty() {
        let reason = "its stacked cells are masked, or their states are given or returned";
        return Err(Fault::new(reason));
    }
    let (all, states) = at.with("cell", &cell, |at| stacked(at, &steps))?;
    sequences.results(at, all, &states, None)
}

/// A stock cell on its own.
fn of_cell(at: &mut At<'_, '_>, spec: &Spec<'_>, steps: Steps) -> Read<(Value, Vec<Value>)> {
    let kind = match spec.class {
        "LSTMCell" => CellKind::Lstm,
        "GRUCell" => CellKind::Gru,
        "SimpleRNNCell" => CellKind::Rnn,
        class => return Err(Fault::new(format!("the cell {} is not supported", Quoted(class)))),
    };
    let cell = Cell::read(at, kind)?;
    at.config.ignore(HOW);
    at.checked()?;
    let features = at.extent(steps.x, 2)?;
    let kernels = cell.kernels(at, features)?;
    cell.run(at, steps, kernels)
}

/// Cells on top of one another: what is the same as layers of them.
fn stacked(at: &mut At<'_, '_>, steps: &Steps) -> Read<(Value, Vec<Value>)> {
    let cells = at.config.needed("cells")?.as_array();
    let cells = cells.ok_or_else(|| Fault::field("cells", "is no list"))?;
    at.checked()?;
    let mut used: HashMap<String, usize> = HashMap::new();
    let (mut x, mut states) = (steps.x, Vec::new());
    for cell in cells {
        let cell = Spec::read(cell)?;
        let mut kind = snake_case(cell.class);
        let count = used.entry(kind.clone()).or_insert(0);
        if *count > 0 {
            kind = format!("{kind}_{count}");
        }
        *count += 1;
        let steps = Steps { x, mask: None, initial: Vec::new(), zeroes_masked: false };
        (x, states) = at.with(&format!("cells/{kind}"), &cell, |at| of_cell(at, &cell, steps))?;
    }
    if states.is_empty() { Err(Fault::field("cells", "is empty")) } else { Ok((x, states)) }
}
