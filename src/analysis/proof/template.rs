//! Index of the template: its values up to equality, and its operators by their operands.

use std::borrow::Cow;
use std::collections::hash_map::{Entry, HashMap};
use std::slice;

use smallvec::SmallVec;

use super::super::ClaimMap;
use crate::ir::{Graph, NodeId, NodeMap, Value};
use crate::op::Op;
use crate::types::{Claim, Dim, FastMap, Shard, Split};

/// The operands of an operator.
pub(super) type Operands = SmallVec<[Value; 4]>;

/// The operators whose first operand is a result of one node.
#[derive(Clone, Copy)]
enum Users {
    None,
    One(NodeId),
    /// Several operators, looked up by all their operands.
    Several,
}

/// The template with the tables that the proof looks up in it. Equal operators on equal operands
/// count as one, as in common-subexpression elimination.
pub(super) struct Template<'g> {
    pub(super) graph: &'g Graph,
    claims: &'g ClaimMap,
    /// The rows of each replica.
    rows: Vec<Dim>,
    /// By node: the first node with equal values, and the result of it that a copy has.
    canonical: NodeMap<(NodeId, Option<u32>)>,
    /// By node: the operators whose first operand it gives. Most nodes have one, which is found
    /// without hashing a list of operands.
    users: NodeMap<Users>,
    /// The operators on these operands in the order of the graph, where `users` has several.
    by_operands: FastMap<Operands, SmallVec<[NodeId; 2]>>,
    /// The operators by operands and printed form, where several have the same operands.
    by_form: FastMap<(Operands, String), NodeId>,
    /// The redistributed forms of a value.
    redistributed: FastMap<Value, SmallVec<[(Redistribution, Value); 1]>>,
}

/// The kind of an operator that is the identity on one device and redistributes between replicas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Redistribution {
    /// `own_rows`.
    OwnRows,
    /// `all_reduce` and `all_gather`.
    Whole,
}

impl Redistribution {
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other operator brings values")]
    fn of(op: &Op) -> Option<Self> {
        match op {
            Op::OwnRows(_) => Some(Self::OwnRows),
            Op::AllReduce(_) | Op::AllGather(_) => Some(Self::Whole),
            _ => None,
        }
    }
}

/// The largest number of elements of constants that are compared. Two large equal constants count
/// as different, which is never wrong and saves hashing their elements.
const SMALL: usize = 16;

impl<'g> Template<'g> {
    pub(super) fn new(graph: &'g Graph, claims: &'g ClaimMap, split: &Split) -> Self {
        let rows = (0..split.replicas()).filter_map(|r| split.rows(r)).collect();
        let first = claims.order().first();
        let canonical = first.map_or_else(|| Vec::new().into(), |n| graph.node_map((*n, None)));
        let users = graph.node_map(Users::None);
        let (by_operands, by_form, redistributed) =
            (FastMap::default(), FastMap::default(), FastMap::default());
        let mut template =
            Self { graph, claims, rows, canonical, users, by_operands, by_form, redistributed };
        for node in claims.order() {
            template.canonical[*node] = template.add(*node);
            if let Some(kind) = graph.node(*node).op().and_then(Redistribution::of)
                && let [of] = *template.operands(*node)
            {
                let value = template.canonical(Value { node: *node, output: 0 });
                template.redistributed.entry(of).or_default().push((kind, value));
            }
        }
        template
    }

    /// Indexes an operator; returns the first node with equal values.
    fn add(&mut self, id: NodeId) -> (NodeId, Option<u32>) {
        let Some(op) = self.graph.node(id).op() else { return (id, None) };
        let operands = self.operands(id);
        if let (Op::CopyOp(_), [of]) = (op, operands.as_slice()) {
            return (of.node, Some(of.output));
        }
        if let Some(of) = self.cancelled(id, op, &operands) {
            return (of.node, Some(of.output));
        }
        if let Some(first) = operands.first() {
            match self.users.replace(first.node, Users::Several) {
                Users::None => {
                    self.users[first.node] = Users::One(id);
                    return (id, None);
                }
                Users::One(only) => {
                    self.by_operands.entry(self.operands(only)).or_default().push(only);
                }
                Users::Several => {}
            }
        }
        let seen = self.by_operands.entry(operands.clone()).or_default();
        let small = |op: &Op| {
            if let Op::Constant(constant) = op { constant.value.len() <= SMALL } else { true }
        };
        if small(op) && !seen.is_empty() {
            // The form of the first operator is made when a second one asks for it: most lists have
            // one.
            if let [only] = seen.as_slice()
                && let Some(first) = self.graph.node(*only).op().filter(|first| small(first))
            {
                self.by_form.insert((operands.clone(), form(first)), *only);
            }
            match self.by_form.entry((operands, form(op))) {
                Entry::Occupied(first) if self.graph.node(*first.get()).op() == Some(op) => {
                    return (*first.get(), None);
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => {
                    place.insert(id);
                }
            }
        }
        seen.push(id);
        (id, None)
    }

    /// The original value, where a redistribution undoes another: own rows of gathered rows, or
    /// gathered own rows. `None` where the claims of both differ.
    fn cancelled(&self, id: NodeId, op: &Op, operands: &Operands) -> Option<Value> {
        let (kind, [of]) = (Redistribution::of(op)?, operands.as_slice()) else { return None };
        let before = self.graph.node(of.node).op().and_then(Redistribution::of)?;
        let inner = self.operands(of.node);
        let [value] = *inner else { return None };
        let same = self.claim(value) == self.claim(Value { node: id, output: 0 });
        (before != kind && same).then_some(value)
    }

    /// The operands of a node in canonical form.
    pub(super) fn operands(&self, id: NodeId) -> Operands {
        self.graph.operands(id).into_iter().map(|v| self.canonical(v)).collect()
    }

    /// The canonical form of a value: the first value that equals it.
    pub(super) fn canonical(&self, value: Value) -> Value {
        let (node, output) = self.canonical[value.node];
        Value { node, output: output.unwrap_or(value.output) }
    }

    /// The redistributed form of a value, if the template has one of this kind.
    pub(super) fn redistributed(&self, value: Value, kind: Redistribution) -> Option<Value> {
        let found =
            self.redistributed.get(&self.canonical(value))?.iter().find(|(b, _)| *b == kind);
        found.map(|(_, value)| *value)
    }

    /// The value without its redistributions, which are identities on one device.
    pub(super) fn undistributed(&self, value: Value) -> Value {
        let mut value = self.canonical(value);
        while self.graph.node(value.node).op().and_then(Redistribution::of).is_some() {
            match *self.operands(value.node) {
                [of] => value = of,
                _ => break,
            }
        }
        value
    }

    /// The claim of a value: its sharding over the replicas.
    pub(super) fn claim(&self, value: Value) -> Claim {
        self.claims.get(value)
    }

    /// The rows of every replica.
    pub(super) fn rows(&self) -> &[Dim] {
        &self.rows
    }

    /// The axis of a value's rows; `None` if it carries no batch.
    pub(super) fn shard(&self, value: Value) -> Option<Shard> {
        self.claims.get(value).shard()
    }

    /// The positions of the operators on these operands, by their form as `replica` runs them.
    pub(super) fn forms(&self, operands: &Operands, replica: u32) -> HashMap<String, Vec<usize>> {
        let mut forms: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, id) in self.with_operands(operands).iter().enumerate() {
            if let Some(op) = self.graph.node(*id).op() {
                forms.entry(form(&self.part(*id, op, replica))).or_default().push(at);
            }
        }
        forms
    }

    /// The operators on these operands.
    pub(super) fn with_operands(&self, operands: &Operands) -> &[NodeId] {
        match operands.first().map(|first| &self.users[first.node]) {
            Some(Users::One(only)) if self.operands(*only) == *operands => slice::from_ref(only),
            Some(Users::None | Users::One(_)) => &[],
            Some(Users::Several) | None => {
                // No operator takes these operands.
                self.by_operands.get(operands).map_or(&[], SmallVec::as_slice)
            }
        }
    }

    /// True if `op` is the node's operator as `replica` runs it.
    pub(super) fn is_clone(&self, id: NodeId, op: &Op, replica: u32) -> bool {
        let whole = self.graph.node(id).op().filter(|whole| whole.name() == op.name());
        whole.is_some_and(|whole| *self.part(id, whole, replica) == *op)
    }

    /// The operator `whole` of a node as `replica` runs it.
    fn part<'o>(&self, id: NodeId, whole: &'o Op, replica: u32) -> Cow<'o, Op> {
        match self.rows.get(replica as usize) {
            Some(rows) if self.claims.is_local(self.graph, id) => {
                let mut part = whole.clone();
                part.at_rows(rows);
                Cow::Owned(part)
            }
            _ => Cow::Borrowed(whole),
        }
    }
}

/// A printed form for hashing: equal operators share it, and hardly any others do.
pub(super) fn form(op: &Op) -> String {
    format!("{} {:?}", op.name(), op.attrs())
}
