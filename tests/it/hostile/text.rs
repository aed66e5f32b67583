//! Graphs in the text form.

use support::snap;

use super::{Case, table};

/// A graph that is valid.
const GOOD: &str = "fanwise 1
symbol N >= 0
graph @g(%x: f32[N,8]) -> (y: f32[N,8]) {
  %h : f32[N,8] = relu(%x)
  %y : f32[N,8] = softmax(%h) {axis = 1}
  return %y
}
";

/// Pieces of the valid graph, and what stands in their place.
const ODD: &[(&str, &str, &str)] = &[
    ("version 2", "fanwise 1", "fanwise 2"),
    ("a version of 20 digits", "fanwise 1", "fanwise 99999999999999999999"),
    ("another symbol", "symbol N", "symbol M"),
    ("a size of 2^63", "%x: f32[N,8]", "%x: f32[N,9223372036854775808]"),
    ("a size of 2^62", "%x: f32[N,8]", "%x: f32[N,4611686018427387904]"),
    ("a size of -1", "%x: f32[N,8]", "%x: f32[N,-1]"),
    ("a size that can be negative", "%x: f32[N,8]", "%x: f32[N-1,8]"),
    (
        "more elements than can be counted",
        "%x: f32[N,8]",
        "%x: f32[2147483647,2147483647,2147483647]",
    ),
    ("a size of an unknown symbol", "%x: f32[N,8]", "%x: f32[K,8]"),
    ("a division by zero", "%x: f32[N,8]", "%x: f32[N/0,8]"),
    ("a product that overflows", "%x: f32[N,8]", "%x: f32[9999999999*9999999999*N,8]"),
    ("no element type", "%x: f32[N,8]", "%x: [N,8]"),
    ("an unknown element type", "%x: f32[N,8]", "%x: f33[N,8]"),
    ("another element type", "%h : f32[N,8]", "%h : i32[N,8]"),
    ("another rank", "%h : f32[N,8]", "%h : f32[N]"),
    ("another size", "%h : f32[N,8]", "%h : f32[N,9]"),
    ("another type of an output", "(y: f32[N,8])", "(y: f32[N,7])"),
    ("an empty name", "relu(%x)", "relu(%\"\")"),
    ("a name that clears the screen", "relu(%x)", "relu(%\"\\u{1b}[2J\\u{7}\")"),
    ("a name that turns the text", "relu(%x)", "relu(%\"\\u{202e}x\")"),
    ("a control character in a name", "relu(%x)", "relu(%\"\u{1b}[2J\")"),
    ("a name with a line's end", "relu(%x)", "relu(%\"a\nb\")"),
    ("an unknown escape", "relu(%x)", "relu(%\"\\q\")"),
    ("an escape of no character", "relu(%x)", "relu(%\"\\u{d800}\")"),
    ("an escape that does not end", "relu(%x)", "relu(%\"\\u{41\")"),
    ("a value that nothing gives", "relu(%x)", "relu(%z)"),
    ("a value that uses itself", "relu(%x)", "relu(%h)"),
    ("values in a circle", "relu(%x)", "relu(%y)"),
    ("a value defined twice", "%y : f32[N,8]", "%h : f32[N,8]"),
    ("an input defined twice", "(%x: f32[N,8])", "(%x: f32[N,8], %x: f32[N,8])"),
    ("an output too many", "(y: f32[N,8])", "(y: f32[N,8], y: f32[N,8])"),
    ("an unknown operator", "relu(%x)", "rellu(%x)"),
    ("an operator without operands", "relu(%x)", "relu()"),
    ("too many operands", "relu(%x)", "relu(%x, %x)"),
    ("no operator", "relu(%x)", "(%x)"),
    ("a result too many", "%h : f32[N,8]", "%h : f32[N,8], %k : f32[N,8]"),
    ("an unknown attribute", "{axis = 1}", "{axes = 1}"),
    ("an attribute given twice", "{axis = 1}", "{axis = 1, axis = 1}"),
    ("an attribute of another kind", "{axis = 1}", "{axis = 1.5}"),
    ("an attribute of 2^63", "{axis = 1}", "{axis = 9223372036854775808}"),
    ("an attribute of -2^63", "{axis = 1}", "{axis = -9223372036854775808}"),
    ("an axis that is not there", "{axis = 1}", "{axis = 7}"),
    ("a list of both kinds", "{axis = 1}", "{axis = [1, 2.5]}"),
    ("a constant of 2^40 elements", "relu(%x)", "constant() {value = f32[1048576,1048576] []}"),
    ("a constant with too few elements", "relu(%x)", "constant() {value = f32[3] [1.0, 2.0]}"),
    ("a constant of no numbers", "relu(%x)", "constant() {value = f32[1] [one]}"),
    (
        "a device that is not declared",
        "  %h : f32[N,8] = relu(%x)",
        "  on gpu:0 { %h : f32[N,8] = relu(%x) }",
    ),
    (
        "a replica without a split",
        "  %h : f32[N,8] = relu(%x)",
        "  on cpu:0 replica @dp[0] if n0@dp > 0 { %h : f32[N,8] = relu(%x) }",
    ),
    ("a device of 2^64", "graph @g", "device gpu:18446744073709551616\ngraph @g"),
    (
        "a split over no devices",
        "graph @g",
        "split @dp of N over [] rule = ceil {o = [0]}\ngraph @g",
    ),
    (
        "a split whose offsets go back",
        "graph @g",
        "device gpu:0, gpu:1\nsplit @dp of N over [gpu:0, gpu:1] rule = ceil {o = [0, N+1]}\ngraph \
         @g",
    ),
    (
        "a split with an unknown rule",
        "graph @g",
        "device gpu:0\nsplit @dp of N over [gpu:0] rule = best {o = [0]}\ngraph @g",
    ),
    (
        "a parameter in no file",
        "graph @g",
        "param @w : f32[1] = \"no.safetensors#w\" blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "a parameter without a hash",
        "graph @g",
        "param @w : f32[1] = \"no.safetensors#w\"\ngraph @g",
    ),
    (
        "a parameter without a file",
        "graph @g",
        "param @w : f32[1] = \"w\" blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "a parameter in a device",
        "graph @g",
        "param @w : f32[1] = \"/dev/zero#w\" blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "a parameter above the folder",
        "graph @g",
        "param @w : f32[1] = \"../../none/w.safetensors#w\" blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "a parameter in a file that is none of ours",
        "graph @g",
        "param @w : f32[1] = \"/etc/passwd#w\" blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "a parameter beyond the memory",
        "graph @g",
        "param @w : f32[1099511627776] = \"no.safetensors#w\" blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "two parameters of one name",
        "graph @g",
        "param @w : f32[1] = \"f#w\" blake3:0123456789abcdef\nparam @w : f32[1] = \"f#w\" \
         blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "a parameter in a folder",
        "graph @g",
        "param @w : f32[1] = \"..#w\" blake3:0123456789abcdef\ngraph @g",
    ),
    (
        "a parameter in a generated model that is not there",
        "graph @g",
        "param @w : f32[1] = \"zoo:none#w\" blake3:0123456789abcdef\ngraph @g",
    ),
    ("nothing is returned", "return %y", "return"),
    ("no end", "  return %y\n}\n", "  return %y\n"),
    ("something after the end", "return %y\n}", "return %y\n}\n}"),
    ("places of a value that is not there", "return %y\n}", "return %y\n}\nloc { %z = \"z\" }"),
    ("a byte of 0", "relu(%x)", "relu(\0%x)"),
    ("lines that end as on Windows", "\n", "\r\n"),
];

fn with(from: &str, to: &str) -> Vec<u8> {
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1).into_bytes()
}

/// Texts that are long or deep.
fn long() -> Vec<Case> {
    let name = "n".repeat(1 << 20);
    let case = |title: &str, from: &str, to: &str| Case::new(title, "m.fan", with(from, to));
    let many = |piece: &str, count: usize| vec![piece; count].join(", ");
    let chain: Vec<String> =
        (0..10_000).map(|i| format!("  %h{i} : f32[N,8] = relu(%x)\n")).collect();
    let chain = chain.concat();
    vec![
        case("a value's name of a megabyte", "relu(%x)", &format!("relu(%{name})")),
        case("an operator's name of a megabyte", "relu(%x)", &format!("{name}(%x)")),
        case("a type's name of a megabyte", "%x: f32", &format!("%x: {name}")),
        case("an attribute's name of a megabyte", "{axis", &format!("{{{name}")),
        case("a string of a megabyte", "{axis = 1}", &format!("{{axis = \"{name}\"}}")),
        case("a formula of a megabyte", "%x: f32[N", &format!("%x: f32[{}", "N+".repeat(1 << 19))),
        case("brackets that nest", "%x: f32[N", &format!("%x: f32[{}", "(".repeat(1000))),
        case("brackets that nest a megabyte", "relu(%x)", &"(".repeat(1 << 20)),
        case("65 axes", "%x: f32[N,8]", &format!("%x: f32[{}]", many("1", 65))),
        case("a megabyte of axes", "%x: f32[N,8]", &format!("%x: f32[{}]", many("1", 1 << 19))),
        case("65 attributes", "{axis = 1}", &format!("{{{}}}", many_attributes(65))),
        case("a list of 100000", "{axis = 1}", &format!("{{axis = [{}]}}", many("1", 100_000))),
        case("100000 operands", "relu(%x)", &format!("relu({})", many("%x", 100_000))),
        case("100000 devices", "graph @g", &format!("device {}\ngraph @g", many("gpu:0", 100_000))),
        case("10000 operators", "  %y", &format!("{chain}  %y")),
        case("a comment of a megabyte", "graph @g", &format!("; {name}\ngraph @g")),
        case("a blank megabyte", "graph @g", &format!("{}graph @g", " \n".repeat(1 << 19))),
    ]
}

fn many_attributes(count: usize) -> String {
    (0..count).map(|i| format!("a{i} = 1")).collect::<Vec<_>>().join(", ")
}

fn cases() -> Vec<Case> {
    let new = |name: &str, bytes: Vec<u8>| Case::new(name, "m.fan", bytes);
    let mut cases = vec![
        new("a whole graph", GOOD.into()),
        new("a graph behind a byte order mark", [b"\xef\xbb\xbf", GOOD.as_bytes()].concat()),
        new("an output given twice", two_outputs()),
        new("the first word alone", b"fanwise ".to_vec()),
        new("a byte that is not valid text", with_byte(0xff)),
        new("a text beyond the memory", GOOD.into()).args(&["--max-memory", "100"]),
    ];
    for percent in [10, 20, 30, 40, 50, 60, 70, 80, 90, 97] {
        let cut = GOOD.as_bytes()[..GOOD.len() * percent / 100].to_vec();
        cases.push(new(&format!("cut at {percent} %"), cut));
    }
    for (at, bit) in [(8, 0), (12, 1), (34, 2), (60, 3), (75, 4), (99, 0), (120, 6), (140, 2)] {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        cases.push(new(&format!("bit {bit} of byte {at} flipped"), bytes));
    }
    cases.extend(ODD.iter().map(|(name, from, to)| new(name, with(from, to))));
    cases.extend(long());
    cases
}

fn two_outputs() -> Vec<u8> {
    let twice = GOOD.replace("(y: f32[N,8])", "(y: f32[N,8], y: f32[N,8])");
    twice.replace("return %y", "return %y, %h").into_bytes()
}

fn with_byte(byte: u8) -> Vec<u8> {
    let mut bytes = GOOD.as_bytes().to_vec();
    bytes.insert(60, byte);
    bytes
}

#[test]
fn hostile_texts_are_refused_by_place() {
    snap::assert("hostile", "text", &table(&cases()));
}
