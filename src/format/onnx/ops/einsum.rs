//! Sums of products.

use smallvec::SmallVec;

use super::alike::alike;
use super::{ANY, Done, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::{Einsum, Formula, Labels};
use crate::types::invariant::invariant;
use crate::types::{Dim, Shape};

alike! {
    Einsum { "Einsum" einsum ANY => Einsum { equation }, }
}

/// A product of two operands becomes one of matrices; others stay sums of products.
fn einsum(n: &mut Node<'_, '_>) -> Done {
    let equation = n.string("equation", "")?.replace(' ', "");
    if equation.is_empty() {
        return Err(wrong("equation", "is missing"));
    }
    let op = Einsum { equation };
    let operands = n.operands()?;
    let ranks: Vec<usize> = operands.iter().map(|v| n.shape(*v).rank()).collect();
    let labels = op.labels(&ranks)?;
    match (operands.as_slice(), labels.operands.as_slice()) {
        ([a, b], [of_a, of_b]) => {
            let (a, b) = (Labelled { x: *a, labels: of_a }, Labelled { x: *b, labels: of_b });
            if is_product(n, a, b) {
                return product(n, a, b, &labels);
            }
            n.result(op, &operands)
        }
        _ => n.result(op, &operands),
    }
}

/// An operand with the labels of its axes.
#[derive(Clone, Copy)]
struct Labelled<'a> {
    x: Value,
    labels: &'a [u8],
}

fn size(n: &Node<'_, '_>, of: Labelled<'_>, label: u8) -> Option<Dim> {
    let axis = of.labels.iter().position(|own| *own == label)?;
    n.shape(of.x).get(axis).cloned()
}

/// True where no operand has a label twice, and a label of both has one size.
/// A label that one operand has twice is a diagonal, and sizes that differ broadcast: a product of
/// matrices has neither.
fn is_product(n: &Node<'_, '_>, a: Labelled<'_>, b: Labelled<'_>) -> bool {
    let once = |own: &[u8]| own.iter().enumerate().all(|(i, l)| !own[..i].contains(l));
    let same = |label: &u8| !b.labels.contains(label) || size(n, a, *label) == size(n, b, *label);
    once(a.labels) && once(b.labels) && a.labels.iter().all(same)
}

/// Labels in the order of their use in a product of matrices.
type Names = SmallVec<[u8; 8]>;

/// `[outer, rows, summed]` times `[outer, summed, columns]`, its axes put in the order of the
/// result. `outer` are labels of both operands and the result, `summed` of both operands alone.
fn product(n: &mut Node<'_, '_>, a: Labelled<'_>, b: Labelled<'_>, labels: &Labels) -> Done {
    let result = &labels.result;
    let both = |l: &u8| a.labels.contains(l) && b.labels.contains(l);
    let outer: Names = result.iter().copied().filter(both).collect();
    let summed: Names =
        a.labels.iter().copied().filter(|l| b.labels.contains(l) && !result.contains(l)).collect();
    // What carries the batch comes first, so that it stays the outer part of an axis that takes
    // several.
    let own = |n: &Node<'_, '_>, x: Labelled<'_>, other: &[u8]| {
        let mut own: Names =
            x.labels.iter().copied().filter(|l| !other.contains(l) && result.contains(l)).collect();
        own.sort_by_key(|l| !size(n, x, *l).is_some_and(|d| d.depends_on_batch()));
        own
    };
    let (rows, columns) = (own(n, a, b.labels), own(n, b, a.labels));
    let sizes = |n: &Node<'_, '_>, x: Labelled<'_>, list: &[u8]| -> Vec<Dim> {
        // An operand that lacks a label broadcasts over it.
        let known = "that an operand has an axis for each of its labels";
        list.iter().map(|l| invariant(size(n, x, *l), known)).collect()
    };
    let (outer_sizes, row_sizes) = (sizes(n, a, &outer), sizes(n, a, &rows));
    let (column_sizes, summed_sizes) = (sizes(n, b, &columns), sizes(n, a, &summed));
    let left = arrange(n, a, [&outer, &rows, &summed])?;
    let right = arrange(n, b, [&outer, &summed, &columns])?;
    // Rows on several axes may stay so where the right operand is one matrix.
    let keep = outer.is_empty() && summed.len() == 1 && !rows.is_empty();
    let all = |sizes: &[Dim]| sizes.iter().cloned().fold(Dim::ONE, |all, d| all * d);
    let left_shape = [outer_sizes.clone(), vec![all(&row_sizes), all(&summed_sizes)]].concat();
    let left = if keep { left } else { n.reshape(left, &Shape::from(&left_shape[..]))? };
    let right_shape = [outer_sizes.clone(), vec![all(&summed_sizes), all(&column_sizes)]].concat();
    let right = n.reshape(right, &Shape::from(&right_shape[..]))?;
    let names: Names = outer.iter().chain(&rows).chain(&columns).copied().collect();
    let perm: Vec<usize> =
        result.iter().filter_map(|l| names.iter().position(|own| own == l)).collect();
    let whole = columns.len() == 1 && (keep || rows.len() == 1);
    let shape = [outer_sizes, row_sizes, column_sizes].concat();
    let turned = !perm.iter().copied().eq(0..perm.len());
    if whole && !turned {
        n.last(0).matmul(left, right)?;
        return Ok(());
    }
    let y = n.matmul(left, right)?;
    if !turned {
        n.last(0).view(y, shape)?;
        return Ok(());
    }
    let y = if whole { y } else { n.view(y, shape)? };
    n.last(0).transpose(y, perm)?;
    Ok(())
}

/// The operand with what only it has and the result has not summed, and its axes in this order.
fn arrange(n: &mut Node<'_, '_>, of: Labelled<'_>, order: [&Names; 3]) -> Result<Value, NodeError> {
    let Labelled { x, labels } = of;
    let order: Names = order.into_iter().flatten().copied().collect();
    let lost = (0i64..).zip(labels).filter(|(_, l)| !order.contains(l));
    let axes: Vec<i64> = lost.map(|(axis, _)| axis).collect();
    let kept: Names = labels.iter().copied().filter(|l| order.contains(l)).collect();
    let x = if axes.is_empty() { x } else { n.reduce_sum(x, axes, false)? };
    let perm: Vec<usize> =
        order.iter().filter_map(|l| kept.iter().position(|own| own == l)).collect();
    if perm.iter().copied().eq(0..perm.len()) { Ok(x) } else { n.transpose(x, perm) }
}
