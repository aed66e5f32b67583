//! Files that are written: whole or not at all, whatever becomes of the process.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use fanwise::format::{Budget, npz};

const MODEL: &str = "fanwise 1
symbol N >= 0
graph @g(%x: f32[N,8]) -> (y: f32[N,8]) {
  %y : f32[N,8] = relu(%x)
  return %y
}
";

/// The ways to write a file of some size, without the name of the file.
const WAYS: [&[&str]; 4] = [
    &["run", "m.fan", "--gpus", "2", "--batch", "2000", "--outputs"],
    &["compile", "zoo:siamese", "--gpus", "2", "--emit", "graph="],
    &["compile", "zoo:siamese", "--gpus", "2", "--emit", "json="],
    &["compile", "zoo:siamese", "--gpus", "2", "--emit", "dot="],
];

/// The arguments that write to `file`.
fn to(way: &[&str], file: &str) -> Vec<String> {
    let mut args: Vec<String> = way.iter().map(|a| (*a).to_owned()).collect();
    match args.last_mut() {
        Some(last) if last.ends_with('=') => last.push_str(file),
        _ => args.push(file.to_owned()),
    }
    args
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.fan"), MODEL).unwrap();
    folder
}

/// Runs the command line behind the commands `before` of a shell.
fn shell(folder: &Path, before: &str, args: &[String]) -> Output {
    let script = format!("{before}; exec \"$@\"");
    Command::new("sh")
        .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_fanwise")])
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Every file and what it holds.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    let read = |e: fs::DirEntry| {
        (e.file_name().to_string_lossy().into_owned(), fs::read(e.path()).unwrap_or_default())
    };
    entries.map(read).collect()
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_old_file_and_nothing_else() {
    for way in WAYS {
        let folder = folder();
        fs::write(folder.path().join("out"), b"old").unwrap();
        let before = contents(folder.path());
        let out = shell(folder.path(), "trap '' XFSZ; ulimit -f 1", &to(way, "out"));
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{way:?}: {message}");
        assert!(message.contains("cannot write `out"), "{message}");
        assert_eq!(contents(folder.path()), before, "{way:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_process_that_is_killed_while_it_writes_leaves_the_old_file() {
    for way in WAYS {
        let folder = folder();
        fs::write(folder.path().join("out"), b"old").unwrap();
        // The signal that this limit raises ends the process where it writes.
        let out = shell(folder.path(), "ulimit -c 0; ulimit -f 1", &to(way, "out"));
        assert_eq!(out.status.code(), None, "{way:?}");
        assert_eq!(fs::read(folder.path().join("out")).unwrap(), b"old", "{way:?}");
    }
}

/// The bytes of a large output: enough that writing it takes a while.
const LARGE: u64 = 500 << 18;

#[cfg(unix)]
#[test]
fn a_process_that_is_killed_half_way_leaves_the_old_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let wide = "fanwise 1\nsymbol N >= 0\ngraph @g(%x: f32[N,1]) -> (y: f32[N,65536]) {\n  \
                %y : f32[N,65536] = expand(%x) {shape = [N, 65536]}\n  return %y\n}\n";
    fs::write(folder.path().join("m.fan"), wide).unwrap();
    let run = |rows: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fanwise"));
        command.args(["run", "m.fan", "--gpus", "2", "--outputs", "out.npz", "--batch", rows]);
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        command
    };
    let out = folder.path().join("out.npz");
    let rows = || {
        let tensors = npz::read(&out, &mut Budget::new(2 * LARGE)).unwrap();
        tensors["y"].dims()[0]
    };
    // The file in the making, once something is in it, and none where the process was faster.
    let begun = |child: &mut Child| loop {
        let part = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap()).find(|e| {
            let begun = e.metadata().is_ok_and(|m| m.len() > 0);
            begun && e.file_name().to_string_lossy().starts_with(".fanwise-")
        });
        if part.is_some() || child.try_wait().unwrap().is_some() {
            return part.map(|part| part.path());
        }
    };
    let half_way = (0..10).any(|_| {
        assert!(run("3").status().unwrap().success());
        let old = fs::read(&out).unwrap();
        let mut child = run("500").spawn().unwrap();
        let part = begun(&mut child);
        // On Unix this is SIGKILL: nothing of the process runs after it.
        child.kill().unwrap();
        let killed = child.wait().unwrap().code().is_none();
        let written = part.as_ref().and_then(|p| fs::metadata(p).ok()).map_or(0, |m| m.len());
        drop(part.map(fs::remove_file));
        if !killed || !(1..LARGE).contains(&written) {
            return false;
        }
        assert!(fs::read(&out).unwrap() == old, "the old file is whole");
        assert_eq!(rows(), 3);
        true
    });
    assert!(half_way, "it is never killed half way");

    assert!(run("500").status().unwrap().success());
    assert_eq!(rows(), 500);
}

#[test]
fn places_that_cannot_be_written_are_named_and_stay() {
    for (way, place) in WAYS.iter().flat_map(|way| [(*way, "none/out"), (*way, "place")]) {
        let folder = folder();
        fs::create_dir(folder.path().join("place")).unwrap();
        let before = contents(folder.path());
        let out = Command::new(env!("CARGO_BIN_EXE_fanwise"))
            .args(to(way, place))
            .current_dir(folder.path())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{way:?} {place}: {message}");
        assert!(message.contains(&format!("cannot write `{place}")), "{message}");
        let error = message.lines().find(|line| line.starts_with("error["));
        assert!(error.is_some_and(|line| !line.contains("/tmp/.")), "{message}");
        assert_eq!(contents(folder.path()), before, "{way:?} {place}");
    }
}

#[cfg(unix)]
#[test]
fn pipes_are_written_to_and_links_are_followed() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let graph: &[&str] = &["compile", "m.fan", "--gpus", "2", "--emit", "graph="];
    let whole = shell(folder.path(), "true", &to(graph, "whole"));
    assert!(whole.status.success());
    let whole = fs::read(path("whole")).unwrap();

    let out = shell(folder.path(), "exec 3>&1", &to(graph, "/dev/fd/3"));
    assert!(out.status.success() && contains(&out.stdout, &whole), "{out:?}");

    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    let pipe = path("pipe");
    let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
    assert!(shell(folder.path(), "true", &to(graph, "pipe")).status.success());
    assert_eq!(reader.join().unwrap(), whole);

    fs::create_dir(path("other")).unwrap();
    fs::write(path("other/target"), b"old").unwrap();
    std::os::unix::fs::symlink("other/target", path("link")).unwrap();
    assert!(shell(folder.path(), "true", &to(graph, "link")).status.success());
    assert!(path("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(fs::read(path("other/target")).unwrap(), whole);
    assert_eq!(fs::read_dir(path("other")).unwrap().count(), 1);
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}
