//! Weights in `.safetensors` files, and what may stand where such a file does.

use std::fs;
use std::path::Path;

use fanwise::internal::ContentHash;
use fanwise::types::Tensor;
use support::snap;

use super::{Case, table};

/// The header of the file that is valid: one tensor of 16 bytes.
const HEADER: &str = r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;

/// A graph with a parameter of four ones.
fn graph() -> String {
    let ones = Tensor::new(&[2, 2], &[1f32; 4]).expect("a tensor");
    let hash = ContentHash::of(&ones);
    format!(
        "fanwise 1\nsymbol N >= 0\nparam @w : f32[2,2] = \"w.safetensors#w\" blake3:{hash}\n\
         graph @g(%x: f32[N,2]) -> (y: f32[N,2]) {{\n  %y : f32[N,2] = matmul(%x, @w)\n  return \
         %y\n}}\n"
    )
}

fn file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

fn ones() -> Vec<u8> {
    [1f32; 4].iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The graph beside what `write` makes at the place of its weights.
fn beside(name: &str, write: impl Fn(&Path) + Send + Sync + 'static) -> Case {
    Case::of(name, "m.fan", move |folder| {
        fs::write(folder.join("m.fan"), graph()).expect("written");
        write(&folder.join("w.safetensors"));
    })
}

fn new(name: &str, bytes: Vec<u8>) -> Case {
    beside(name, move |path| fs::write(path, &bytes).expect("written"))
}

/// Headers that are wrong or odd.
const HEADERS: &[(&str, &str)] = &[
    ("an empty header", ""),
    ("no tensors", "{}"),
    ("a list", "[]"),
    ("another tensor", r#"{"v":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#),
    ("another element type", r#"{"w":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}"#),
    (
        "an element type of another width",
        r#"{"w":{"dtype":"F64","shape":[2,2],"data_offsets":[0,16]}}"#,
    ),
    (
        "an element type that is not ours",
        r#"{"w":{"dtype":"F8_E4M3","shape":[4,4],"data_offsets":[0,16]}}"#,
    ),
    (
        "an element type with control characters",
        r#"{"w":{"dtype":"\u001b[2J","shape":[4,4],"data_offsets":[0,16]}}"#,
    ),
    ("another shape", r#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#),
    ("a negative size", r#"{"w":{"dtype":"F32","shape":[-2,2],"data_offsets":[0,16]}}"#),
    (
        "a size of 2^63",
        r#"{"w":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,16]}}"#,
    ),
    (
        "a size of 2^64",
        r#"{"w":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,16]}}"#,
    ),
    (
        "sizes that overflow",
        r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}}"#,
    ),
    ("a size that is a string", r#"{"w":{"dtype":"F32","shape":["2",2],"data_offsets":[0,16]}}"#),
    ("a place past the end", r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[16,32]}}"#),
    (
        "a place of 2^64",
        r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,18446744073709551615]}}"#,
    ),
    ("a place that goes back", r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[16,0]}}"#),
    ("a place of one number", r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0]}}"#),
    ("a place of three numbers", r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16,32]}}"#),
    ("a gap before the first", r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}}"#),
    ("a gap at the end", r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}"#),
    (
        "tensors in one place",
        r#"{"v":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#,
    ),
    (
        "tensors that overlap",
        r#"{"v":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}"#,
    ),
    (
        "a name twice",
        r#"{"w":{"dtype":"F32","shape":[0,2],"data_offsets":[0,0]},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#,
    ),
    ("no element type", r#"{"w":{"shape":[2,2],"data_offsets":[0,16]}}"#),
    ("a field twice", r#"{"w":{"dtype":"F32","dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#),
    (
        "an unknown field",
        r#"{"w":{"dtype":"F32","shape":[2,2],"strides":[1],"data_offsets":[0,16]}}"#,
    ),
    ("a tensor that is null", r#"{"w":null}"#),
    (
        "something after the header",
        r#"{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}{}"#,
    ),
    (
        "remarks beside the tensors",
        r#"{"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#,
    ),
    (
        "a control character in a name",
        r#"{"\u001b[2J":{"dtype":"F32","shape":[1],"data_offsets":[0,16]}}"#,
    ),
    ("an empty name", r#"{"":{"dtype":"F32","shape":[1],"data_offsets":[0,16]}}"#),
];

fn long() -> Vec<Case> {
    let sizes = vec!["1"; 1 << 19].join(",");
    let case = |name: &str, header: String| new(name, file(header.as_bytes(), &ones()));
    let long = "n".repeat(1 << 20);
    vec![
        case("a megabyte of sizes", HEADER.replace("2,2", &sizes)),
        case("65 sizes", HEADER.replace("2,2", &vec!["1"; 65].join(","))),
        case(
            "a name of a megabyte",
            HEADER.replace("2,2", "1").replace("\"w\"", &format!("\"{long}\"")),
        ),
        case("an element type of a megabyte", HEADER.replace("F32", &long)),
        case("a field of a megabyte", HEADER.replace("shape", &long)),
        case("lists that nest", HEADER.replace("2,2", &"[".repeat(1 << 20))),
        case("remarks that nest", format!("{{\"__metadata__\":{}", "[".repeat(1 << 20))),
        case("20000 tensors without elements", format!("{{{}", many(20_000)) + &HEADER[1..]),
    ]
}

fn many(count: usize) -> String {
    let one = |i| format!("\"t{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}},");
    (0..count).map(one).collect()
}

/// What stands where the file must be.
#[cfg(unix)]
fn places() -> Vec<Case> {
    use std::os::unix::fs::symlink;
    let pipe = |path: &Path| {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.expect("mkfifo").success());
    };
    vec![
        beside("a pipe", pipe),
        beside("a folder", |path| fs::create_dir(path).expect("made")),
        beside("a link to a device", |path| symlink("/dev/zero", path).expect("made")),
        beside("a link to itself", |path| symlink(path, path).expect("made")),
        beside("a link to nothing", |path| symlink("none", path).expect("made")),
        beside("nothing", |_| {}),
        beside("a terabyte of zeros", |path| {
            fs::File::create(path).and_then(|f| f.set_len(1 << 40)).expect("made");
        }),
    ]
}

#[cfg(not(unix))]
fn places() -> Vec<Case> {
    Vec::new()
}

fn cases() -> Vec<Case> {
    let whole = file(HEADER.as_bytes(), &ones());
    let length = |length: u64| [&length.to_le_bytes(), &whole[8..]].concat();
    let mut cases = vec![
        new("a whole file", whole.clone()),
        new("an empty file", Vec::new()),
        new("a header longer than the file", length(1000)),
        new("a header of 2^64 bytes", length(u64::MAX)),
        new("a header one byte short", length(HEADER.len() as u64 - 1)),
        new("a header one byte long", length(HEADER.len() as u64 + 1)),
        new("a header that is not valid text", file(&[0xff; 40], &[])),
        new("other elements", file(HEADER.as_bytes(), &[0; 16])),
        new("elements too many", file(HEADER.as_bytes(), &[0; 17])),
        beside("elements beyond the memory", |path| {
            let size = 1u64 << 40;
            let header =
                format!(r#"{{"w":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}"#);
            fs::write(path, file(header.as_bytes(), &[])).expect("written");
            let whole = fs::File::options().write(true).open(path).expect("opened");
            whole.set_len(8 + header.len() as u64 + size).expect("made longer");
        })
        .args(&["--max-memory", "64M"]),
    ];
    for cut in [1, 7, 8, 9, 30, 64, 70, whole.len() - 1] {
        cases.push(new(&format!("cut at byte {cut}"), whole[..cut].to_vec()));
    }
    for (at, bit) in [(0, 3), (7, 7), (9, 0), (12, 1), (30, 2), (50, 4), (66, 6)] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        cases.push(new(&format!("bit {bit} of byte {at} flipped"), bytes));
    }
    let of = |(name, header): &(&str, &str)| new(name, file(header.as_bytes(), &ones()));
    cases.extend(HEADERS.iter().map(of));
    cases.extend(long());
    cases.extend(places());
    cases
}

#[test]
fn hostile_safetensors_are_refused_by_place() {
    snap::assert("hostile", "safetensors", &table(&cases()));
}
