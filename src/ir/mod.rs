//! The graph of a model: typed values, the operators between them, where each runs and where it
//! came from.

mod assemble;
mod builder;
mod error;
mod excerpt;
mod flow;
mod folded;
mod graph;
mod id_map;
mod json;
mod label;
mod model;
mod node;
pub(crate) mod param;
pub(crate) mod parse;
pub(crate) mod picture;
pub(crate) mod print;
mod symbols;
#[cfg(test)]
mod testing;
mod text;
pub(crate) mod verify;

pub use builder::Builder;
pub use error::GraphError;
pub(crate) use excerpt::operand_excerpt;
pub(crate) use folded::folded;
pub use graph::Graph;
pub(crate) use id_map::{Id, IdMap};
pub use json::{JsonError, from_json, from_json_with, to_json};
pub use label::Label;
pub use model::Model;
pub(crate) use model::{Open, Specialize, element, number, numbers};
pub(crate) use node::NodeMap;
pub use node::{
    DevicePlacement, Node, NodeId, NodeKind, Origin, Output, ResultInfo, Update, Value,
};
pub(crate) use param::ContentHash;
pub use param::{Param, ParamId, Placement, Source, Weights};
pub use parse::{ParseError, parse, parse_with};
pub(crate) use parse::{line_of, parse_within};
pub use picture::dot::to_dot;
pub(crate) use print::Printer;
pub(crate) use symbols::{SizeSymbol, declared};
pub(crate) use verify::MAX_CONSTANT;
pub use verify::{Rule, Verified, VerifyError, VerifyErrors, verify};
