//! Ensembles of decision trees, in the form of lists of nodes and in that of version 5.

use super::ml_scores::{
    Labels, Transform, features, flat, numbered_transform, post_transform, rows, single,
    transformed,
};
use super::ml_trees::{Forest, TreeNode, Weight, test};
use super::{Done, Imports, Node, NodeError, meaning, wrong};
use crate::ir::Value;
use crate::op::Formula;
use crate::op::tree_ensemble::{TreeAggregate, TreeEnsemble};
use crate::types::{DType, FastMap, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.add_ml("TreeEnsembleRegressor", 1, regressor);
    all.add_ml("TreeEnsembleClassifier", 1, classifier);
    all.add_ml("TreeEnsemble", 1, ensemble);
}

/// The tests of nodes by their words; a leaf has none.
const MODES: [(&str, Option<i32>); 7] = [
    ("BRANCH_LEQ", Some(0)),
    ("BRANCH_LT", Some(1)),
    ("BRANCH_GTE", Some(2)),
    ("BRANCH_GT", Some(3)),
    ("BRANCH_EQ", Some(4)),
    ("BRANCH_NEQ", Some(5)),
    ("LEAF", None),
];

/// The test of equality; in version 5 the test after all others is that of a set.
const EQUAL: i32 = 4;
const MEMBER: u8 = 6;

/// What becomes of the weights of a target.
#[derive(Clone, Copy)]
enum Aggregate {
    Of(TreeAggregate),
    Average,
}

/// The words for it, in the order in which version 5 numbers them.
const AGGREGATES: [(&str, Aggregate); 4] = [
    ("AVERAGE", Aggregate::Average),
    ("SUM", Aggregate::Of(TreeAggregate::Sum)),
    ("MIN", Aggregate::Of(TreeAggregate::Min)),
    ("MAX", Aggregate::Of(TreeAggregate::Max)),
];

/// The rows, in the type of the thresholds: `f64` where they are, else `f32`.
fn typed_rows(n: &mut Node<'_, '_>) -> Result<Value, NodeError> {
    let x = rows(n)?;
    if n.dtype(x) == DType::F64 { Ok(x) } else { n.cast(x, DType::F32) }
}

/// Fails unless a list has as many entries as another.
fn as_many(name: &str, found: usize, expected: usize) -> Done {
    if found == expected {
        return Ok(());
    }
    Err(wrong(name, format!("has {found} entries, not {expected}")))
}

/// The numbers of a tensor attribute of this type; none where it is absent.
fn tensor(n: &mut Node<'_, '_>, name: &str, dtype: DType) -> Result<Option<Vec<f64>>, NodeError> {
    let Some(given) = n.opt_given(name)? else { return Ok(None) };
    let tensor = flat(n, &given)?;
    if tensor.dtype() == dtype {
        return Ok(Some(tensor.to_f64()));
    }
    Err(wrong(name, format!("is {}; the operand makes it {dtype}", tensor.dtype())))
}

/// The numbers of an attribute, which may also be a tensor of another name.
fn numbers(n: &mut Node<'_, '_>, name: &str, dtype: DType) -> Result<Vec<f64>, NodeError> {
    let wide = tensor(n, &format!("{name}_as_tensor"), dtype)?.filter(|list| !list.is_empty());
    let narrow = n.opt_floats(name)?.filter(|list| !list.is_empty());
    match (wide, narrow) {
        (Some(_), Some(_)) => Err(wrong(name, "is given twice")),
        (Some(wide), None) => Ok(wide),
        // Absent lists are empty.
        (None, narrow) => Ok(narrow.unwrap_or_default().into_iter().map(f64::from).collect()),
    }
}

/// The trees of lists of nodes; the lists of weights begin with `of`.
fn listed(n: &mut Node<'_, '_>, of: &str, dtype: DType) -> Result<Forest, NodeError> {
    let name = "nodes_modes";
    // Absent: an ensemble without nodes.
    let modes = n.opt_strings(name)?.unwrap_or_default();
    let modes = modes.iter().map(|mode| meaning(name, mode, &MODES));
    let modes = modes.collect::<Result<Vec<_>, _>>()?;
    let (trees, ids) = (n.ints("nodes_treeids")?, n.ints("nodes_nodeids")?);
    as_many("nodes_treeids", trees.len(), modes.len())?;
    as_many("nodes_nodeids", ids.len(), modes.len())?;
    let (mut places, mut roots) = (FastMap::default(), Vec::new());
    places.reserve(modes.len());
    for (at, name) in trees.iter().copied().zip(ids).enumerate() {
        // The first node of a tree is its root.
        if at == 0 || trees[at - 1] != name.0 {
            roots.push(at);
        }
        if places.insert(name, at).is_some() {
            return Err(wrong("nodes_nodeids", format!("has {} twice in tree {}", name.1, name.0)));
        }
    }
    let mut starts: Vec<i64> = roots.iter().map(|at| trees[*at]).collect();
    starts.sort_unstable();
    if let Some([twice, _]) = starts.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(wrong("nodes_treeids", format!("has tree {twice} in several places")));
    }
    let (nodes, leaves) = branches(n, &modes, &trees, &places)?;
    let thresholds = numbers(n, "nodes_values", dtype)?;
    as_many("nodes_values", thresholds.len(), modes.len())?;
    let weights = weights(n, of, dtype, &nodes, &places)?;
    Ok(Forest { nodes, thresholds, roots, leaves, weights })
}

/// The nodes, and the number of leaves.
fn branches(
    n: &mut Node<'_, '_>,
    modes: &[Option<i32>],
    trees: &[i64],
    places: &FastMap<(i64, i64), usize>,
) -> Result<(Vec<TreeNode>, usize), NodeError> {
    let features = n.ints("nodes_featureids")?;
    let (yes, no) = (n.ints("nodes_truenodeids")?, n.ints("nodes_falsenodeids")?);
    let missing = n.ints("nodes_missing_value_tracks_true")?;
    as_many("nodes_featureids", features.len(), modes.len())?;
    as_many("nodes_truenodeids", yes.len(), modes.len())?;
    as_many("nodes_falsenodeids", no.len(), modes.len())?;
    if !missing.is_empty() {
        as_many("nodes_missing_value_tracks_true", missing.len(), modes.len())?;
    }
    let mut leaves = 0;
    let node = |(at, mode): (usize, &Option<i32>)| {
        let Some(mode) = *mode else {
            leaves += 1;
            return Ok(TreeNode::Leaf(leaves - 1));
        };
        let tree = trees[at];
        let place = |id: i64| {
            let found = places.get(&(tree, id)).copied();
            found.ok_or_else(|| wrong("nodes_…", format!("has no node {id} in tree {tree}")))
        };
        let test = test(mode, missing.get(at).is_some_and(|m| *m == 1));
        Ok(TreeNode::Branch {
            feature: features[at],
            test,
            yes: place(yes[at])?,
            no: place(no[at])?,
        })
    };
    let nodes = modes.iter().enumerate().map(node).collect::<Result<Vec<_>, NodeError>>()?;
    Ok((nodes, leaves))
}

/// The weights of leaves; those of other nodes are never reached.
fn weights(
    n: &mut Node<'_, '_>,
    of: &str,
    dtype: DType,
    nodes: &[TreeNode],
    places: &FastMap<(i64, i64), usize>,
) -> Result<Vec<Weight>, NodeError> {
    let names = ["treeids", "nodeids", "ids"].map(|list| format!("{of}_{list}"));
    let [trees, ids, targets] = [n.ints(&names[0])?, n.ints(&names[1])?, n.ints(&names[2])?];
    let weights = numbers(n, &format!("{of}_weights"), dtype)?;
    for (name, list) in names.iter().zip([&trees, &ids, &targets]) {
        as_many(name, list.len(), weights.len())?;
    }
    let mut found = Vec::with_capacity(weights.len());
    for (at, weight) in weights.into_iter().enumerate() {
        let (tree, id) = (trees[at], ids[at]);
        let place = places.get(&(tree, id));
        let place = place.ok_or_else(|| wrong(&names[1], format!("has {id} of tree {tree}")))?;
        if let TreeNode::Leaf(leaf) = nodes[*place] {
            found.push(Weight { leaf, target: targets[at], value: weight });
        }
    }
    Ok(found)
}

/// The trees on rows.
fn grown(
    n: &mut Node<'_, '_>,
    x: Value,
    forest: &Forest,
    op: TreeEnsemble,
) -> Result<Value, NodeError> {
    let [nodes, thresholds, roots, of, weights] =
        forest.tables(n.dtype(x), features(n, x)?, op.targets)?;
    let operands = [
        x,
        n.table("nodes", nodes)?,
        n.table("thresholds", thresholds)?,
        n.table("roots", roots)?,
        n.table("targets", of)?,
        n.table("weights", weights)?,
    ];
    n.op(op, &operands)
}

/// The sums of the weights of so many targets.
fn sum_of(targets: usize) -> TreeEnsemble {
    TreeEnsemble { aggregate: TreeAggregate::Sum, targets }
}

/// The scores of a regression.
fn scores(
    n: &mut Node<'_, '_>,
    x: Value,
    forest: &Forest,
    aggregate: Aggregate,
    targets: usize,
) -> Result<Value, NodeError> {
    match aggregate {
        Aggregate::Of(aggregate) => grown(n, x, forest, TreeEnsemble { aggregate, targets }),
        Aggregate::Average => {
            let sum = grown(n, x, forest, sum_of(targets))?;
            let trees = n.number(sum, forest.roots.len() as f64)?;
            n.div(sum, trees)
        }
    }
}

/// The attribute `n_targets`.
fn target_count(n: &mut Node<'_, '_>) -> Result<usize, NodeError> {
    let given = n.needed_int("n_targets")?;
    let count = usize::try_from(given).ok().filter(|count| *count > 0);
    count.ok_or_else(|| wrong("n_targets", format!("is {given}")))
}

/// Numbers of an attribute added to scores, one for each.
fn based(n: &mut Node<'_, '_>, scores: Value, base: &[f64]) -> Result<Value, NodeError> {
    if base.is_empty() {
        return Ok(scores);
    }
    as_many("base_values", base.len(), features(n, scores)?)?;
    let base = Tensor::new(&[base.len()], base).map_err(crate::op::OpError::from)?;
    let base = crate::op::converted(&base, n.dtype(scores))?;
    let base = n.table("base", base)?;
    n.add(scores, base)
}

fn regressor(n: &mut Node<'_, '_>) -> Done {
    let (by, targets) = (post_transform(n)?, target_count(n)?);
    if targets == 1 {
        single(by)?;
    }
    let aggregate = n.choice("aggregate_function", "SUM", &AGGREGATES)?;
    let x = typed_rows(n)?;
    let (dtype, base) = (n.dtype(x), numbers(n, "base_values", n.dtype(x))?);
    let forest = listed(n, "target", dtype)?;
    if targets > 1 && !base.is_empty() && !(0..targets).all(|target| forest.always(target)) {
        let text = "a base value of a target without weights, for which ONNX Runtime and the \
                    standard differ,";
        return Err(NodeError::Unsupported(text.to_owned()));
    }
    let scores = scores(n, x, &forest, aggregate, targets)?;
    let scores = based(n, scores, &base)?;
    let scores = n.cast(scores, DType::F32)?;
    let y = transformed(n, scores, by)?;
    n.last(0).identity(y)?;
    Ok(())
}

/// Two classes have one score, or each class has its own.
fn classifier(n: &mut Node<'_, '_>) -> Done {
    let (labels, by) = (Labels::read(n, "classlabels_int64s")?, post_transform(n)?);
    let x = typed_rows(n)?;
    let (dtype, base) = (n.dtype(x), numbers(n, "base_values", n.dtype(x))?);
    let forest = listed(n, "class", dtype)?;
    match labels.len() {
        1 => Err(NodeError::Unsupported("a single class".to_owned())),
        2 => two_classes(n, x, &forest, &labels, &base, by),
        _ => many_classes(n, x, &forest, &labels, &base, by),
    }
}

/// The label is that of the greatest score among the classes that have one.
fn many_classes(
    n: &mut Node<'_, '_>,
    x: Value,
    forest: &Forest,
    labels: &Labels,
    base: &[f64],
    by: Transform,
) -> Done {
    let sum = grown(n, x, forest, sum_of(labels.len()))?;
    let scores = based(n, sum, base)?;
    let mut ranked = scores;
    if base.is_empty() && !(0..labels.len()).all(|class| forest.always(class)) {
        let ones = forest.weights.iter().map(|weight| Weight { value: 1.0, ..*weight });
        let counted = Forest { weights: ones.collect(), ..forest.clone() };
        let counts = grown(n, x, &counted, sum_of(labels.len()))?;
        let (has, least) = (n.is_above(counts, 0.0)?, n.number(scores, f64::NEG_INFINITY)?);
        ranked = n.choose(has, scores, least)?;
    }
    let place = n.arg_max(ranked, 1)?;
    labels.at(n, place)?;
    let scores = n.cast(scores, DType::F32)?;
    let scores = transformed(n, scores, by)?;
    n.last(1).identity(scores)?;
    Ok(())
}

/// All weights are those of one of two classes. Of a probability the second class needs more than a
/// half, of weights with signs more than 0.
fn two_classes(
    n: &mut Node<'_, '_>,
    x: Value,
    forest: &Forest,
    labels: &Labels,
    base: &[f64],
    by: Transform,
) -> Done {
    let of = |class: i64| forest.weights.iter().all(|weight| weight.target == class);
    let positive = !forest.weights.iter().any(|weight| weight.value < 0.0);
    let second = if of(0) {
        0
    } else if of(1) && base.is_empty() && forest.always(1) {
        1
    } else {
        let text =
            "a score of each of two classes, for which ONNX Runtime and the standard differ,";
        return Err(NodeError::Unsupported(text.to_owned()));
    };
    if base.len() > 1 {
        return Err(NodeError::Unsupported(
            "a base value for each of two classes with one score".to_owned(),
        ));
    }
    let both = grown(n, x, forest, sum_of(2))?;
    let score = n.rows(both, 1, second.into(), (second + 1).into())?;
    let score = based(n, score, base)?;
    let first = n.squeeze(score, vec![1])?;
    let above = n.is_above(first, if positive { 0.5 } else { 0.0 })?;
    labels.one_of_two(n, above)?;
    let score = n.cast(score, DType::F32)?;
    if second == 1 {
        let both = n.cast(both, DType::F32)?;
        let scores = transformed(n, both, by)?;
        n.last(1).identity(scores)?;
        return Ok(());
    }
    let (rest, score) = match by {
        Transform::None if positive => (n.complement(score)?, score),
        Transform::None => (n.neg(score)?, score),
        Transform::Logistic => {
            let minus = n.neg(score)?;
            (n.sigmoid(minus)?, n.sigmoid(score)?)
        }
        Transform::Softmax | Transform::SoftmaxZero | Transform::Probit => {
            let text = "a post transform of one score for two classes other than LOGISTIC";
            return Err(NodeError::Unsupported(text.to_owned()));
        }
    };
    let scores = n.concat(&[rest, score], 1)?;
    n.last(1).identity(scores)?;
    Ok(())
}

/// The form of version 5: nodes name nodes and leaves by their positions.
fn ensemble(n: &mut Node<'_, '_>) -> Done {
    let (by, targets) = (numbered_transform(n)?, target_count(n)?);
    if targets == 1 {
        single(by)?;
    }
    let number = n.int("aggregate_function", 1)?;
    let aggregate = usize::try_from(number).ok().and_then(|i| AGGREGATES.get(i));
    let aggregate = aggregate.ok_or_else(|| wrong("aggregate_function", format!("is {number}")))?.1;
    let x = rows(n)?;
    let forest = positioned(n, n.dtype(x))?;
    let scores = scores(n, x, &forest, aggregate, targets)?;
    let y = transformed(n, scores, by)?;
    n.last(0).identity(y)?;
    Ok(())
}

/// The tests of nodes, by their numbers.
fn modes(n: &mut Node<'_, '_>) -> Result<Vec<u8>, NodeError> {
    let name = "nodes_modes";
    let given = n.opt_given(name)?.ok_or_else(|| wrong(name, "is missing"))?;
    let modes = flat(n, &given)?;
    if modes.dtype() == DType::U8 {
        return Ok(modes.as_slice::<u8>().to_vec());
    }
    Err(wrong(name, format!("is {}, not u8", modes.dtype())))
}

/// The trees of nodes and leaves that are named by their positions. A leaf stands behind all nodes.
fn positioned(n: &mut Node<'_, '_>, dtype: DType) -> Result<Forest, NodeError> {
    let modes = modes(n)?;
    // Trees of leaves alone have no splits.
    let mut thresholds = tensor(n, "nodes_splits", dtype)?.unwrap_or_default();
    // Only tests of membership have members.
    let members = tensor(n, "membership_values", dtype)?.unwrap_or_default();
    // As many as leaves, which is checked below.
    let values = tensor(n, "leaf_weights", dtype)?.unwrap_or_default();
    let (features, targets) = (n.ints("nodes_featureids")?, n.ints("leaf_targetids")?);
    let (yes, no) = (n.ints("nodes_truenodeids")?, n.ints("nodes_falsenodeids")?);
    let (yes_leafs, no_leafs) = (n.ints("nodes_trueleafs")?, n.ints("nodes_falseleafs")?);
    let missing = n.ints("nodes_missing_value_tracks_true")?;
    let count = modes.len();
    for (name, found) in [
        ("nodes_splits", thresholds.len()),
        ("nodes_featureids", features.len()),
        ("nodes_truenodeids", yes.len()),
        ("nodes_falsenodeids", no.len()),
        ("nodes_trueleafs", yes_leafs.len()),
        ("nodes_falseleafs", no_leafs.len()),
    ] {
        as_many(name, found, count)?;
    }
    if !missing.is_empty() {
        as_many("nodes_missing_value_tracks_true", missing.len(), count)?;
    }
    as_many("leaf_targetids", targets.len(), values.len())?;
    let place = |id: i64, leaf: i64| {
        let (from, most) = if leaf == 0 { (0, count) } else { (count, values.len()) };
        let found = usize::try_from(id).ok().filter(|id| *id < most);
        let what = if leaf == 0 { "node" } else { "leaf" };
        let found = found.ok_or_else(|| wrong("nodes_…", format!("has no {what} {id}")))?;
        Ok::<_, NodeError>(from + found)
    };
    let mut nodes = Vec::with_capacity(count + values.len());
    for at in 0..count {
        let tracks = missing.get(at).is_some_and(|m| *m == 1);
        let test = match modes[at] {
            MEMBER => test(EQUAL, tracks),
            number if number < MEMBER => test(number.into(), tracks),
            other => return Err(wrong("nodes_modes", format!("has {other}"))),
        };
        let (yes, no) = (place(yes[at], yes_leafs[at])?, place(no[at], no_leafs[at])?);
        nodes.push(TreeNode::Branch { feature: features[at], test, yes, no });
    }
    nodes.extend((0..values.len()).map(TreeNode::Leaf));
    thresholds.resize(nodes.len(), 0.0);
    let roots = n.ints("tree_roots")?.into_iter().map(|root| place(root, 0));
    let roots = roots.collect::<Result<_, _>>()?;
    let weight = |(leaf, (target, value))| Weight { leaf, target, value };
    let leaves = values.len();
    let weights = targets.into_iter().zip(values).enumerate().map(weight).collect();
    let mut forest = Forest { nodes, thresholds, roots, leaves, weights };
    let sets = (0..count).filter(|at| modes[*at] == MEMBER);
    forest.members(sets, &members)?;
    Ok(forest)
}
