//! Operators that gradients are made of.

pub(in crate::op) mod batch_norm_grad;
pub(in crate::op) mod conv_weight_grad;
pub(in crate::op) mod grid_sample_grad;
pub(in crate::op) mod pool_grad;
pub(in crate::op) mod recurrent_grad;
