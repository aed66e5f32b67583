//! What stands behind a combined value.

use fanwise::ir::Value;
use fanwise::op::Attr;
use fanwise::types::{DType, Dim};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::draw::Draw;
use crate::random::{int, ints};

const UNARY: [&str; 12] = [
    "exp",
    "log",
    "sqrt",
    "neg",
    "abs",
    "reciprocal",
    "tanh",
    "sigmoid",
    "relu",
    "sin",
    "softplus",
    "identity",
];

const BINARY: [&str; 6] = ["add", "sub", "mul", "div", "max", "min"];

impl Draw {
    /// An operator on what follows from the combined value; one after which small differences stay
    /// small, mostly.
    pub(super) fn follow(&mut self, value: Value, combined: Value) -> Option<Value> {
        let binary = *BINARY.choose(&mut self.rng)?;
        let dtype = self.ty(value).dtype;
        match self.rng.random_range(0..8) {
            0 | 1 => {
                let unary = *UNARY.choose(&mut self.rng)?;
                self.op(unary, vec![], &[value])
            }
            2 => {
                let other = *[3.0, 0.5, 1.0, 10.0].choose(&mut self.rng)?;
                let other = self.constant(other, dtype)?;
                self.op(binary, vec![], &[value, other])
            }
            3 => self.op("mul", vec![], &[value, value]),
            4 => self.op(binary, vec![], &[value, combined]),
            5 => self.op(binary, vec![], &[self.x, value]),
            6 => {
                let name = *["reduce_sum", "reduce_mean", "reduce_max", "reduce_l2"]
                    .choose(&mut self.rng)?;
                let ty = self.ty(value);
                let batch = ty.shape.iter().position(Dim::depends_on_batch);
                let axis = batch.or((ty.rank() > 0).then_some(0))?;
                self.op(
                    name,
                    vec![("axes", ints([axis])), ("keepdims", Attr::Bool(true))],
                    &[value],
                )
            }
            _ => {
                let to =
                    *[DType::F32, DType::F64, DType::F16, DType::Bf16].choose(&mut self.rng)?;
                self.cast(value, to)
            }
        }
    }

    /// An operator whose result jumps where its operand changes in its last bit.
    pub(super) fn jump(&mut self, value: Value) -> Option<Value> {
        let ty = self.ty(value);
        let bound = *[0.0, 1.0, 0.5, 3.0].choose(&mut self.rng)?;
        match self.rng.random_range(0..9) {
            0 => {
                let name = *["floor", "ceil", "round", "sign"].choose(&mut self.rng)?;
                self.op(name, vec![], &[value])
            }
            1 => {
                let to = *[DType::I64, DType::I32, DType::U8, DType::Bool].choose(&mut self.rng)?;
                self.cast(value, to)
            }
            2 => {
                let names = ["greater", "less_or_equal", "equal"];
                let name = *names.choose(&mut self.rng)?;
                let bound = self.constant(bound, ty.dtype)?;
                let compared = self.op(name, vec![], &[value, bound])?;
                self.cast(compared, self.dtype)
            }
            3 => {
                let bound = self.constant(bound, ty.dtype)?;
                let above = self.op("greater", vec![], &[value, bound])?;
                self.op("where", vec![], &[above, value, bound])
            }
            4 => {
                let below = self.op("less", vec![], &[self.x, value])?;
                let ones = self.cast(below, self.dtype)?;
                self.op(
                    "reduce_sum",
                    vec![("axes", ints([self.axis])), ("keepdims", Attr::Bool(false))],
                    &[ones],
                )
            }
            5 if ty.rank() > 0 => {
                let name = *["arg_max", "arg_min"].choose(&mut self.rng)?;
                self.op(name, vec![("axis", int(0)), ("keepdims", Attr::Bool(false))], &[value])
            }
            6 if ty.rank() > 0 => {
                let descending = self.flag();
                Some(
                    *self
                        .add("sort", vec![("axis", int(0)), ("descending", descending)], &[value])?
                        .last()?,
                )
            }
            7 => {
                let by = self.constant(0.25, ty.dtype)?;
                self.op("mod", vec![("fmod", Attr::Bool(ty.dtype.is_float()))], &[value, by])
            }
            _ => {
                let name = *["is_nan", "is_inf"].choose(&mut self.rng)?;
                self.op(name, vec![], &[value])
            }
        }
    }
}
