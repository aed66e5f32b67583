//! Graphs in JSON.

use support::snap;

use super::{Case, table};

/// A graph that is valid.
const GOOD: &str = r#"{
"format": "fanwise-graph",
"version": 1,
"name": "g",
"params": [
],
"inputs": [
{"name":"x","dtype":"f32","shape":["N",8]}
],
"nodes": [
{"op":"relu","operands":[{"value":"x"}],"results":[{"name":"h","dtype":"f32","shape":["N",8]}],"device":"cpu:0"},
{"op":"softmax","operands":[{"value":"h"}],"attrs":{"axis":{"int":1}},"results":[{"name":"y","dtype":"f32","shape":["N",8]}],"device":"cpu:0"}
],
"outputs": [
{"name":"y","value":{"value":"y"}}
]
}
"#;

/// Pieces of the valid graph, and what stands in their place.
const ODD: &[(&str, &str, &str)] = &[
    ("version 2", "\"version\": 1", "\"version\": 2"),
    ("a version of 2^64", "\"version\": 1", "\"version\": 18446744073709551616"),
    ("no version", "\"version\": 1,\n", ""),
    ("another format", "fanwise-graph", "other"),
    ("an unknown field", "\"name\": \"g\"", "\"name\": \"g\", \"more\": 1"),
    ("a field twice", "\"name\": \"g\"", "\"name\": \"g\", \"name\": \"g\""),
    ("a field of another kind", "\"name\": \"g\"", "\"name\": 7"),
    ("no inputs", "\"inputs\": [\n{\"name\":\"x\",\"dtype\":\"f32\",\"shape\":[\"N\",8]}\n],", ""),
    ("a size of 2^63", "[\"N\",8]}\n]", "[\"N\",9223372036854775808]}\n]"),
    ("a size of 2^64", "[\"N\",8]}\n]", "[\"N\",18446744073709551616]}\n]"),
    ("a size of -1", "[\"N\",8]}\n]", "[\"N\",-1]}\n]"),
    ("a size of 1.5", "[\"N\",8]}\n]", "[\"N\",1.5]}\n]"),
    ("a size of an unknown symbol", "[\"N\",8]}\n]", "[\"K\",8]}\n]"),
    (
        "more elements than can be counted",
        "[\"N\",8]}\n]",
        "[2147483647,2147483647,2147483647]}\n]",
    ),
    ("a size that is a list", "[\"N\",8]}\n]", "[[],8]}\n]"),
    ("an unknown element type", "\"x\",\"dtype\":\"f32\"", "\"x\",\"dtype\":\"f33\""),
    ("another element type", "\"h\",\"dtype\":\"f32\"", "\"h\",\"dtype\":\"i32\""),
    ("an empty name", "{\"name\":\"x\"", "{\"name\":\"\""),
    ("a name that clears the screen", "{\"value\":\"x\"}", "{\"value\":\"\\u001b[2J\\u0007\"}"),
    ("a control character in a name", "{\"value\":\"x\"}", "{\"value\":\"\u{1b}[2J\"}"),
    ("half of a surrogate pair", "{\"value\":\"x\"}", "{\"value\":\"\\ud800\"}"),
    ("a value that nothing gives", "{\"value\":\"x\"}", "{\"value\":\"z\"}"),
    ("a value that uses itself", "{\"value\":\"x\"}", "{\"value\":\"h\"}"),
    ("values in a circle", "{\"value\":\"x\"}", "{\"value\":\"y\"}"),
    ("a parameter that is not there", "{\"value\":\"x\"}", "{\"param\":\"w\"}"),
    ("an operand of both kinds", "{\"value\":\"x\"}", "{\"value\":\"x\",\"param\":\"w\"}"),
    ("an operand of no kind", "{\"value\":\"x\"}", "{}"),
    ("a value defined twice", "{\"name\":\"y\",\"dtype\"", "{\"name\":\"h\",\"dtype\""),
    ("an unknown operator", "\"relu\"", "\"rellu\""),
    ("an operator's name with control characters", "\"relu\"", "\"\\u001b]0;t\\u0007\""),
    ("no operands", "[{\"value\":\"x\"}]", "[]"),
    ("an unknown attribute", "{\"axis\":", "{\"axes\":"),
    ("an attribute of an unknown kind", "{\"int\":1}", "{\"long\":1}"),
    ("an attribute of another kind", "{\"int\":1}", "{\"float\":\"1.5\"}"),
    ("an attribute of two kinds", "{\"int\":1}", "{\"int\":1,\"bool\":true}"),
    ("a float that is none", "{\"int\":1}", "{\"float\":\"one\"}"),
    (
        "a constant with too few bytes",
        "{\"int\":1}",
        "{\"tensor\":{\"dtype\":\"f32\",\"dims\":[3],\"data\":\"00\"}}",
    ),
    (
        "a constant of 2^64 bytes",
        "{\"int\":1}",
        "{\"tensor\":{\"dtype\":\"f32\",\"dims\":[4294967296,1073741824],\"data\":\"\"}}",
    ),
    (
        "a constant of no digits",
        "{\"int\":1}",
        "{\"tensor\":{\"dtype\":\"u8\",\"dims\":[1],\"data\":\"zz\"}}",
    ),
    ("a device that is none", "\"device\":\"cpu:0\"}\n]", "\"device\":\"tpu:0\"}\n]"),
    (
        "a replica without a split",
        "\"device\":\"cpu:0\"}\n]",
        "\"device\":\"cpu:0\",\"replica\":0}\n]",
    ),
    (
        "a split over no devices",
        "\"params\"",
        "\"split\": {\"devices\":[],\"rule\":\"ceil\",\"offsets\":[0]}, \"params\"",
    ),
    (
        "a parameter whose hash is none",
        "\"params\": [",
        "\"params\": [{\"name\":\"w\",\"dtype\":\"f32\",\"shape\":[1],\"file\":\"f\",\"key\":\"w\",\"blake3\":\"x\"}",
    ),
    (
        "a parameter in no file",
        "\"params\": [",
        "\"params\": [{\"name\":\"w\",\"dtype\":\"f32\",\"shape\":[1],\"file\":\"f\",\"key\":\"w\",\"blake3\":\"0123456789abcdef\"}",
    ),
    (
        "a parameter in a device",
        "\"params\": [",
        "\"params\": [{\"name\":\"w\",\"dtype\":\"f32\",\"shape\":[1],\"file\":\"/dev/zero\",\"key\":\"w\",\"blake3\":\"0123456789abcdef\",\"device\":\"cpu:0\"}",
    ),
    (
        "a parameter above the folder",
        "\"params\": [",
        "\"params\": [{\"name\":\"w\",\"dtype\":\"f32\",\"shape\":[1],\"file\":\"../../none/w.safetensors\",\"key\":\"w\",\"blake3\":\"0123456789abcdef\",\"device\":\"cpu:0\"}",
    ),
    (
        "another rank",
        "\"h\",\"dtype\":\"f32\",\"shape\":[\"N\",8]",
        "\"h\",\"dtype\":\"f32\",\"shape\":[\"N\"]",
    ),
    ("no name", "{\"name\":\"x\",", "{"),
    ("a device of 2^64", "\"device\":\"cpu:0\"}\n]", "\"device\":\"gpu:18446744073709551616\"}\n]"),
    ("something after the end", "]\n}\n", "]\n}\n{}"),
    ("a comma at the end of a list", "\"value\":\"y\"}}", "\"value\":\"y\"}},"),
    ("a byte of 0", "\"version\"", "\0\"version\""),
];

fn with(from: &str, to: &str) -> Vec<u8> {
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1).into_bytes()
}

/// Texts that are long or deep.
fn long() -> Vec<Case> {
    let name = "n".repeat(1 << 20);
    let case = |title: &str, from: &str, to: &str| Case::new(title, "m.json", with(from, to));
    let ones = |count: usize| vec!["1"; count].join(",");
    let operands = vec!["{\"value\":\"x\"}"; 70_000].join(",");
    vec![
        case(
            "a value's name of a megabyte",
            "{\"value\":\"x\"}",
            &format!("{{\"value\":\"{name}\"}}"),
        ),
        case("an operator's name of a megabyte", "\"relu\"", &format!("\"{name}\"")),
        case("a field's name of a megabyte", "\"version\"", &format!("\"{name}\":1,\"version\"")),
        case(
            "a type's name of a megabyte",
            "\"x\",\"dtype\":\"f32\"",
            &format!("\"x\",\"dtype\":\"{name}\""),
        ),
        case(
            "a formula of a megabyte",
            "[\"N\",8]}\n]",
            &format!("[\"{}N\"]}}\n]", "N+".repeat(1 << 19)),
        ),
        case("65 axes", "[\"N\",8]}\n]", &format!("[{}]}}\n]", ones(65))),
        case("a megabyte of axes", "[\"N\",8]}\n]", &format!("[{}]}}\n]", ones(1 << 19))),
        case("a list of 100000", "{\"int\":1}", &format!("{{\"ints\":[{}]}}", ones(100_000))),
        case("70000 operands", "{\"value\":\"x\"}", &operands),
        case("lists that nest", "[\"N\",8]}\n]", &"[".repeat(1 << 20)),
        case("fields that nest", "\"params\"", &format!("\"split\":{}", "{\"a\":".repeat(1 << 17))),
        case("a number of a megabyte", "[\"N\",8]}\n]", &format!("[{}]}}\n]", "1".repeat(1 << 20))),
    ]
}

fn cases() -> Vec<Case> {
    let new = |name: &str, bytes: Vec<u8>| Case::new(name, "m.json", bytes);
    let mut cases = vec![
        new("a whole graph", GOOD.into()),
        new("nothing but a bracket", b"{".to_vec()),
        new("nothing but brackets", b"{}".to_vec()),
        new("a megabyte of brackets", vec![b'{'; 1 << 20]),
        new("a text beyond the memory", GOOD.into()).args(&["--max-memory", "100"]),
        new("a replica that the split does not have", other_replica()),
    ];
    for percent in [5, 15, 30, 45, 60, 75, 90, 98] {
        let cut = GOOD.as_bytes()[..GOOD.len() * percent / 100].to_vec();
        cases.push(new(&format!("cut at {percent} %"), cut));
    }
    for (at, bit) in [(3, 1), (20, 0), (60, 7), (100, 4), (150, 2), (210, 3), (300, 0)] {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        cases.push(new(&format!("bit {bit} of byte {at} flipped"), bytes));
    }
    cases.extend(ODD.iter().map(|(name, from, to)| new(name, with(from, to))));
    cases.extend(long());
    cases
}

fn other_replica() -> Vec<u8> {
    let split = r#""split": {"devices":["gpu:0"],"rule":"ceil","offsets":[0,"N"]}, "params""#;
    let text = GOOD.replace("\"params\"", split);
    text.replacen("\"device\":\"cpu:0\"", "\"device\":\"gpu:0\",\"replica\":1", 1).into_bytes()
}

#[test]
fn hostile_json_is_refused_by_place() {
    snap::assert("hostile", "json", &table(&cases()));
}
