//! Inputs in `.npz` archives, and what may stand where such a file does.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use support::snap;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{Case, table};

const MODEL: &str = "fanwise 1
symbol N >= 0
graph @g(%x: f32[N,2]) -> (y: f32[N,2]) {
  %y : f32[N,2] = relu(%x)
  return %y
}
";

/// An `.npy` of this header and these elements.
fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(header.len()).expect("short");
    [b"\x93NUMPY\x01\x00", &length.to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// An `.npy` of three rows that is valid.
fn good() -> Vec<u8> {
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n", &[0; 24])
}

fn archive(entries: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file(*name, options).expect("an entry");
        zip.write_all(bytes).expect("written");
    }
    zip.finish().expect("finished").into_inner()
}

fn stored(name: &str, bytes: &[u8]) -> Vec<u8> {
    archive(&[(name, bytes)], CompressionMethod::Stored)
}

/// The model beside what `write` makes at the place of its inputs.
fn beside(name: &str, write: impl Fn(&Path) + Send + Sync + 'static) -> Case {
    let case = Case::of(name, "m.fan", move |folder| {
        fs::write(folder.join("m.fan"), MODEL).expect("written");
        write(&folder.join("in.npz"));
    });
    case.command(&["run", "m.fan", "--gpus", "2", "--inputs", "in.npz", "--outputs", "out.npz"])
}

fn new(name: &str, bytes: Vec<u8>) -> Case {
    beside(name, move |path| fs::write(path, &bytes).expect("written"))
}

/// Headers of the one entry that are wrong or odd; each has 24 bytes of elements.
const HEADERS: &[(&str, &str)] = &[
    ("an empty header", ""),
    ("no shape", "{'descr': '<f4', 'fortran_order': False}"),
    ("another rank", "{'descr': '<f4', 'fortran_order': False, 'shape': (6,)}"),
    ("another size", "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}"),
    ("another element type", "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2)}"),
    ("elements that are objects", "{'descr': '|O', 'fortran_order': False, 'shape': (3, 2)}"),
    (
        "elements that are records",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3, 2)}",
    ),
    (
        "an element type with control characters",
        "{'descr': '\u{1b}[2J', 'fortran_order': False, 'shape': (3, 2)}",
    ),
    (
        "a size of 2^63",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808, 2)}",
    ),
    (
        "a size of 2^64",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616, 2)}",
    ),
    ("a size of -1", "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}"),
    (
        "sizes that overflow",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
    ),
    (
        "sizes that overflow to nothing",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4)}",
    ),
    ("a terabyte", "{'descr': '<f4', 'fortran_order': False, 'shape': (137438953472, 2)}"),
    ("an unknown key", "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), 'more': 1}"),
    ("an order that is a number", "{'descr': '<f4', 'fortran_order': 1, 'shape': (3, 2)}"),
    ("a string that does not end", "{'descr': '<f4"),
    ("code", "{'descr': __import__('os').system('id'), 'fortran_order': False, 'shape': (3, 2)}"),
    ("columns first", "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2)}"),
    (
        "the most significant byte first",
        "{'descr': '>f4', 'fortran_order': False, 'shape': (3, 2)}",
    ),
];

/// Entries of odd names and contents.
fn entries() -> Vec<Case> {
    let good = good();
    let long = "n".repeat(60_000);
    let deep = vec!["1"; 65].join(", ");
    let deep = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({deep})}}");
    let two = |first: &str, second: &str| {
        archive(&[(first, &good), (second, &good)], CompressionMethod::Stored)
    };
    let mut version = good.clone();
    version[6] = 9;
    vec![
        new("no entries", archive(&[], CompressionMethod::Stored)),
        new("another name", stored("z.npy", &good)),
        new("an empty name", stored("", &good)),
        new("a name of an ending only", stored(".npy", &good)),
        new("a name that clears the screen", stored("\u{1b}[2J\u{7}.npy", &good)),
        new("a name of 60000 bytes", stored(&long, &good)),
        new("a name that leaves the folder", two("x.npy", "../../x.npy")),
        new("an absolute name", two("x.npy", "/etc/passwd.npy")),
        new("a name with a drive", two("x.npy", "C:\\x.npy")),
        new("a name too many", two("x.npy", "z.npy")),
        new("a name with and without its ending", two("x.npy", "x")),
        new("a name twice", twice(&two("x.npy", "y.npy"))),
        new("two entries in one place", one_place(&two("x.npy", "z.npy"))),
        new("an entry that is a folder", stored("x/", b"")),
        new("an entry that is a link", linked("x.npy", "../../etc/passwd")),
        new("no .npy inside", stored("x.npy", b"hello, this is a text of some length")),
        new("an empty entry", stored("x.npy", b"")),
        new("an archive inside", stored("x.npy", &stored("x.npy", &good))),
        new("version 9 of .npy", stored("x.npy", &version)),
        new("elements cut off", stored("x.npy", &good[..good.len() - 1])),
        new("elements too many", stored("x.npy", &[&good[..], b"!"].concat())),
        new("65 axes", stored("x.npy", &npy(&deep, &[0; 4]))),
        new("a header longer than the entry", stored("x.npy", b"\x93NUMPY\x01\x00\xff\xff{")),
        new("a header of 4 gigabytes", stored("x.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{")),
        new("5000 entries", {
            let names: Vec<String> = (0..5000).map(|i| format!("t{i}.npy")).collect();
            let all: Vec<(&str, &[u8])> = names.iter().map(|n| (&**n, &good[..])).collect();
            archive(&all, CompressionMethod::Stored)
        }),
    ]
}

/// The archive where the entry `y.npy` has the name of the other, `x.npy`.
fn twice(archive: &[u8]) -> Vec<u8> {
    let mut archive = archive.to_vec();
    let places = archive.windows(5).enumerate().filter(|(_, w)| w == b"y.npy").map(|(at, _)| at);
    places.collect::<Vec<_>>().into_iter().for_each(|at| archive[at] = b'x');
    archive
}

/// The archive where the last entry lies where the first does.
fn one_place(archive: &[u8]) -> Vec<u8> {
    let mut archive = archive.to_vec();
    let last = archive.windows(4).rposition(|w| w == b"PK\x01\x02").expect("a list");
    archive[last + 42..last + 46].fill(0);
    archive
}

/// An archive whose entry says that it is a link.
fn linked(name: &str, to: &str) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    zip.add_symlink(name, to, SimpleFileOptions::default()).expect("an entry");
    zip.finish().expect("finished").into_inner()
}

/// Archives whose sizes or methods are not what they say.
fn lies() -> Vec<Case> {
    let whole = stored("x.npy", &good());
    let central = find(&whole, b"PK\x01\x02");
    let end = find(&whole, b"PK\x05\x06");
    let set = |at: usize, bytes: &[u8]| {
        let mut archive = whole.clone();
        archive[at..at + bytes.len()].copy_from_slice(bytes);
        archive
    };
    let method = |method: u8| {
        let mut archive = set(central + 10, &[method]);
        archive[8] = method;
        archive
    };
    let encrypted = {
        let mut archive = set(central + 8, &[1]);
        archive[6] |= 1;
        archive
    };
    let rows = "{'descr': '<f4', 'fortran_order': False, 'shape': (8388608, 2)}";
    let bomb = || {
        let content = npy(rows, &vec![0; 1 << 26]);
        archive(&[("x.npy", &content)], CompressionMethod::Deflated)
    };
    vec![
        new("a wrong checksum", set(central + 16, b"abcd")),
        new("other elements than the checksum's", set(central - 1, b"!")),
        new("a size of 4 gigabytes", set(central + 24, &[0xfe, 0xff, 0xff, 0xff])),
        new("a stored size of 4 gigabytes", set(central + 20, &[0xfe, 0xff, 0xff, 0xff])),
        new("a large form that is not there", set(central + 20, &[0xff; 8])),
        new("a place past the end", set(central + 42, &[0xfe, 0xff, 0xff, 0x7f])),
        new("the place of another thing", set(central + 42, &[5, 0, 0, 0])),
        new("60000 entries that are not there", set(end + 8, &[0x60, 0xea, 0x60, 0xea])),
        new("a list of entries past the end", set(end + 16, &[0xfe, 0xff, 0xff, 0x7f])),
        new("a remark that is not there", set(end + 20, &[0xff, 0xff])),
        new("the large form's end that is not there", set(end + 8, &[0xff; 12])),
        new("an encrypted entry", encrypted),
        new("compression bzip2", method(12)),
        new("compression zstd", method(93)),
        new("an unknown compression", method(77)),
        new("deflated elements that are not", method(8)),
        new("a bomb of 64 megabytes", bomb()).args(&["--max-memory", "1000000"]),
        new("something before the archive", [&b"#!/bin/sh\n"[..], &whole].concat()),
        new("something after the archive", [&whole[..], b"more"].concat()),
    ]
}

fn find(bytes: &[u8], mark: &[u8]) -> usize {
    bytes.windows(mark.len()).position(|w| w == mark).expect("a mark")
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
    let whole = stored("x.npy", &good());
    let large = "{'descr': '<f4', 'fortran_order': False, 'shape': (300, 2)}";
    let mut cases = vec![
        new("a whole archive", whole.clone()),
        new("an empty file", Vec::new()),
        new("an .npy", good()),
        new("a text", b"no archive at all".to_vec()),
        new("elements beyond the memory", stored("x.npy", &npy(large, &[0; 2400])))
            .args(&["--max-memory", "2000"]),
    ];
    for percent in [3, 20, 40, 60, 80, 95, 99] {
        let cut = whole[..whole.len() * percent / 100].to_vec();
        cases.push(new(&format!("cut at {percent} %"), cut));
    }
    for (at, bit) in [(0, 1), (4, 2), (18, 0), (26, 0), (30, 3), (40, 7), (60, 1), (120, 0)] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        cases.push(new(&format!("bit {bit} of byte {at} flipped"), bytes));
    }
    let of = |(name, header): &(&str, &str)| {
        new(&format!("header: {name}"), stored("x.npy", &npy(header, &[0; 24])))
    };
    cases.extend(HEADERS.iter().map(of));
    cases.extend(entries());
    cases.extend(lies());
    cases.extend(places());
    cases
}

#[test]
fn hostile_archives_are_refused_by_place() {
    snap::assert("hostile", "npz", &table(&cases()));
}
