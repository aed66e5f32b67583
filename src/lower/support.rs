//! The capabilities of a target: its kernels, and what they support.

use std::fmt;

use smallvec::SmallVec;

use crate::ir::{Graph, NodeId, NodeMap, Value};
use crate::op::Op;
use crate::types::{DType, Device, KernelClass, Order, Target, TensorType};

/// The kernels of a target. This trait is the only source from which lowering decides whether and
/// how an operator is computed; every backend implements it.
pub trait Kernels: fmt::Debug + Send + Sync {
    /// The target.
    fn target(&self) -> &Target;

    /// Returns the support for an operator on values of these types, within the limits of the
    /// kernels.
    fn supports(&self, op: &Op, types: &Types<'_>) -> Support;

    /// Returns the kernels of the host, which runs the operators that have no kernel here; `None`
    /// if each device evaluates those by reference.
    fn host(&self) -> Option<&dyn Kernels> {
        None
    }
}

impl dyn Kernels + '_ {
    /// The kernels of a device: the host may have its own.
    pub(crate) fn on(&self, device: Device) -> &dyn Kernels {
        match self.host() {
            Some(host) if device == Device::HOST => host,
            Some(_) | None => self,
        }
    }
}

/// The types of an operator's operands and results.
#[derive(Clone, Debug)]
pub struct Types<'a> {
    /// The types of the operands.
    pub operands: SmallVec<[&'a TensorType; 4]>,
    /// The types of the results.
    pub results: SmallVec<[&'a TensorType; 2]>,
}

impl<'a> Types<'a> {
    /// The types of a node's operands and results.
    pub(crate) fn of(graph: &'a Graph, id: NodeId) -> Self {
        Self {
            operands: graph.operands(id).into_iter().map(|v| graph.ty(v)).collect(),
            results: graph.node(id).results().iter().map(|r| &r.ty).collect(),
        }
    }

    /// True if all operands and results have elements of this type.
    pub(crate) fn are(&self, dtype: DType) -> bool {
        self.operands.iter().chain(&self.results).all(|ty| ty.dtype == dtype)
    }

    /// The only result of `[rows, channels, sizes...]` whose sizes behind the rows are constants.
    pub(crate) fn image(&self) -> Option<&'a TensorType> {
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

/// The support of a target for an operator. By default there is none: the operator is evaluated by
/// reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// The class of its kernel.
    pub kernel: Option<KernelClass>,
    /// True if it can be a step of a fused chain. Only the backends of fanwise read chains, so
    /// others leave this `false`.
    pub is_step: bool,
    /// True if the kernel can have a fused chain as its epilogue; all its values must be `f32`.
    pub ends_in_chain: bool,
    /// The partial results between the launches of a two-pass kernel; `None` for a single launch.
    pub(crate) parts: Option<Partials>,
    /// The memory order of its images.
    pub(crate) images: Images,
    /// An order in which the kernel takes its weights, too, if they are a parameter, on a target
    /// whose devices do not keep parameters: its second operand, of a recurrent cell also its
    /// third; for images as the kernel prefers them.
    pub(crate) weights: Order,
    /// The operands that its kernel can read through a function of their elements.
    pub(crate) reads_through: Through,
    /// An order that each of its operands, and its result where no chain is applied to it, may have
    /// instead of the row-major one.
    pub(crate) matrices: Order,
    /// True if the kernel can write an image with the channels last as some of the channels of a
    /// wider one.
    pub(crate) writes_strips: bool,
    /// Whether its results have the bits that the reference evaluation gives.
    pub(crate) bits: Bits,
}

impl Support {
    /// Support by a kernel of this class.
    pub fn by(class: KernelClass) -> Self {
        Self { kernel: Some(class), ..Self::default() }
    }

    /// Support as a step of a chain only.
    pub(crate) fn step() -> Self {
        Self { is_step: true, ..Self::default() }
    }

    /// The class of the kernel that computes the operator.
    pub(crate) fn class(&self) -> KernelClass {
        // Without a kernel the operator is evaluated by reference.
        self.kernel.unwrap_or(KernelClass::Reference)
    }

    /// This support, with bits of its own if the condition holds.
    #[must_use]
    pub(crate) fn with_own_bits(self, holds: bool) -> Self {
        Self { bits: if holds { Bits::Own } else { Bits::Defined }, ..self }
    }

    /// This support, with images in this order if the condition holds and there is a kernel.
    #[must_use]
    pub(crate) fn with_images(self, images: Images, holds: bool) -> Self {
        let suits = holds && self.kernel.is_some();
        Self { images: if suits { images } else { Images::RowMajor }, ..self }
    }

    /// This support if the condition holds, otherwise none.
    #[must_use]
    pub(crate) fn when(self, holds: bool) -> Self {
        if holds { self } else { Self::default() }
    }
}

/// Why an output may have other bits than those of the reference evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnBits {
    /// The first operator on its way whose kernel has bits of its own.
    pub(crate) first: NodeId,
    /// That operator, or the first behind it, that such floats make jump, if there is one.
    pub(crate) jump: Option<NodeId>,
}

/// For each output of a graph, why it may have bits of its own, if it may. None of a graph with a
/// cycle.
pub(crate) fn own_bits(graph: &Graph, kernels: &dyn Kernels) -> Vec<Option<OwnBits>> {
    let Ok(order) = graph.order() else { return Vec::new() };
    let mut found: NodeMap<Option<OwnBits>> = graph.node_map(None);
    for id in order {
        let operands = graph.operands(id);
        let before = operands.iter().filter_map(|value| found[value.node]);
        let before = before.reduce(|a, b| OwnBits { jump: a.jump.or(b.jump), ..a });
        let Some(op) = graph.node(id).op() else { continue };
        let differs = |v: &Value| found[v.node].is_some() && graph.ty(*v).dtype.is_float();
        let jump = (op.jumps() && operands.iter().any(differs)).then_some(id);
        let on = kernels.on(graph.node(id).place().device);
        let own = || on.supports(op, &Types::of(graph, id)).bits == Bits::Own;
        found[id] = match before {
            Some(before) => Some(OwnBits { jump: before.jump.or(jump), ..before }),
            None => own().then_some(OwnBits { first: id, jump: op.jumps().then_some(id) }),
        };
    }
    graph.outputs().iter().map(|output| found[output.value.node]).collect()
}

/// The bits of a kernel's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bits {
    /// Those that the reference evaluation gives.
    #[default]
    Defined,
    /// They may be others: it sums up in an order of its own, or takes functions of the device.
    Own,
}

/// The operands that a kernel reads through a function of their elements (a fused prologue).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Through {
    /// None.
    #[default]
    None,
    /// The first.
    First,
    /// Each.
    All,
}

impl Through {
    /// These operands if the condition holds, otherwise none.
    pub(crate) fn when(self, holds: bool) -> Self {
        if holds { self } else { Self::None }
    }

    /// True if the operand at a position is one of them.
    pub(super) fn takes(self, slot: usize) -> bool {
        match self {
            Self::None => false,
            Self::First => slot == 0,
            Self::All => true,
        }
    }
}

/// The partial results between the two launches that compute an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partials {
    /// The type of the value that the first launch writes.
    pub(crate) ty: TensorType,
    /// The number of the operator's leading operands that the first launch reads.
    pub(crate) reads: usize,
    /// True if the first launch is a product of matrices.
    pub(crate) product: bool,
}

/// The memory order of the images that a kernel reads and writes, on a target that supports
/// channels last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Images {
    /// Row-major, always.
    #[default]
    RowMajor,
    /// The channels last, if the first operand and the result are images.
    ChannelsLast,
    /// The order of the first operand.
    First,
    /// The channels last if all operands have them last.
    All,
    /// The channels last if an operand has them last, and all are images of as many axes.
    One,
    /// The channels last if the result is an image and an operand of its shape has them last.
    Any,
}
