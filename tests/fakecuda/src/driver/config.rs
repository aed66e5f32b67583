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

/// Calls of which one is made to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// All that can fail.
    Any,
    /// Those of a class.
    Class(Class),
    /// Those of a function, whatever its version.
    Function(String),
}

impl Of {
    /// Whether a call is one of them.
    fn has(&self, name: &str, class: Class) -> bool {
        match self {
            Self::Any => true,
            Self::Class(own) => *own == class,
            Self::Function(own) => name.trim_end_matches("_v2") == own,
        }
    }
}

/// A failure to inject.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) of: Of,
    /// The call of those, from 1.
    pub(super) at: u64,
    /// Whether those after it fail, too.
    pub(super) stays: bool,
    /// The result; without one the call succeeds, and its kernel or copy never ends.
    pub(super) code: Option<u32>,
}

impl Failure {
    /// Whether it may be that of a call.
    pub(super) fn concerns(&self, name: &str, class: Class) -> bool {
        self.of.has(name, class)
    }

    /// Whether it is that of the call with this number, of those that it may be of.
    pub(super) fn strikes(&self, number: u64) -> bool {
        number == self.at || (self.stays && number > self.at)
    }
}

/// What becomes of direct copies between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Other bytes arrive.
    Garbage,
    /// They never end.
    Hang,
}

/// Whether devices can access each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peers {
    /// None can.
    None,
    /// All can.
    All,
    /// All say that they can, and direct copies to the first device from the second go wrong.
    Broken(Wrong, u32, u32),
}

/// The settings of a process.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) devices: usize,
    pub(super) memory: usize,
    /// Bytes of pinned memory of the host.
    pub(super) pinned: usize,
    /// Bytes of a device that the code of a kernel takes at its first launch.
    pub(super) code: usize,
    /// Bytes of a device that a graph takes when it is uploaded, else when it is first launched.
    pub(super) graph: usize,
    pub(super) peers: Peers,
    /// Access that the application has let before: to the first device from the second.
    pub(super) enabled: Option<(u32, u32)>,
    /// The version of CUDA, as the driver tells it.
    pub(super) version: u32,
    /// The name of each device.
    pub(super) name: String,
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
            code: number("FAKECUDA_CODE", 0)?,
            graph: number("FAKECUDA_GRAPH", 0)?,
            peers: peers(&variable("FAKECUDA_PEERS").unwrap_or_else(|| "1".to_owned()))?,
            enabled: variable("FAKECUDA_ENABLED").map(|text| pair(&text)).transpose()?,
            version: u32::try_from(number("FAKECUDA_VERSION", 13_000)?).map_err(bad("VERSION"))?,
            name: variable("FAKECUDA_NAME").unwrap_or_else(|| "fanwise fake device".to_owned()),
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

/// `0`, `1`, or `garbage:TO-FROM` and `hang:TO-FROM` with the numbers of two devices.
fn peers(text: &str) -> Result<Peers, String> {
    let wrong = match text.split_once(':') {
        None if text == "0" => return Ok(Peers::None),
        None if text == "1" => return Ok(Peers::All),
        Some(("garbage", pair)) => Some((Wrong::Garbage, pair)),
        Some(("hang", pair)) => Some((Wrong::Hang, pair)),
        _ => None,
    };
    let (wrong, of) = wrong.ok_or_else(|| format!("FAKECUDA_PEERS={text} is unknown"))?;
    let (to, from) = pair(of)?;
    Ok(Peers::Broken(wrong, to, from))
}

/// `TO-FROM` with the numbers of two devices.
fn pair(text: &str) -> Result<(u32, u32), String> {
    let (to, from) = text.split_once('-').ok_or_else(|| format!("{text} is no TO-FROM"))?;
    let device = |text: &str| text.parse().map_err(bad("TO-FROM"));
    Ok((device(to)?, device(from)?))
}

/// `[class@]n[+][:code]`.
fn failure(text: &str) -> Result<Failure, String> {
    let (class, rest) = match text.split_once('@') {
        Some((class, rest)) => (class, rest),
        None => ("any", text),
    };
    let of = match class {
        "any" => Of::Any,
        "alloc" => Of::Class(Class::Alloc),
        "launch" => Of::Class(Class::Launch),
        "copy" => Of::Class(Class::Copy),
        "sync" => Of::Class(Class::Sync),
        function if function.starts_with("cu") => Of::Function(function.to_owned()),
        other => return Err(format!("FAKECUDA_FAIL: the class {other} is unknown")),
    };
    let (at, name) = rest.split_once(':').unwrap_or((rest, "out_of_memory"));
    let (at, stays) = at.strip_suffix('+').map_or((at, false), |at| (at, true));
    let at = at.parse().map_err(bad("FAKECUDA_FAIL"))?;
    if name == "hang" {
        return match of {
            Of::Class(Class::Launch | Class::Copy) => Ok(Failure { of, at, stays, code: None }),
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
    Ok(Failure { of, at, stays, code: Some(code) })
}
