//! Who computes an operator: what a target's kernels say of it.

use std::fmt;

use smallvec::SmallVec;

use crate::ir::{Graph, NodeId};
use crate::op::Op;
use crate::types::{DType, Device, KernelClass, Target, TensorType};

/// The kernels of a target. Lowering asks nothing else whether, and how, an operator is computed;
/// every backend has an implementation.
pub trait Kernels: fmt::Debug + Send + Sync {
    /// The target itself.
    fn target(&self) -> &Target;

    /// What the target has for an operator on values of these types, within the limits of its
    /// kernels.
    fn supports(&self, op: &Op, types: &Types<'_>) -> Support;

    /// The kernels of the host, which computes what has none here; `None` where each device
    /// evaluates that itself, by reference.
    fn host(&self) -> Option<&dyn Kernels> {
        None
    }
}

impl dyn Kernels + '_ {
    /// The kernels for what runs on a device: the host may have its own.
    pub fn on(&self, device: Device) -> &dyn Kernels {
        match self.host() {
            Some(host) if device == Device::HOST => host,
            Some(_) | None => self,
        }
    }
}

/// The types of an operator's operands and results.
#[derive(Clone, Debug)]
pub struct Types<'a> {
    /// Those of the operands.
    pub operands: SmallVec<[&'a TensorType; 4]>,
    /// Those of the results.
    pub results: SmallVec<[&'a TensorType; 2]>,
}

impl<'a> Types<'a> {
    /// The types of a node's operands and results.
    pub fn of(graph: &'a Graph, id: NodeId) -> Self {
        Self {
            operands: graph.operands(id).into_iter().map(|v| graph.ty(v)).collect(),
            results: graph.node(id).results().iter().map(|r| &r.ty).collect(),
        }
    }

    /// True if all operands and results have elements of this type.
    pub fn are(&self, dtype: DType) -> bool {
        self.operands.iter().chain(&self.results).all(|ty| ty.dtype == dtype)
    }

    /// The only result of `[rows, channels, sizes...]` whose sizes behind the rows are constants.
    pub fn image(&self) -> Option<&'a TensorType> {
        match self.results.as_slice() {
            [result] if is_image(result) => Some(result),
            _ => None,
        }
    }
}

/// True of `[rows, channels, sizes...]` whose sizes behind the rows are constants.
pub(super) fn is_image(ty: &TensorType) -> bool {
    ty.rank() >= 3 && ty.shape[1..].iter().all(|d| d.as_const().is_some())
}

/// What a target has for an operator. The default is nothing: it is evaluated by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// The class of the kernel that a launch of its own has.
    pub kernel: Option<KernelClass>,
    /// Whether it can be a step of a chain of elementwise operators.
    pub is_step: bool,
    /// Whether the kernel can end in such a chain, where all its values are `f32`.
    pub ends_in_chain: bool,
    /// The partial results that the first launch leaves to the second; `None` if one launch is
    /// enough.
    pub parts: Option<Parts>,
    /// The memory order of its images.
    pub images: Images,
}

impl Support {
    /// A kernel of this class.
    pub fn by(class: KernelClass) -> Self {
        Self { kernel: Some(class), ..Self::default() }
    }

    /// A step of a chain, and nothing else.
    pub fn step() -> Self {
        Self { is_step: true, ..Self::default() }
    }

    /// The class of what computes the operator.
    pub fn class(&self) -> KernelClass {
        // What has no kernel is evaluated by reference.
        self.kernel.unwrap_or(KernelClass::Reference)
    }

    /// This where it holds, otherwise nothing.
    #[must_use]
    pub fn when(self, holds: bool) -> Self {
        if holds { self } else { Self::default() }
    }
}

/// The partial results between the two launches that compute an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The type of the value that the first one writes.
    pub ty: TensorType,
    /// The operands that the first one reads, the operator's first ones.
    pub reads: usize,
}

/// In which order the kernel of an operator takes and gives images, on a target whose images may
/// have the channels last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Images {
    /// Row-major, always.
    #[default]
    RowMajor,
    /// The channels last, if the first operand and the result are images.
    ChannelsLast,
    /// As the first operand comes.
    First,
    /// The channels last if all operands come so.
    All,
    /// The channels last if the result is an image and an operand of its shape comes so.
    Any,
}
