//! What operators share: attributes, checks of inference, split rules, evaluation, gradients.

pub mod attr;
pub mod broadcast;
pub(in crate::op) mod declare;
pub mod element;
pub(in crate::op) mod error;
pub(crate) mod formula;
pub mod gradient;
pub(in crate::op) mod index;
pub mod infer;
pub(crate) mod interval;
pub mod ints;
pub(in crate::op) mod lookup;
pub(in crate::op) mod numeric;
pub(in crate::op) mod ranked;
pub mod real;
pub(in crate::op) mod rows;
pub mod rules;
pub mod strided;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod traits;
pub(in crate::op) mod view;
pub(in crate::op) mod wide;
pub mod window;
