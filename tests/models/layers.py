"""What `single.py` draws of the operators that layers are made of; `operators.py` has the others."""

import numpy as np
from onnx import TensorProto, helper
from operators import axis_of, batch, numbers, of, pick, sizes
from single import Operand, constant
from single import Case as Node


def weights(rng, shape, draw="normal", dtype=np.float32):
    """A constant, or seldom an input without a batch."""
    return Operand(shape, draw, dtype, whole=rng.random() < 0.3)


def images(rng, channels, low=4, high=8, axes=None):
    """The shape of a batch of images; seldom the batch is not where it belongs."""
    axes = int(rng.integers(1, 3)) if axes is None else axes
    shape = ["N", channels, *(int(size) for size in rng.integers(low, high, axes))]
    if axes > 0 and rng.random() < 0.1:
        shape[0], shape[-1] = 2, "N"
    return shape


def windows(rng, axes, pads=True):
    given = {"strides": pick(rng, None, [int(s) for s in rng.integers(1, 3, axes)])}
    if not pads:
        return given
    automatic = pick(rng, None, None, None, "SAME_UPPER", "SAME_LOWER", "VALID")
    if automatic:
        return given | {"auto_pad": automatic}
    return given | {"pads": pick(rng, None, [int(p) for p in rng.integers(0, 2, 2 * axes)])}


def convolution(rng):
    """Channels, the kernel's shape and the attributes of a convolution."""
    groups, axes = pick(rng, 1, 1, 2, 3), int(rng.integers(1, 3))
    channels, made = groups * int(rng.integers(1, 3)), groups * int(rng.integers(1, 3))
    kernel = [int(k) for k in rng.integers(1, 4, axes)]
    given = windows(rng, axes) | {"group": groups}
    if "auto_pad" not in given:
        given["dilations"] = pick(rng, None, [int(d) for d in rng.integers(1, 3, axes)])
    return channels, [made, channels // groups, *kernel], given


@of("Conv")
def conv(rng, op):
    channels, kernel, given = convolution(rng)
    bias = weights(rng, kernel[:1]) if rng.random() < 0.5 else None
    x = images(rng, channels, 5, axes=len(kernel) - 2)
    return Node(op, [Operand(x), weights(rng, kernel), bias], **given)


@of("ConvTranspose")
def conv_transpose(rng, op):
    groups, axes = pick(rng, 1, 2), int(rng.integers(1, 3))
    channels = groups * int(rng.integers(1, 3))
    kernel = [channels, int(rng.integers(1, 3)), *(int(k) for k in rng.integers(2, 4, axes))]
    strides = [int(s) for s in rng.integers(2, 4, axes)]
    pads = pick(rng, None, [int(p) for p in rng.integers(0, 2, 2 * axes)])
    given = {"strides": strides, "group": groups, "output_padding": pick(rng, None, [1] * axes)}
    return Node(op, [Operand(images(rng, channels, 3, 6, axes)), weights(rng, kernel)], pads=pads, **given)


@of("ConvInteger")
def conv_integer(rng, op):
    channels, kernel, given = convolution(rng)
    x = Operand(images(rng, channels, 5, axes=len(kernel) - 2), "small", np.uint8)
    zero = pick(rng, None, constant(3, np.uint8))
    return Node(op, [x, weights(rng, kernel, "small", np.uint8), zero], **given)


@of("QLinearConv")
def q_linear_conv(rng, op):
    channels, kernel, given = convolution(rng)
    x = Operand(images(rng, channels, 5, axes=len(kernel) - 2), "small", np.uint8)
    # Scales that are powers of two leave no rounding to be done another way.
    operands = [x, constant(0.5, np.float32), constant(2, np.uint8), weights(rng, kernel, "small", np.uint8)]
    operands += [constant(0.25, np.float32), constant(1, np.uint8), constant(0.5, np.float32), constant(100, np.uint8)]
    return Node(op, operands, **given)


@of("MatMulInteger")
def matmul_integer(rng, op):
    zero = pick(rng, None, constant(3, np.uint8))
    return Node(op, [Operand(["N", *sizes(rng, pick(rng, 0, 1)), 4], "small", np.uint8), weights(rng, [4, 3], "small", np.uint8), zero])


@of("QLinearMatMul")
def q_linear_matmul(rng, op):
    operands = [Operand(["N", *sizes(rng, pick(rng, 0, 1)), 4], "small", np.uint8), constant(0.5, np.float32), constant(2, np.uint8)]
    operands += [weights(rng, [4, 3], "small", np.uint8), constant(0.25, np.float32), constant(1, np.uint8)]
    return Node(op, [*operands, constant(0.5, np.float32), constant(100, np.uint8)])


def halves(rng, shape):
    """Numbers that are scaled by 0.25 without a rounding, and no halves of it."""
    return rng.integers(-80, 80, shape) / 4


@of("QuantizeLinear")
def quantize(rng, op):
    shape, dtype = batch(rng, 2), pick(rng, np.uint8, np.int8)
    axis = axis_of(rng, shape)
    if shape[axis] == "N" or rng.random() < 0.5:
        return Node(op, [Operand(shape, halves), constant(0.25, np.float32), constant(3, dtype)], opset=13)
    scale = constant(rng.choice([0.25, 0.125], shape[axis]), np.float32)
    return Node(op, [Operand(shape, halves), scale, constant(rng.integers(0, 5, shape[axis]), dtype)], opset=13, axis=axis)


@of("DequantizeLinear")
def dequantize(rng, op):
    shape, dtype = batch(rng, 2), pick(rng, np.uint8, np.int8)
    axis = axis_of(rng, shape)
    if shape[axis] == "N" or rng.random() < 0.5:
        return Node(op, [Operand(shape, "small", dtype), constant(0.3, np.float32), constant(3, dtype)], opset=13)
    scale = weights(rng, [shape[axis]])
    return Node(op, [Operand(shape, "small", dtype), scale, constant(rng.integers(0, 5, shape[axis]), dtype)], opset=13, axis=axis)


@of("DynamicQuantizeLinear")
def dynamic_quantize(rng, op):
    return Node(op, [Operand(batch(rng))], 3, tolerance=0.01)


@of("MaxPool", "AveragePool", "LpPool")
def pool(rng, op):
    shape = images(rng, int(rng.integers(1, 4)), 5)
    axes = len(shape) - 2
    given = windows(rng, axes) | {"kernel_shape": [int(k) for k in rng.integers(2, 4, axes)]}
    if op == "LpPool":
        given["p"] = pick(rng, None, 1, 3)
    elif "auto_pad" not in given and "pads" not in given:
        given["ceil_mode"] = pick(rng, None, 0, 1)
    if op == "AveragePool":
        given["count_include_pad"] = pick(rng, None, 0, 1)
    outputs = pick(rng, 1, 2) if op == "MaxPool" else 1
    return Node(op, [Operand(shape, "apart")], outputs, **given)


@of("MaxUnpool")
def max_unpool(rng, op):
    length = int(rng.integers(2, 4))
    # The indices of pools number the elements of all samples.
    places = lambda rng, shape: np.arange(shape[0])[:, None, None] * 2 * length + 2 * np.arange(length) + rng.integers(0, 2, shape)
    return Node(op, [Operand(["N", 1, length]), Operand(["N", 1, length], places, np.int64)], kernel_shape=[2], strides=[2])


@of("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(rng, op):
    shape = images(rng, 3) if rng.random() < 0.7 else [2, *batch(rng, 2, 3)]
    return Node(op, [Operand(shape)], **({"p": pick(rng, 1, 3)} if op == "GlobalLpPool" else {}))


@of("LRN")
def lrn(rng, op):
    return Node(op, [Operand(images(rng, 6, axes=2))], size=pick(rng, 1, 3, 5), alpha=0.5, beta=pick(rng, None, 0.6), bias=pick(rng, None, 2.0))


@of("Gemm")
def gemm(rng, op):
    flipped, turned = int(rng.random() < 0.2), int(rng.integers(2))
    # Time and again the batch is what is summed over, or both operands have it.
    a, b = (["N", 3], [3, 4]) if rng.random() < 0.7 else pick(rng, ([3, "N"], ["N", 4]), (["N", 3], [3, "N"]), ([3, 4], [4, "N"]))
    a, b, rows = (a[::-1] if flipped else a), (b[::-1] if turned else b), a[0]
    c = pick(rng, None, weights(rng, []), weights(rng, [1]), Operand([rows, 1]), weights(rng, [4]) if b[1 - turned] == 4 else None)
    return Node(op, [Operand(a), Operand(b, whole=rng.random() < 0.3), c], transA=flipped, transB=turned, alpha=pick(rng, None, 0.5), beta=pick(rng, None, 2.0))


@of("MatMul")
def matmul(rng, op):
    head = [[], [2], [3, 2]][rng.integers(3)]
    a, b = pick(
        rng, (["N", *head, 3, 4], [4, 2]), (["N", 3, 4], ["N", 4, 2]), (["N", 4], [4]), ([3, 4], [*head, 4, "N"]), ([2, "N", 4], [2, 4, 3]),
        (["N", 4], [4, "N"]), ([3, "N"], ["N", 2]), (["N"], ["N", 3]), (["N", 1, 3, 4], [2, 4, 5]), ([*head, "N", 4], [4, 3]),
    )
    dtype = pick(rng, np.float32, np.float64, np.float32)
    return Node(op, [Operand(a, "normal", dtype), Operand(b, "normal", dtype, whole=rng.random() < 0.3)])


@of("Einsum")
def einsum(rng, op):
    equation, shapes = pick(
        rng, ("bij,bjk->bik", [["N", 2, 3], ["N", 3, 4]]), ("bi,ij->bj", [["N", 3], [3, 2]]), ("bi,bj->ij", [["N", 3], ["N", 2]]),
        ("bi,cj->bc", [["N", 3], [4, 3]]), ("ibj,jk->bik", [[2, "N", 3], [3, 4]]), ("bi->b", [["N", 3]]), ("bi->i", [["N", 3]]),
        ("ab,cb->ac", [["N", 3], ["N", 3]]), ("...i,ij->...j", [["N", 2, 3], [3, 2]]), ("bii->bi", [["N", 3, 3]]),
    )
    return Node(op, [Operand(shape, whole=rng.random() < 0.5) for shape in shapes], equation=equation)


@of("BatchNormalization")
def batch_norm(rng, op):
    shape = images(rng, 3, axes=int(rng.integers(0, 3)))
    training = int(rng.random() < 0.5)
    operands = [Operand(shape), *(weights(rng, [3], "positive") for _ in range(4))]
    return Node(op, operands, 3 if training else 1, epsilon=0.1, momentum=pick(rng, None, 0.7), training_mode=training)


@of("InstanceNormalization")
def instance_norm(rng, op):
    return Node(op, [Operand(images(rng, 3)), weights(rng, [3]), weights(rng, [3])], epsilon=0.1)


@of("GroupNormalization")
def group_norm(rng, op):
    return Node(op, [Operand(images(rng, 6)), weights(rng, [6]), weights(rng, [6])], opset=21, num_groups=pick(rng, 1, 2, 3), epsilon=0.1)


@of("LayerNormalization", "RMSNormalization")
def layer_norm(rng, op):
    shape = batch(rng, 2, axis=pick(rng, 0, 0, 1))
    axis = int(rng.integers(0, len(shape)))
    if "N" in shape[axis:]:
        axis = min(shape.index("N") + 1, len(shape) - 1)
    row = [1 if size == "N" else size for size in shape[axis:]]
    shift = [weights(rng, row)] if op == "LayerNormalization" and rng.random() < 0.5 else []
    axis = axis if rng.random() < 0.5 else axis - len(shape)
    return Node(op, [Operand(shape), weights(rng, row), *shift], opset=17 if shift or op != "RMSNormalization" else 23, axis=axis, epsilon=0.1)


@of("LpNormalization")
def lp_norm(rng, op):
    shape = batch(rng)
    return Node(op, [Operand(shape)], axis=axis_of(rng, shape), p=pick(rng, 1, 2))


@of("MeanVarianceNormalization")
def mean_variance(rng, op):
    # Of a single element the deviation is a matter of rounding.
    some = [size + 1 for size in sizes(rng, 3)]
    shape = ["N", *some] if rng.random() < 0.7 else [*some[:2], "N", 3]
    return Node(op, [Operand(shape)], axes=pick(rng, None, [1, 2, 3], [2, 3], [0, 1]), opset=13)


@of("DepthToSpace", "SpaceToDepth")
def blocks(rng, op):
    shape = pick(rng, ["N", 8, 2, 3], ["N", 4, 3, 1]) if op == "DepthToSpace" else ["N", 3, 4, 6]
    return Node(op, [Operand(shape)], blocksize=2, mode=pick(rng, None, "DCR", "CRD") if op == "DepthToSpace" else None)


@of("Resize")
def resize(rng, op):
    shape, mode = images(rng, 2, 3, 6, axes=2), pick(rng, "nearest", "linear", "cubic")
    scales = constant([1, 1, *rng.choice([0.6, 1.5, 2.0], 2)], np.float32)
    coordinates = pick(rng, None, "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    return Node(op, [Operand(shape), None, scales], mode=mode, coordinate_transformation_mode=coordinates)


@of("Upsample")
def upsample(rng, op):
    scales = constant([1, 1, *rng.choice([1.0, 2.0, 3.0], 2)], np.float32)
    return Node(op, [Operand(images(rng, 2, 2, 5, axes=2)), scales], opset=9, mode=pick(rng, "nearest", "linear"))


@of("Col2Im")
def col2im(rng, op):
    stride = pick(rng, 1, 2)
    count = ((6 - 2) // stride + 1) ** 2
    return Node(op, [Operand(["N", 8, count]), constant([6, 6]), constant([2, 2])], strides=[stride, stride])


@of("GridSample")
def grid_sample(rng, op):
    mode, padding = pick(rng, "linear", "nearest", "cubic"), pick(rng, "zeros", "border", "reflection")
    # Away from the middles between pixels, where neighbours of nearest ones change.
    grid = lambda rng, shape: rng.uniform(-1.1, 1.1, shape)
    return Node(op, [Operand(["N", 2, 4, 5]), Operand(["N", 3, 2, 2], grid)], opset=20, mode=mode, padding_mode=padding, align_corners=pick(rng, 0, 1))


@of("AffineGrid")
def affine_grid(rng, op):
    before = [
        helper.make_node("Shape", ["x0"], ["count"], start=0, end=1),
        helper.make_node("Constant", [], ["others"], value_ints=[2, 3, 4]),
        helper.make_node("Concat", ["count", "others"], ["sizes"], axis=0),
    ]
    return Node(op, [Operand(["N", 2, 3]), "sizes"], opset=20, before=before, align_corners=pick(rng, 0, 1))


@of("Trilu")
def trilu(rng, op):
    k = pick(rng, None, constant(int(rng.integers(-2, 3))))
    return Node(op, [Operand(batch(rng, 2)), k], upper=pick(rng, None, 0, 1))


@of("ReverseSequence")
def reverse_sequence(rng, op):
    first = int(rng.integers(2))
    shape = ["N", 5, 2] if first else [5, "N", 2]
    return Node(op, [Operand(shape), Operand(["N"], numbers(1, 6), np.int64)], batch_axis=1 - first, time_axis=first)


@of("LSTM", "GRU", "RNN")
def recurrent(rng, op):
    gates, hidden, size = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 3, 2
    direction = pick(rng, "forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    operands = [Operand([4, "N", size]), weights(rng, [ways, gates * hidden, size]), weights(rng, [ways, gates * hidden, hidden])]
    operands.append(weights(rng, [ways, 2 * gates * hidden]) if rng.random() < 0.5 else None)
    operands.append(Operand(["N"], numbers(1, 5), np.int32) if rng.random() < 0.4 else None)
    state = lambda: Operand([ways, "N", hidden]) if rng.random() < 0.4 else None
    operands += [state(), state(), weights(rng, [ways, 3 * hidden]) if rng.random() < 0.3 else None] if op == "LSTM" else [state()]
    given = {"linear_before_reset": pick(rng, None, 0, 1)} if op == "GRU" else {}
    return Node(op, operands, 3 if op == "LSTM" else 2, hidden_size=hidden, direction=direction, clip=pick(rng, None, 0.5), **given)


@of("Attention")
def attention(rng, op):
    heads, length, keys, size = pick(rng, 1, 2), 3, 4, 2
    shape = lambda length: ["N", heads, length, size] if flat is None else ["N", length, heads * size]
    flat = pick(rng, None, heads)
    mask = pick(rng, None, Operand([length, keys], "bool", np.bool_, whole=True), Operand(["N", 1, length, keys]), Operand([1, 1, length, keys]))
    if mask is not None and mask.dtype == np.bool_:
        # Each query sees the first key.
        mask.draw = lambda rng, shape: np.concatenate([np.ones([*shape[:-1], 1]), rng.integers(0, 2, [*shape[:-1], shape[-1] - 1])], -1)
    causal = pick(rng, 0, 1) if mask is None else None
    given = {"q_num_heads": flat, "kv_num_heads": flat, "is_causal": causal, "softcap": pick(rng, None, 2.0), "scale": pick(rng, None, 0.3)}
    return Node(op, [Operand(shape(length)), Operand(shape(keys)), Operand(shape(keys)), mask], opset=23, **given)


@of("RotaryEmbedding")
def rotary(rng, op):
    flat = rng.random() < 0.5
    x = Operand(["N", 3, 8] if flat else ["N", 2, 3, 4])
    angles = [weights(rng, [6, 2]) for _ in range(2)]
    positions = Operand(["N", 3], numbers(0, 6), np.int64)
    return Node(op, [x, *angles, positions], opset=23, num_heads=2 if flat else None, interleaved=pick(rng, 0, 1))


@of("CausalConvWithState")
def causal_conv(rng, op):
    channels, taps, length = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
    past = Operand(["N", channels, taps - 1]) if rng.random() < 0.5 else None
    bias = weights(rng, [channels]) if rng.random() < 0.5 else None
    operands = [Operand(["N", channels, length]), weights(rng, [channels, 1, taps]), bias, past]
    return Node(op, operands, 2, opset=27, activation=pick(rng, None, "silu", "swish", "none"))


@of("TensorScatter")
def tensor_scatter(rng, op):
    shape, axis = ["N", *sizes(rng, pick(rng, 1, 2)), 5, 2], -2
    if rng.random() < 0.3:
        shape, axis = ["N", 5, *sizes(rng, 2)], 1
    added = list(shape)
    added[axis] = int(rng.integers(1, 4))
    circular = rng.random() < 0.5
    places = pick(rng, None, Operand(["N"], numbers(0, 9 if circular else 6 - added[axis]), np.int64))
    return Node(op, [Operand(shape), Operand(added), places], opset=24, axis=axis, mode="circular" if circular else None)


@of("DeformConv")
def deform_conv(rng, op):
    groups, of_offsets = pick(rng, 1, 2), pick(rng, 1, 2)
    channels, made = 2 * int(rng.integers(1, 3)), groups * int(rng.integers(1, 3))
    kernel, image = [int(k) for k in rng.integers(1, 4, 2)], [int(size) for size in rng.integers(6, 9, 2)]
    strides, dilations = [int(s) for s in rng.integers(1, 3, 2)], [int(d) for d in rng.integers(1, 3, 2)]
    pads = [int(p) for p in rng.integers(0, 2, 4)]
    out = [(image[i] + pads[i] + pads[i + 2] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1 for i in range(2)]
    taps = of_offsets * kernel[0] * kernel[1]
    mask = Operand(["N", taps, *out]) if rng.random() < 0.5 else None
    bias = weights(rng, [made]) if rng.random() < 0.5 else None
    operands = [Operand(["N", channels, *image]), weights(rng, [made, channels // groups, *kernel])]
    operands += [Operand(["N", 2 * taps, *out], lambda rng, shape: rng.normal(size=shape) * 2), bias, mask]
    return Node(op, operands, opset=19, strides=strides, dilations=dilations, pads=pads, group=groups, offset_group=of_offsets)


def regions(rng, shape):
    """Edges of regions of an image of some eight pixels, a few of which lie outside."""
    first = rng.uniform(-2, 7, [*shape[:-1], 2])
    return np.concatenate([first, first + rng.uniform(0.3, 5, first.shape)], -1)


@of("RoiAlign")
def roi_align(rng, op):
    x = weights(rng, [3, 2, *(int(size) for size in rng.integers(6, 9, 2))])
    given = {"output_height": int(rng.integers(1, 4)), "output_width": int(rng.integers(1, 4)), "sampling_ratio": pick(rng, 1, 2, 3)}
    given |= {"mode": pick(rng, None, "avg", "max"), "spatial_scale": pick(rng, None, 0.5)}
    given |= {"coordinate_transformation_mode": pick(rng, None, "half_pixel", "output_half_pixel")}
    return Node(op, [x, Operand(["N", 4], regions), Operand(["N"], numbers(0, 3), np.int64)], opset=16, **given)


@of("Dropout")
def dropout(rng, op):
    training = pick(rng, None, constant(False, np.bool_), constant(True, np.bool_))
    ratio = constant(0.0 if training is not None and training.value else 0.5, np.float32)
    return Node(op, [Operand(batch(rng)), ratio, training], pick(rng, 1, 2), seed=3)


@of("Bernoulli")
def bernoulli(rng, op):
    # Only what is certain does not depend on the generator.
    return Node(op, [Operand(batch(rng), lambda rng, shape: rng.integers(0, 2, shape))], seed=1.0, dtype=pick(rng, None, TensorProto.INT64))


@of("RandomNormal", "RandomNormalLike")
def random_normal(rng, op):
    given = {"shape": sizes(rng, 2)} if op == "RandomNormal" else {}
    return Node(op, [] if given else [Operand(batch(rng))], mean=1.5, scale=1e-30, seed=1.0, **given)


@of("RandomUniform", "RandomUniformLike")
def random_uniform(rng, op):
    given = {"shape": sizes(rng, 2)} if op == "RandomUniform" else {}
    return Node(op, [] if given else [Operand(batch(rng))], low=2.0, high=2.0, seed=1.0, **given)
