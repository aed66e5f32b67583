"""What `single.py` draws of each operator: its attributes, its operands, and where the batch stands in them."""

import numpy as np
from onnx import TensorProto, helper
from single import Case, Operand, constant

FLOATS = [np.float32, np.float32, np.float32, np.float64, np.float16]
TABLE = {}


def of(*ops):
    def add(draw):
        TABLE.update(dict.fromkeys(ops, draw))
        return draw

    return add


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def sizes(rng, rank):
    return [int(size) for size in rng.integers(1, 5, rank)]


def batch(rng, low=1, high=4, axis=None):
    """A shape of `low` to `high` axes, one of which is the batch: mostly the first."""
    shape = sizes(rng, rng.integers(low, high + 1))
    if axis is None:
        axis = 0 if rng.random() < 0.5 else rng.integers(len(shape))
    shape[axis] = "N"
    return shape


def axis_of(rng, shape):
    """An axis, sometimes counted from the end."""
    return int(rng.integers(-len(shape), len(shape)))


def other_than(rng, shape, taken):
    """An axis that is not `taken`, and where only that one is there, that one."""
    axes = [axis for axis in range(len(shape)) if axis != taken]
    axis = int(rng.choice(axes or [taken]))
    return axis if rng.random() < 0.5 else axis - len(shape)


def partner(rng, shape, draw="normal", dtype=np.float32):
    """An operand that broadcasts with one of `shape`, and seldom one whose rows meet all rows of the other."""
    kind = rng.integers(8)
    thin = [size if rng.random() < 0.5 else 1 for size in shape]
    if kind <= 1:
        return Operand(shape, draw, dtype)
    if kind == 2:
        return Operand([], draw, dtype, whole=rng.random() < 0.5)
    if kind == 3:
        alone = [1 if size == "N" else size for size in shape]
        return Operand(alone, draw, dtype, whole=rng.random() < 0.5)
    if kind == 4:
        tail = shape[shape.index("N") + 1 :]
        return Operand(tail, draw, dtype, whole=rng.random() < 0.5)
    if kind == 5:
        return Operand(thin, draw, dtype)
    if kind == 6:
        return Operand([2, *shape], draw, dtype)
    crossed = ["N", *[1 for _ in shape]] if rng.random() < 0.5 else [1 if size == "N" else size for size in thin]
    return Operand(crossed, draw, dtype)


def unary(draw="normal", opset=18, attributes=None, dtypes=FLOATS):
    def case(rng, op):
        given = attributes(rng) if attributes else {}
        return Case(op, [Operand(batch(rng), draw, pick(rng, *dtypes))], opset=opset, **given)

    return case


of("Relu", "Exp", "Erf", "Sin", "Cos", "Tanh", "Sinh", "Cosh", "Asinh", "Atan", "Sigmoid", "HardSwish", "Mish")(unary())
of("Softplus", "Softsign", "Floor", "Ceil")(unary())
of("Round")(unary(lambda rng, shape: rng.integers(-6, 7, shape) / 2))
of("Identity", "Neg", "Abs", "Sign")(unary(dtypes=[*FLOATS, np.int32, np.int64, np.int8]))
of("Reciprocal", "Log", "Sqrt")(unary("positive"))
of("Tan", "Asin", "Acos", "Atanh")(unary("unit"))
of("Acosh")(unary("above one"))
of("Not")(unary("bool", dtypes=[np.bool_]))
of("BitwiseNot")(unary("small", dtypes=[np.int32, np.uint8, np.int64, np.uint16]))
of("IsNaN")(unary("odd", dtypes=[np.float32, np.float16, np.float64]))
of("LeakyRelu", "Elu", "ThresholdedRelu", "Celu")(unary(attributes=lambda rng: {"alpha": pick(rng, None, 0.3, 1.5)}))
of("Swish")(unary(opset=24, attributes=lambda rng: {"alpha": pick(rng, None, 0.3, 1.5)}))
of("Gelu")(unary(opset=20, attributes=lambda rng: {"approximate": pick(rng, "none", "tanh")}))
of("HardSigmoid")(unary(attributes=lambda rng: {"alpha": pick(rng, None, 0.3), "beta": pick(rng, None, 0.1)}))
of("Selu")(unary(attributes=lambda rng: {"alpha": pick(rng, None, 0.3), "gamma": pick(rng, None, 1.1)}))
of("Shrink")(unary(attributes=lambda rng: {"bias": pick(rng, None, 0.3), "lambd": pick(rng, None, 0.7)}))
of("IsInf")(
    unary("odd", 20, lambda rng: {"detect_negative": pick(rng, 0, 1), "detect_positive": pick(rng, 0, 1)}, [np.float32, np.float64])
)


def binary(draw="normal", dtypes=(*FLOATS, np.int32, np.int64), other=None, opset=18):
    def case(rng, op):
        shape, dtype = batch(rng), pick(rng, *dtypes)
        a, b = Operand(shape, draw, dtype), partner(rng, shape, other or draw, dtype)
        swapped = op != "PRelu" and rng.random() < 0.3
        return Case(op, [b, a] if swapped else [a, b], opset=opset)

    return case


of("Add", "Sub", "Mul")(binary())
of("Div", "Pow")(binary("positive", FLOATS))
of("PRelu")(binary(dtypes=FLOATS))
of("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")(binary("ties", [np.float32, np.int64, np.int32, np.float64]))
of("And", "Or", "Xor")(binary("bool", [np.bool_]))
of("BitwiseAnd", "BitwiseOr", "BitwiseXor")(binary("small", [np.int32, np.uint8, np.int64]))


@of("BitShift")
def bit_shift(rng, op):
    shape, dtype = batch(rng), pick(rng, np.uint8, np.uint32, np.uint64)
    return Case(op, [Operand(shape, "small", dtype), partner(rng, shape, "small", dtype)], direction=pick(rng, "LEFT", "RIGHT"))


@of("Mod")
def mod(rng, op):
    shape, fmod = batch(rng), int(rng.integers(2))
    dtype = pick(rng, np.float32, np.int64) if fmod else pick(rng, np.int64, np.int32)
    divisor = partner(rng, shape, lambda rng, shape: rng.choice([-3, -2, 2, 3, 5], shape), dtype)
    return Case(op, [Operand(shape, "normal", dtype), divisor], fmod=fmod)


@of("Sum", "Mean", "Max", "Min")
def variadic(rng, op):
    shape, dtype = batch(rng), pick(rng, np.float32, np.float32, np.float64)
    return Case(op, [Operand(shape, "normal", dtype), *(partner(rng, shape, "normal", dtype) for _ in range(rng.integers(3)))])


@of("Where")
def where(rng, op):
    shape = batch(rng)
    dtype = pick(rng, np.float32, np.int64)
    return Case(op, [partner(rng, shape, "bool", np.bool_), Operand(shape, "normal", dtype), partner(rng, shape, "normal", dtype)])


@of("Clip")
def clip(rng, op):
    low = pick(rng, None, constant(-0.5, np.float32), Operand([], "unit", whole=True))
    high = pick(rng, None, constant(0.6, np.float32))
    return Case(op, [Operand(batch(rng)), low, high])


@of("Cast")
def cast(rng, op):
    to = pick(rng, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16)
    dtype = pick(rng, np.float32, np.int64, np.float64, np.uint8)
    return Case(op, [Operand(batch(rng), "normal" if to != TensorProto.BOOL else "ties", dtype)], to=to)


@of("CastLike")
def cast_like(rng, op):
    like = pick(rng, Operand(batch(rng), "normal", np.int64), constant([1.0], np.float64))
    return Case(op, [Operand(batch(rng)), like])


@of("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
def reduce(rng, op):
    shape = batch(rng)
    count = rng.integers(0, len(shape) + 1)
    axes = [int(a) if rng.random() < 0.5 else int(a) - len(shape) for a in rng.permutation(len(shape))[:count]]
    dtypes = [np.float32, np.float32, np.float64]
    dtypes += [np.int64, np.int32] if op in ["ReduceSum", "ReduceMax", "ReduceMin"] else []
    draw = "positive" if op in ["ReduceLogSum", "ReduceProd", "ReduceMean"] else "normal"
    keepdims, noop = pick(rng, None, 0, 1), pick(rng, None, 0, 1)
    return Case(op, [Operand(shape, draw, pick(rng, *dtypes)), constant(axes)], keepdims=keepdims, noop_with_empty_axes=noop)


@of("ArgMax", "ArgMin")
def arg(rng, op):
    shape = batch(rng)
    last, keepdims = pick(rng, None, 0, 1), pick(rng, None, 0, 1)
    return Case(op, [Operand(shape, "ties", pick(rng, np.float32, np.float64, np.int32))], axis=axis_of(rng, shape), keepdims=keepdims, select_last_index=last)


@of("Softmax", "LogSoftmax", "Hardmax")
def softmax(rng, op):
    shape, opset = batch(rng), pick(rng, 11, 13, 18)
    return Case(op, [Operand(shape, "apart" if op == "Hardmax" else "normal")], opset=opset, axis=axis_of(rng, shape))


@of("CumSum", "CumProd")
def running(rng, op):
    shape = batch(rng)
    axis = constant(axis_of(rng, shape), pick(rng, np.int64, np.int32))
    dtype = pick(rng, np.float32, np.float64, np.int64)
    flags = {"exclusive": pick(rng, None, 0, 1), "reverse": pick(rng, None, 0, 1)}
    return Case(op, [Operand(shape, "positive" if op == "CumProd" else "normal", dtype), axis], opset=18 if op == "CumSum" else 26, **flags)


@of("BitCast")
def bits(rng, op):
    types = pick(rng, (np.float32, np.int32), (np.int64, np.float64), (np.float16, np.uint16), (np.int8, np.uint8))
    of, to = types if rng.random() < 0.5 else types[::-1]
    # No bits of integers this small are those of a NaN, whose payload a runtime may change.
    return Case(op, [Operand(batch(rng), dtype=of)], opset=26, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


@of("DFT")
def spectrum(rng, op):
    """Of real or complex numbers, along an axis before the last, which holds their parts."""
    shape = [*batch(rng, low=2, axis=0), pick(rng, 1, 2)]
    axis = int(rng.integers(1, len(shape) - 1))
    inverse = pick(rng, None, 0, 1)
    mirrored = shape[-1] == 1 and not inverse and rng.random() < 0.5
    length = constant(int(rng.integers(1, 7))) if rng.random() < 0.5 else None
    operand = Operand(shape, dtype=pick(rng, np.float32, np.float64))
    flags = {"inverse": inverse, "onesided": 1 if mirrored else None}
    place = axis - len(shape) if rng.random() < 0.5 else axis
    if rng.random() < 0.5:
        return Case(op, [operand] if length is None else [operand, length], opset=17, axis=axis, **flags)
    return Case(op, [operand, length, constant(place)], opset=20, **flags)


@of("TopK")
def top_k(rng, op):
    shape = batch(rng)
    axis = axis_of(rng, shape)
    k = 1 if shape[axis] == "N" else int(rng.integers(1, shape[axis] + 1))
    draw = pick(rng, "apart", "ties")
    return Case(op, [Operand(shape, draw), constant([k])], 2, axis=axis, largest=pick(rng, None, 0, 1), sorted=1)


@of("Concat")
def concat(rng, op):
    shape = batch(rng)
    axis = axis_of(rng, shape)
    operands = []
    for _ in range(rng.integers(1, 4)):
        own = list(shape)
        if own[axis] != "N" or rng.random() < 0.3:
            own[axis] = int(rng.integers(1, 4))
        operands.append(Operand(own, whole=rng.random() < 0.5))
    if not any("N" in operand.shape for operand in operands):
        operands.append(Operand(shape))
    return Case(op, operands, axis=axis)


@of("Split")
def split(rng, op):
    shape = batch(rng, 2)
    axis = other_than(rng, shape, shape.index("N"))
    parts = sizes(rng, rng.integers(1, 4))
    shape[axis] = sum(parts)
    if rng.random() < 0.5:
        return Case(op, [Operand(shape), constant(parts)], len(parts), axis=axis)
    shape[axis] = 5
    return Case(op, [Operand(shape)], 3, axis=axis, num_outputs=3)


@of("Slice")
def slice_(rng, op):
    shape = batch(rng)
    axes = [int(a) for a in rng.permutation(len(shape))[: rng.integers(1, len(shape) + 1)]]
    axes = [a for a in axes if shape[a] != "N" or rng.random() < 0.4] or [0]
    steps = [int(rng.choice([1, 1, 2, -1, -2])) for _ in axes]
    starts = [int(rng.integers(-3, 4)) if rng.random() < 0.6 else (-1 if s < 0 else 0) for s in steps]
    ends = [int(rng.integers(-3, 4)) if rng.random() < 0.5 else (-(2**31) if s < 0 else 2**31 - 1) for s in steps]
    axes = [a if rng.random() < 0.5 else a - len(shape) for a in axes]
    return Case(op, [Operand(shape), *map(constant, [starts, ends, axes, steps])])


@of("Pad")
def pad(rng, op):
    shape, mode = batch(rng), pick(rng, "constant", "constant", "edge", "reflect", "wrap")
    axes = [a for a in range(len(shape)) if shape[a] != "N" or rng.random() < 0.2]
    axes = axes or [0]
    shape = [size if size == "N" else size + 2 for size in shape]
    low = -1 if mode == "constant" else 0
    pads = [int(p) for p in rng.integers(low, 3, 2 * len(axes))]
    value = pick(rng, None, constant(1.5, np.float32)) if mode == "constant" else None
    axes = [a if rng.random() < 0.5 else a - len(shape) for a in axes]
    return Case(op, [Operand(shape), constant(pads), value, constant(axes)], opset=19, mode=mode)


def numbers(low, high):
    return lambda rng, shape: rng.integers(low, high, shape)


@of("Gather")
def gather(rng, op):
    if rng.random() < 0.4:
        table, index = sizes(rng, 3), batch(rng, 1, 2)
        axis = int(rng.integers(3))
        return Case(op, [Operand(table, whole=rng.random() < 0.3), Operand(index, numbers(-table[axis], table[axis]), np.int64)], axis=axis)
    shape = batch(rng)
    axis = axis_of(rng, shape)
    # Of the batch only the first and the last are always there.
    draw = numbers(-1, 1) if shape[axis] == "N" else numbers(-shape[axis], shape[axis])
    index = pick(rng, Operand([], draw, np.int64), Operand(sizes(rng, 2), draw, np.int64), Operand([3], draw, np.int32, whole=True))
    if shape[axis] != "N" and rng.random() < 0.3:
        index = Operand(["N", 2], draw, np.int64)
    return Case(op, [Operand(shape), index], axis=axis)


@of("Compress")
def compress(rng, op):
    shape = batch(rng, 2)
    axis = other_than(rng, shape, shape.index("N"))
    size = shape[axis]
    holds = constant(rng.integers(0, 2, rng.integers(1, size + 1)), np.bool_)
    return Case(op, [Operand(shape, "normal", pick(rng, np.float32, np.int64)), holds], axis=axis)


@of("NonZero")
def non_zero(rng, op):
    return Case(op, [constant(rng.integers(-1, 2, sizes(rng, rng.integers(1, 4))), pick(rng, np.float32, np.int64))])


@of("OptionalHasElement", "OptionalGetElement")
def optional(rng, op):
    return Case(op, [Operand(batch(rng))])


def elements(rng, shape, axis):
    """The shape of indices into the elements of an axis, and how they are drawn."""
    index = list(shape)
    if shape[axis] == "N":
        return index, numbers(-1, 1)
    index[axis] = int(rng.integers(1, 5))
    return index, numbers(-shape[axis], shape[axis])


@of("GatherElements")
def gather_elements(rng, op):
    shape = batch(rng)
    axis = axis_of(rng, shape)
    index, draw = elements(rng, shape, axis)
    return Case(op, [Operand(shape), Operand(index, draw, pick(rng, np.int64, np.int32))], axis=axis)


def each_once(size, axis):
    """Draws indices that name each of the `size` entries of an axis once."""

    def draw(rng, shape):
        at = axis % len(shape)
        order = np.broadcast_to(np.arange(size).reshape([-1 if a == at else 1 for a in range(len(shape))]), shape)
        return rng.permuted(order, axis=at)

    return draw


@of("ScatterElements", "Scatter")
def scatter_elements(rng, op):
    shape = batch(rng)
    axis = other_than(rng, shape, shape.index("N"))
    reduction = "none" if op == "Scatter" else pick(rng, "none", "add", "mul", "max", "min")
    index, draw = elements(rng, shape, axis)
    if reduction == "none" and shape[axis] == "N":
        index[axis], draw = 1, numbers(0, 1)
    elif reduction == "none":
        index[axis], draw = shape[axis], each_once(shape[axis], axis)
    opset, given = (10, {}) if op == "Scatter" else (18, {"reduction": reduction})
    return Case(op, [Operand(shape), Operand(index, draw, np.int64, whole=True), Operand(index, whole=True)], opset=opset, axis=axis, **given)


@of("GatherND")
def gather_nd(rng, op):
    dims = int(rng.integers(0, 2))
    shape = [*sizes(rng, 3)]
    if dims:
        shape[0] = "N"
        index = ["N", *sizes(rng, rng.integers(0, 2)), 1]
        return Case(op, [Operand(shape), Operand(index, numbers(-shape[1], shape[1]), np.int64)], batch_dims=1)
    if rng.random() < 0.5:
        return Case(op, [Operand(shape, whole=rng.random() < 0.5), Operand(["N", 2, 1], numbers(-shape[0], shape[0]), np.int64)])
    data = ["N", 3]
    return Case(op, [Operand(data), constant([[0, 1], [-1, 2]])])


@of("ScatterND")
def scatter_nd(rng, op):
    rows = int(rng.integers(2, 5))
    shape, reduction = [rows, 3], pick(rng, "none", "add", "max", "min", "mul")
    if pick(rng, True, False):
        # The batch is behind what indices say.
        shape, rows = [rows, "N"], int(rng.integers(1, rows + 1))
        index = lambda rng, dims: rng.permutation(shape[0])[: dims[0]].reshape(dims)
        return Case(op, [Operand(shape), Operand([rows, 1], index, np.int64), Operand([rows, "N"])], reduction=reduction)
    reduction = "add" if reduction == "none" else reduction
    return Case(op, [Operand(shape, whole=True), Operand(["N", 1], numbers(0, rows), np.int64), Operand(["N", 3])], reduction=reduction)


@of("OneHot")
def one_hot(rng, op):
    shape = batch(rng, 1, 3)
    dtype = pick(rng, np.int64, np.int64, np.int32)
    values = constant([0.5, 2.0], np.float32) if rng.random() < 0.5 else Operand([2], "normal", whole=True)
    axis = int(rng.integers(-len(shape) - 1, len(shape) + 1))
    return Case(op, [Operand(shape, numbers(-4, 5), dtype), constant(4), values], axis=axis)


@of("EyeLike")
def eye_like(rng, op):
    shape = pick(rng, ["N", 3], [3, "N"], [4, 3])
    return Case(op, [Operand(shape, whole=True)], k=int(rng.integers(-2, 3)), dtype=pick(rng, None, TensorProto.INT64))


@of("CenterCropPad")
def center_crop_pad(rng, op):
    shape = batch(rng, 2)
    axes = [a for a in range(len(shape)) if shape[a] != "N"]
    return Case(op, [Operand(shape), constant([int(rng.integers(1, 7)) for _ in axes])], axes=axes)


def groups(rng, shape):
    """The axes in groups of neighbours."""
    found = [[shape[0]]]
    for size in shape[1:]:
        if rng.random() < 0.5:
            found.append([])
        found[-1].append(size)
    return found


@of("Reshape")
def reshape(rng, op):
    shape = batch(rng, 2)
    target = []
    for group in groups(rng, shape):
        if rng.random() < 0.2:
            target.append(1)
        target.append(-1 if "N" in group else int(np.prod(group)))
    if rng.random() < 0.3 and shape[0] == "N":
        target = [0, -1]
    return Case(op, [Operand(shape), constant(target)], opset=pick(rng, 13, 18))


@of("Flatten")
def flatten(rng, op):
    shape = batch(rng)
    return Case(op, [Operand(shape)], axis=int(rng.integers(-len(shape), len(shape) + 1)))


@of("Squeeze")
def squeeze(rng, op):
    shape = batch(rng)
    at = int(rng.integers(len(shape) + 1))
    shape.insert(at, 1)
    return Case(op, [Operand(shape), constant([at if rng.random() < 0.5 else at - len(shape)])])


@of("Unsqueeze")
def unsqueeze(rng, op):
    shape = batch(rng)
    return Case(op, [Operand(shape), constant(pick(rng, [0], [-1], [1], [0, 2]))])


@of("Transpose")
def transpose(rng, op):
    shape = batch(rng)
    return Case(op, [Operand(shape)], perm=pick(rng, None, [int(a) for a in rng.permutation(len(shape))]))


@of("Expand")
def expand(rng, op):
    shape = batch(rng)
    wide = [int(rng.integers(1, 4)) if size == 1 else 1 for size in shape]
    return Case(op, [Operand(shape), constant([*pick(rng, [], [1], [2]), *wide])])


@of("Tile")
def tile(rng, op):
    shape = batch(rng)
    return Case(op, [Operand(shape), constant([int(rng.integers(1, 3)) if size != "N" or rng.random() < 0.2 else 1 for size in shape])])


@of("Shape")
def shape_(rng, op):
    return Case(op, [Operand(batch(rng))], start=pick(rng, None, 0, 1, -1), end=pick(rng, None, 2, -1))


of("Size")(unary())


@of("Constant")
def constant_(rng, op):
    return Case(op, [], **pick(rng, {"value_float": 1.5}, {"value_ints": [3, 4]}, {"value_floats": [0.5, 2.0]}, {"value_int": 4}))


@of("ConstantOfShape")
def constant_of_shape(rng, op):
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [2.5])
    if rng.random() < 0.3:
        return Case(op, [constant(sizes(rng, 2))], value=value)
    before = [helper.make_node("Shape", ["rows"], ["sizes"])]
    return Case(op, ["sizes"], before=before, value=pick(rng, None, value))


@of("Range")
def range_(rng, op):
    if rng.random() < 0.5:
        ends, dtype = pick(rng, ((1, 9, 2), np.int64), ((3, -4, -3), np.int32), ((0.5, 3.0, 0.5), np.float32))
        return Case(op, [constant(x, dtype) for x in ends])
    before = [
        helper.make_node("Shape", ["rows"], ["vector"], start=0, end=1),
        helper.make_node("Squeeze", ["vector"], ["count"]),
    ]
    return Case(op, [constant(0), "count", constant(int(rng.integers(1, 3)))], before=before)


@of("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def losses(rng, op):
    shape = ["N", *sizes(rng, rng.integers(1, 4))]
    named = Operand([shape[0], *shape[2:]], numbers(0, shape[1]), pick(rng, np.int64, np.int32))
    weights = [Operand([shape[1]], "positive")] if rng.random() < 0.5 else []
    outputs = pick(rng, 1, 2) if op == "SoftmaxCrossEntropyLoss" else 1
    settings = {"ignore_index": pick(rng, None, 0, -1), "reduction": pick(rng, None, "none", "none", "sum", "mean")}
    return Case(op, [Operand(shape), named, *weights], outputs=outputs, **settings)
