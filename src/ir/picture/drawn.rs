//! What a picture of a graph consists of, and the words in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use petgraph::unionfind::UnionFind;

use super::blocks::{self, Block, Lane, Role};
use super::fold::{self, Folding};
use super::glyphs;
use super::layout;
use super::shapes::{DETAIL, Layout, Look, TITLE, Texts};
use super::titles::{Beginnings, FEW};
use crate::ir::{Graph, NodeId, NodeKind, Param};
use crate::op::Traits;
use crate::types::{Device, Split};

/// How much a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Layers,
    Operators,
}

/// The widest list of devices, or of weights, in the label of a lane.
const LISTED: f64 = 190.0;

/// The claims of values by their names before replication.
pub(crate) type Claims = HashMap<String, String>;

/// What a picture shows, before its boxes have places.
pub(super) struct Outline<'a> {
    graph: &'a Graph,
    folding: Folding,
    level: Level,
    made: blocks::Blocks,
}

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

impl<'a> Outline<'a> {
    pub(super) fn of(graph: &'a Graph, level: Level, folds: bool) -> Self {
        // A graph that was not verified may have a cycle; it is drawn all the same.
        let order = graph.order().unwrap_or_else(|_| graph.ids().collect());
        let folding = fold::fold(graph, &order, folds);
        let made = blocks::operators(graph, &order, &folding);
        let made = match level {
            Level::Layers => made.layers(graph),
            Level::Operators => made,
        };
        Self { graph, folding, level, made }
    }

    /// How many boxes it has.
    pub(super) fn boxes(&self) -> usize {
        self.made.blocks.len()
    }

    /// The picture, whose boxes have places.
    pub(super) fn placed(self) -> Picture<'a> {
        let Self { graph, folding, level, made } = self;
        let layout = layout::layout(&made, &Words::of(graph, &folding, level, &made));
        Picture { graph, folding, level, made, layout }
    }
}

impl<'a> Picture<'a> {
    pub(super) fn of(graph: &'a Graph, level: Level, folds: bool) -> Self {
        Outline::of(graph, level, folds).placed()
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
            0 => None,
            1 => Some("1 replica".to_owned()),
            n => Some(format!("{n} replicas")),
        };
        let rest = replicas.into_iter().chain([level.to_owned()]).collect();
        title(self.graph.name(), !self.graph.updates().is_empty(), rest)
    }
}

/// The names that exporters give to the graph of every model.
const EXPORTED: [&str; 5] = ["main", "main_graph", "tf2onnx", "torch-jit-export", "torch_jit"];

/// The title of a picture: the name of the model, if the graph has it, and what is shown of it.
pub(crate) fn title(name: &str, is_step: bool, rest: Vec<String>) -> String {
    let name = (!EXPORTED.contains(&name)).then(|| name.to_owned());
    let step = is_step.then(|| "training step".to_owned());
    let parts: Vec<String> = name.into_iter().chain(step).chain(rest).collect();
    parts.join(" · ")
}

/// The words of a picture.
pub(super) struct Words<'a> {
    pub(super) graph: &'a Graph,
    pub(super) folding: &'a Folding,
    pub(super) level: Level,
    beginnings: Beginnings,
}

impl<'a> Words<'a> {
    pub(super) fn of(
        graph: &'a Graph,
        folding: &'a Folding,
        level: Level,
        made: &blocks::Blocks,
    ) -> Self {
        let mut words = Self { graph, folding, level, beginnings: Beginnings::default() };
        let layers = made.blocks.iter().filter(|block| block.role == Role::Compute);
        let layers = layers.map(|block| (block.flow(), words.names(block)));
        words.beginnings = Beginnings::of(&layers.collect::<Vec<_>>());
        words
    }

    /// The names of a box as they are shown.
    fn names(&self, block: &Block) -> Vec<String> {
        let count = self.count(&block.nodes);
        block.names.iter().map(|name| name_of(name, count).to_owned()).collect()
    }

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

    /// How often the layers of a box are called: so many parts of it take nothing of each other, do
    /// the same, and read the same parameters.
    fn calls(&self, block: &Block) -> usize {
        let nodes = &block.nodes;
        if block.up || block.updates > 0 {
            // What a step makes of layers is no call of them.
            return 1;
        }
        let places: BTreeMap<NodeId, usize> = nodes.iter().copied().zip(0..).collect();
        let mut joined = UnionFind::new(nodes.len());
        for (id, at) in &places {
            let operands = self.graph.operand_list(*id).iter();
            for from in operands.filter_map(|value| places.get(&value.node)) {
                joined.union(*at, *from);
            }
        }
        let mut parts: BTreeMap<usize, Vec<NodeId>> = BTreeMap::new();
        for (id, part) in nodes.iter().zip(joined.into_labeling()) {
            parts.entry(part).or_default().push(*id);
        }
        if parts.len() < 2 {
            return parts.len();
        }
        let what = |part: &Vec<NodeId>| -> (Vec<&str>, Vec<&str>) {
            let own = weights(self.graph, part).into_iter().map(|param| &*param.name);
            let ops = part.iter().filter_map(|id| self.graph.node(*id).op().map(|op| op.name()));
            let mut ops: Vec<&str> = ops.collect();
            ops.sort_unstable();
            (own.collect(), ops)
        };
        let mut all = parts.values().map(what);
        let is_alike =
            all.next().is_some_and(|first| !first.0.is_empty() && all.all(|other| other == first));
        if is_alike { parts.len() } else { 1 }
    }

    /// The title of the lane of some replicas, and what is said of their rows: that all have the
    /// same number, or all but the last, else the rule that divides them.
    fn group(&self, replicas: &[u32]) -> (String, String) {
        let split = self.graph.split();
        let device = |replica: &u32| {
            let device = split.and_then(|split| split.devices().get(*replica as usize));
            device.map_or_else(|| format!("replica {replica}"), Device::to_string)
        };
        let rows = |replica: &u32| split.and_then(|split| split.rows(*replica as usize));
        let [first, middle @ .., last] = replicas else {
            let Some(one) = replicas.first() else { return (String::new(), String::new()) };
            let rows = rows(one).map_or_else(String::new, |rows| format!(", {rows} rows"));
            return (device(one), format!("replica {one}{rows}"));
        };
        let count = replicas.len();
        let (title, which) = if replicas.iter().copied().eq(*first..=*last) {
            (format!("{} … {}", device(first), device(last)), format!("replicas {first}–{last}"))
        } else {
            let devices: Vec<String> = replicas.iter().map(device).collect();
            (glyphs::fitted(&devices.join(", "), TITLE, LISTED), format!("{count} replicas"))
        };
        let is_even = middle.iter().all(|replica| rows(replica) == rows(first));
        let detail = match (split, rows(first), rows(last)) {
            (Some(_), Some(own), Some(end)) if is_even && own == end => {
                format!("{which}, {own} rows each")
            }
            (Some(_), Some(own), Some(end)) if is_even => {
                format!("{own} rows, the last {end} rows")
            }
            (Some(split), ..) => {
                let rule = glyphs::fitted(&split.rule().to_string(), DETAIL, LISTED);
                format!("{which}, rows by {rule}")
            }
            (None, ..) => which,
        };
        (format!("{title} ×{count}"), detail)
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
        let names = self.names(block);
        let mut lines = match block.role {
            Role::Input | Role::Output => names[..1].to_vec(),
            Role::Compute => self.beginnings.lines(block.flow(), &names),
            Role::Slice | Role::Copy | Role::Collective | Role::Merge => {
                let is_one = names.len() == 1 || block.role == Role::Collective;
                let more =
                    if is_one { String::new() } else { format!(" … {} values", names.len()) };
                vec![format!("{}{times}", self.operators(block)), format!("{}{more}", names[0])]
            }
        };
        if block.role == Role::Compute {
            let calls = self.calls(block);
            lines.extend((calls > 1).then(|| format!("{calls} calls")));
            // Where all names are told, they fill the box.
            lines.extend((names.len() == 1 || names.len() > FEW).then(|| self.operators(block)));
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
            Lane::Group(group) => self.group(&self.folding.groups[group]),
        }
    }

    fn host(&self, above: bool) -> String {
        format!("{} · {}", Device::HOST, if above { "inputs" } else { "outputs" })
    }
}

/// The parameters that nodes read, by way of what is made of them alone.
pub(super) fn weights<'a>(graph: &'a Graph, nodes: &[NodeId]) -> Vec<&'a Param> {
    let own: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let mut seen = BTreeSet::new();
    let mut open: Vec<NodeId> = nodes.to_vec();
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

#[cfg(test)]
mod tests {
    use super::{Folding, Level, Picture, Words, blocks, title};
    use crate::ir::picture::blocks::Lane;
    use crate::ir::picture::shapes::Texts as _;
    use crate::ir::{Builder, Graph, NodeId, Origin};
    use crate::op::Binary;
    use crate::types::{Device, ShardRule, Split, Tensor};

    #[test]
    fn titles_have_no_name_that_every_model_has() {
        let rest = || vec!["by layer".to_owned()];
        assert_eq!(title("unet", true, rest()), "unet · training step · by layer");
        assert_eq!(title("main_graph", false, rest()), "by layer");
    }

    /// The lines of a layer that two inputs go through, by way of these weights.
    fn tower(weights: [&str; 2]) -> Vec<String> {
        let mut b = Builder::new("siamese");
        let numbers = || Tensor::new(&[2], &[0.5f32; 2]).unwrap();
        let all = ["w", "v"].map(|name| (name, b.param(name, numbers())));
        for (side, weight) in ["left", "right"].into_iter().zip(weights) {
            let input = b.input(side, "f32[N,2]".parse().unwrap());
            let (_, weight) = all.into_iter().find(|(name, _)| *name == weight).unwrap();
            b.set_origin(Origin::new("tower"));
            let scaled = b.op(&format!("{side}.scaled"), Binary::Mul, &[input, weight]).unwrap();
            b.set_origin(Origin::default());
            b.output(&format!("{side}.out"), scaled);
        }
        let graph = b.finish().0;
        let picture = Picture::of(&graph, Level::Layers, true);
        let boxes = picture.layout.boxes.into_iter().map(|placed| placed.lines);
        boxes.into_iter().find(|lines| lines[0] == "tower").unwrap()
    }

    #[test]
    fn calls_of_a_layer_are_counted() {
        assert_eq!(tower(["w", "w"]), ["tower", "2 calls", "mul", "f32[N,2]"]);
        assert_eq!(tower(["w", "v"]), ["tower", "mul", "f32[N,2]"]);
    }

    /// The label of a lane of these replicas, of eight whose rows this rule divides.
    fn label(rule: &str, replicas: &[u32]) -> (String, String) {
        let mut graph = Graph::new("net");
        let rule: ShardRule = rule.parse().unwrap();
        graph.set_split(Some(Split::new((0..8).map(Device::gpu).collect(), rule).unwrap()));
        let groups = vec![replicas.to_vec()];
        let (shown, count) = (graph.node_map(NodeId(0)), graph.node_map(1));
        let folding = Folding { groups, shown, count };
        let made = blocks::Blocks { blocks: Vec::new(), edges: [].into() };
        Words::of(&graph, &folding, Level::Layers, &made).lane(Lane::Group(0))
    }

    #[test]
    fn lanes_tell_the_rows_of_all_their_replicas() {
        let all: Vec<u32> = (0..8).collect();
        for (rule, replicas, expected) in [
            ("remainder-last", &all[..], "N/8 rows, the last N-7*(N/8) rows"),
            ("remainder-last", &all[1..7], "replicas 1–6, N/8 rows each"),
            ("remainder-last", &all[7..], "replica 7, N-7*(N/8) rows"),
            ("balanced", &all, "replicas 0–7, rows by balanced"),
            ("balanced", &[0, 2, 5], "3 replicas, rows by balanced"),
            ("ceil", &all, "replicas 0–7, rows by ceil"),
            ("weighted:3,1,1,1,1,1,1,1", &all, "replicas 0–7, rows by weighted:3,1,1,1,1,1,1,1"),
        ] {
            assert_eq!(label(rule, replicas).1, expected, "{rule} {replicas:?}");
        }
        let long = label("weighted:30000,10000,10000,10000,10000,10000,10000,10001", &all).1;
        assert!(long.starts_with("replicas 0–7, rows by weighted:30000,"), "{long}");
        assert!(long.contains('…') && long.ends_with(",10001"), "{long}");
    }

    #[test]
    fn lanes_name_devices_that_do_not_follow_one_another() {
        let title = |replicas: &[u32]| label("remainder-last", replicas).0;
        assert_eq!(title(&[0, 1, 2]), "gpu:0 … gpu:2 ×3");
        assert_eq!(title(&[0, 2]), "gpu:0, gpu:2 ×2");
        assert_eq!(title(&[0, 2, 3, 4, 5, 7]), "gpu:0, gpu:2, gpu:3, gpu:4, … ×6");
        assert_eq!(title(&[3]), "gpu:3");
    }
}
