//! Direct copies between GPUs: tried before they are trusted.
//!
//! A driver may say that a GPU can read another's memory where copies then bring other bytes or
//! never end: behind some IOMMUs, in some virtual machines, on some boards. So a pattern is copied
//! first, once for each ordered pair and process. Where it does not arrive, access is taken back,
//! and the driver takes copies through the host.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::context::{Context, NOT_READY, heed_no_captures};
use super::memory::{Global, Pinned};
use super::stream::Stream;
use crate::backend::DriverError;
use crate::backend::host::lock;
use crate::types::invariant::invariant;

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

/// Lets a GPU copy from another, directly where that is as good as it is said to be.
pub(super) fn connect(own: &Arc<Context>, other: &Arc<Context>) -> Result<Link, DriverError> {
    let pair = (own.ordinal(), other.ordinal());
    // Held to the end, so that a pair is tried once, and by one thread.
    let mut tried = lock(&TRIED);
    if let Some(Some(flaw)) = tried.get(&pair) {
        return Ok(Link::Broken(*flaw));
    }
    if !own.reach(other)? {
        return Ok(Link::ThroughHost);
    }
    if tried.contains_key(&pair) {
        return Ok(Link::Direct);
    }
    let limit = own.deferred_free().limit().min(LIMIT);
    let found = attempt(own, other, limit);
    let flaw = match found {
        Ok(flaw) => flaw,
        Err(error) => {
            // What is not tried is not trusted; without memory for it the next program tries. Of
            // two errors the first is the nearer to the cause.
            let given_up = give_up(own, other, limit);
            if error.is_out_of_memory() {
                return given_up.map(|()| Link::Broken(Flaw::Untried));
            }
            return Err(error);
        }
    };
    tried.insert(pair, flaw);
    let Some(flaw) = flaw else { return Ok(Link::Direct) };
    give_up(own, other, limit)?;
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
    ended.recv_timeout(limit).map_err(|_| late())?
}

/// Copies a pattern from one GPU to another; what goes wrong with that.
fn attempt(
    own: &Arc<Context>,
    other: &Arc<Context>,
    limit: Duration,
) -> Result<Option<Flaw>, DriverError> {
    let (from, to) = (Global::from_free(other, BYTES)?, Global::from_free(own, BYTES)?);
    let (sent, received) = (0..BYTES, BYTES..2 * BYTES);
    let mut pinned = Pinned::new(own, 2 * BYTES)?;
    // Not the pattern by chance.
    let is_filled =
        pinned.write(sent.clone(), &pattern()) && pinned.write(received.clone(), &[0; BYTES]);
    invariant(is_filled.then_some(()), "that both halves of a block lie inside");
    let pinned = Arc::new(pinned);
    let (sender, receiver) = (Stream::new(other)?, Stream::new(own)?);
    sender.upload(&pinned, sent.start, from.address(), BYTES)?;
    sender.finish(limit)?;
    receiver.upload(&pinned, received.start, to.address(), BYTES)?;
    receiver.finish(limit)?;
    receiver.copy_from(other, from.address(), to.address(), BYTES)?;
    match receiver.finish(limit) {
        Err(error) if error.code == NOT_READY => {
            // The GPUs may write to it, and from now on neither frees memory.
            [own, other].into_iter().for_each(|context| context.deferred_free().give_up());
            std::mem::forget((from, to, pinned, sender, receiver));
            return Ok(Some(Flaw::NoEnd));
        }
        ended => ended?,
    }
    receiver.download(to.address(), &pinned, received.start, BYTES)?;
    receiver.finish(limit)?;
    let bytes = |range: Range<usize>| pinned.read(range);
    Ok((bytes(sent) != bytes(received)).then_some(Flaw::OtherBytes))
}

/// Bytes of which no two words are alike.
fn pattern() -> Vec<u8> {
    (0..BYTES as u32 / 4).flat_map(|i| i.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect()
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
