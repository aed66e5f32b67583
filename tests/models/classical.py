"""What `single.py` draws of the operators of `ai.onnx.ml`."""

import numpy as np
from onnx import TensorProto, helper
from operators import TABLE, pick
from single import Case, Operand

TYPES = [np.float32, np.float32, np.float64, np.int64, np.int32]
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


def of(*ops):
    def add(draw):
        TABLE.update(dict.fromkeys((f"ai.onnx.ml.{op}" for op in ops), draw))
        return draw

    return add


def features(rng, dtype=None, draw="normal"):
    """Rows of a few features."""
    count = int(rng.integers(1, 5))
    return count, Operand(["N", count], draw, pick(rng, *TYPES) if dtype is None else dtype)


def floats(rng, *shape):
    return [float(x) for x in rng.normal(size=shape).astype(np.float32).ravel()]


def labels(rng, count, ints):
    """Labels of so many classes, which are seldom strings."""
    if rng.random() < 0.2:
        return {"classlabels_strings": [f"class {i}" for i in range(count)]}
    return {ints: [int(label) for label in rng.permutation(20)[:count] - 5]}


@of("Scaler")
def scaler(rng, op):
    count, x = features(rng)
    count = pick(rng, 1, count)
    return Case(op, [x], offset=floats(rng, count), scale=floats(rng, count))


@of("Normalizer")
def normalizer(rng, op):
    count, x = features(rng, draw=pick(rng, "normal", "ties"))
    return Case(op, [x], norm=pick(rng, "MAX", "L1", "L2"))


@of("Binarizer")
def binarizer(rng, op):
    count, x = features(rng, np.float32, pick(rng, "normal", "ties"))
    return Case(op, [x], threshold=pick(rng, None, 1.0, -0.3))


@of("Imputer")
def imputer(rng, op):
    count, x = features(rng, pick(rng, np.float32, np.int64), "ties")
    size = pick(rng, 1, count)
    if x.dtype == np.int64:
        return Case(op, [x], imputed_value_int64s=[int(i) for i in rng.integers(-9, 9, size)], replaced_value_int64=1)
    missing = pick(rng, np.nan, 1.0, -2.0)
    if np.isnan(missing):
        x.draw = "odd"
    return Case(op, [x], imputed_value_floats=floats(rng, size), replaced_value_float=float(missing))


@of("FeatureVectorizer")
def feature_vectorizer(rng, op):
    parts = [features(rng, np.float32) for _ in range(rng.integers(1, 4))]
    sizes = [max(1, count + int(rng.integers(-1, 2))) for count, _ in parts]
    return Case(op, [x for _, x in parts], inputdimensions=sizes)


@of("ArrayFeatureExtractor")
def array_feature_extractor(rng, op):
    dtype = pick(rng, np.float32, np.int64, np.float64)
    if rng.random() < 0.4:
        table = Operand([5], dtype=dtype, whole=rng.random() < 0.5)
        return Case(op, [table, Operand(["N", 1], lambda rng, shape: rng.integers(0, 5, shape), np.int64)])
    shape = ["N", *[int(size) for size in rng.integers(1, 5, rng.integers(1, 3))]]
    places = rng.integers(0, shape[-1], int(rng.integers(1, 4)))
    return Case(op, [Operand(shape, dtype=dtype), Operand([len(places)], value=places, dtype=np.int64)])


@of("OneHotEncoder")
def one_hot_encoder(rng, op):
    count, x = features(rng, pick(rng, np.float32, np.float64, np.int64), "ties")
    cats = [int(cat) for cat in rng.permutation(6)[: rng.integers(1, 5)] - 2]
    return Case(op, [x], cats_int64s=cats, zeros=pick(rng, None, 1))


@of("LabelEncoder")
def label_encoder(rng, op):
    kind = pick(rng, np.int64, np.float32)
    count, x = features(rng, kind, "ties")
    keys = rng.permutation(7)[: rng.integers(1, 6)] - 3
    keys = {"keys_int64s": [int(k) for k in keys]} if kind is np.int64 else {"keys_floats": [float(k) for k in keys]}
    size = len(next(iter(keys.values())))
    if kind is np.float32 and rng.random() < 0.3:
        keys["keys_floats"][0], x.draw = float("nan"), "odd"
        keys = {"keys_tensor": helper.make_tensor("keys", TensorProto.FLOAT, [size], keys["keys_floats"])}
        values = helper.make_tensor("values", TensorProto.FLOAT, [size], floats(rng, size))
        default = helper.make_tensor("default", TensorProto.FLOAT, [1], [7.0])
        return Case(op, [x], ml=4, values_tensor=values, default_tensor=default, **keys)
    if rng.random() < 0.5:
        values = {"values_int64s": [int(i) for i in rng.integers(-9, 9, size)], "default_int64": pick(rng, None, 17)}
    else:
        values = {"values_floats": floats(rng, size), "default_float": pick(rng, None, 1.5)}
    return Case(op, [x], **keys, **values)


@of("ZipMap")
def zip_map(rng, op):
    count, x = features(rng, np.float32)
    names = {"classlabels_int64s": list(range(count))} if rng.random() < 0.5 else {"classlabels_strings": [str(i) for i in range(count)]}
    return Case(op, [x], **names)


@of("LinearRegressor")
def linear_regressor(rng, op):
    (count, x), targets = features(rng, np.float32), int(rng.integers(1, 4))
    intercepts = pick(rng, None, floats(rng, targets))
    by = "NONE" if targets == 1 else pick(rng, *TRANSFORMS)
    return Case(op, [x], coefficients=floats(rng, targets, count), intercepts=intercepts, targets=targets, post_transform=by)


@of("LinearClassifier")
def linear_classifier(rng, op):
    (count, x), classes = features(rng), int(rng.integers(2, 5))
    scores = 1 if classes == 2 and rng.random() < 0.5 else classes
    by = pick(rng, "NONE", "LOGISTIC") if scores == 1 else pick(rng, *TRANSFORMS)
    own = {"coefficients": floats(rng, scores, count), "intercepts": floats(rng, scores), "post_transform": by}
    return Case(op, [x], 2, **own, **labels(rng, classes, "classlabels_ints"))


def machine(rng, count, dims):
    """A kernel with so many vectors."""
    kernel = pick(rng, "LINEAR", "POLY", "RBF", "SIGMOID")
    params = [float(np.float32(rng.uniform(0.1, 0.7))), float(np.float32(rng.uniform(0, 1))), float(rng.integers(2, 4))]
    return {"kernel_type": kernel, "kernel_params": params, "support_vectors": floats(rng, count, dims)}


@of("SVMRegressor")
def svm_regressor(rng, op):
    (dims, x), count = features(rng, np.float32), int(rng.integers(0, 6))
    own = machine(rng, count, dims) if count else {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
    own |= {"coefficients": floats(rng, count or dims), "rho": floats(rng, 1), "n_supports": count}
    return Case(op, [x], one_class=pick(rng, None, 0, 1), **own)


@of("SVMClassifier")
def svm_classifier(rng, op):
    (dims, x), classes = features(rng), int(rng.integers(2, 5))
    if classes > 2 and rng.random() < 0.2:
        own = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0], "coefficients": floats(rng, classes, dims), "rho": floats(rng, 1)}
        return Case(op, [x], 2, post_transform=pick(rng, *TRANSFORMS), **own, **labels(rng, classes, "classlabels_ints"))
    counts, pairs = [int(count) for count in rng.integers(1, 4, classes)], classes * (classes - 1) // 2
    own = machine(rng, sum(counts), dims)
    own |= {"coefficients": floats(rng, classes - 1, sum(counts)), "rho": floats(rng, pairs), "vectors_per_class": counts}
    if rng.random() < 0.5:
        own |= {"prob_a": [-abs(a) for a in floats(rng, pairs)], "prob_b": floats(rng, pairs)}
    return Case(op, [x], 2, **own, **labels(rng, classes, "classlabels_ints"))


MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def grow(rng, dims, depth, modes):
    """A tree: a list of (mode, feature, threshold, missing, yes, no), a leaf being (None, …)."""
    nodes = []

    def node(depth):
        at = len(nodes)
        nodes.append((None, 0, 0.0, 0, 0, 0))
        if depth > 0 and (at == 0 or rng.random() < 0.8):
            test = (pick(rng, *modes), int(rng.integers(dims)), float(rng.integers(-2, 3)) + pick(rng, 0.0, 0.5), int(rng.integers(2)))
            yes, no = node(depth - 1), node(depth - 1)
            nodes[at] = (*test, yes, no)
        return at

    node(depth)
    return nodes


def forest(rng, dims, missing):
    """Trees as lists of nodes, and their leaves as (tree, node)."""
    modes = pick(rng, ["BRANCH_LEQ"], ["BRANCH_LT"], MODES)
    trees = [grow(rng, dims, int(rng.integers(0, 4)), modes) for _ in range(rng.integers(1, 5))]
    rows = [(t, i, *node) for t, nodes in enumerate(trees) for i, node in enumerate(nodes)]
    lists = {
        "nodes_treeids": [r[0] for r in rows],
        "nodes_nodeids": [r[1] for r in rows],
        "nodes_modes": [r[2] or "LEAF" for r in rows],
        "nodes_featureids": [r[3] for r in rows],
        "nodes_values": [r[4] for r in rows],
        "nodes_truenodeids": [r[6] for r in rows],
        "nodes_falsenodeids": [r[7] for r in rows],
    }
    if missing:
        lists["nodes_missing_value_tracks_true"] = [r[5] for r in rows]
    return lists, [(r[0], r[1]) for r in rows if r[2] is None]


def weighed(of, entries):
    """Lists of weights of (tree, node, target, weight)."""
    names = [f"{of}_treeids", f"{of}_nodeids", f"{of}_ids", f"{of}_weights"]
    return {name: [entry[i] for entry in entries] for i, name in enumerate(names)}


def sample(rng, types=TYPES):
    """Rows of features that are often equal to a threshold, and sometimes missing."""
    count, x = features(rng, pick(rng, *types))
    missing = x.dtype.kind == "f" and rng.random() < 0.5
    x.draw = lambda rng, shape: np.where(rng.random(shape) < (0.3 if missing else 0), np.nan, rng.integers(-4, 5, shape) / 2).astype(np.float64)
    if x.dtype.kind == "i":
        x.draw = "ties"
    return count, x, missing


def wide(lists, names, dtype):
    """The lists of floats as tensors, where thresholds are doubles."""
    if dtype != np.float64:
        return lists
    for name in names:
        values = lists.pop(name)
        lists[f"{name}_as_tensor"] = helper.make_tensor(name, TensorProto.DOUBLE, [len(values)], values)
    return lists


@of("TreeEnsembleRegressor")
def tree_regressor(rng, op):
    count, x, missing = sample(rng, [np.float32, np.float32, np.float64])
    lists, leaves = forest(rng, count, missing)
    targets = int(rng.integers(1, 4))
    aggregate = pick(rng, None, "SUM", "AVERAGE", "MIN", "MAX")
    base = pick(rng, None, floats(rng, targets))
    # Of a target without weights ONNX Runtime leaves the base value out.
    each = lambda: range(targets) if base else rng.permutation(targets)[: rng.integers(1, targets + 1)]
    entries = [(t, i, int(target), floats(rng, 1)[0]) for t, i in leaves for target in each()]
    lists = wide(lists | weighed("target", entries), ["nodes_values", "target_weights"], x.dtype)
    by = "NONE" if targets == 1 else pick(rng, *TRANSFORMS)
    return Case(op, [x], n_targets=targets, aggregate_function=aggregate, base_values=base, post_transform=by, **lists)


@of("TreeEnsembleClassifier")
def tree_classifier(rng, op):
    count, x, missing = sample(rng)
    lists, leaves = forest(rng, count, missing)
    classes = int(rng.integers(2, 5))
    if classes == 2:
        low, second = pick(rng, 0.0, -1.0), pick(rng, 0, 0, 1)
        entries = [(t, i, second, float(np.float32(rng.uniform(low, 1.0)))) for t, i in leaves]
        base, by = pick(rng, None, floats(rng, 1)) if second == 0 else None, pick(rng, "NONE", "LOGISTIC")
    else:
        some = rng.random() < 0.5
        each = lambda: rng.permutation(classes)[: rng.integers(1, classes + 1)] if some else range(classes)
        entries = [(t, i, int(c), floats(rng, 1)[0]) for t, i in leaves for c in each()]
        base, by = pick(rng, None, floats(rng, classes)), pick(rng, *TRANSFORMS)
    lists = wide(lists | weighed("class", entries), ["nodes_values", "class_weights"], x.dtype)
    return Case(op, [x], 2, base_values=base, post_transform=by, **lists, **labels(rng, classes, "classlabels_int64s"))


@of("TreeEnsemble")
def tree_ensemble(rng, op):
    count, x, missing = sample(rng, [np.float32, np.float64])
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    modes = pick(rng, [0], [0, 6], list(range(7)))
    nodes, leaves, members, roots, targets = [], [], [], [], int(rng.integers(1, 4))

    def node(depth):
        """The position of a node or a leaf, and whether it is a leaf."""
        if depth == 0 or rng.random() < 0.2:
            leaves.append((int(rng.integers(targets)), floats(rng, 1)[0]))
            return len(leaves) - 1, 1
        at, mode = len(nodes), int(pick(rng, *modes))
        nodes.append(None)
        if mode == 6:
            members.extend([float(m) for m in rng.permutation(5)[: rng.integers(1, 4)]] + [float("nan")])
        test = (mode, int(rng.integers(count)), float(rng.integers(-2, 3)), int(rng.integers(2)))
        nodes[at] = (*test, *node(depth - 1), *node(depth - 1))
        return at, 0

    for _ in range(rng.integers(1, 4)):
        roots.append(len(nodes))
        nodes.append(None)
        yes, no = node(int(rng.integers(0, 3))), node(int(rng.integers(0, 3)))
        nodes[roots[-1]] = (0, int(rng.integers(count)), 0.5, 0, *yes, *no)
    make = lambda name, values, kind=kind: helper.make_tensor(name, kind, [len(values)], values)
    lists = {
        "nodes_modes": make("modes", [n[0] for n in nodes], TensorProto.UINT8),
        "nodes_featureids": [n[1] for n in nodes],
        "nodes_splits": make("splits", [n[2] for n in nodes]),
        "nodes_truenodeids": [n[4] for n in nodes],
        "nodes_trueleafs": [n[5] for n in nodes],
        "nodes_falsenodeids": [n[6] for n in nodes],
        "nodes_falseleafs": [n[7] for n in nodes],
        "tree_roots": roots,
        "leaf_targetids": [leaf[0] for leaf in leaves],
        "leaf_weights": make("weights", [leaf[1] for leaf in leaves]),
        "nodes_missing_value_tracks_true": [n[3] for n in nodes] if missing else None,
        "membership_values": make("members", members) if members else None,
    }
    by = 0 if targets == 1 else pick(rng, 0, 3)
    return Case(op, [x], ml=5, n_targets=targets, aggregate_function=pick(rng, None, 0, 1, 2, 3), post_transform=by, **lists)
