//! Direct copies between GPUs: tried before they are trusted.
//!
//! A driver may say that a GPU can read another's memory where copies then bring other bytes or
//! never end: behind some IOMMUs, in some virtual machines, on some boards. So a pattern is copied
//! first, once for each ordered pair and process. Where it does not arrive, access is taken back,
//! and the driver takes copies through the host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::captures::heed_no_captures;
use super::context::{Context, NOT_READY, Reach};
use super::memory::{Global, Pinned};
use super::stream::Stream;
use super::waited::receive;
use crate::backend::DriverError;
use crate::backend::host::lock;
use crate::types::invariant::{int, invariant};

/// How copies from one GPU to another go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Directly.
    Direct,
    /// Through the host: the hardware or the driver knows no other way.
    ThroughHost,
    /// Through the host, because direct copies go wrong, or may.
    Broken(Flaw),
}

/// What goes wrong with direct copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Other bytes arrive.
    OtherBytes,
    /// They do not end in time.
    NoEnd,
    /// There was no memory to try them.
    Untried,
}

impl Flaw {
    /// In words, behind "direct copies".
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::OtherBytes => "bring other bytes",
            Self::NoEnd => "do not end",
            Self::Untried => "could not be tried for want of memory",
        }
    }
}

/// Bytes of a trial: more than one packet of any link.
const BYTES: usize = 64 << 10;

/// The longest that a trial may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The trials of this process, by the GPU that copies and the one from which it does. Hardware does
/// not change, but contexts come and go, each with access of its own.
static TRIED: Mutex<BTreeMap<(u32, u32), Option<Flaw>>> = Mutex::new(BTreeMap::new());

/// A call that failed, of one of two GPUs.
pub(super) struct Failed {
    /// The number of that GPU.
    pub(super) on: u32,
    pub(super) error: DriverError,
}

/// The failure of calls on the GPU of a context.
fn on(context: &Context) -> impl Fn(DriverError) -> Failed + use<> {
    let on = context.ordinal();
    move |error| Failed { on, error }
}

/// Lets a GPU copy from another, directly where that is as good as it is said to be.
pub(super) fn connect(own: &Arc<Context>, other: &Arc<Context>) -> Result<Link, Failed> {
    let pair = (own.ordinal(), other.ordinal());
    // Held to the end, so that a pair is tried once, and by one thread.
    let mut tried = lock(&TRIED);
    let limit = own.deferred_free().limit().min(LIMIT);
    if let Some(Some(flaw)) = tried.get(&pair) {
        if *flaw == Flaw::OtherBytes {
            // Somebody else may have let it since.
            own.forget(other).map_err(on(own))?;
        }
        return Ok(Link::Broken(*flaw));
    }
    let reach = own.reach(other).map_err(on(own))?;
    if reach == Reach::None {
        return Ok(Link::ThroughHost);
    }
    if tried.contains_key(&pair) {
        return Ok(Link::Direct);
    }
    let flaw = match attempt(own, other, limit) {
        Ok(None) => {
            tried.insert(pair, None);
            return Ok(Link::Direct);
        }
        Ok(Some(flaw)) => flaw,
        // Somebody else in this process relies on what he has allowed: it is not taken back for
        // want of a trial, and not trusted either.
        Err(failed) if reach == Reach::Before => return Err(failed),
        // What is not tried is not trusted; the next program tries.
        Err(failed) if failed.error.is_out_of_memory() => Flaw::Untried,
        Err(failed) => {
            // Of two errors the first is the nearer to the cause.
            drop(give_up(own, other, limit));
            return Err(failed);
        }
    };
    give_up(own, other, limit).map_err(on(own))?;
    if flaw != Flaw::Untried {
        tried.insert(pair, Some(flaw));
    }
    Ok(Link::Broken(flaw))
}

/// Takes access back. Where a copy does not end, this may not either, and is not waited for longer.
fn give_up(own: &Arc<Context>, other: &Arc<Context>, limit: Duration) -> Result<(), DriverError> {
    let (own, other) = (own.clone(), other.clone());
    let (done, ended) = mpsc::channel();
    let work = move || {
        heed_no_captures();
        // Nobody waits for an answer that comes too late.
        drop(done.send(own.forget(&other)));
    };
    let late = || DriverError {
        call: "cuCtxDisablePeerAccess",
        code: NOT_READY,
        name: "CUDA_ERROR_NOT_READY".to_owned(),
        text: "a direct copy between two GPUs hangs, and cannot be ended: choose others with \
               `CUDA_VISIBLE_DEVICES`"
            .to_owned(),
    };
    thread::Builder::new().name("fanwise-peers".to_owned()).spawn(work).map_err(|_| late())?;
    // An error also where the thread has panicked.
    receive(&ended, limit).map_err(|_| late())?
}

/// Copies a pattern from one GPU to another; what goes wrong with that.
fn attempt(
    own: &Arc<Context>,
    other: &Arc<Context>,
    limit: Duration,
) -> Result<Option<Flaw>, Failed> {
    let (source, from) = filled(other, limit).map_err(on(other))?;
    let (to, pinned) = (Global::from_free(own, BYTES), Pinned::new(own, BYTES));
    let (to, mut pinned) = (to.map_err(on(own))?, pinned.map_err(on(own))?);
    // Not the pattern by chance.
    let is_cleared = pinned.write(0..BYTES, &vec![0; BYTES]);
    invariant(is_cleared.then_some(()), "that a block has the bytes that were asked for");
    let pinned = Arc::new(pinned);
    let stream = Stream::new(own).map_err(on(own))?;
    let copied = stream.upload(&pinned, 0, to.address(), BYTES).and_then(|()| {
        stream.finish(limit)?;
        stream.copy_from(other, from.address(), to.address(), BYTES)
    });
    copied.map_err(on(own))?;
    match stream.finish(limit) {
        Err(error) if error.code == NOT_READY => {
            // The GPUs may write to it, and from now on neither frees memory.
            for context in [own, other] {
                context.deferred_free().give_up();
            }
            std::mem::forget((source, from, to, pinned, stream));
            return Ok(Some(Flaw::NoEnd));
        }
        ended => ended.map_err(on(own))?,
    }
    let arrived = stream.download(to.address(), &pinned, 0, BYTES);
    arrived.and_then(|()| stream.finish(limit)).map_err(on(own))?;
    let is_right = pinned.read(0..BYTES) == Some(pattern().as_slice());
    Ok((!is_right).then_some(Flaw::OtherBytes))
}

/// Memory of a GPU with the pattern, and the stream that brought it there.
fn filled(context: &Arc<Context>, limit: Duration) -> Result<(Stream, Global), DriverError> {
    let (memory, mut pinned) = (Global::from_free(context, BYTES)?, Pinned::new(context, BYTES)?);
    let is_filled = pinned.write(0..BYTES, &pattern());
    invariant(is_filled.then_some(()), "that a block has the bytes that were asked for");
    let stream = Stream::new(context)?;
    stream.upload(&Arc::new(pinned), 0, memory.address(), BYTES)?;
    stream.finish(limit)?;
    Ok((stream, memory))
}

/// Bytes of which no two words are alike.
fn pattern() -> Vec<u8> {
    let words = 0..int::<u32>(BYTES) / 4;
    words.flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{BYTES, pattern};

    #[test]
    fn no_two_words_of_the_pattern_are_alike() {
        let bytes = pattern();
        let words: BTreeSet<&[u8]> = bytes.chunks(4).collect();
        assert_eq!((bytes.len(), words.len()), (BYTES, BYTES / 4));
    }
}
