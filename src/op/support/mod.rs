//! Shared parts of operators: attributes, checks of inference, split rules, evaluation, gradients.

pub(crate) mod attr;
pub(crate) mod broadcast;
pub(in crate::op) mod declare;
pub(crate) mod element;
pub(in crate::op) mod error;
pub(crate) mod formula;
pub(crate) mod functions;
pub(crate) mod gradient;
pub(in crate::op) mod index;
pub(crate) mod infer;
pub(crate) mod interval;
pub(crate) mod ints;
pub(in crate::op) mod lookup;
pub(in crate::op) mod numeric;
pub(in crate::op) mod positions;
pub(in crate::op) mod prelude;
pub(in crate::op) mod ranked;
pub(in crate::op) mod ratio;
pub(crate) mod real;
pub(in crate::op) mod row_hash;
pub(crate) mod rows;
pub(crate) mod rules;
pub(crate) mod strided;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod traits;
pub(in crate::op) mod view;
pub(in crate::op) mod wide;
pub(crate) mod window;
