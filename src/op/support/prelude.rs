//! The names that the file of almost every operator needs.

pub(in crate::op) use crate::op::declare::{family, op};
pub(in crate::op) use crate::op::{
    Backward, Claims, Expr, Formed, Formula, Gradient, Interval, Known, Lookup, Op, OpDef, OpError,
    OpText, Operand, PositionOperand, Positions, Results, RuleError, SplitOperand, Splitting, Term,
    Traits, rules,
};
pub(in crate::op) use crate::types::{
    Claim, Code, Combine, DType, Dim, Refusal, Shape, Shard, Tensor, TensorType,
};
