//! Attributes and operands that no operator takes, and results that nobody can hold.

use support::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};

use super::models::{
    body, case, float, graph, int, ints, model, node, nodes, number, one, opset, owned, raw,
    string, tensor_attribute, value, vector, with, x, zeros,
};
use crate::it::hostile::Case;
use support::proto::tensor_proto::DataType;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = unsupported();
    cases.extend(attributes());
    cases.extend(bombs());
    cases.extend(shapes());
    cases.extend(windows());
    cases.extend(scales());
    cases.extend(growing());
    cases
}

/// Operators of integers with scales.
fn scales() -> Vec<Case> {
    let byte = |name: &str, kind: DataType, count: i64| {
        raw(name, kind, &[count], &vec![1; usize::try_from(count).expect("a size")])
    };
    let quantize = |name: &str, scale: TensorProto, zero: TensorProto| {
        let node = node("QuantizeLinear", &["x", "s", "z"], &["y"]);
        nodes(name, vec![scale, zero], vec![node])
    };
    let of = |name: &str, attribute: AttributeProto| {
        let quantize = with(node("QuantizeLinear", &["x", "s"], &["y"]), attribute);
        let mut model = model(graph(x(), vec![zeros("s", &[1, 4])], vec![quantize], &["y"]));
        model.opset_import = vec![opset("", 23)];
        case(name, &model)
    };
    let small = |n: i64| byte("z", DataType::Uint8, n);
    let product = |name: &str, zero: TensorProto| {
        let quantized = node("QuantizeLinear", &["x", "s"], &["q"]);
        let product = node("MatMulInteger", &["q", "w", "z"], &["y"]);
        let weights = raw("w", DataType::Uint8, &[4, 1], &[1; 4]);
        nodes(name, vec![zeros("s", &[1]), weights, zero], vec![quantized, product])
    };
    vec![
        quantize("scales for other channels", zeros("s", &[3]), small(3)),
        quantize(
            "scales of two axes without blocks",
            zeros("s", &[1, 4]),
            raw("z", DataType::Uint8, &[1, 4], &[1; 4]),
        ),
        quantize("zero points for other scales", zeros("s", &[4]), small(3)),
        quantize("a zero point that is a float", zeros("s", &[1]), zeros("z", &[1])),
        quantize("scales that are integers", vector("s", &[1]), small(1)),
        of("blocks of -1", int("block_size", -1)),
        of("blocks of 2^63-1", int("block_size", i64::MAX)),
        of("integers of type 99", int("output_dtype", 99)),
        of("integers of 64 bits", int("output_dtype", 7)),
        of("a quotient in f16", int("precision", 10)),
        product("the zero point of another type", byte("z", DataType::Int8, 1)),
        product("zero points for other rows", small(3)),
        one("a product of floats as integers", node("MatMulInteger", &["x", "x"], &["y"])),
        one("a scale that the batch decides", node("DynamicQuantizeLinear", &["x"], &["y"])),
    ]
}

fn unsupported() -> Vec<Case> {
    let empty = || GraphProto::default();
    let branches = |node: NodeProto| {
        with(with(node, body("then_branch", empty())), body("else_branch", empty()))
    };
    let looped = || with(node("Loop", &["", "", "x"], &["h", "y"]), body("body", empty()));
    let scan = || {
        with(with(node("Scan", &["x"], &["y"]), body("body", empty())), int("num_scan_inputs", 1))
    };
    let other = |domain: &str, op: &str, to: &str| NodeProto {
        domain: Some(domain.to_owned()),
        ..node(op, &["x"], &[to])
    };
    let keras = NodeProto { name: Some("model/lstm/PartitionedCall/while".to_owned()), ..looped() };
    let several = vec![
        node("Erfc", &["x"], &["a"]),
        NodeProto { name: None, ..node("Erfc", &["a"], &["b"]) },
        branches(node("If", &["b"], &["c"])),
        looped(),
        other("com.microsoft", "FusedGelu", "e"),
        node("Relu", &["e"], &["f"]),
    ];
    let same = |i: usize| node("Erfc", &["x"], &[&format!("v{i}")]);
    let different = |i: usize| node(&format!("Op{i}"), &["x"], &[&format!("v{i}")]);
    vec![
        one("an operator that ONNX does not have", node("Erfc", &["x"], &["y"])),
        one("a branch", branches(node("If", &["x"], &["y"]))),
        one("a loop", looped()),
        one("a recurrent layer that is a loop", keras),
        one("a scan", scan()),
        one("an operator of another domain", other("com.microsoft", "FusedGelu", "y")),
        one(
            "a graph in an operator without one",
            with(node("Relu", &["x"], &["y"]), body("g", empty())),
        ),
        nodes("several operators that are not supported", vec![], several),
        nodes("5000 nodes that are not supported", vec![], (0..5000).map(same).collect()),
        nodes("5000 operators that are not supported", vec![], (0..5000).map(different).collect()),
    ]
}

fn attributes() -> Vec<Case> {
    let relu = |attribute: AttributeProto| with(node("Relu", &["x"], &["y"]), attribute);
    let leaky = |attribute: AttributeProto| with(node("LeakyRelu", &["x"], &["y"]), attribute);
    let flat = |axis: i64| with(node("Flatten", &["x"], &["y"]), int("axis", axis));
    let softmax = |axis: i64| with(node("Softmax", &["x"], &["y"]), int("axis", axis));
    let perm = |perm: &[i64]| with(node("Transpose", &["x"], &["y"]), ints("perm", perm));
    let cast = |to: AttributeProto| with(node("Cast", &["x"], &["y"]), to);
    vec![
        one("an attribute that is not known", relu(int("alpha", 1))),
        one("an attribute given twice", with(leaky(float("alpha", 0.1)), float("alpha", 0.2))),
        one("an attribute of another kind", leaky(int("alpha", 1))),
        one("an attribute without a name", relu(AttributeProto { name: None, ..int("", 1) })),
        one(
            "an attribute of no kind",
            leaky(AttributeProto { r#type: Some(0), ..float("alpha", 0.5) }),
        ),
        one(
            "an attribute of kind 99",
            leaky(AttributeProto { r#type: Some(99), ..float("alpha", 0.5) }),
        ),
        one(
            "an attribute that refers to a call",
            leaky(AttributeProto { ref_attr_name: Some("a".to_owned()), ..float("alpha", 0.5) }),
        ),
        one("a slope that is not a number", leaky(float("alpha", f32::NAN))),
        one("axis 2^63-1", flat(i64::MAX)),
        one("axis -2^63", softmax(i64::MIN)),
        one("axis 2 of 2", softmax(2)),
        one("a permutation with an axis twice", perm(&[0, 0])),
        one("a permutation that is too long", perm(&[0, 1, 2])),
        one("a permutation of 2^63-1", perm(&[0, i64::MAX])),
        one("a permutation of 60000 axes", perm(&vec![0; 60_000])),
        one("a cast to type 99", cast(int("to", 99))),
        one("a cast to type 2^63-1", cast(int("to", i64::MAX))),
        one("a cast to texts", cast(int("to", 8))),
        one("a cast without a type", cast(int("saturate", 1))),
        one(
            "an unknown padding",
            with(
                with(node("MaxPool", &["x"], &["y"]), string("auto_pad", "EVERYWHERE")),
                ints("kernel_shape", &[2]),
            ),
        ),
    ]
}

/// Nodes that make `c` of constants, added to `x`.
fn made(name: &str, tensors: Vec<TensorProto>, mut all: Vec<NodeProto>) -> Case {
    all.push(with(node("ReduceMax", &["c"], &["m"]), int("keepdims", 0)));
    all.push(with(node("Cast", &["m"], &["f"]), int("to", 1)));
    all.push(node("Add", &["x", "f"], &["y"]));
    nodes(name, tensors, all)
}

fn bombs() -> Vec<Case> {
    let filled = |name: &str, dims: &[i64]| {
        made(name, vec![vector("s", dims)], vec![node("ConstantOfShape", &["s"], &["c"])])
    };
    let f = |name: &str, x: f32| raw(name, DataType::Float, &[], &x.to_le_bytes());
    let range = |name: &str, tensors: Vec<TensorProto>| {
        made(name, tensors, vec![node("Range", &["a", "b", "d"], &["c"])])
    };
    let ends = |a: i64, b: i64, d: i64| vec![number("a", a), number("b", b), number("d", d)];
    let floats = |a: f32, b: f32, d: f32| vec![f("a", a), f("b", b), f("d", d)];
    let of_one = |name: &str, op: &str, numbers: &[i64]| {
        made(
            name,
            vec![zeros("w", &[1, 1]), vector("s", numbers)],
            vec![node(op, &["w", "s"], &["c"])],
        )
    };
    let limit = ["--max-memory", "64M"];
    vec![
        filled("2^40 zeros", &[1 << 40]).args(&limit),
        filled("2^20 times 2^20 zeros", &[1 << 20, 1 << 20]).args(&limit),
        filled("2^62 zeros", &[1 << 62]).args(&limit),
        filled("-1 zeros", &[-1]),
        filled("zeros of 70 axes", &[1; 70]),
        filled("2^30 zeros", &[1 << 30]).args(&limit),
        range("a range to 2^40", ends(0, 1 << 40, 1)).args(&limit),
        range("a range to 2^63-1", ends(i64::MIN, i64::MAX, 1)).args(&limit),
        range("a range without end", ends(0, 1, 0)),
        range("a range of 10^12 floats", floats(0.0, 1e12, 1.0)).args(&limit),
        range("a range of floats that are no numbers", floats(0.0, f32::NAN, 1.0)),
        range("a range of floats without end", floats(0.0, 1.0, 0.0)),
        of_one("an expansion to 2^40", "Expand", &[1 << 20, 1 << 20]).args(&limit),
        of_one("an expansion to -1", "Expand", &[-1, 1]),
        of_one("2^40 tiles", "Tile", &[1 << 20, 1 << 20]).args(&limit),
        of_one("-1 tiles", "Tile", &[-1, 1]),
        of_one("padding by 2^40", "Pad", &[0, 0, 1 << 20, 1 << 20]).args(&limit),
        of_one("padding by 2^63-1", "Pad", &[0, i64::MAX, 0, i64::MAX]).args(&limit),
        of_one("padding by -2^63", "Pad", &[0, 0, 0, i64::MIN]),
    ]
}

fn shapes() -> Vec<Case> {
    let listed = |name: &str, op: &str, numbers: &[i64]| {
        nodes(name, vec![vector("s", numbers)], vec![node(op, &["x", "s"], &["y"])])
    };
    let slice = |name: &str, [start, end, axis, step]: [i64; 4]| {
        let tensors = vec![
            vector("a", &[start]),
            vector("b", &[end]),
            vector("c", &[axis]),
            vector("d", &[step]),
        ];
        nodes(name, tensors, vec![node("Slice", &["x", "a", "b", "c", "d"], &["y"])])
    };
    vec![
        listed("a shape of -2", "Reshape", &[-2, 4]),
        listed("a shape with two open sizes", "Reshape", &[-1, -1]),
        listed("a shape of 2^62", "Reshape", &[1 << 62, 4]),
        listed("a shape of other size", "Reshape", &[3, 3]),
        listed("a shape of 60000 axes", "Reshape", &vec![1; 60_000]),
        listed("an axis to add twice", "Unsqueeze", &[0, 0]),
        listed("60000 axes to add", "Unsqueeze", &(0..60_000).collect::<Vec<_>>()),
        listed("an axis to remove that is not 1", "Squeeze", &[1]),
        listed("parts of other size", "Split", &[1, 1]),
        nodes(
            "a shape that only a run knows",
            vec![],
            vec![
                with(node("Cast", &["x"], &["s"]), int("to", 7)),
                node("Reshape", &["x", "s"], &["y"]),
            ],
        ),
        slice("a step of 0", [0, 4, 1, 0]),
        slice("a step of -2^63", [i64::MAX, i64::MIN, 1, i64::MIN]),
        slice("a slice of axis 9", [0, 1, 9, 1]),
        one("a product of one axis", node("MatMul", &["x", "x"], &["y"])),
        nodes(
            "a position beyond the end",
            vec![vector("s", &[4])],
            vec![with(node("Gather", &["x", "s"], &["y"]), int("axis", 1))],
        ),
        one(
            "a power without an exponent",
            with(node("Pow", &["x"], &["y"]), tensor_attribute("t", zeros("", &[1]))),
        ),
    ]
}

fn windows() -> Vec<Case> {
    let conv = |name: &str, attribute: AttributeProto| {
        let graph = graph(
            vec![value("x", &["N", "3", "8", "8"])],
            vec![zeros("w", &[3, 3, 3, 3])],
            vec![with(node("Conv", &["x", "w"], &["y"]), attribute)],
            &["y"],
        );
        case(name, &model(graph))
    };
    vec![
        conv("strides of 0", ints("strides", &[0, 0])),
        conv("strides of -1", ints("strides", &[-1, 1])),
        conv("strides of 2^63-1", ints("strides", &[i64::MAX, 1])),
        conv("dilations of 2^62", ints("dilations", &[1 << 62, 1])),
        conv("pads of 2^63-1", ints("pads", &[i64::MAX, 0, i64::MAX, 0])),
        conv("pads of -9", ints("pads", &[-9, 0, 0, 0])),
        conv("pads of 60000 numbers", ints("pads", &vec![0; 60_000])),
        conv("0 groups", int("group", 0)),
        conv("2^63-1 groups", int("group", i64::MAX)),
        conv("a kernel of another shape", ints("kernel_shape", &[5, 5])),
    ]
}

/// Values that grow with every node.
fn growing() -> Vec<Case> {
    let step = |op: &str, i: usize, twice: bool| {
        let (from, to) = (format!("v{i}"), format!("v{}", i + 1));
        let inputs = if twice { owned(&[&from, &from]) } else { owned(&[&from, "one"]) };
        NodeProto { input: inputs, ..node(op, &[], &[&to]) }
    };
    let doubled = |name: &str, first: NodeProto, count: usize| {
        let concat = |i| with(step("Concat", i, true), int("axis", 0));
        let mut all = vec![first];
        all.extend((0..count).map(concat));
        all.push(node("Identity", &[&format!("v{count}")], &["c"]));
        made(name, vec![zeros("w", &[1024])], all)
    };
    let mut sizes = vec![node("Shape", &["x"], &["v0"])];
    for i in 0..60 {
        sizes.push(step(if i % 2 == 0 { "Add" } else { "Mul" }, i, i % 2 == 1));
    }
    sizes.push(node("ConstantOfShape", &["v60"], &["c"]));
    sizes.push(with(node("ReduceMax", &["c"], &["m"]), int("keepdims", 0)));
    sizes.push(node("Add", &["x", "m"], &["y"]));
    let products = |name: &str, count: usize| {
        let mut all = vec![node("Relu", &["w"], &["v0"])];
        all.extend((0..count).map(|i| step("MatMul", i, true)));
        all.push(node("Identity", &[&format!("v{count}")], &["c"]));
        made(name, vec![zeros("w", &[256, 256])], all)
    };
    vec![
        doubled("a constant doubled 50 times", node("Relu", &["w"], &["v0"]), 50)
            .args(&["--max-memory", "64M"])
            .declares(64 << 20),
        doubled("rows doubled 50 times", node("Relu", &["x"], &["v0"]), 50),
        nodes("sizes squared 30 times", vec![vector("one", &[1, 1])], sizes),
        products("1000 products of constants", 1000),
    ]
}
