//! What goes wrong while a kernel or a copy runs.

/// Codes of `CUresult` that an execution can end with.
pub mod code {
    /// An address outside of every allocation that the device can reach.
    pub const ILLEGAL_ADDRESS: u32 = 700;
    /// The step limit was reached.
    pub const LAUNCH_TIMEOUT: u32 = 702;
    /// `trap` or `brkpt`.
    pub const ILLEGAL_INSTRUCTION: u32 = 715;
    /// An address that is no multiple of the access's size.
    pub const MISALIGNED_ADDRESS: u32 = 716;
    /// Everything that real hardware would not notice: races, unwritten bytes, divergence.
    pub const LAUNCH_FAILED: u32 = 719;
}

/// An error of an execution.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The `CUresult` that the context is left with.
    pub code: u32,
    /// What happened.
    pub text: String,
    /// The lane of the warp, where one is to blame.
    pub lane: Option<u32>,
}

impl Fault {
    /// A fault of one lane.
    pub fn lane(code: u32, lane: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), lane: Some(lane) }
    }

    /// A fault of no lane in particular.
    pub fn plain(code: u32, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), lane: None }
    }
}
