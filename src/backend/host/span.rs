//! What a stream did, and when.

use std::sync::Arc;

use crate::lower::picture::timeline::Kind;

/// Work of a stream, or what it waited for.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    /// The stream: its device and what it is for; a virtual device has one.
    pub(crate) track: String,
    /// The name of the work.
    pub(crate) name: Arc<str>,
    /// Microseconds from the beginning of the trace.
    pub(crate) start: f64,
    /// Microseconds that it took.
    pub(crate) length: f64,
    pub(crate) kind: Kind,
    /// The operator of the step; none of what is no step of a program.
    pub(crate) operator: Option<&'static str>,
}
