"""Writes what PyTorch gives for gradients of single operators: gradients.json.

Usage: gradients.py [OUT.json]

Each case is a graph of one operator in the text form, its inputs, the gradients of its outputs, and what those of its
inputs are then. All floats are f64; inputs have values at kinks and ties where operators have some.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
CASES = []
NAMES = {torch.float64: "f64", torch.int64: "i64", torch.bool: "bool"}


def rand(*dims, low=-2.0, high=2.0):
    return torch.round((torch.rand(dims) * (high - low) + low) * 1000) / 1000


def flat(t):
    return [float(f"{x:.12g}") for x in t.detach().double().flatten().tolist()]


def case(name, line, inputs, f, outputs=1):
    """`line` is the operator with its attributes; `f` is the same in PyTorch. Floats get gradients."""
    inputs = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in inputs.items()}
    made = f(*inputs.values())
    made = list(made) if isinstance(made, (tuple, list)) else [made]
    floats = [y for y in made if y.is_floating_point()]
    upstream = [rand(*y.shape) for y in floats]
    loss = sum((y * g).sum() for y, g in zip(floats, upstream))
    wanted = {k: v for k, v in inputs.items() if v.requires_grad}
    gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)

    def ty(t):
        return f"{NAMES[t.dtype]}[{','.join(str(d) for d in t.shape)}]"

    takes = ", ".join(f"%{k}: {ty(v)}" for k, v in inputs.items())
    results = ", ".join(f"%y{i} : {ty(y)}" for i, y in enumerate(made))
    gives = ", ".join(f"y{i}: {ty(y)}" for i, y in enumerate(made))
    returned = ", ".join(f"%y{i}" for i in range(len(made)))
    CASES.append({
        "name": name,
        "graph": f"fanwise 1\nsymbol N >= 0\ngraph @g({takes}) -> ({gives}) {{\n"
                 f"  {results} = {line}\n  return {returned}\n}}\n",
        "inputs": {k: flat(v) for k, v in inputs.items()},
        "upstream": {f"y{i}": flat(g) for i, g in zip([i for i, y in enumerate(made) if y.is_floating_point()], upstream)},
        "gradients": {
            k: [0.0] * v.numel() if g is None else flat(g) for (k, v), g in zip(wanted.items(), gradients)
        },
    })


def convolutions():
    def conv(x, w, b=None, stride=1, dilation=1, groups=1, pads=(0, 0, 0, 0)):
        top, left, bottom, right = pads
        return F.conv2d(F.pad(x, (left, right, top, bottom)), w, b, stride, 0, dilation, groups)

    x = rand(2, 4, 6, 5)
    case("conv", "conv(%x, %w, %b)", {"x": x, "w": rand(3, 4, 2, 3), "b": rand(3)}, conv)
    case("conv strides, pads", "conv(%x, %w) {pads=[1, 0, 2, 1], strides=[2, 3]}", {"x": x, "w": rand(3, 4, 3, 2)},
         lambda x, w: conv(x, w, stride=(2, 3), pads=(1, 0, 2, 1)))
    case("conv dilations", "conv(%x, %w) {dilations=[2, 1], pads=[1, 1, 0, 2], strides=[1, 2]}",
         {"x": x, "w": rand(3, 4, 2, 3)}, lambda x, w: conv(x, w, stride=(1, 2), dilation=(2, 1), pads=(1, 1, 0, 2)))
    case("conv groups", "conv(%x, %w, %b) {groups=2, pads=[1, 1, 1, 1], strides=[2, 2]}",
         {"x": x, "w": rand(6, 2, 3, 3), "b": rand(6)}, lambda x, w, b: conv(x, w, b, 2, 1, 2, (1, 1, 1, 1)))
    case("conv depthwise", "conv(%x, %w) {groups=4}", {"x": x, "w": rand(8, 1, 2, 2)},
         lambda x, w: conv(x, w, groups=4))
    x = rand(2, 4, 3, 4)
    case("conv_transpose", "conv_transpose(%x, %w, %b)", {"x": x, "w": rand(4, 3, 2, 3), "b": rand(3)},
         F.conv_transpose2d)
    case("conv_transpose all", "conv_transpose(%x, %w) {dilations=[2, 1], groups=2, output_padding=[1, 0], "
         "pads=[1, 0, 0, 2], strides=[2, 3]}", {"x": x, "w": rand(4, 2, 2, 3)},
         lambda x, w: F.conv_transpose2d(x, w, None, (2, 3), 0, (1, 0), 2, (2, 1))[:, :, 1:, :-2])


def pools():
    ties = torch.round(rand(2, 2, 6, 5))
    x = rand(2, 2, 6, 5)
    case("max_pool ties", "max_pool(%x) {kernel=[2, 3], strides=[2, 1]}", {"x": ties},
         lambda x: F.max_pool2d(x, (2, 3), (2, 1)))
    case("max_pool ceil", "max_pool(%x) {ceil_mode=true, dilations=[1, 2], kernel=[3, 2], pads=[1, 1, 1, 1], "
         "strides=[2, 2]}", {"x": ties}, lambda x: F.max_pool2d(x, (3, 2), 2, 1, (1, 2), True))
    for counted in [True, False]:
        case(f"average_pool {counted}", "average_pool(%x) {" + f"count_include_pad={str(counted).lower()}, "
             "kernel=[3, 2], pads=[1, 1, 1, 1], strides=[2, 2]}", {"x": x},
             lambda x, c=counted: F.avg_pool2d(x, (3, 2), 2, 1, False, c))
    case("average_pool ceil", "average_pool(%x) {ceil_mode=true, kernel=[3, 3], pads=[1, 0, 1, 0], strides=[2, 3]}",
         {"x": x}, lambda x: F.avg_pool2d(x, 3, (2, 3), (1, 0), True, False))
    for p in [2, 3]:
        case(f"lp_pool {p}", f"lp_pool(%x) {{kernel=[2, 2], p={p}, strides=[2, 1]}}", {"x": x.abs()},
             lambda x, p=p: torch.pow(F.unfold(x.reshape(4, 1, 6, 5), 2, stride=(2, 1)).pow(p).sum(1), 1 / p)
             .reshape(2, 2, 3, 4))
    y, places = F.max_pool2d(rand(2, 2, 4, 4), 2, return_indices=True)
    offset = torch.arange(4).reshape(2, 2, 1, 1) * 16
    case("max_unpool", "max_unpool(%x, %i) {sizes=[4, 4]}", {"x": y, "i": places + offset},
         lambda x, i: F.max_unpool2d(x, i - offset, 2))
    case("col2im", "col2im(%x) {dilations=[1, 2], image=[5, 6], kernel=[2, 2], pads=[1, 0, 1, 0], strides=[2, 1]}",
         {"x": rand(2, 8, 12)}, lambda x: F.fold(x, (5, 6), 2, (1, 2), (1, 0), (2, 1)))


def norms():
    x, c = rand(3, 4, 2, 3), {"scale": rand(4), "bias": rand(4)}
    case("layer_norm", "layer_norm(%x, %scale, %bias) {axis=2, epsilon=1e-3}",
         {"x": x, "scale": rand(2, 3), "bias": rand(2, 3)}, lambda x, s, b: F.layer_norm(x, (2, 3), s, b, 1e-3))
    case("rms_norm", "rms_norm(%x, %scale) {axis=-1, epsilon=1e-3}", {"x": x, "scale": rand(3)},
         lambda x, s: F.rms_norm(x, (3,), s, 1e-3))
    case("group_norm", "group_norm(%x, %scale, %bias) {epsilon=1e-3, groups=2}", {"x": x, **c},
         lambda x, s, b: F.group_norm(x, 2, s, b, 1e-3))
    case("instance_norm", "instance_norm(%x, %scale, %bias) {epsilon=1e-3}", {"x": x, **c},
         lambda x, s, b: F.instance_norm(x, None, None, s, b, eps=1e-3))
    case("batch_norm", "batch_norm(%x, %scale, %bias, %mean, %var) {epsilon=1e-3}",
         {"x": x, **c, "mean": rand(4), "var": rand(4, low=0.5)},
         lambda x, s, b, m, v: (x - m.reshape(4, 1, 1)) / torch.sqrt(v.reshape(4, 1, 1) + 1e-3) * s.reshape(4, 1, 1)
         + b.reshape(4, 1, 1))
    case("lp_norm", "lp_norm(%x) {axis=1}", {"x": x}, lambda x: F.normalize(x, dim=1))
    case("lrn", "lrn(%x) {alpha=0.5, beta=0.75, bias=1.0, size=3}", {"x": x},
         lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 1.0))
    case("softmax", "softmax(%x) {axis=1}", {"x": x}, lambda x: F.softmax(x, 1))
    case("log_softmax", "log_softmax(%x) {axis=-1}", {"x": x}, lambda x: F.log_softmax(x, -1))


def batch_norm_train():
    """The running statistics that it gives as well have no gradients here."""
    x = rand(3, 4, 2, 3)
    inputs = {"x": x, "scale": rand(4), "bias": rand(4), "mean": torch.zeros(4), "var": torch.ones(4)}

    def f(x, s, b, m, v):
        y = F.batch_norm(x, None, None, s, b, True, 0.0, 1e-3)
        return y, m + 0 * v.sum(), v + 0 * m.sum()

    case("batch_norm_train", "batch_norm_train(%x, %scale, %bias, %mean, %var) {epsilon=1e-3, momentum=0.9}", inputs, f)
    last = CASES[-1]
    for name in ["y1", "y2"]:
        del last["upstream"][name]
    for name in ["mean", "var"]:
        del last["gradients"][name]


def products():
    case("matmul", "matmul(%a, %b)", {"a": rand(2, 1, 3, 4), "b": rand(3, 4, 2)}, torch.matmul)
    case("matmul vector", "matmul(%a, %b)", {"a": rand(4), "b": rand(2, 4, 3)}, torch.matmul)
    case("gemm", "gemm(%a, %b, %c) {alpha=0.5, beta=2.0, trans_a=true, trans_b=true}",
         {"a": rand(4, 3), "b": rand(2, 4), "c": rand(3, 1)}, lambda a, b, c: 0.5 * a.T @ b.T + 2 * c)
    for equation, shapes in [
        ("bij,bjk->bik", [(2, 3, 2), (2, 2, 3)]), ("bij,jk", [(1, 3, 2), (2, 3)]), ("ii->i", [(3, 3)]),
        ("bii->b", [(2, 3, 3)]), ("iij,jk->ik", [(3, 3, 2), (2, 4)]), ("...i,i->...", [(2, 3, 4), (4,)]),
        ("ij,ij->", [(2, 3), (2, 3)]), ("i,j,k->ik", [(2,), (3,), (2,)]),
    ]:
        names = [chr(ord("a") + i) for i in range(len(shapes))]
        case(f"einsum {equation}", f"einsum({', '.join('%' + n for n in names)}) {{equation=\"{equation}\"}}",
             {n: rand(*s) for n, s in zip(names, shapes)}, lambda *xs, e=equation: torch.einsum(e, *xs))


def reductions():
    ties = torch.round(rand(3, 4, 2))
    some = rand(3, 4, 2, low=0.5)
    zeros = rand(3, 4)
    zeros[0, 1] = zeros[1, 0] = zeros[1, 3] = 0
    for name, x, f in [
        ("sum", ties, lambda x: x.sum((0, 2))), ("mean", ties, lambda x: x.mean((0, 2))),
        ("max", ties, lambda x: x.amax((0, 2))), ("min", ties, lambda x: x.amin((0, 2))),
        ("l1", ties, lambda x: x.abs().sum((0, 2))), ("l2", some, lambda x: x.square().sum((0, 2)).sqrt()),
        ("log_sum", some, lambda x: x.sum((0, 2)).log()), ("sum_square", ties, lambda x: x.square().sum((0, 2))),
        ("log_sum_exp", ties, lambda x: x.logsumexp((0, 2))),
    ]:
        case(f"reduce_{name}", f"reduce_{name}(%x) {{axes=[0, 2], keepdims=false}}", {"x": x}, f)
    case("reduce_prod zeros", "reduce_prod(%x) {axes=[1], keepdims=true}", {"x": zeros}, lambda x: x.prod(1, True))
    case("cumsum", "cumsum(%x) {axis=1}", {"x": ties}, lambda x: x.cumsum(1))
    case("cumprod zeros", "cumprod(%x) {axis=1}", {"x": zeros}, lambda x: x.cumprod(1))
    case("cumprod reverse", "cumprod(%x) {axis=1, reverse=true}", {"x": zeros}, lambda x: x.flip(1).cumprod(1).flip(1))


def moves():
    x = rand(3, 4, 2)
    case("gather", "gather(%x, %i) {axis=1}", {"x": x, "i": torch.tensor([[3, 0], [3, 1]])}, lambda x, i: x[:, i])
    i = torch.tensor([[[1, 0], [3, 3]], [[0, 0], [2, 1]], [[1, 1], [1, 0]]])
    case("gather_elements", "gather_elements(%x, %i) {axis=1}", {"x": x, "i": i}, lambda x, i: x.gather(1, i))
    case("gather_nd", "gather_nd(%x, %i)", {"x": x, "i": torch.tensor([[0, 3], [2, 1], [0, 3]])},
         lambda x, i: x[i[:, 0], i[:, 1]])
    case("scatter_elements add", "scatter_elements(%x, %i, %u) {axis=1, reduction=add}",
         {"x": x, "i": i, "u": rand(3, 2, 2)}, lambda x, i, u: x.scatter_add(1, i, u))
    once = torch.tensor([[[1, 0], [3, 3]], [[0, 0], [2, 1]], [[1, 1], [0, 0]]])
    case("scatter_elements", "scatter_elements(%x, %i, %u) {axis=1}", {"x": x, "i": once, "u": rand(3, 2, 2)},
         lambda x, i, u: x.scatter(1, i, u))
    case("slice", "slice(%x) {axes=[0, 1], ends=[3, 4], starts=[1, 0], steps=[1, 2]}", {"x": x},
         lambda x: x[1:3, 0:4:2])
    case("concat", "concat(%a, %b) {axis=1}", {"a": x, "b": rand(3, 1, 2)}, lambda a, b: torch.cat([a, b], 1))
    case("transpose", "transpose(%x) {perm=[2, 0, 1]}", {"x": x}, lambda x: x.permute(2, 0, 1))
    case("tile", "tile(%x) {repeats=[2, 1, 3]}", {"x": x}, lambda x: x.repeat(2, 1, 3))
    case("expand", "expand(%x) {shape=[2, 3, 4]}", {"x": rand(3, 1)}, lambda x: x.expand(2, 3, 4))
    case("trilu", "trilu(%x) {k=1, upper=true}", {"x": rand(2, 3, 4)}, lambda x: torch.triu(x, 1))
    case("sort", "sort(%x) {axis=1}", {"x": x}, lambda x: x.sort(1))
    case("top_k", "top_k(%x) {axis=1, k=2}", {"x": x}, lambda x: x.topk(2, 1))
    for mode, theirs in [("constant", "constant"), ("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")]:
        case(f"pad {mode}", f"pad(%x) {{mode={mode}, pads=[0, 0, 1, 2, 0, 0, 2, 1]}}", {"x": rand(1, 2, 3, 4)},
             lambda x, m=theirs: F.pad(x, (2, 1, 1, 2), m))


def images():
    x = rand(1, 2, 3, 4)
    sizes = "axes=[2, 3], scales=[2.0, 1.5], sizes=[6, 6]"
    for name, attrs, theirs in [
        ("linear", "coordinates=half_pixel, mode=linear", dict(mode="bilinear", align_corners=False)),
        ("linear corners", "coordinates=align_corners, mode=linear", dict(mode="bilinear", align_corners=True)),
        ("cubic", "coordinates=half_pixel, cubic=-0.75, mode=cubic", dict(mode="bicubic", align_corners=False)),
        ("nearest", "coordinates=asymmetric, mode=nearest, nearest=floor", dict(mode="nearest")),
    ]:
        case(f"resize {name}", f"resize(%x) {{{sizes}, {attrs}}}", {"x": x},
             lambda x, t=theirs: F.interpolate(x, (6, 6), **t))
    grid = rand(2, 3, 2, 2, low=-1.6, high=1.6)
    for mode, theirs in [("linear", "bilinear"), ("nearest", "nearest"), ("cubic", "bicubic")]:
        for padding in ["zeros", "border", "reflection"]:
            for corners in [False, True]:
                case(f"grid_sample {mode} {padding} {corners}", f"grid_sample(%x, %grid) {{mode={mode}, "
                     f"padding={padding}, align_corners={str(corners).lower()}}}",
                     {"x": rand(2, 1, 3, 4), "grid": grid},
                     lambda x, g, m=theirs, p=padding, c=corners: F.grid_sample(x, g, m, p, c))


def elementwise():
    kinks = torch.tensor([-4.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 4.0, 6.0, -1.7, 2.3])
    inside = rand(8, low=-0.9, high=0.9)
    above = rand(8, low=1.1)
    for line, x, f in [
        ("relu(%x)", kinks, F.relu), # PyTorch gives nothing at a bound.
        ("clip(%x) {max=5.0, min=-2.0}", kinks, lambda x: torch.clamp(x, -2, 5)),
        ("leaky_relu(%x) {alpha=0.1}", kinks, lambda x: F.leaky_relu(x, 0.1)),
        ("thresholded_relu(%x) {alpha=1.0}", kinks, lambda x: F.threshold(x, 1.0, 0.0)),
        ("elu(%x) {alpha=0.5}", kinks, lambda x: F.elu(x, 0.5)), ("selu(%x)", kinks, F.selu),
        ("celu(%x) {alpha=0.5}", kinks, lambda x: F.celu(x, 0.5)),
        ("hard_sigmoid(%x) {alpha=0.16666667, beta=0.5}", kinks, F.hardsigmoid),
        ("hard_swish(%x)", kinks, F.hardswish), ("gelu(%x)", kinks, F.gelu),
        ("gelu(%x) {approximate=tanh}", kinks, lambda x: F.gelu(x, approximate="tanh")),
        ("softplus(%x)", kinks, F.softplus), ("softsign(%x)", kinks, F.softsign), ("mish(%x)", kinks, F.mish),
        ("swish(%x)", kinks, F.silu), ("sigmoid(%x)", kinks, torch.sigmoid), ("tanh(%x)", kinks, torch.tanh),
        ("abs(%x)", kinks, torch.abs), ("erf(%x)", kinks, torch.erf), ("exp(%x)", kinks, torch.exp),
        ("sin(%x)", kinks, torch.sin), ("cos(%x)", kinks, torch.cos), ("tan(%x)", inside, torch.tan),
        ("sinh(%x)", kinks, torch.sinh), ("cosh(%x)", kinks, torch.cosh), ("asin(%x)", inside, torch.asin),
        ("acos(%x)", inside, torch.acos), ("atan(%x)", kinks, torch.atan), ("asinh(%x)", kinks, torch.asinh),
        ("acosh(%x)", above, torch.acosh), ("atanh(%x)", inside, torch.atanh), ("log(%x)", above, torch.log),
        ("sqrt(%x)", above, torch.sqrt), ("reciprocal(%x)", above, torch.reciprocal),
        ("shrink(%x) {bias=0.5, lambd=0.5}", kinks, lambda x: F.softshrink(x, 0.5)),
    ]:
        case(line, line, {"x": x}, f)
    a, b = rand(3, 4), rand(4)
    for name, f in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul)]:
        case(name, f"{name}(%a, %b)", {"a": a, "b": b}, f)
    case("div", "div(%a, %b)", {"a": a, "b": rand(3, 1, low=0.5)}, torch.div)
    ties = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, -1.0]])
    for name, f in [("max", torch.maximum), ("min", torch.minimum)]:
        case(name, f"{name}(%a, %b)", {"a": ties, "b": torch.tensor([0.5, 1.0, 0.0])}, f)
    case("pow", "pow(%a, %b)", {"a": rand(3, 4, low=0.5), "b": b}, torch.pow)
    case("prelu", "prelu(%a, %b)", {"a": kinks.reshape(2, 6), "b": rand(6)},
         lambda a, b: torch.where(a > 0, a, a * b))
    case("where", "where(%c, %a, %b)", {"c": a > 0, "a": a, "b": b}, torch.where)


def recurrent():
    """Gates are in the order of ONNX; PyTorch has those of `lstm` as i, f, g, o and those of `gru` as r, z, n."""
    steps, rows, inputs, hidden = 3, 2, 2, 3
    for name, gates, order, peer, states in [
        ("lstm", 4, [0, 2, 3, 1], torch.nn.LSTM, 2), ("gru", 3, [1, 0, 2], torch.nn.GRU, 1),
        ("rnn", 1, [0], torch.nn.RNN, 1),
    ]:
        for direction, ways in [("forward", 1), ("bidirectional", 2)]:
            net = peer(inputs, hidden, bidirectional=ways == 2)
            given = {
                "x": rand(steps, rows, inputs), "w": rand(ways, gates * hidden, inputs),
                "r": rand(ways, gates * hidden, hidden), "b": rand(ways, 2 * gates * hidden),
                "h": rand(ways, rows, hidden),
            }
            if states == 2:
                given["c"] = rand(ways, rows, hidden)

            def f(x, w, r, b, h, c=None, net=net, order=order, gates=gates, ways=ways):
                def theirs(block):
                    return block.reshape(gates, hidden, -1)[order].reshape(gates * hidden, -1)

                params = {}
                for d, suffix in zip(range(ways), ["", "_reverse"]):
                    own, state = b[d].split(gates * hidden)
                    params[f"weight_ih_l0{suffix}"] = theirs(w[d])
                    params[f"weight_hh_l0{suffix}"] = theirs(r[d])
                    params[f"bias_ih_l0{suffix}"] = theirs(own).flatten()
                    params[f"bias_hh_l0{suffix}"] = theirs(state).flatten()
                y, last = torch.func.functional_call(net, params, (x, h if c is None else (h, c)))
                y = y.reshape(steps, rows, ways, hidden).transpose(1, 2)
                return [y, *(last if isinstance(last, tuple) else [last])]

            more = ", reset_after=true" if name == "gru" else ""
            operands = ", ".join(f"%{k}" for k in given)
            case(f"{name} {direction}", f"{name}({operands}) {{bias=true, direction={direction}, initial=true{more}}}",
                 given, f)


def main(out):
    for part in [convolutions, pools, norms, batch_norm_train, products, reductions, moves, images, elementwise,
                 recurrent]:
        part()
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in CASES)
    out.write_text(f'{{"torch":"{torch.__version__}","cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("gradients.json"))
