//! A run of the command line whose time and memory are watched.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The processor time that a run may take: five seconds in a build that is optimised, eight times
/// as long in that of the tests.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// How much longer than the processor's time a run may last, on however busy a machine.
const BUSY: u32 = 10;

/// How a run ended.
pub(crate) struct End {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The most memory it had, in bytes, as the system counts it; 0 where it does not tell.
    pub(crate) peak: u64,
}

/// Runs the command line in `folder`; none where it takes too long.
pub(crate) fn watch(folder: &Path, args: &[String]) -> Option<End> {
    watch_binary(Path::new(env!("CARGO_BIN_EXE_fanwise")), folder, args, LIMIT)
}

/// Runs `binary` in `folder`; none where it takes longer than `limit` of a processor, or waits.
pub(crate) fn watch_binary(
    binary: &Path,
    folder: &Path,
    args: &[String],
    limit: Duration,
) -> Option<End> {
    let mut child = Command::new(binary)
        .args(args)
        .current_dir(folder)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (out, err) = (thread::spawn(|| text(out)), thread::spawn(|| text(err)));
    let (start, mut peak) = (Instant::now(), 0);
    let code = loop {
        peak = peak.max(high_water(child.id()));
        if let Some(status) = child.try_wait().expect("a child") {
            break status.code();
        }
        let lasts = start.elapsed();
        if lasts > limit && (processor_time(child.id()) > limit || lasts > BUSY * limit) {
            child.kill().expect("a child");
            child.wait().expect("a child");
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    };
    let (stdout, stderr) = (out.join().expect("a reader"), err.join().expect("a reader"));
    Some(End { code, stdout, stderr, peak })
}

fn text(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    from.expect("a pipe").read_to_end(&mut bytes).expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The time that processors worked for a process; 0 where the system does not tell.
fn processor_time(process: u32) -> Duration {
    /// What the system counts in a second.
    const TICKS: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program may have spaces; behind it come the 3rd field and the others.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|own| own.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS)
}

/// The most memory that a process had, in bytes. Until it has become another program it shows that
/// of its parent; its name changes after its memory does.
fn high_water(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    if !status.lines().any(|line| line == "Name:\tfanwise") {
        return 0;
    }
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
