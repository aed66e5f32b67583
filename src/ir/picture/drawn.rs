//! What a picture of a graph consists of, and the words in it.

use std::collections::{BTreeSet, HashMap};

use super::blocks::{self, Block, Lane, Role};
use super::fold::{self, Folding};
use super::layout;
use super::shapes::{Layout, Look, Texts};
use crate::ir::{Graph, NodeId, NodeKind, Param};
use crate::op::Traits;
use crate::types::invariant::invariant;
use crate::types::{Device, Split};

/// How much a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Layers,
    Operators,
}

/// The claims of values by their names before replication.
pub(crate) type Claims = HashMap<String, String>;

/// A picture of a graph.
pub(super) struct Picture<'a> {
    pub(super) graph: &'a Graph,
    pub(super) folding: Folding,
    pub(super) level: Level,
    pub(super) made: blocks::Blocks,
    pub(super) layout: Layout,
}

impl Role {
    pub(super) const ALL: [Self; 7] = [
        Self::Input,
        Self::Compute,
        Self::Slice,
        Self::Copy,
        Self::Collective,
        Self::Merge,
        Self::Output,
    ];

    /// Its name in legends, the colour of its boxes, and that of their border.
    pub(crate) fn look(self) -> Look {
        match self {
            Self::Input => ("input", "#ffffff", "#4a5568"),
            Self::Compute => ("compute", "#e8f0fc", "#4f7cba"),
            Self::Slice => ("slice", "#fde9bf", "#c98a0c"),
            Self::Copy => ("copy", "#d6f2dc", "#3a9a55"),
            Self::Collective => ("collective", "#fbd5d5", "#cc3d3d"),
            Self::Merge => ("merge", "#e9d9fa", "#8448c4"),
            Self::Output => ("output", "#2d3748", "#1a202c"),
        }
    }
}

impl<'a> Picture<'a> {
    pub(super) fn of(graph: &'a Graph, level: Level, folds: bool) -> Self {
        // A graph that was not verified may have a cycle; it is drawn all the same.
        let order = graph.order().unwrap_or_else(|_| graph.ids().collect());
        let folding = fold::fold(graph, &order, folds);
        let made = blocks::operators(graph, &order, &folding);
        let made = match level {
            Level::Layers => made.layers(graph),
            Level::Operators => made,
        };
        let layout = layout::layout(&made, &Words { graph, folding: &folding, level });
        Self { graph, folding, level, made, layout }
    }

    /// The picture's title.
    pub(super) fn title(&self) -> String {
        let level = match self.level {
            Level::Layers => "by layer",
            Level::Operators => "by operator",
        };
        // A graph without a split has no replicas.
        let replicas = self.graph.split().map_or(0, Split::replicas);
        let replicas = match replicas {
            0 => String::new(),
            1 => " · 1 replica".to_owned(),
            n => format!(" · {n} replicas"),
        };
        let step = if self.graph.updates().is_empty() { "" } else { " · training step" };
        format!("{}{step}{replicas} · {level}", self.graph.name())
    }
}

/// The words of a picture.
pub(super) struct Words<'a> {
    pub(super) graph: &'a Graph,
    pub(super) folding: &'a Folding,
    pub(super) level: Level,
}

impl Words<'_> {
    /// How many times what these nodes do is done: once by each replica that they stand for.
    pub(super) fn count(&self, nodes: &[NodeId]) -> usize {
        nodes.iter().map(|id| self.folding.count[*id]).fold(1, usize::max)
    }

    /// The names of a node's operators, each once.
    fn operators(&self, block: &Block) -> String {
        let mut seen = BTreeSet::new();
        // An exchange is what its collective does.
        let all = block.role != Role::Collective;
        let nodes = block.nodes.iter().filter(|id| all || self.is_collective(**id));
        let names = nodes.filter_map(|id| self.graph.node(*id).op().map(|op| op.name()));
        let names: Vec<&str> = names.filter(|name| seen.insert(*name)).collect();
        names.join(", ")
    }

    /// The type of the last result, or of what a collective gives.
    fn ty(&self, block: &Block) -> Option<String> {
        let last = block.nodes.iter().rfind(|id| self.is_collective(**id));
        let last = last.filter(|_| block.role == Role::Collective);
        let last = last.or(block.nodes.last())?;
        Some(self.graph.node(*last).results().first()?.ty.to_string())
    }

    fn is_collective(&self, id: NodeId) -> bool {
        let op = self.graph.node(id).op();
        op.is_some_and(|op| op.traits().contains(Traits::COLLECTIVE))
    }
}

impl Texts for Words<'_> {
    fn lines(&self, block: &Block) -> Vec<String> {
        let count = self.count(&block.nodes);
        let times = if count > 1 && block.role != Role::Compute {
            format!(" ×{count}")
        } else {
            String::new()
        };
        let names: Vec<String> =
            block.names.iter().map(|name| name_of(name, count).to_owned()).collect();
        let first = invariant(names.first(), "that every box has a name").as_str();
        let mut lines = match (block.role, names.len()) {
            (Role::Input | Role::Output, _) | (Role::Compute, 1) => vec![first.to_owned()],
            (Role::Compute, 2 | 3) => names.clone(),
            (Role::Compute, count) => {
                let last = invariant(names.last(), "that every box has a name").as_str();
                match blocks::common(&names) {
                    Some(stem) => vec![format!("{stem} · {count} layers")],
                    None => vec![format!("{first} … {last}"), format!("{count} layers")],
                }
            }
            (Role::Collective, _) | (_, 1) => {
                vec![format!("{}{times}", self.operators(block)), first.to_owned()]
            }
            (_, count) => {
                vec![
                    format!("{}{times}", self.operators(block)),
                    format!("{first} … {count} values"),
                ]
            }
        };
        if block.role == Role::Compute && (names.len() != 2 && names.len() != 3) {
            lines.push(self.operators(block));
        }
        if block.role != Role::Copy || self.level == Level::Operators {
            lines.extend(self.ty(block));
        }
        match block.updates {
            0 => {}
            1 => lines.push("→ updates 1 parameter".to_owned()),
            n => lines.push(format!("→ updates {n} parameters")),
        }
        lines
    }

    fn lane(&self, lane: Lane) -> (String, String) {
        match lane {
            Lane::All => (String::new(), String::new()),
            Lane::Device(device) => (device.to_string(), "all rows".to_owned()),
            Lane::Group(group) => {
                let replicas = &self.folding.groups[group];
                let split = self.graph.split();
                let device = |replica: u32| {
                    let device = split.and_then(|s| s.devices().get(replica as usize));
                    device.map_or_else(|| format!("replica {replica}"), Device::to_string)
                };
                let rows = |replica: u32| {
                    let rows = split.and_then(|split| split.rows(replica as usize));
                    rows.map_or_else(String::new, |rows| format!("{rows} rows"))
                };
                match replicas[..] {
                    [first, .., last] => {
                        let even = if rows(first) == rows(last) {
                            format!("replicas {first}–{last}, {} each", rows(first))
                        } else {
                            format!("{}, the last {}", rows(first), rows(last))
                        };
                        let count = replicas.len();
                        (format!("{} … {} ×{count}", device(first), device(last)), even)
                    }
                    [one] => (device(one), format!("replica {one}, {}", rows(one))),
                    [] => (String::new(), String::new()),
                }
            }
        }
    }

    fn host(&self, above: bool) -> String {
        format!("{} · {}", Device::HOST, if above { "inputs" } else { "outputs" })
    }
}

/// The parameters that a box reads, by way of what is made of them alone.
pub(super) fn weights<'a>(graph: &'a Graph, block: &Block) -> Vec<&'a Param> {
    let own: BTreeSet<NodeId> = block.nodes.iter().copied().collect();
    let mut seen = BTreeSet::new();
    let mut open: Vec<NodeId> = block.nodes.clone();
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        for value in graph.operand_list(id) {
            let node = graph.node(value.node);
            match node.kind() {
                NodeKind::Param(param) => {
                    found.insert(*param);
                }
                NodeKind::Op(op) if op.name() == "copy" && !own.contains(&value.node) => {
                    let of_param = graph.operand_list(value.node).iter().all(|operand| {
                        matches!(graph.node(operand.node).kind(), NodeKind::Param(_))
                    });
                    if of_param && seen.insert(value.node) {
                        open.push(value.node);
                    }
                }
                NodeKind::Input | NodeKind::Op(_) => {}
            }
        }
    }
    found.into_iter().map(|param| graph.param(param)).collect()
}

/// The name of what stands for so many replicas, which is that of none.
pub(super) fn name_of(name: &str, count: usize) -> &str {
    if count > 1 { before_replication(name) } else { name }
}

/// The name that a value of a replica has in the model.
pub(crate) fn before_replication(name: &str) -> &str {
    let number = |rest: &str| {
        let digits = rest.split('.').next().unwrap_or(rest); // A text has a first part.
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    };
    match name.rfind(".r") {
        Some(at) if number(&name[at + 2..]) => &name[..at],
        Some(_) | None => name,
    }
}
