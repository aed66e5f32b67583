//! The Python that tests compare with: one process for all tests of the binary, which imports once
//! what takes long.

use std::path::{Path, PathBuf};

/// The file or folder that a variable of the environment names.
pub(crate) fn set(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is set: run `cargo xtask test`")).into()
}

/// Runs a script of `tests/models`, and returns what it prints; that is shown if it fails.
pub(crate) fn python(script: &str, args: &[&Path]) -> String {
    let path = support::root("tests/models").join(script);
    let words = [&*path].into_iter().chain(args.iter().copied());
    let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
    let (said, code) = run(&words);
    assert_eq!(code, "0", "{script} fails:\n{said}");
    said
}

/// What a script prints, given with its arguments, and its exit code.
#[cfg(unix)]
fn run(words: &[&str]) -> (String, String) {
    use std::io::{Read, Write};

    let mut stream = std::os::unix::net::UnixStream::connect(&server().socket).unwrap();
    writeln!(stream, "{}", serde_json::to_string(words).unwrap()).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said);
    let (said, code) = said.rsplit_once('\n').unwrap_or((&said, "no exit code"));
    (said.to_owned(), code.to_owned())
}

/// Elsewhere processes do not fork: each script is one of its own.
#[cfg(not(unix))]
fn run(words: &[&str]) -> (String, String) {
    let output = std::process::Command::new(set("FANWISE_PYTHON")).args(words).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let code = output.status.code().map_or("no exit code".to_owned(), |code| code.to_string());
    (String::from_utf8_lossy(&said).into_owned(), code)
}

/// The process of `tests/models/serve.py`.
#[cfg(unix)]
struct Server {
    socket: PathBuf,
    /// The process ends when this is closed: with the tests.
    _input: std::process::ChildStdin,
}

/// The process, started by the first test that asks for it.
#[cfg(unix)]
#[expect(clippy::zombie_processes, reason = "it ends with this process, whose end is its input's")]
fn server() -> &'static Server {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::OnceLock;

    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let name = format!("fanwise-{}.socket", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let mut server = Command::new(set("FANWISE_PYTHON"))
            .arg(support::root("tests/models/serve.py"))
            .arg(&socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python runs");
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "listening\n", "the server's error is above");
        Server { socket, _input: server.stdin.take().unwrap() }
    })
}

#[test]
#[ignore = "needs Python: cargo xtask test"]
#[should_panic(expected = "reference.py fails:\nTraceback")]
fn what_python_says_of_a_failure_is_shown() {
    python("reference.py", &[Path::new("no model"), Path::new("."), Path::new("1")]);
}
