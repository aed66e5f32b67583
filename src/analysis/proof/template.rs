//! The template's values, and its operators by their operands.

use std::borrow::Cow;
use std::collections::hash_map::{Entry, HashMap};
use std::slice;

use smallvec::SmallVec;

use super::super::ClaimMap;
use crate::ir::{Graph, NodeId, Value};
use crate::op::Op;
use crate::types::{Claim, Dim, Shard, Split, Table};

/// The operands of an operator.
pub(super) type Operands = SmallVec<[Value; 4]>;

/// The operators whose first operand is a result of one node.
#[derive(Clone, Copy)]
enum Users {
    None,
    One(NodeId),
    /// They are looked up by all their operands.
    Several,
}

/// The template and what is looked up in it. Operators that do the same to the same operands count
/// as one.
pub(super) struct Template<'g> {
    pub(super) graph: &'g Graph,
    claims: &'g ClaimMap,
    /// The rows of each replica.
    rows: Vec<Dim>,
    /// For each node the first that gives the same values, and of which result if it is a copy.
    same: Vec<(NodeId, Option<u32>)>,
    /// For each node what takes its results first: most have one such operator, which is found
    /// without a table.
    users: Vec<Users>,
    /// The operators on these operands, in the order of the graph, where `users` does not tell
    /// them.
    on: Table<Operands, SmallVec<[NodeId; 2]>>,
    /// The operators on operands that several take, by their own form.
    known: Table<(Operands, String), NodeId>,
    /// What brings a value to replicas in another form, by the value.
    brought: Table<Value, SmallVec<[(Bring, Value); 1]>>,
}

/// The operators that change nothing on one device, and bring values to replicas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bring {
    /// `own_rows`.
    Rows,
    /// `all_reduce` and `all_gather`.
    Whole,
}

impl Bring {
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other operator brings values")]
    fn of(op: &Op) -> Option<Self> {
        match op {
            Op::OwnRows(_) => Some(Self::Rows),
            Op::AllReduce(_) | Op::AllGather(_) => Some(Self::Whole),
            _ => None,
        }
    }
}

/// Constants of more elements are not compared.
const SMALL: usize = 16;

impl<'g> Template<'g> {
    pub(super) fn new(graph: &'g Graph, claims: &'g ClaimMap, split: &Split) -> Self {
        let rows = (0..split.replicas()).filter_map(|r| split.rows(r)).collect();
        let first = claims.order().first();
        let same = first.map_or_else(Vec::new, |n| vec![(*n, None); graph.id_bound()]);
        let users = vec![Users::None; same.len()];
        let (on, known, brought) = (Table::default(), Table::default(), Table::default());
        let mut template = Self { graph, claims, rows, same, users, on, known, brought };
        for node in claims.order() {
            template.same[node.index()] = template.add(*node);
            if let Some(bring) = graph.node(*node).op().and_then(Bring::of)
                && let [of] = *template.operands(*node)
            {
                let value = template.same(Value { node: *node, output: 0 });
                template.brought.entry(of).or_default().push((bring, value));
            }
        }
        template
    }

    /// Notes an operator; returns the first that gives the same values.
    fn add(&mut self, id: NodeId) -> (NodeId, Option<u32>) {
        let Some(op) = self.graph.node(id).op() else { return (id, None) };
        let operands = self.operands(id);
        if let (Op::CopyOp(_), [of]) = (op, operands.as_slice()) {
            return (of.node, Some(of.output));
        }
        if let Some(of) = self.undone(id, op, &operands) {
            return (of.node, Some(of.output));
        }
        if let Some(first) = operands.first() {
            match std::mem::replace(&mut self.users[first.node.index()], Users::Several) {
                Users::None => {
                    self.users[first.node.index()] = Users::One(id);
                    return (id, None);
                }
                Users::One(only) => {
                    self.on.entry(self.operands(only)).or_default().push(only);
                }
                Users::Several => {}
            }
        }
        let seen = self.on.entry(operands.clone()).or_default();
        // Large constants are told apart though they are equal, which is never wrong.
        let small = |op: &Op| {
            if let Op::Constant(constant) = op { constant.value.len() <= SMALL } else { true }
        };
        if small(op) && !seen.is_empty() {
            if let [only] = seen.as_slice()
                && let Some(first) = self.graph.node(*only).op().filter(|first| small(first))
            {
                self.known.insert((operands.clone(), form(first)), *only);
            }
            match self.known.entry((operands, form(op))) {
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

    /// The value that a node brings back to what it was: own rows of gathered rows, and gathered
    /// own rows.
    fn undone(&self, id: NodeId, op: &Op, operands: &Operands) -> Option<Value> {
        let (bring, [of]) = (Bring::of(op)?, operands.as_slice()) else { return None };
        let before = self.graph.node(of.node).op().and_then(Bring::of)?;
        let inner = self.operands(of.node);
        let [value] = *inner else { return None };
        let same = self.claim(value) == self.claim(Value { node: id, output: 0 });
        (before != bring && same).then_some(value)
    }

    /// The operands of a node, each as the first value that is the same.
    pub(super) fn operands(&self, id: NodeId) -> Operands {
        self.graph.operands(id).into_iter().map(|v| self.same(v)).collect()
    }

    /// The first value that is the same as `value`.
    pub(super) fn same(&self, value: Value) -> Value {
        let (node, output) = self.same[value.node.index()];
        Value { node, output: output.unwrap_or(value.output) }
    }

    /// The value that brings this one to replicas, if the template has one.
    pub(super) fn brought(&self, value: Value, bring: Bring) -> Option<Value> {
        let found = self.brought.get(&self.same(value))?.iter().find(|(b, _)| *b == bring);
        found.map(|(_, value)| *value)
    }

    /// The value that this one is on one device.
    pub(super) fn plain(&self, value: Value) -> Value {
        let mut value = self.same(value);
        while self.graph.node(value.node).op().and_then(Bring::of).is_some() {
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

    /// Where the rows of a value are; `None` if no row changes it.
    pub(super) fn shard(&self, value: Value) -> Option<Shard> {
        self.claims.get(value).shard()
    }

    /// The places of the operators on these operands, by their form as `replica` runs them.
    pub(super) fn forms(&self, operands: &Operands, replica: u32) -> HashMap<String, Vec<usize>> {
        let mut forms: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, id) in self.on(operands).iter().enumerate() {
            if let Some(op) = self.graph.node(*id).op() {
                forms.entry(form(&self.part(*id, op, replica))).or_default().push(at);
            }
        }
        forms
    }

    /// The operators on these operands.
    pub(super) fn on(&self, operands: &Operands) -> &[NodeId] {
        match operands.first().map(|first| &self.users[first.node.index()]) {
            Some(Users::One(only)) if self.operands(*only) == *operands => slice::from_ref(only),
            Some(Users::None | Users::One(_)) => &[],
            Some(Users::Several) | None => self.on.get(operands).map_or(&[], SmallVec::as_slice),
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

/// A text that equal operators have, and hardly any others.
pub(super) fn form(op: &Op) -> String {
    format!("{} {:?}", op.name(), op.attrs())
}
