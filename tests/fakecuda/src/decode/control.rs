//! Branches, calls, barriers and ends.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::kernel::{Barrier, NOWHERE, Step, Vote};
use crate::ptx::{Arg, Ty};

/// Reads an instruction of control flow.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    match op.base {
        "bra" => {
            op.only(&["uni"])?;
            let Arg::Name(label) = op.arg(0)? else { return op.refuse() };
            let label = b.local_label(label);
            branch(b, label);
            Ok(())
        }
        "brx" => {
            op.only(&["idx", "uni"])?;
            let (Arg::Name(_), Arg::Name(list)) = (op.arg(0)?, op.arg(1)?) else {
                return op.refuse();
            };
            let index = b.any(op.arg(0)?, Ty::U(32))?;
            let labels =
                b.branch_targets(list).ok_or_else(|| format!("the list {list} is unknown"))?;
            let targets = labels.into_iter().map(|l| b.want(l)).collect();
            b.emit(Step::Switch { index, targets, join: NOWHERE });
            Ok(())
        }
        "ret" => {
            op.only(&["uni"])?;
            if b.in_kernel() {
                b.emit(Step::Exit);
            } else {
                let label = b.end_label();
                branch(b, label);
            }
            Ok(())
        }
        "exit" => {
            b.emit(Step::Exit);
            Ok(())
        }
        "trap" | "brkpt" => {
            b.emit(Step::Trap);
            Ok(())
        }
        "call" => call(b, op),
        _ => barrier(b, op),
    }
}

/// Emits a jump to a label.
fn branch(b: &mut Builder<'_>, label: String) {
    let target = b.want(label);
    b.emit(Step::Branch { target, join: NOWHERE });
}

/// `call (results), name, (arguments)`.
fn call(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["uni"])?;
    let (results, rest): (&[Arg], _) = match op.args {
        [Arg::List(results), rest @ ..] => (results, rest),
        rest => (&[], rest),
    };
    match rest {
        [Arg::Name(name), Arg::List(args)] => b.call(name, results, args),
        [Arg::Name(name)] => b.call(name, results, &[]),
        _ => Err("calls through a pointer are not supported".to_owned()),
    }
}

/// `bar` and `barrier`.
fn barrier(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    if op.has("warp") {
        op.only(&["warp", "sync"])?;
        let mask = b.any(op.arg(0)?, Ty::B(32))?;
        b.emit(Step::WarpSync(mask));
        return Ok(());
    }
    op.only(&["cta", "sync", "aligned", "arrive", "red", "popc", "and", "or"])?;
    let red = op.has("red");
    let first = usize::from(red);
    let id = b.any(op.arg(first)?, Ty::U(32))?;
    let votes = usize::from(red);
    let has_count = op.args.len() > first + 1 + votes;
    let count = if has_count { Some(b.any(op.arg(first + 1)?, Ty::U(32))?) } else { None };
    let mut barrier =
        Barrier { id, count, waits: !op.has("arrive"), vote: None, count_to: None, truth_to: None };
    if red {
        let last = op.args.len() - 1;
        let (pred, negated) = b.pred_arg(op.arg(last)?)?;
        let Arg::Name(result) = op.arg(0)? else { return op.refuse() };
        if op.has("popc") {
            barrier.vote = Some((Vote::Count, pred, negated));
            let (reg, _) = b.register(result).ok_or("no register")?;
            barrier.count_to = Some(reg);
        } else {
            let vote = if op.has("and") { Vote::All } else { Vote::Any };
            barrier.vote = Some((vote, pred, negated));
            barrier.truth_to = Some(b.pred(result)?);
        }
    }
    b.emit(Step::Barrier(barrier));
    Ok(())
}
