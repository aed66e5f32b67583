//! Index of the template: its values up to equality, and its operators by their operands.

use std::cell::RefCell;
use std::collections::hash_map::{Entry, HashMap};
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::ClaimMap;
use crate::ir::{Graph, NodeId, NodeKind, NodeMap, Value};
use crate::op::Op;
use crate::types::invariant::int;
use crate::types::{Claim, Dim, FastMap, Shard, Split, TensorType};

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

/// The place of an operator among those with the same operands: the list, and the position in it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) group: u32,
    pub(super) at: u32,
}

/// The template with the tables that the proof looks up in it. Equal operators on equal operands
/// count as one, as in common-subexpression elimination.
pub(super) struct Template<'g> {
    pub(super) graph: &'g Graph,
    claims: &'g ClaimMap,
    /// The rows of each replica.
    rows: Vec<Dim>,
    /// By replica: a number of its rows, the same for replicas with equally many.
    kinds: Vec<usize>,
    /// The operators in the order of the graph, and the position of each in this list.
    operators: Vec<NodeId>,
    positions: NodeMap<u32>,
    /// The operands of all nodes in canonical form, and by node the first and the end of its own.
    operands: Vec<Value>,
    ranges: NodeMap<(u32, u32)>,
    /// By node: the first node with equal values, and the result of it that a copy has.
    canonical: NodeMap<(NodeId, Option<u32>)>,
    /// By node: the operators whose first operand it gives. Most nodes have one, which is found
    /// without hashing a list of operands.
    users: NodeMap<Users>,
    /// The lists of operators on the same operands in the order of the graph, where `users` has
    /// several; and the place of each operator in them.
    groups: Vec<SmallVec<[NodeId; 2]>>,
    by_operands: FastMap<Operands, u32>,
    places: NodeMap<Option<Place>>,
    /// The operators by operands and printed form, where several have the same operands.
    by_form: FastMap<(Operands, String), NodeId>,
    /// By node: whether replicas run its operator with `N` in its attributes replaced.
    follows: NodeMap<bool>,
    /// The operators that were found to be those of nodes that follow the rows, by node and kind of
    /// rows: clones share them.
    parts: RefCell<FastMap<(NodeId, usize), Arc<Op>>>,
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
        let rows: Vec<Dim> = (0..split.replicas()).filter_map(|r| split.rows(r)).collect();
        let mut numbers = FastMap::default();
        let kind = |rows| {
            let next = numbers.len();
            *numbers.entry(rows).or_insert(next)
        };
        let kinds = rows.iter().map(kind).collect();
        let first = claims.order().first();
        let canonical = first.map_or_else(|| Vec::new().into(), |n| graph.node_map((*n, None)));
        let mut template = Self {
            graph,
            claims,
            rows,
            kinds,
            operators: Vec::with_capacity(graph.len()),
            positions: graph.node_map(0),
            operands: Vec::new(),
            ranges: graph.node_map((0, 0)),
            canonical,
            users: graph.node_map(Users::None),
            groups: Vec::new(),
            by_operands: FastMap::default(),
            places: graph.node_map(None),
            by_form: FastMap::default(),
            follows: graph.node_map(false),
            parts: RefCell::default(),
            redistributed: FastMap::default(),
        };
        for node in claims.order() {
            template.index(*node);
        }
        template
    }

    /// Fills in the tables for a node, whose operands are indexed.
    fn index(&mut self, id: NodeId) {
        let from = int::<u32>(self.operands.len());
        for value in self.graph.operand_list(id) {
            self.operands.push(self.canonical(*value));
        }
        self.ranges[id] = (from, int::<u32>(self.operands.len()));
        let Some(op) = self.graph.node(id).op() else {
            self.canonical[id] = (id, None);
            return;
        };
        self.positions[id] = int::<u32>(self.operators.len());
        self.operators.push(id);
        self.follows[id] = op.depends_on_batch() && self.claims.is_local(self.graph, id);
        self.canonical[id] = self.add(id, op);
        if let Some(kind) = Redistribution::of(op)
            && let [of] = *self.operands(id)
        {
            let value = self.canonical(Value { node: id, output: 0 });
            self.redistributed.entry(of).or_default().push((kind, value));
        }
    }

    /// Indexes an operator; returns the first node with equal values.
    fn add(&mut self, id: NodeId, op: &Op) -> (NodeId, Option<u32>) {
        if let (Op::CopyOp(_), [of]) = (op, self.operands(id)) {
            return (of.node, Some(of.output));
        }
        if let Some(of) = self.cancelled(id, op) {
            return (of.node, Some(of.output));
        }
        if let Some(first) = self.operands(id).first().copied() {
            match self.users.replace(first.node, Users::Several) {
                Users::None => {
                    self.users[first.node] = Users::One(id);
                    return (id, None);
                }
                Users::One(only) => {
                    let group = self.group(only);
                    self.join(group, only);
                }
                Users::Several => {}
            }
        }
        let group = self.group(id);
        let small = |op: &Op| {
            if let Op::Constant(constant) = op { constant.value.len() <= SMALL } else { true }
        };
        let seen = &self.groups[group as usize];
        if small(op) && !seen.is_empty() {
            let operands = Operands::from_slice(self.operands(id));
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
        self.join(group, id);
        (id, None)
    }

    /// The list of the operators with the operands of this one.
    fn group(&mut self, id: NodeId) -> u32 {
        let operands = Operands::from_slice(self.operands(id));
        let groups = &mut self.groups;
        *self.by_operands.entry(operands).or_insert_with(|| {
            groups.push(SmallVec::new());
            int::<u32>(groups.len() - 1)
        })
    }

    /// Puts an operator at the end of a list.
    fn join(&mut self, group: u32, id: NodeId) {
        let list = &mut self.groups[group as usize];
        self.places[id] = Some(Place { group, at: int::<u32>(list.len()) });
        list.push(id);
    }

    /// The original value, where a redistribution undoes another: own rows of gathered rows, or
    /// gathered own rows. `None` where the claims of both differ.
    fn cancelled(&self, id: NodeId, op: &Op) -> Option<Value> {
        let (kind, [of]) = (Redistribution::of(op)?, self.operands(id)) else { return None };
        let before = self.graph.node(of.node).op().and_then(Redistribution::of)?;
        let inner = self.operands(of.node);
        let [value] = *inner else { return None };
        let same = self.claim(value) == self.claim(Value { node: id, output: 0 });
        (before != kind && same).then_some(value)
    }

    /// The operands of a node in canonical form.
    pub(super) fn operands(&self, id: NodeId) -> &[Value] {
        let (from, to) = self.ranges[id];
        &self.operands[from as usize..to as usize]
    }

    /// The operators in the order of the graph.
    pub(super) fn operators(&self) -> &[NodeId] {
        &self.operators
    }

    /// The position of an operator in this order.
    pub(super) fn position(&self, id: NodeId) -> usize {
        self.positions[id] as usize
    }

    /// The place of an operator among those with the same operands, if there are others.
    pub(super) fn place(&self, id: NodeId) -> Option<Place> {
        self.places[id].filter(|place| self.groups[place.group as usize].len() > 1)
    }

    /// The first operator with results equal to those of this one; `None` where its result is
    /// another value of the graph.
    pub(super) fn original(&self, id: NodeId) -> Option<NodeId> {
        let (node, output) = self.canonical[id];
        output.is_none().then_some(node)
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
    pub(super) fn forms(&self, operands: &[Value], replica: u32) -> HashMap<String, Vec<usize>> {
        let mut forms: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, id) in self.with_operands(operands).iter().enumerate() {
            if let Some(op) = self.graph.node(*id).op() {
                let rows = self.rows_for(*id, replica);
                let form = rows.map_or_else(|| form(op), |rows| form(&part(op, rows)));
                forms.entry(form).or_default().push(at);
            }
        }
        forms
    }

    /// The operators on these operands.
    pub(super) fn with_operands(&self, operands: &[Value]) -> &[NodeId] {
        match operands.first().map(|first| &self.users[first.node]) {
            Some(Users::One(only)) if self.operands(*only) == operands => slice::from_ref(only),
            Some(Users::None | Users::One(_)) => &[],
            Some(Users::Several) | None => match self.by_operands.get(operands) {
                Some(group) => &self.groups[*group as usize],
                // No operator takes these operands.
                None => &[],
            },
        }
    }

    /// True if `op` is the node's operator as `replica` runs it. An operator that a clone shares
    /// with the template, or with a clone that was compared, is compared by its address.
    pub(super) fn is_clone(&self, id: NodeId, op: &Arc<Op>, replica: u32) -> bool {
        let NodeKind::Op(whole) = self.graph.node(id).kind() else { return false };
        let Some(rows) = self.rows_for(id, replica) else {
            return Arc::ptr_eq(whole, op) || (whole.name() == op.name() && whole == op);
        };
        if whole.name() != op.name() {
            return false;
        }
        let key = (id, self.kinds[replica as usize]);
        if self.parts.borrow().get(&key).is_some_and(|known| Arc::ptr_eq(known, op)) {
            return true;
        }
        let is_part = part(whole, rows) == **op;
        if is_part {
            self.parts.borrow_mut().insert(key, op.clone());
        }
        is_part
    }

    /// The number of different rows that replicas have.
    pub(super) fn kinds_of_rows(&self) -> usize {
        // Without replicas there are none.
        self.kinds.iter().max().map_or(0, |most| most + 1)
    }

    /// A number for an operator of the graph at the rows of a replica.
    pub(super) fn slot(&self, id: NodeId, replica: u32) -> Option<usize> {
        let kind = *self.kinds.get(replica as usize)?;
        Some(kind * self.operators.len() + self.position(id))
    }

    /// True if `own` is the type of a result of type `whole` as `replica` has it.
    pub(super) fn is_type(
        &self,
        id: NodeId,
        whole: &TensorType,
        own: &TensorType,
        replica: u32,
    ) -> bool {
        match self.rows.get(replica as usize) {
            Some(rows) if self.claims.is_local(self.graph, id) => {
                own.dtype == whole.dtype
                    && own.rank() == whole.rank()
                    && own.shape.iter().zip(whole.shape.iter()).all(|(own, whole)| {
                        if whole.is_const() { own == whole } else { *own == whole.at_rows(rows) }
                    })
            }
            _ => own == whole,
        }
    }

    /// The rows that a replica puts in place of `N` in the operator of a node, where it does.
    fn rows_for(&self, id: NodeId, replica: u32) -> Option<&Dim> {
        self.rows.get(replica as usize).filter(|_| self.follows[id])
    }
}

/// The operator `whole` on these rows.
fn part(whole: &Op, rows: &Dim) -> Op {
    let mut part = whole.clone();
    part.at_rows(rows);
    part
}

/// A printed form for hashing: equal operators share it, and hardly any others do.
pub(super) fn form(op: &Op) -> String {
    format!("{} {:?}", op.name(), op.attrs())
}
