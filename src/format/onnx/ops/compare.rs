//! Comparisons.

use super::alike::alike;
use crate::op::Compare;

alike! {
    Compare {
        "Equal" broadcast 2 => Compare::Equal,
        "Less" broadcast 2 => Compare::Less,
        "LessOrEqual" broadcast 2 => Compare::LessOrEqual,
        "Greater" broadcast 2 => Compare::Greater,
        "GreaterOrEqual" broadcast 2 => Compare::GreaterOrEqual,
    }
}
