//! Tables of `ai.onnx.ml` that are no trees, no machines and no features.

use support::proto::{AttributeProto, NodeProto};

use super::models::{
    case, floats, graph, int, ints, model, node, opset, raw, string, strings, tensor_attribute,
    with, x,
};
use crate::it::hostile::Case;
use support::proto::tensor_proto::DataType;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = lists();
    cases.extend(further());
    cases.extend(labels());
    cases.extend(positions());
    cases.extend(machines());
    cases.extend(features());
    cases
}

/// The case of one node of the domain.
fn one(name: &str, version: i64, outputs: &[&str], node: NodeProto) -> Case {
    let mut model = model(graph(x(), vec![], vec![node], outputs));
    model.opset_import.push(opset("ai.onnx.ml", version));
    case(name, &model)
}

fn ml(op: &str, outputs: &[&str], attributes: Vec<AttributeProto>) -> NodeProto {
    let node = NodeProto { domain: Some("ai.onnx.ml".to_owned()), ..node(op, &["x"], outputs) };
    attributes.into_iter().fold(node, with)
}

/// A tree of two branches, the second of which is taken where the first test fails.
struct Tree {
    trees: Vec<i64>,
    ids: Vec<i64>,
    modes: Vec<&'static str>,
    features: Vec<i64>,
    values: Vec<f32>,
    yes: Vec<i64>,
    no: Vec<i64>,
    missing: Vec<i64>,
    leaves: Vec<i64>,
    targets: Vec<i64>,
    count: i64,
}

fn tree(change: impl FnOnce(&mut Tree)) -> Vec<AttributeProto> {
    let mut tree = Tree {
        trees: vec![0; 5],
        ids: vec![0, 1, 2, 3, 4],
        modes: vec!["BRANCH_LEQ", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
        features: vec![0, 0, 3, 0, 0],
        values: vec![0.5; 5],
        yes: vec![1, 0, 3, 0, 0],
        no: vec![2, 0, 4, 0, 0],
        missing: vec![0; 5],
        leaves: vec![1, 3, 4],
        targets: vec![0; 3],
        count: 1,
    };
    change(&mut tree);
    vec![
        ints("nodes_treeids", &tree.trees),
        ints("nodes_nodeids", &tree.ids),
        strings("nodes_modes", &tree.modes),
        ints("nodes_featureids", &tree.features),
        floats("nodes_values", &tree.values),
        ints("nodes_truenodeids", &tree.yes),
        ints("nodes_falsenodeids", &tree.no),
        ints("nodes_missing_value_tracks_true", &tree.missing),
        ints("target_treeids", &vec![0; tree.leaves.len()]),
        ints("target_nodeids", &tree.leaves),
        ints("target_ids", &tree.targets),
        floats("target_weights", &[1.0, 2.0, 3.0]),
        int("n_targets", tree.count),
    ]
}

/// Trees as lists of nodes.
fn lists() -> Vec<Case> {
    let of = |name: &str, attributes: Vec<AttributeProto>| {
        one(name, 3, &["y"], ml("TreeEnsembleRegressor", &["y"], attributes))
    };
    let changed = |name: &str, change: fn(&mut Tree)| of(name, tree(change));
    let deep = |tree: &mut Tree| {
        let count = 30_000;
        tree.ids = (0..=2 * count).collect();
        tree.trees = vec![0; tree.ids.len()];
        tree.missing = tree.trees.clone();
        tree.features = tree.trees.clone();
        tree.values = vec![f32::NAN; tree.ids.len()];
        let branch = |i: &i64| i % 2 == 0 && *i < 2 * count;
        let to = |i: &i64, by: i64| if branch(i) { i + by } else { 0 };
        tree.yes = tree.ids.iter().map(|i| to(i, 1)).collect();
        tree.no = tree.ids.iter().map(|i| to(i, 2)).collect();
        let mode = |i| if branch(i) { "BRANCH_LEQ" } else { "LEAF" };
        tree.modes = tree.ids.iter().map(mode).collect();
        tree.leaves = vec![1, 3, 2 * count];
    };
    vec![
        changed("thresholds that are NaN", |t| t.values = vec![f32::NAN; 5]),
        of("a tree of 30000 levels", tree(deep)),
        changed("a branch that follows itself", |t| t.yes[0] = 0),
        changed("branches that follow each other", |t| t.no[2] = 0),
        changed("a branch without a node", |t| t.no[0] = 5),
        changed("a branch to node -1", |t| t.yes[2] = -1),
        changed("a branch to node 2^63-1", |t| t.yes[2] = i64::MAX),
        changed("a feature that the rows lack", |t| t.features[0] = 4),
        changed("feature -1", |t| t.features[2] = -1),
        changed("a node given twice", |t| t.ids[4] = 3),
        changed("a tree in two places", |t| t.trees[2] = 1),
        changed("a mode that there is not", |t| t.modes[0] = "BRANCH_MAYBE"),
        changed("modes for other nodes", |t| t.modes.truncate(4)),
        changed("features for other nodes", |t| t.features.truncate(4)),
        changed("thresholds for other nodes", |t| t.values.push(0.0)),
        changed("true branches for other nodes", |t| t.yes.clear()),
        changed("weights for other leaves", |t| t.leaves.truncate(2)),
        changed("a weight of a node that there is not", |t| t.leaves[0] = 7),
        changed("target 1 of 1", |t| t.targets[1] = 1),
        changed("target -1", |t| t.targets[1] = -1),
        changed("no targets", |t| t.count = 0),
        changed("2^63-1 targets", |t| t.count = i64::MAX),
        changed("no node", |t| {
            *t = Tree {
                trees: vec![],
                ids: vec![],
                modes: vec![],
                features: vec![],
                values: vec![],
                yes: vec![],
                no: vec![],
                missing: vec![],
                leaves: vec![],
                targets: vec![],
                count: 1,
            };
        }),
    ]
}

/// The same with further attributes.
fn further() -> Vec<Case> {
    let of = |name: &str, attributes: Vec<AttributeProto>| {
        one(name, 3, &["y"], ml("TreeEnsembleRegressor", &["y"], attributes))
    };
    let mut twice = tree(|_| {});
    twice.push(tensor_attribute("nodes_values_as_tensor", raw("", DataType::Float, &[1], &[0; 4])));
    let mut narrow = tree(|_| {});
    narrow.retain(|a| a.name() != "nodes_values");
    narrow
        .push(tensor_attribute("nodes_values_as_tensor", raw("", DataType::Double, &[1], &[0; 8])));
    let mut logistic = tree(|_| {});
    logistic.push(string("post_transform", "LOGISTIC"));
    vec![
        of("thresholds given twice", twice),
        of("thresholds of another type", narrow),
        of("one score with a transform", logistic),
    ]
}

/// Classifiers and their labels.
fn labels() -> Vec<Case> {
    let of = |name: &str, outputs: &[&str], attributes: Vec<AttributeProto>| {
        let mut all = tree(|t| t.count = 3);
        all.retain(|a| a.name() != "n_targets");
        for attribute in &mut all {
            attribute.name = Some(attribute.name().replace("target_", "class_"));
        }
        all.extend(attributes);
        one(name, 3, outputs, ml("TreeEnsembleClassifier", &["l", "y"], all))
    };
    let numbers = |count: i64| ints("classlabels_int64s", &(0..count).collect::<Vec<_>>());
    let names = || strings("classlabels_strings", &["a", "b", "c"]);
    vec![
        of("labels that are strings beside scores", &["l", "y"], vec![names()]),
        of("labels that are strings alone", &["l"], vec![names()]),
        of("labels that are numbers and strings", &["l", "y"], vec![names(), numbers(3)]),
        of("no labels", &["l", "y"], vec![]),
        of("one label", &["l", "y"], vec![numbers(1)]),
        of(
            "base values for other classes",
            &["y"],
            vec![numbers(3), floats("base_values", &[1.0])],
        ),
    ]
}

/// Trees whose nodes are named by their positions.
fn positions() -> Vec<Case> {
    let f32s = |name: &str, values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let count = i64::try_from(values.len()).expect("a size");
        tensor_attribute(name, raw("", DataType::Float, &[count], &bytes))
    };
    let of = |name: &str, change: &dyn Fn(&mut Vec<AttributeProto>)| {
        let modes = raw("", DataType::Uint8, &[2], &[0, 6]);
        let mut all = vec![
            int("n_targets", 1),
            ints("tree_roots", &[0]),
            tensor_attribute("nodes_modes", modes),
            ints("nodes_featureids", &[0, 1]),
            f32s("nodes_splits", &[0.5, 0.0]),
            ints("nodes_truenodeids", &[0, 0]),
            ints("nodes_trueleafs", &[1, 1]),
            ints("nodes_falsenodeids", &[1, 1]),
            ints("nodes_falseleafs", &[0, 1]),
            ints("leaf_targetids", &[0, 0]),
            f32s("leaf_weights", &[1.0, 2.0]),
            f32s("membership_values", &[1.0, 2.0, f32::NAN]),
        ];
        change(&mut all);
        one(name, 5, &["y"], ml("TreeEnsemble", &["y"], all))
    };
    let with = |attribute: AttributeProto| {
        move |all: &mut Vec<AttributeProto>| {
            all.retain(|a| a.name() != attribute.name());
            all.push(attribute.clone());
        }
    };
    let modes = |modes: &[u8]| {
        let count = i64::try_from(modes.len()).expect("a size");
        tensor_attribute("nodes_modes", raw("", DataType::Uint8, &[count], modes))
    };
    let wide = raw("", DataType::Int64, &[2], &[0; 16]);
    vec![
        of("a tree by positions", &|_| {}),
        of("a root that there is not", &with(ints("tree_roots", &[2]))),
        of("root -1", &with(ints("tree_roots", &[-1]))),
        of("no root", &with(ints("tree_roots", &[]))),
        of("a leaf that there is not", &with(ints("nodes_truenodeids", &[2, 0]))),
        of("a node that there is not", &with(ints("nodes_falsenodeids", &[2, 1]))),
        of("a node that leads to itself", &with(ints("nodes_falsenodeids", &[0, 1]))),
        of("test 9", &with(modes(&[0, 9]))),
        of("tests for other nodes", &with(modes(&[0]))),
        of("splits of i64", &with(tensor_attribute("nodes_splits", wide))),
        of("fewer sets than tests of sets", &with(modes(&[6, 6]))),
        of("more sets than tests of sets", &with(modes(&[0, 0]))),
        of("an empty set", &with(f32s("membership_values", &[]))),
        of("an aggregate that there is not", &with(int("aggregate_function", 4))),
        of("a transform that there is not", &with(int("post_transform", -1))),
        of("leaves for other targets", &with(ints("leaf_targetids", &[0]))),
    ]
}

/// Linear models and support vector machines.
fn machines() -> Vec<Case> {
    let svm = |counts: &[i64], labels: i64, rho: usize| {
        vec![
            ints("vectors_per_class", counts),
            ints("classlabels_ints", &(0..labels).collect::<Vec<_>>()),
            floats("coefficients", &[1.0; 2]),
            floats("support_vectors", &[0.0; 8]),
            floats("rho", &vec![0.0; rho]),
        ]
    };
    let classifier = |name: &str, attributes: Vec<AttributeProto>| {
        one(name, 1, &["l", "y"], ml("SVMClassifier", &["l", "y"], attributes))
    };
    let linear = |name: &str, attributes: Vec<AttributeProto>| {
        one(name, 1, &["y"], ml("LinearRegressor", &["y"], attributes))
    };
    let mut params = svm(&[1, 1], 2, 1);
    params.push(floats("kernel_params", &[1.0]));
    vec![
        classifier("a machine of two vectors", svm(&[1, 1], 2, 1)),
        classifier("vectors for other classes", svm(&[1, 1, 0], 2, 1)),
        classifier("vectors beyond all numbers", svm(&[i64::MAX, i64::MAX], 2, 1)),
        classifier("-1 vectors", svm(&[3, -1], 2, 1)),
        classifier("more vectors than there are", svm(&[2, 1], 2, 1)),
        classifier("offsets for other pairs", svm(&[1, 1], 2, 2)),
        classifier("a machine of 100000 classes", svm(&vec![0; 100_000], 100_000, 1)),
        classifier("a kernel of one number", params),
        linear("coefficients for other features", vec![floats("coefficients", &[1.0; 3])]),
        linear("no coefficients", vec![]),
        linear(
            "targets beyond all numbers",
            vec![floats("coefficients", &[1.0; 4]), int("targets", i64::MAX)],
        ),
        linear(
            "intercepts for other targets",
            vec![floats("coefficients", &[1.0; 4]), floats("intercepts", &[1.0; 2])],
        ),
    ]
}

/// Features made of features.
fn features() -> Vec<Case> {
    let of = |name: &str, op: &str, attributes: Vec<AttributeProto>| {
        one(name, 2, &["y"], ml(op, &["y"], attributes))
    };
    let keys = |name: &str, keys: AttributeProto, values: AttributeProto| {
        of(name, "LabelEncoder", vec![keys, values])
    };
    vec![
        of("scales for other features", "Scaler", vec![floats("scale", &[1.0; 3])]),
        of("a norm that there is not", "Normalizer", vec![string("norm", "L3")]),
        of("a category given twice", "OneHotEncoder", vec![ints("cats_int64s", &[1, 2, 1])]),
        of("no categories", "OneHotEncoder", vec![]),
        of("categories that are strings", "OneHotEncoder", vec![strings("cats_strings", &["a"])]),
        of("-1 entries of a vector", "FeatureVectorizer", vec![ints("inputdimensions", &[-1])]),
        of("no imputed numbers", "Imputer", vec![]),
        of(
            "imputed numbers for other features",
            "Imputer",
            vec![floats("imputed_value_floats", &[0.0; 2])],
        ),
        keys(
            "fewer values than keys",
            floats("keys_floats", &[1.0, 2.0]),
            ints("values_int64s", &[1]),
        ),
        keys("keys of another type", ints("keys_int64s", &[1]), ints("values_int64s", &[1])),
        keys("keys without values", floats("keys_floats", &[1.0]), int("default_int64", 1)),
        keys(
            "values that are strings",
            floats("keys_floats", &[1.0]),
            strings("values_strings", &["a"]),
        ),
        one("version 6 of the domain", 6, &["y"], ml("Binarizer", &["y"], vec![])),
        of("an operator of maps", "DictVectorizer", vec![strings("string_vocabulary", &["a"])]),
    ]
}
