//! Operators that need the rows of all samples, for graphs that are repaired.

use fanwise::ir::Value;
use fanwise::op::Attr;
use fanwise::types::{DType, Dim, Tensor, TensorType};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::{Generator, int, ints, read};

/// Operators whose result jumps where their operand changes in its last bits.
const JUMPS: [&str; 9] =
    ["floor", "cast", "less", "arg_max", "arg_min", "sort", "top_k", "reduce_prod", "cumprod"];

type Added = Option<Vec<Value>>;

impl Generator {
    /// True of an operator that would make a large difference of a rounding.
    pub(super) fn jumps(&self, name: &str, operands: &[Value]) -> bool {
        JUMPS.contains(&name) && operands.iter().any(|v| self.rounded.contains(v))
    }

    /// Notes the results of an operator where the batch may be combined: what is summed over it is
    /// rounded otherwise on several devices.
    pub(super) fn note(&mut self, name: &str, operands: &[Value], results: &[Value]) {
        let sums = name.starts_with("reduce")
            || ["softmax", "log_softmax", "matmul", "gemm", "cumsum", "cumprod"].contains(&name);
        let rounded = sums || operands.iter().any(|v| self.rounded.contains(v));
        for value in results {
            if rounded {
                self.rounded.insert(*value);
            }
            let ty = self.ty(*value);
            if ty.dtype == self.dtype && !ty.shape.iter().any(Dim::depends_on_batch) {
                self.wholes.push(*value);
            }
        }
    }

    /// An operator across the batch, or one on its result.
    pub(super) fn across(&mut self) -> Added {
        let (x, ty, batch) = self.operand();
        match self.pick(0..18) {
            0..=2 => self.over_batch(x, &ty, batch),
            3 => self.centred(x, &ty, batch),
            4 => {
                let name = *["softmax", "log_softmax"].choose(&mut self.rng)?;
                self.add(name, vec![("axis", int(batch))], &[x])
            }
            5 => {
                let exclusive = Attr::Bool(self.chance());
                let reverse = Attr::Bool(self.chance());
                let attrs =
                    vec![("axis", int(batch)), ("exclusive", exclusive), ("reverse", reverse)];
                let name = *["cumsum", "cumsum", "cumprod"].choose(&mut self.rng)?;
                self.add(name, attrs, &[x])
            }
            6 => self.position(x, batch),
            7 => self.products(x, &ty, batch),
            8 => self.masked_mean(x, &ty, batch),
            9 | 10 => self.positions(x, &ty, batch),
            11 => self.add("reverse", vec![("axes", ints([batch]))], &[x]),
            13 | 14 => {
                let (k, largest) = (self.pick(0..4), Attr::Bool(self.chance()));
                let attrs = vec![("axis", int(batch)), ("k", int(k)), ("largest", largest)];
                let top = self.add("top_k", attrs, &[x])?;
                let places = self.floats_of(top[1])?[0];
                self.add("add", vec![], &[top[0], places])
            }
            12 => {
                let sorted = self.add("sort", vec![("axis", int(batch))], &[x])?;
                Some(sorted)
            }
            _ => self.on_whole(x),
        }
    }

    pub(super) fn over_batch(&mut self, x: Value, ty: &TensorType, batch: usize) -> Added {
        let names = [
            "reduce_sum",
            "reduce_mean",
            "reduce_max",
            "reduce_min",
            "reduce_l1",
            "reduce_l2",
            "reduce_sum_square",
            "reduce_log_sum_exp",
        ];
        let name = *names.choose(&mut self.rng)?;
        let mut axes = vec![batch];
        if self.pick(0..3) == 0 {
            axes.extend(self.axis(ty, batch));
        }
        let keepdims = Attr::Bool(self.chance());
        self.add(name, vec![("axes", ints(axes)), ("keepdims", keepdims)], &[x])
    }

    fn centred(&mut self, x: Value, _: &TensorType, batch: usize) -> Added {
        let name = *["reduce_mean", "reduce_max", "reduce_sum"].choose(&mut self.rng)?;
        let attrs = vec![("axes", ints([batch])), ("keepdims", Attr::Bool(true))];
        let mean = self.add(name, attrs, &[x])?;
        self.add("sub", vec![], &[x, mean[0]])
    }

    fn position(&mut self, x: Value, batch: usize) -> Added {
        let name = *["arg_max", "arg_min"].choose(&mut self.rng)?;
        let (keepdims, last) = (Attr::Bool(self.chance()), Attr::Bool(self.chance()));
        let attrs = vec![("axis", int(batch)), ("keepdims", keepdims), ("select_last_index", last)];
        let position = self.add(name, attrs, &[x])?;
        self.floats_of(position[0])
    }

    fn floats_of(&mut self, value: Value) -> Added {
        let to = Attr::Name(self.dtype.name().to_owned());
        self.add("cast", vec![("to", to)], &[value])
    }

    /// The products of columns, or of samples.
    fn products(&mut self, x: Value, ty: &TensorType, batch: usize) -> Added {
        if ty.rank() != 2 || batch != 0 {
            return None;
        }
        let turned = self.add("transpose", vec![("perm", ints([1, 0]))], &[x])?[0];
        if self.chance() {
            return self.add("matmul", vec![], &[turned, x]);
        }
        let pairs = self.add("matmul", vec![], &[x, turned])?[0];
        let weights = self.add("softmax", vec![("axis", int(1))], &[pairs])?[0];
        self.add("matmul", vec![], &[weights, x])
    }

    fn masked_mean(&mut self, x: Value, _: &TensorType, batch: usize) -> Added {
        let zero = self.param(&[1]);
        let mask = self.add("less", vec![], &[x, zero])?[0];
        let mask = self.floats_of(mask)?[0];
        let kept = self.add("mul", vec![], &[x, mask])?[0];
        let keepdims = self.chance();
        let attrs = || vec![("axes", ints([batch])), ("keepdims", Attr::Bool(keepdims))];
        let num = self.add("reduce_sum", attrs(), &[kept])?[0];
        let den = self.add("reduce_sum", attrs(), &[mask])?[0];
        self.add("div", vec![], &[num, den])
    }

    /// A value that every replica holds whole, and that has rows.
    fn positions(&mut self, x: Value, ty: &TensorType, batch: usize) -> Added {
        let whole = if self.chance() {
            let range = read("range", vec![("limit", Attr::Int(Dim::n()))])?;
            let range = self.builder.op("range", range, &[]).ok()?;
            let range = self.floats_of(range)?[0];
            let mut shape = vec![Dim::ONE; ty.rank()];
            shape[batch] = Dim::n();
            self.add("reshape", vec![("shape", Attr::Ints(shape))], &[range])?[0]
        } else {
            let mut value = Tensor::zeros(self.dtype, &[1]).ok()?;
            if self.dtype == DType::F64 {
                value.as_mut_slice::<f64>()[0] = self.rng.random_range(-1.0..1.0);
            }
            let shape = Attr::Ints(ty.shape.iter().cloned().collect());
            let attrs = vec![("shape", shape), ("value", Attr::Tensor(value))];
            let filled = read("constant_of_shape", attrs)?;
            self.builder.op("filled", filled, &[]).ok()?
        };
        let name = *["add", "mul", "sub"].choose(&mut self.rng)?;
        self.add(name, vec![], &[whole, x])
    }

    /// An operator on a value without rows, mostly one that rows were combined to.
    fn on_whole(&mut self, x: Value) -> Added {
        let whole = *self.wholes.choose(&mut self.rng)?;
        let other = *self.wholes.choose(&mut self.rng)?;
        let name = *["add", "sub", "mul", "max"].choose(&mut self.rng)?;
        match self.pick(0..6) {
            0 => self.unary(whole),
            1 => self.add("neg", vec![], &[whole]),
            2 => self.add(name, vec![], &[whole, other]),
            3 => {
                let scale = self.param(&[1]);
                self.add(name, vec![], &[whole, scale])
            }
            4 => self.add(name, vec![], &[whole, x]),
            _ => self.add(name, vec![], &[x, whole]),
        }
    }
}
