//! Copy bandwidth of a GPU, the ceiling for the copies of programs.

use std::sync::Arc;
use std::thread;

use super::context::{self, Context, WATCHDOG};
use super::error::ProbeError;
use super::memory::{Global, Pinned};
use super::stream::{Event, Stream};
use crate::backend::DriverError;

/// Bytes a second of copies that nothing runs beside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyRates {
    /// From pinned memory of the host to the GPU.
    pub upload: f64,
    /// From the GPU to pinned memory of the host.
    pub download: f64,
    /// From the GPU to itself: bytes that are read, and as many that are written, count once each.
    pub on_device: f64,
}

/// Measures copies of so many bytes (64 MiB and more give what the link can do): of `times` copies
/// each way the fastest counts, after one that does not. Takes as many bytes of pinned memory and
/// twice as many of the GPU.
///
/// # Errors
/// A driver that is missing or fails, no such GPU, no memory for that.
pub fn copy_rates(ordinal: usize, bytes: usize, times: usize) -> Result<CopyRates, ProbeError> {
    context::start()?;
    let failed = |error: DriverError| ProbeError::DriverFailed(error.to_string());
    let gpus = context::gpus().map_err(failed)?;
    let Some(gpu) = gpus.get(ordinal) else {
        return Err(ProbeError::DriverFailed(format!("there is no gpu:{ordinal}")));
    };
    let context = Context::new(*gpu, WATCHDOG);
    context.and_then(|context| measure(&context, bytes, times)).map_err(failed)
}

fn measure(context: &Arc<Context>, bytes: usize, times: usize) -> Result<CopyRates, DriverError> {
    let (first, second) = (Global::new(context, bytes)?, Global::new(context, bytes)?);
    let host = Arc::new(Pinned::new(context, bytes)?);
    let stream = Stream::new(context)?;
    let rate = |copy: &dyn Fn() -> Result<(), DriverError>| -> Result<f64, DriverError> {
        let mut best = f64::INFINITY;
        for time in 0..=times {
            let seconds = timed(context, &stream, copy)?;
            best = if time > 0 { best.min(seconds) } else { best };
        }
        Ok(bytes as f64 / best.max(1e-9))
    };
    let (from, to) = (first.address(), second.address());
    let upload = rate(&|| stream.upload(&host, 0, from, bytes))?;
    let on_device = 2.0 * rate(&|| stream.copy(from, to, bytes))?;
    let download = rate(&|| stream.download(to, &host, 0, bytes))?;
    Ok(CopyRates { upload, download, on_device })
}

/// The seconds that work on the stream takes.
fn timed(
    context: &Arc<Context>,
    stream: &Stream,
    work: &dyn Fn() -> Result<(), DriverError>,
) -> Result<f64, DriverError> {
    let (begin, end) = (Event::new(context, true)?, Event::new(context, true)?);
    stream.record(&begin)?;
    work()?;
    stream.record(&end)?;
    while !stream.is_idle()? {
        thread::yield_now();
    }
    Ok(f64::from(end.since(&begin)?) * 1e-3)
}
