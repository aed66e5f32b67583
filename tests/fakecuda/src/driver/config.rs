//! What the environment says.

use std::time::Duration;

use super::code;

/// The order in which streams run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Work runs when it is given.
    Eager,
    /// Work runs when something waits for it, and only what it needs.
    Late,
    /// When something waits, the newest stream that can run goes first.
    Lifo,
    /// Streams are chosen at random, also between calls.
    Random,
}

/// The class of calls that a failure is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Allocation of device or host memory.
    Alloc,
    /// Kernel and graph launches.
    Launch,
    /// Copies and fills.
    Copy,
    /// Waiting for the device.
    Sync,
    /// Everything else that can fail.
    Other,
    /// Giving something back; never made to fail.
    Release,
    /// Questions that do not touch the device; never made to fail, nor counted.
    Query,
}

/// A failure to inject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// The class, or any of those that can fail.
    pub(super) class: Option<Class>,
    /// The call of that class, from 1.
    pub(super) at: u64,
    /// The result; without one the call succeeds, and its kernel or copy never ends.
    pub(super) code: Option<u32>,
}

/// The settings of a process.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) devices: usize,
    pub(super) memory: usize,
    /// Bytes of pinned memory of the host.
    pub(super) pinned: usize,
    /// Whether devices can access each other's memory.
    pub(super) peers: bool,
    pub(super) order: Order,
    pub(super) seed: u64,
    pub(super) failure: Option<Failure>,
    /// How long each launch takes at the least.
    pub(super) launch: Duration,
    pub(super) report: Option<String>,
    pub(super) stats: Option<String>,
}

/// An environment variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

impl Config {
    /// Reads the environment; the error names the variable that makes no sense.
    pub(super) fn read() -> Result<Self, String> {
        let order = variable("FAKECUDA_ORDER").unwrap_or_else(|| "eager".to_owned());
        let (order, seed) = match order.split_once(':') {
            Some(("random", seed)) => (Order::Random, seed.parse().map_err(bad("ORDER"))?),
            None if order == "random" => (Order::Random, 1),
            None if order == "eager" => (Order::Eager, 0),
            None if order == "late" => (Order::Late, 0),
            None if order == "lifo" => (Order::Lifo, 0),
            _ => return Err(format!("FAKECUDA_ORDER={order} is unknown")),
        };
        let number = |name: &str, default: usize| match variable(name) {
            Some(text) => text.parse().map_err(bad(name)),
            None => Ok(default),
        };
        Ok(Self {
            devices: number("FAKECUDA_DEVICES", 2)?.min(64),
            memory: number("FAKECUDA_MEMORY", 4 << 30)?,
            pinned: number("FAKECUDA_PINNED", usize::MAX)?,
            peers: number("FAKECUDA_PEERS", 1)? != 0,
            order,
            seed,
            failure: variable("FAKECUDA_FAIL").map(|v| failure(&v)).transpose()?,
            launch: Duration::from_millis(number("FAKECUDA_SLOW", 0)? as u64),
            report: variable("FAKECUDA_REPORT"),
            stats: variable("FAKECUDA_STATS"),
        })
    }
}

/// The error for a variable that is no number.
fn bad<E: std::fmt::Display>(name: &str) -> impl Fn(E) -> String {
    move |e| format!("{name}: {e}")
}

/// `[class@]n[:code]`.
fn failure(text: &str) -> Result<Failure, String> {
    let (class, rest) = match text.split_once('@') {
        Some((class, rest)) => (class, rest),
        None => ("any", text),
    };
    let class = match class {
        "any" => None,
        "alloc" => Some(Class::Alloc),
        "launch" => Some(Class::Launch),
        "copy" => Some(Class::Copy),
        "sync" => Some(Class::Sync),
        other => return Err(format!("FAKECUDA_FAIL: the class {other} is unknown")),
    };
    let (at, name) = rest.split_once(':').unwrap_or((rest, "out_of_memory"));
    let at = at.parse().map_err(bad("FAKECUDA_FAIL"))?;
    if name == "hang" {
        return match class {
            Some(Class::Launch | Class::Copy) => Ok(Failure { class, at, code: None }),
            _ => Err("FAKECUDA_FAIL: only a launch or a copy can hang".to_owned()),
        };
    }
    let code = match name {
        "out_of_memory" => code::OUT_OF_MEMORY,
        "illegal_address" => code::ILLEGAL_ADDRESS,
        "launch_failed" => code::LAUNCH_FAILED,
        "device_lost" => code::ECC_UNCORRECTABLE,
        other => other.parse().map_err(bad("FAKECUDA_FAIL"))?,
    };
    if code == 0 {
        return Err("FAKECUDA_FAIL: 0 is no failure".to_owned());
    }
    Ok(Failure { class, at, code: Some(code) })
}
