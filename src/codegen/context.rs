//! The context of a launch during code generation.

use super::CodegenError;
use super::builder::Builder;
use super::lines::normalize_axis;
use crate::lower::{Action, BufferId, DeviceProgram, Launch, Step};

/// A launch, its device and its label.
pub(super) struct Context<'a> {
    pub(super) device: &'a DeviceProgram,
    pub(super) launch: &'a Launch,
    label: &'a str,
}

impl<'a> Context<'a> {
    /// The context of a step, if it is a launch.
    pub(super) fn of(device: &'a DeviceProgram, step: &'a Step) -> Option<Self> {
        let Action::Launch(launch) = &step.action else { return None };
        Some(Self { device, launch, label: &step.label })
    }

    /// The error for an unsupported launch.
    pub(super) fn unsupported(&self, reason: impl Into<String>) -> CodegenError {
        let (label, op) = (self.label.to_owned(), self.launch.name());
        CodegenError::Unsupported { label, op, reason: reason.into() }
    }

    /// A builder for a call; fails unless all values are row-major.
    pub(super) fn row_major(&self) -> Result<Builder<'a>, CodegenError> {
        let b = Builder::new(self.device);
        let mut all = self.launch.operands.iter().chain(&self.launch.results);
        if all.any(|id| !b.is_row_major(*id)) {
            return Err(self.unsupported("its values are not row-major"));
        }
        Ok(b)
    }

    /// The axis with this number, negative from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize, CodegenError> {
        let found = normalize_axis(axis, rank).filter(|a| *a < rank);
        found.ok_or_else(|| self.unsupported("it has no such axis"))
    }

    /// The operands, if there are `N`.
    pub(super) fn operands<const N: usize>(&self) -> Result<[BufferId; N], CodegenError> {
        let operands = self.launch.operands.as_slice().try_into();
        operands.map_err(|_| self.unsupported(format!("it does not have {N} operands")))
    }

    /// The first operand.
    pub(super) fn first_operand(&self) -> Result<BufferId, CodegenError> {
        let first = self.launch.operands.first().copied();
        first.ok_or_else(|| self.unsupported("it has no operand"))
    }

    /// The results, if there are `N`.
    pub(super) fn results<const N: usize>(&self) -> Result<[BufferId; N], CodegenError> {
        let results = self.launch.results.as_slice().try_into();
        results.map_err(|_| self.unsupported(format!("it does not have {N} results")))
    }

    /// The text of the launch's chain; fails if it is not expressible.
    pub(super) fn chained(&self, text: Option<String>) -> Result<String, CodegenError> {
        text.ok_or_else(|| self.unsupported("its chain takes or gives elements of another type"))
    }
}
