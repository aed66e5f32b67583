//! Operators that gradients are made of.

pub(crate) mod batch_norm_apply_grad;
pub(crate) mod batch_norm_grad;
pub(crate) mod batch_norm_sums;
pub(crate) mod conv_weight_grad;
pub(crate) mod grid_sample_grad;
pub(crate) mod pool_grad;
pub(crate) mod recurrent_grad;
