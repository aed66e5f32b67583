//! Tests, and what becomes of each: where `FANWISE_DEVICE_RESULTS` names a file, a line of JSON for
//! each that ends.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Instant;

use libtest_mimic::{Failed, Trial};
use serde_json::json;

/// Names the file. Processes that a test starts do not write to it.
pub(crate) const RESULTS: &str = "FANWISE_DEVICE_RESULTS";

/// A test that fails if it panics.
pub(crate) fn trial(name: impl Into<String>, test: impl FnOnce() + Send + 'static) -> Trial {
    fallible(name, move || {
        test();
        Ok(())
    })
}

/// A test that fails if it panics or gives an error.
pub(crate) fn fallible(
    name: impl Into<String>,
    test: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let name = name.into();
    Trial::test(name.clone(), move || {
        let mut running = Running { name, begin: Instant::now(), passed: false };
        let result = test();
        running.passed = result.is_ok();
        result
    })
}

/// A test, which writes its line when it goes out of scope.
struct Running {
    name: String,
    begin: Instant,
    passed: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(path) = std::env::var_os(RESULTS) else { return };
        let result = if self.passed { "ok" } else { "failed" };
        let seconds = self.begin.elapsed().as_secs_f64();
        let line = json!({ "name": self.name, "result": result, "seconds": seconds });
        let file = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
        {
            crate::setup::complain(&format!("the result of {} is not written: {error}", self.name));
        }
    }
}
