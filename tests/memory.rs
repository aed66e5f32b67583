//! The memory that readers of files take: at most four times the file and 16 MiB, besides what
//! tensors take that the caller allowed. A test binary of its own, so that its allocations are
//! counted alone.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Cursor, Write};
use std::path::Path;

use fanwise::format::{Budget, npz, safetensors};
use fanwise::ir;
use peak_alloc::PeakAlloc;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use support::damage;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The bytes that a reader may take for any file.
const SPARE: usize = 16 << 20;

/// The bytes that tensors may take.
const TENSORS: u64 = 1 << 20;

fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ir::parse(text) {
        Ok(graph) => drop(ir::verify(&graph).map(|_| ())),
        Err(error) => drop(error.to_string()),
    }
}

fn json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ir::from_json(text) {
        Ok(graph) => drop(ir::verify(&graph).map(|_| ())),
        Err(error) => drop(error.to_string()),
    }
}

fn archive(data: &[u8]) {
    let read = npz::read_from(Cursor::new(data), Path::new("f"), &mut Budget::new(TENSORS));
    drop(read.map_err(|e| e.to_string()));
}

fn weights(data: &[u8]) {
    let (size, path) = (data.len() as u64, Path::new("f"));
    let read =
        safetensors::read_from(Cursor::new(data), size, path, &mut Budget::new(TENSORS), |_| true);
    drop(read.map_err(|e| e.to_string()));
}

/// Fails if reading `data` takes more memory than it may.
fn bounded(what: &str, read: fn(&[u8]), data: &[u8]) {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    read(data);
    let peak = MEMORY.peak_usage().saturating_sub(before);
    let most = 4 * data.len() + SPARE + usize::try_from(TENSORS).unwrap();
    assert!(peak <= most, "{what} of {} bytes takes {peak} bytes, at most {most}", data.len());
}

/// `count` pieces with a separator.
fn many(count: usize, separator: &str, piece: impl Fn(usize) -> String) -> String {
    (0..count).map(piece).collect::<Vec<_>>().join(separator)
}

/// Texts of as much as possible in few bytes.
fn texts() -> Vec<(&'static str, String)> {
    let body = |head: &str, body: &str| {
        format!(
            "fanwise 1\nsymbol N >= 0\n{head}graph @g(%x:f32[N])->(y:f32[N]){{\n{body}return \
             %x\n}}\n"
        )
    };
    let op = |i: usize| format!("%h{i}:f32[N]=relu(%x)\n");
    let param = |i: usize| format!("param @w{i}:f32[1]=\"#\"blake3:0123456789abcdef\n");
    let ones = many(65_000, ",", |_| "1".to_owned());
    vec![
        ("30000 operators", body("", &many(30_000, "", op))),
        ("30000 parameters", body(&many(30_000, "", param), "")),
        (
            "lists of numbers",
            body("", &format!("%y:f32[N]=softmax(%x){{a=[{ones}],b=[{ones}],c=[{ones}]}}")),
        ),
        ("sizes", format!("fanwise 1\nsymbol N >= 0\ngraph @g(%x:f32[{}", "1,".repeat(1 << 20))),
        ("operands", body("", &format!("%y:f32[N]=concat({}", "%x,".repeat(1 << 20)))),
        ("devices", body(&format!("device {}\n", many(200_000, ",", |i| format!("gpu:{i}"))), "")),
        ("formulas", body("", &many(20_000, "", |i| format!("%h{i}:f32[N+{i}]=relu(%x)\n")))),
        ("brackets", "(".repeat(1 << 21)),
        ("a name", body("", &format!("%{}", "n".repeat(1 << 21)))),
        ("escapes", body("", &format!("%y:f32[N]=relu(%\"{}\")", "\\n".repeat(1 << 20)))),
    ]
}

fn jsons() -> Vec<(&'static str, String)> {
    let graph = |params: &str, nodes: &str| {
        format!(
            "{{\"format\":\"fanwise-graph\",\"version\":1,\"name\":\"g\",\"params\":[{params}],\
             \"inputs\":[{{\"name\":\"x\",\"dtype\":\"f32\",\"shape\":[\"N\"]}}],\"nodes\":[{nodes}],\"outputs\":[]}}"
        )
    };
    let node = |i: usize| {
        format!(
            "{{\"op\":\"relu\",\"operands\":[{{\"value\":\"x\"}}],\"results\":[{{\"name\":\"h{i}\",\"dtype\":\"f32\",\"shape\":[\"N\"]}}],\"device\":\"cpu:0\"}}"
        )
    };
    let empty = |_| "{\"op\":\"\",\"operands\":[],\"results\":[],\"device\":\"cpu:0\"}".to_owned();
    let with = |operands: String| {
        format!(
            "{{\"op\":\"concat\",\"operands\":[{operands}],\"results\":[],\"device\":\"cpu:0\"}}"
        )
    };
    let sizes = many(1 << 20, ",", |_| "1".to_owned());
    let param = format!("{{\"name\":\"w\",\"dtype\":\"f32\",\"shape\":[{sizes}]}}");
    vec![
        ("20000 nodes", graph("", &many(20_000, ",", node))),
        ("nodes that are wrong", graph("", &many(100_000, ",", empty))),
        ("operands", graph("", &with(many(100_000, ",", |_| "{}".to_owned())))),
        ("sizes", graph(&param, "")),
        ("brackets", "[".repeat(1 << 21)),
        ("nested fields", "{\"a\":".repeat(1 << 19)),
        ("a name", format!("{{\"{}\":1}}", "n".repeat(1 << 21))),
        ("escapes", format!("{{\"format\":\"{}\"}}", "\\n".repeat(1 << 20))),
    ]
}

fn archives() -> Vec<(&'static str, Vec<u8>)> {
    let entries = |count: usize, content: &[u8]| {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for i in 0..count {
            let options = zip::write::SimpleFileOptions::default();
            zip.start_file(format!("{i}.npy"), options).unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap().into_inner()
    };
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}";
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    let none = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat();
    let long = b"\x93NUMPY\x02\x00\xff\xff\xff\x7f";
    vec![
        ("20000 arrays without elements", entries(20_000, &none)),
        ("20000 empty entries", entries(20_000, b"")),
        ("a long header", entries(1, long)),
    ]
}

fn headers() -> Vec<(&'static str, Vec<u8>)> {
    let file = |header: String| [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let tensor =
        |i: usize| format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let sizes = many(1 << 20, ",", |_| "1".to_owned());
    vec![
        ("20000 tensors", file(format!("{{{}}}", many(20_000, ",", tensor)))),
        (
            "sizes",
            file(format!(
                "{{\"w\":{{\"dtype\":\"U8\",\"shape\":[{sizes}],\"data_offsets\":[0,0]}}}}"
            )),
        ),
        (
            "remarks",
            file(format!(
                "{{\"__metadata__\":{{{}}}}}",
                many(200_000, ",", |i| format!("\"{i}\":\"\""))
            )),
        ),
        ("brackets", file(format!("{{\"__metadata__\":{}", "[".repeat(1 << 21)))),
    ]
}

#[test]
fn readers_take_memory_in_proportion_to_the_file() {
    for (what, data) in texts() {
        bounded(&format!("text: {what}"), text, data.as_bytes());
    }
    for (what, data) in jsons() {
        bounded(&format!("JSON: {what}"), json, data.as_bytes());
    }
    for (what, data) in archives() {
        bounded(&format!("npz: {what}"), archive, &data);
    }
    for (what, data) in headers() {
        bounded(&format!("safetensors: {what}"), weights, &data);
    }
    let reader = |target| match target {
        "text" => text,
        "json" => json,
        "npz" => archive,
        _ => weights,
    };
    for target in ["text", "json", "npz", "safetensors"] {
        let read = reader(target);
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let seeds = damage::corpus(target);
        for i in 0..400 {
            let mut data = seeds[i % seeds.len()].clone();
            damage::damage(&mut data, &mut rng);
            bounded(&format!("{target}: damaged file {i}"), read, &data);
        }
    }
}
