//! The graph of a model: typed values, the operators between them, where each runs and where it came from.

mod builder;
mod graph;
mod node;
mod param;

pub use builder::Builder;
pub use graph::{Graph, GraphError};
pub use node::{Node, NodeId, NodeKind, Origin, Output, Place, ResultInfo, Value};
pub use param::{ContentHash, Param, ParamId, Placement, Source, Weights};
