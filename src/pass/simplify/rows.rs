//! Matrix products over merged axes: `[T*N, K]` becomes a batched product over `[T, N, K]`.

use super::options::SimplifyOptions;
use crate::ir::{Graph, GraphError, NodeId, Value, Weights};
use crate::op::{Formula, Op};
use crate::pass::PassError;
use crate::types::Dim;

/// Rewrites matrix products whose rows are several axes merged into one, with the batch behind
/// another axis, and whose result is reshaped to these axes again: `[T, N, K]` as `[T*N, K]` by
/// `[K, M]`. The batched product of `[T, N, K]` has the same rows.
///
/// On the merged axis the rows of a replica stand in `T` blocks, which few split rules follow; on
/// an axis of its own the batch is one block.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    _: &SimplifyOptions,
) -> Result<(), PassError> {
    for id in graph.order()? {
        if let Some(product) = find(graph, id) {
            rewrite(graph, id, &product)?;
        }
    }
    graph.remove_unused();
    Ok(())
}

/// A product to rewrite.
struct Product {
    /// The operand before its axes are merged.
    rows: Value,
    /// The axes that the reshape merges.
    axes: Vec<Dim>,
    right: Value,
    transposed: bool,
    addend: Option<Value>,
    /// The reshapes that split the axes again.
    users: Vec<NodeId>,
}

/// The product at this node, if the rewrite applies to it.
fn find(graph: &Graph, id: NodeId) -> Option<Product> {
    let node = graph.node(id);
    let operands = graph.operands(id);
    let transposed = node.op()?.plain_product()?;
    let addend = operands.get(2).copied();
    let (left, right) = (*operands.first()?, *operands.get(1)?);
    let (Op::Reshape(_), [merged, terms]) =
        (graph.node(left.node).op()?, &graph.ty(left).shape[..])
    else {
        return None;
    };
    if graph.ty(right).rank() != 2 {
        return None;
    }
    let rows = *graph.operands(left.node).first()?;
    let axes = leading(&graph.ty(rows).shape, merged)?;
    // With the batch as first axis the merged rows are one block already.
    let behind = !axes.first()?.depends_on_batch() && merged.depends_on_batch();
    // An addend with rows of its own would need the same reshape; one row or a scalar broadcasts.
    let vector = |v: Value| {
        let shape = &graph.ty(v).shape;
        shape.rank() < 2 || (shape.rank() == 2 && shape[0] == Dim::ONE)
    };
    let result = Value { node: id, output: 0 };
    if !behind || terms.depends_on_batch() || graph.is_kept(result) || !addend.is_none_or(vector) {
        return None;
    }
    // Every user must split the axes: another one needs the merged result, which would be gone.
    let users = graph.users(id).iter().map(|(user, ..)| cut(graph, *user, &axes)).collect();
    let users: Option<Vec<NodeId>> = users;
    Some(Product { rows, axes, right, transposed, addend, users: users? })
}

/// The leading axes of a shape whose product is `merged`.
fn leading(shape: &[Dim], merged: &Dim) -> Option<Vec<Dim>> {
    let mut product = Dim::ONE;
    let count = shape.iter().position(|d| {
        product = product.clone() * d.clone();
        product == *merged
    })?;
    Some(shape[..=count].to_vec())
}

/// The node, if it is a reshape whose result begins with `axes`.
fn cut(graph: &Graph, user: NodeId, axes: &[Dim]) -> Option<NodeId> {
    let node = graph.node(user);
    let result = &node.results().first()?.ty.shape;
    (matches!(node.op()?, Op::Reshape(_)) && result.starts_with(axes)).then_some(user)
}

/// Writes the batched product, its addend, and a view for each user.
fn rewrite(graph: &mut Graph, id: NodeId, product: &Product) -> Result<(), GraphError> {
    let name = graph.info(Value { node: id, output: 0 }).name.clone();
    let named = |kind: &str| format!("{name}.{kind}");
    let terms = graph.ty(product.right).shape[usize::from(product.transposed)].clone();
    let mut shape = product.axes.clone();
    shape.push(terms);
    let left = graph.beside(id, named("rows")).view(product.rows, shape)?;
    let right = if product.transposed {
        graph.beside(id, named("right")).transpose(product.right, vec![1, 0])?
    } else {
        product.right
    };
    let mut result = graph.beside(id, named("product")).matmul(left, right)?;
    if let Some(addend) = product.addend {
        result = graph.beside(id, named("sum")).add(result, addend)?;
    }
    for user in &product.users {
        let old = Value { node: *user, output: 0 };
        let (name, shape) = (graph.info(old).name.clone(), graph.ty(old).shape.to_vec());
        let new = graph.beside(*user, name).view(result, shape)?;
        graph.replace(old, new)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ir::{Weights, parse, verify};
    use crate::pass::simplify::{SimplifyOptions, simplify};

    fn simplified(text: &str) -> String {
        let mut graph = parse(text).expect("the text is a graph");
        let mut weights = Weights::default();
        simplify(&mut graph, &mut weights, &SimplifyOptions::default()).expect("it simplifies");
        verify(&graph).expect("it stays a graph");
        graph.to_string()
    }

    #[test]
    fn products_of_merged_rows_keep_the_batch_apart() {
        let text = "fanwise 1\nsymbol N >= 0\n\
            graph @g(%x: f32[7,N,4,2], %w: f32[8,5], %c: f32[5]) -> (y: f32[7,N,5]) {\n  \
            %m : f32[7*N,8] = reshape(%x) {shape=[7*N, 8]}\n  \
            %p : f32[7*N,5] = gemm(%m, %w, %c)\n  \
            %y : f32[7,N,5] = reshape(%p) {shape=[7, N, 5]}\n  return %y\n}\n";
        let got = simplified(text);
        assert!(got.contains("matmul") && !got.contains("7*N"), "{got}");
        // Rows with the batch first are left as they are.
        let first = text.replace("7,N", "N,7").replace("[7, N", "[N, 7");
        assert!(simplified(&first).contains("gemm"));
        // So are those that nothing takes apart.
        let text = text.replace("[7, N, 5]", "[7*N, 5]").replace("y: f32[7,N,5]", "y: f32[7*N,5]");
        let text = text.replace("%y : f32[7,N,5]", "%y : f32[7*N,5]");
        assert!(simplified(&text).contains("gemm"));
    }
}
