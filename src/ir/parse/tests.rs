use std::fmt::Write as _;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::testing::{plain, replicated, rows, variables};
use super::super::{Builder, Graph, Placement, Printer, folded};
use super::parse;
use crate::op::{Constant, Unary};
use crate::snap;
use crate::types::{DType, Device, Tensor};

#[track_caller]
fn reads_back(graph: &Graph) {
    let text = graph.to_string();
    let read = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(read.to_string(), text);
    assert_eq!(&read, graph, "{text}");
}

fn graphs() -> [Graph; 7] {
    [
        plain(),
        replicated(Placement::Shared(Device::HOST)),
        replicated(Placement::Shared(Device::gpu(1))),
        replicated(Placement::Mirrored),
        variables(None),
        variables(Some(Placement::Shared(Device::gpu(1)))),
        variables(Some(Placement::Mirrored)),
    ]
}

#[test]
fn printed_graphs_read_back() {
    graphs().iter().for_each(reads_back);
    let graph = plain();
    let text = Printer { locations: false }.print(&graph);
    let read = parse(&text).unwrap();
    assert_ne!(read, graph);
    assert_eq!(read.to_string(), text);
}

#[test]
fn updates_are_part_of_a_graph() {
    let text = variables(Some(Placement::Mirrored)).to_string();
    let line = "  update @\"last w\" = @w, @w\n";
    assert!(text.contains(line) && text.contains("  update @w = %\"w.new.gpu:0\", %"), "{text}");
    let [whole, none] = [&text, &text.replace(line, "")].map(|text| parse(text).unwrap());
    assert_ne!(whole, none);
    assert_eq!(none.updates().len(), 1);
    let other = parse(&text.replace(line, "  update @\"last w\" = @w, @\"last w\"\n")).unwrap();
    assert_ne!(whole, other);
}

#[test]
fn constants_of_every_type_read_back_in_bits() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for dtype in DType::ALL {
        let mut bytes: Vec<u8> = (0..64 * dtype.bytes()).map(|_| rng.random()).collect();
        if dtype == DType::Bool {
            for byte in &mut bytes {
                *byte &= 1;
            }
        }
        let special = [f64::NAN, -0.0, f64::INFINITY, f64::NEG_INFINITY, 5e-324, 1e-7, 65504.0];
        let special = crate::op::testing::tensor(DType::F64, &[7], &special);
        let mut b = Builder::new("g");
        let value = Tensor::from_bytes(dtype, &[2, 32], &bytes).unwrap();
        b.op("a", Constant { value }, &[]).unwrap();
        b.op("b", Constant { value: special }, &[]).unwrap();
        b.op("c", Constant { value: Tensor::zeros(dtype, &[3, 0]).unwrap() }, &[]).unwrap();
        reads_back(&b.finish().0);
    }
}

#[test]
fn attributes_of_every_kind_read_back() {
    for alpha in [0.1f32, -0.0, 1e-30, f32::MAX, f32::INFINITY, f32::NEG_INFINITY] {
        let mut b = Builder::new("g");
        let x = b.input("x", rows(8));
        b.op("y", Unary::LeakyRelu { alpha }, &[x]).unwrap();
        reads_back(&b.finish().0);
    }
}

#[test]
fn people_may_write_it_otherwise() {
    let text = "; a comment\nfanwise 1 symbol N >= 0\n\tdevice gpu:0,cpu:0\r\nsplit @dp of N over \
        [gpu:0] \
        rule=balanced { o=[0] ; no rows\n } param @w:f32[2]=\"#w\" blake3:0000000000000000 \
        graph @g(%x:f32[ N , 2*4 ])->(){ %a:f32[N,(8)]=relu(%x) on gpu:0 replica@dp[0]if n0@dp>0{\n\
        %b:f32[n0@dp,8]=copy(%a)}return}";
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    reads_back(&graph);
    assert_eq!(graph.len(), 3);
}

/// Each text is an error in the body of a graph, or in place of the whole text where it has several
/// lines.
const WRONG: &[&str] = &[
    "",
    "\nfanwise 2\n",
    "\nfanwise 1\nsymbol M >= 0",
    "\nfanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N]) -> (y: f32[N]) {\n  %y : f32[N] = \
     relu(%x)\n}",
    "\nfanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N]) -> (y: i8[N]) {\n  return %x\n}",
    "\nfanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N], %x: f32[N]) -> () {\n  return\n}",
    "\nfanwise 1\nsymbol N >= 0\ngraph @g() -> () {\n  return\n} more",
    "\nfanwise 1\nsymbol N >= 0\nsplit @dp of N over [gpu:0] rule=ceil {",
    "\nfanwise 1\nsymbol N >= 0\ndevice gpu:0\nsplit @dp of N over [gpu:0] rule=half {",
    "\nfanwise 1\nsymbol N >= 0\ndevice gpu:0\nsplit @dp of N over [gpu:0] rule=ceil { n = [N] }",
    "\nfanwise 1\nsymbol N >= 0\ndevice gpu:0\nsplit @dp of N over [gpu:0, gpu:0] rule=ceil { o = \
     [0, 3] }",
    "\nfanwise 1\nsymbol N >= 0\ndevice gpu:0\nsplit @dp of N over [gpu:0] rule=ceil { n = [N/2] o \
     = [0] }",
    "\nfanwise 1\nsymbol N >= 0\nparam @w : f32[2] = \"w\" blake3:0000000000000000",
    "\nfanwise 1\nsymbol N >= 0\nparam @w : f32[2] = \"#w\" blake3:00 graph",
    "  %y : f32[N,8] = Relu(%x)",
    "  %y : f32[N,8] = reduce(%x)",
    "  %y : f32[N,8] = relu(%x) {axes=[1]}",
    "  %y : f32[N,8] = leaky_relu(%x) {alpha=true}",
    "  %y : f32[N,8] = leaky_relu(%x) {alpha=0.5, alpha=0.5}",
    "  %y : f32[N,9] = relu(%x)",
    "  %y : f32[N,8] = relu(%x, %x)",
    "  %y : f32[N,8], %z : f32[N,8] = relu(%x)",
    "  %y : f32[N,8] = relu(%later)",
    "  %y : f32[N,8] = relu(@w)",
    "  %x : f32[N,8] = relu(%x)",
    "  %y : f31[N,8] = relu(%x)",
    "  %y : f32[N,M] = relu(%x)",
    "  %y : f32[n0@dp,8] = relu(%x)",
    "  %y : f32[N,8] relu(%x)",
    "  %\"y : f32[N,8] = relu(%x)",
    "  %\"\\q\" : f32[N,8] = relu(%x)",
    "  on gpu:0 { %y : f32[N,8] = copy(%x) }",
    "  on cpu:0 replica @dp[0] if n0@dp > 0 { }",
    "  %y : i8[2] = constant() {value=i8[2] [1]}",
    "  %y : i8[2] = constant() {value=i8[1] [1, 2]}",
    "  %y : i8[2] = constant() {value=i8[1] [128]}",
    "  %y : f16[1] = constant() {value=f16[1] [70000.0]}",
    "  %y : u8[2] = constant() {value=u8[1000,1000] [1, 2]}",
    "  %y : u8[2] = constant() {value=u8[N] [1, 2]}",
    "  %y : f32[8,N] = transpose(%x) {perm=[1, 0.5]}",
    "  %y : f32[N,8] = relu(%x)\n  return}\nloc { %x = \"a\" }",
    "  update @w = %x",
    "  update %x = %x",
    "\nfanwise 1\nsymbol N >= 0\nparam @w : f32[] = \"#w\" blake3:0000000000000000\ngraph @g(%x: \
     f32[N]) -> () {\n  update @w = %x\n  return\n}",
    "\nfanwise 1\nsymbol N >= 0\nparam @w : f32[] = \"#w\" blake3:0000000000000000\ngraph @g() -> \
     () {\n  update @w = @w\n  update @w = @w\n  return\n}",
    "\nfanwise 1\nsymbol N >= 0\nparam @w : f32[] = \"#w\" blake3:0000000000000000\ngraph @g() -> \
     () {\n  update @w =\n  return\n}",
];

#[test]
fn wrong_texts_are_refused_in_place() {
    let mut out = String::new();
    for text in WRONG {
        let body = format!(
            "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N,8]) -> () {{\n{text}\n  return\n}}\n"
        );
        let text = if text.is_empty() || text.starts_with('\n') { text } else { body.as_str() };
        let error = parse(text).map(|g| g.to_string()).unwrap_err();
        writeln!(out, "{error}\n").unwrap();
    }
    snap::assert("parse", "errors", &out);
}

#[test]
fn changed_texts_never_panic() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut texts: Vec<String> = graphs().iter().map(ToString::to_string).collect();
    texts.extend(texts.clone().iter().map(|text| folded(text)).filter(|t| t.contains("repeat")));
    for i in 0..2000 {
        let mut bytes = texts[i % texts.len()].clone().into_bytes();
        for _ in 0..rng.random_range(1..4) {
            let (at, len) = (rng.random_range(0..bytes.len()), rng.random_range(0..12));
            let end = (at + len).min(bytes.len());
            let other = rng.random_range(0..bytes.len());
            let part: Vec<u8> = match rng.random_range(0..4) {
                0 => Vec::new(),
                1 => bytes[other..(other + len).min(bytes.len())].to_vec(),
                2 => (0..len)
                    .map(|_| b"0123456789-*/(){}[],;%@\"\\#nN."[rng.random_range(0..29)])
                    .collect(),
                _ => vec![b"9([\"-%"[rng.random_range(0..6)]; len * 500],
            };
            bytes.splice(at..end, part);
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(graph) = parse(&text) {
            reads_back(&graph);
        }
    }
    for text in ["((((", "[[[[", "{{{{", "min(", "-", "N*", "N/2+"] {
        let head = "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[";
        assert!(parse(&format!("{head}{}", text.repeat(20_000))).is_err());
    }
}
