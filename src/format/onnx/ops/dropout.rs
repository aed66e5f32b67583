//! Elements that training drops.

use super::random::fractions;
use super::{Done, Export, Imports, Node, NodeError, Writer, Written};
use crate::ir::Value;
use crate::op::{Dropout, Formula};
use crate::types::DType;

pub(super) fn imports(all: &mut Imports) {
    all.add("Dropout", 3, dropout);
}

/// Inference drops nothing. Training does, unless its ratio is 0.
fn dropout(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (ratio, training, seed) = if n.opset < 12 {
        let training = n.opset < 7 && !n.flag("is_test", false)?;
        (Some(f64::from(n.float("ratio", 0.5)?)), training, None)
    } else {
        let seed = n.opt_int("seed")?;
        let training = n.opt_numbers(2)?.is_some_and(|t| t != [0]);
        let ratio = if n.optional(1).is_some() { n.opt_number(1) } else { Some(0.5) };
        (ratio, training, seed)
    };
    if training && ratio != Some(0.0) {
        let ratio = ratio.ok_or_else(|| n.not_known(1))?;
        let seed = seed.unwrap_or_else(|| n.own_seed());
        return trained(n, x, ratio, seed);
    }
    let mask = n.wants(1);
    // What training would drop; a file may hold any number where nothing is dropped.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to the type of the attribute")]
    let rate = ratio.map(|r| r as f32).filter(|r| (0.0..1.0).contains(r));
    let rate = rate.unwrap_or(0.0); // changes nothing: this node drops nothing
    if !mask || n.opset >= 10 {
        return n.results(1 + usize::from(mask), Dropout { mask, rate }, &[x]);
    }
    // Before opset 10 the mask has the type of the operand.
    let to = n.dtype(x);
    n.result(Dropout { mask: false, rate: 0.0 }, &[x])?;
    let kept = n.ops(Dropout { mask: true, rate: 0.0 }, &[x])?;
    n.last(1).convert(kept[1], to)?;
    Ok(())
}

/// Dropout in training: an element is 0 with the probability `ratio`, and else divided by
/// `1 - ratio`. The second result says which elements are kept, before opset 10 in the type of the
/// operand.
fn trained(n: &mut Node<'_, '_>, x: Value, ratio: f64, seed: i64) -> Done {
    if !(0.0..1.0).contains(&ratio) {
        let text = format!("dropout of {ratio}, which is not from 0 to less than 1,");
        return Err(NodeError::Unsupported(text));
    }
    let own = n.dtype(x);
    let (zero, divisor) = (n.scalar(own, 0.0)?, n.scalar(own, 1.0 - ratio)?);
    let draws = fractions(n, x, DType::F32, seed)?;
    let limit = n.scalar(DType::F32, ratio)?;
    let dropped = n.less(draws, limit)?;
    let scaled = n.div(x, divisor)?;
    n.last(0).choose(dropped, zero, scaled)?;
    if !n.wants(1) {
        return Ok(());
    }
    if n.opset >= 10 {
        n.last(1).not(dropped)?;
        return Ok(());
    }
    let kept = n.not(dropped)?;
    n.last(1).convert(kept, own)?;
    Ok(())
}

impl Export for Dropout {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let rate = w.scalar(DType::F32, self.rate.into())?;
        w.with("Dropout", [rate], &[])
    }
}
