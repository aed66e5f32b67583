use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Id, IdMap, ParamId};
use crate::op::{Ints, Op};
use crate::types::{Device, TensorType};

/// A node of a graph. Ids stay valid while other nodes come and go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

impl Id for NodeId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A table of the nodes of a graph.
pub(crate) type NodeMap<T> = IdMap<NodeId, T>;

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// One of a node's results.
///
/// Elsewhere: SSA value (MLIR); value name (ONNX).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node that gives it.
    pub node: NodeId,
    /// Its position among the node's results.
    pub output: u32,
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}.{}", self.node, self.output)
    }
}

/// The kind of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeKind {
    /// A tensor that each run is given.
    Input,
    /// A parameter as one device holds it.
    Param(ParamId),
    /// An operator applied to the node's operands; clones of a node share it.
    Op(Arc<Op>),
}

/// The source of a node: the name that the node had in the file, or the layer it was built for.
///
/// The replica that a node belongs to is part of its [`DevicePlacement`].
///
/// Elsewhere: `OpMetadata` (XLA); stack trace (PyTorch); location (MLIR); node name (ONNX); layer
/// name (Keras).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin(pub Option<Arc<str>>);

impl Origin {
    /// The origin with this name.
    pub(crate) fn new(name: impl Into<Arc<str>>) -> Self {
        Self(Some(name.into()))
    }
}

/// The device and the replica of a node.
///
/// Elsewhere: partition (XLA); rank (PyTorch); replica (Keras).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlacement {
    /// The device that computes it and holds its results.
    pub device: Device,
    /// The replica of the graph's split that it belongs to. Such a node is skipped while the
    /// replica has no rows.
    pub replica: Option<u32>,
}

impl DevicePlacement {
    /// On the host, of no replica.
    pub const HOST: Self = Self { device: Device::HOST, replica: None };
}

/// The name, the type and the known elements of one result.
#[derive(Clone, Debug, PartialEq)]
pub struct ResultInfo {
    /// The value's name, unique in the graph (a parameter's is that of the parameter).
    pub name: Arc<str>,
    /// Its type.
    pub ty: TensorType,
    /// Its elements, where it is a small tensor of integers known before the run.
    pub ints: Option<Ints>,
}

/// A node: what it is, its results, where it runs, where it came from. Its operands are the graph's
/// edges.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub(super) kind: NodeKind,
    pub(super) results: SmallVec<[ResultInfo; 1]>,
    pub(super) place: DevicePlacement,
    pub(super) origin: Origin,
}

impl Node {
    /// Its kind.
    pub fn kind(&self) -> &NodeKind {
        &self.kind
    }

    /// Its operator, if it is one.
    pub fn op(&self) -> Option<&Op> {
        match &self.kind {
            NodeKind::Op(op) => Some(op),
            NodeKind::Input | NodeKind::Param(_) => None,
        }
    }

    /// Its results.
    pub fn results(&self) -> &[ResultInfo] {
        &self.results
    }

    /// Its device and replica.
    pub fn place(&self) -> DevicePlacement {
        self.place
    }

    /// Its source.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The name by which a person knows it: its origin, or else its first result.
    pub fn label(&self) -> &str {
        match (&self.origin.0, self.results.first()) {
            (Some(name), _) => name,
            (None, Some(result)) => &result.name,
            (None, None) => "",
        }
    }
}

/// A named output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// The name under which a run hands it out.
    pub name: Arc<str>,
    /// The value.
    pub value: Value,
}

/// The new value of a parameter after a run.
///
/// Elsewhere: input-output alias (XLA); buffer mutation (PyTorch); variable (Keras).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The parameter.
    pub param: ParamId,
    /// One value for each device that holds the parameter, in the order of the split's devices.
    pub values: SmallVec<[Value; 1]>,
}
