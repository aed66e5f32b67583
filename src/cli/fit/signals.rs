//! A thread that answers signals which ask a run to end.

use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// How long it may take to say something: nobody may read it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers each signal from now on.
pub(super) fn listen(answer: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let listen = move || signals.forever().for_each(|_| answer());
    Builder::new().name("fanwise-signals".to_owned()).spawn(listen).map(drop)
}

/// Says something, as long as that takes no longer than [`PATIENCE`].
pub(super) fn say(text: impl FnOnce() + Send + 'static) {
    let start = Instant::now();
    let saying = Builder::new().spawn(text);
    // Without a thread nothing is said.
    while saying.as_ref().is_ok_and(|own| !own.is_finished()) && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}
