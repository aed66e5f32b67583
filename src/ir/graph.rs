use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::flow::Flow;
use super::{
    ContentHash, DevicePlacement, GraphError, Id, IdMap, Node, NodeId, NodeKind, NodeMap, Origin,
    Output, Param, ParamId, Placement, ResultInfo, SizeSymbol, Source, Update, Value,
};
use crate::op::{Op, OpError, Operand, Results};
use crate::types::invariant::{int, invariant};
use crate::types::{Device, FastMap, FastSet, Split, TensorType};

/// A use that keeps a value alive: as an output, or as a value of an update.
#[derive(Clone, Copy, Debug)]
enum Root {
    Output(u32),
    Update { at: u32, value: u32 },
}

/// A graph of operators with named inputs, outputs and parameters. A parameter with an [`Update`]
/// is a variable: after a run it holds the update's value.
///
/// It is changed only through its methods; the same sequence of changes gives the same graph.
/// Iteration is in the order of ids or in topological order, never in that of a hash.
///
/// Elsewhere: `HloModule` (XLA); `GraphModule` (PyTorch); `func.func` (MLIR); `GraphProto` (ONNX);
/// functional model (Keras).
#[derive(Clone)]
pub struct Graph {
    name: Arc<str>,
    flow: Flow,
    inputs: Vec<NodeId>,
    outputs: Vec<Output>,
    updates: Vec<Update>,
    /// The uses of every value that is an output or updates a parameter.
    roots: FastMap<Value, SmallVec<[Root; 1]>>,
    params: Vec<Param>,
    split: Option<Split>,
    /// The devices of the split, each once.
    mirrors: Vec<Device>,
    symbols: Vec<SizeSymbol>,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            flow: Flow::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            updates: Vec::new(),
            roots: FastMap::default(),
            params: Vec::new(),
            split: None,
            mirrors: Vec::new(),
            symbols: Vec::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets its name.
    pub(crate) fn set_name(&mut self, name: impl Into<Arc<str>>) {
        self.name = name.into();
    }

    /// The sizes beside the batch that are symbols: with any, it is for people and has no program.
    pub(crate) fn symbols(&self) -> &[SizeSymbol] {
        &self.symbols
    }

    /// Sets the sizes that are symbols.
    pub(crate) fn set_symbols(&mut self, symbols: Vec<SizeSymbol>) {
        self.symbols = symbols;
    }

    /// The split of the batch that its replicas follow, if it was replicated.
    pub fn split(&self) -> Option<&Split> {
        self.split.as_ref()
    }

    /// Sets the split that its replicas follow.
    pub fn set_split(&mut self, split: Option<Split>) {
        let mut seen = FastSet::default();
        // Nothing is mirrored without a split.
        let devices = split.as_ref().map_or(&[][..], Split::devices);
        self.mirrors = devices.iter().copied().filter(|device| seen.insert(*device)).collect();
        self.split = split;
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = Value> + '_ {
        self.inputs.iter().map(|node| Value { node: *node, output: 0 })
    }

    /// The outputs, in order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// The updates of parameters, in order.
    pub fn updates(&self) -> &[Update] {
        &self.updates
    }

    /// The values that a run hands out or keeps: the outputs, then those of the updates, in order.
    pub(crate) fn kept(&self) -> impl Iterator<Item = Value> + '_ {
        let updates = self.updates.iter().flat_map(|update| update.values.iter().copied());
        self.outputs.iter().map(|output| output.value).chain(updates)
    }

    /// The parameters, in order; a [`ParamId`] is a position.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The parameter with this id.
    ///
    /// # Panics
    /// If the id is of another graph.
    pub fn param(&self, id: ParamId) -> &Param {
        &self.params[id.0 as usize]
    }

    /// The devices that hold a parameter: its home, or each device of the split, once, in the
    /// split's order.
    ///
    /// # Panics
    /// If the id is of another graph.
    pub(crate) fn homes(&self, id: ParamId) -> &[Device] {
        match &self.param(id).placement {
            Placement::Shared(home) => std::slice::from_ref(home),
            Placement::Mirrored => &self.mirrors,
        }
    }

    /// Makes room for as many more nodes and operands.
    pub(crate) fn reserve(&mut self, nodes: usize, operands: usize) {
        self.flow.reserve(nodes, operands);
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.flow.len()
    }

    /// True if it has no nodes.
    pub fn is_empty(&self) -> bool {
        self.flow.len() == 0
    }

    /// A table of its nodes, with `entry` for each.
    pub(crate) fn node_map<T: Clone>(&self, entry: T) -> NodeMap<T> {
        IdMap::new(self.id_bound(), entry)
    }

    /// One more than the largest index of a node.
    fn id_bound(&self) -> usize {
        self.flow.bound()
    }

    /// The node with this id.
    ///
    /// # Panics
    /// If the node was removed or is of another graph.
    pub fn node(&self, id: NodeId) -> &Node {
        self.flow.node(id)
    }

    /// The node with this id, if there is one.
    pub(crate) fn find(&self, id: NodeId) -> Option<&Node> {
        self.flow.get(id)
    }

    /// The ids of all nodes, ascending.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.flow.ids()
    }

    /// The name, type and known elements of a value.
    ///
    /// # Panics
    /// If the value is of another graph.
    pub fn info(&self, value: Value) -> &ResultInfo {
        &self.node(value.node).results[value.output as usize]
    }

    /// The name, type and known elements of a value, if the graph has it.
    pub(crate) fn get(&self, value: Value) -> Option<&ResultInfo> {
        self.flow.get(value.node)?.results.get(value.output as usize)
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.info(value).ty
    }

    /// The operands of a node, in order.
    pub fn operands(&self, node: NodeId) -> SmallVec<[Value; 4]> {
        SmallVec::from_slice(self.flow.operands(node))
    }

    /// The operands of a node, in order, where they are.
    pub(crate) fn operand_list(&self, node: NodeId) -> &[Value] {
        self.flow.operands(node)
    }

    /// The nodes that take a result of this node as an operand: the user, the operand's position
    /// there, and which result it is; by user and position.
    pub(crate) fn users(&self, node: NodeId) -> SmallVec<[(NodeId, usize, u32); 4]> {
        let mut users: SmallVec<[(NodeId, usize, u32); 4]> = self.flow.users(node).collect();
        users.sort_unstable();
        users
    }

    /// True if a node takes the value as an operand, or it is kept after a run.
    pub(crate) fn is_used(&self, value: Value) -> bool {
        let mut users = self.flow.users(value.node);
        users.any(|(.., output)| output == value.output) || self.is_kept(value)
    }

    /// True if the value is an output, or a parameter holds it after a run.
    pub(crate) fn is_kept(&self, value: Value) -> bool {
        self.roots.contains_key(&value)
    }

    /// The nodes in topological order, those that are ready at the same time in the order of their
    /// ids.
    pub fn order(&self) -> Result<Vec<NodeId>, GraphError> {
        if let Some(ids) = self.flow.in_order() {
            return Ok(ids);
        }
        let ids: Vec<NodeId> = self.ids().collect();
        let ascending = |n: &NodeId| self.operand_list(*n).iter().all(|v| v.node < *n);
        if ids.iter().all(ascending) {
            return Ok(ids);
        }
        let mut waiting = vec![0usize; self.id_bound()];
        let mut ready = BinaryHeap::new();
        for n in &ids {
            let degree = self.operand_list(*n).len();
            waiting[n.index()] = degree;
            if degree == 0 {
                ready.push(Reverse(*n));
            }
        }
        let mut order = Vec::with_capacity(ids.len());
        while let Some(Reverse(n)) = ready.pop() {
            order.push(n);
            for (user, ..) in self.flow.users(n) {
                let left = &mut waiting[user.index()];
                *left -= 1;
                if *left == 0 {
                    ready.push(Reverse(user));
                }
            }
        }
        if order.len() == ids.len() { Ok(order) } else { Err(GraphError::Cycle) }
    }

    /// Adds an input on the host. Inputs keep the order in which they are added.
    pub fn add_input(&mut self, name: impl Into<Arc<str>>, ty: TensorType) -> Value {
        let results = smallvec![ResultInfo { name: name.into(), ty, ints: None }];
        let node = Node {
            kind: NodeKind::Input,
            results,
            place: DevicePlacement::HOST,
            origin: Origin::default(),
        };
        let id = self.flow.add(node, &[]);
        self.inputs.push(id);
        Value { node: id, output: 0 }
    }

    /// Makes a value an input no more; [`remove_unused`](Self::remove_unused) removes its node.
    pub(crate) fn take_input(&mut self, input: Value) {
        self.inputs.retain(|node| *node != input.node);
    }

    /// Adds an output. Outputs keep the order in which they are added.
    pub fn add_output(&mut self, name: impl Into<Arc<str>>, value: Value) {
        self.roots.entry(value).or_default().push(Root::Output(position(self.outputs.len())));
        self.outputs.push(Output { name: name.into(), value });
    }

    /// Removes all outputs; the values stay.
    pub(crate) fn take_outputs(&mut self) -> Vec<Output> {
        for roots in self.roots.values_mut() {
            roots.retain(|root| matches!(root, Root::Update { .. }));
        }
        self.roots.retain(|_, roots| !roots.is_empty());
        std::mem::take(&mut self.outputs)
    }

    /// Removes all updates; their values stay.
    pub(crate) fn take_updates(&mut self) -> Vec<Update> {
        for roots in self.roots.values_mut() {
            roots.retain(|root| matches!(root, Root::Output(_)));
        }
        self.roots.retain(|_, roots| !roots.is_empty());
        std::mem::take(&mut self.updates)
    }

    /// Makes a parameter hold other elements after a run: one value for each device that holds the
    /// parameter ([`Graph::homes`]). Updates keep the order in which they are added;
    /// [`verify`](super::verify) compares their values with the parameter.
    pub(crate) fn add_update(&mut self, param: ParamId, values: impl IntoIterator<Item = Value>) {
        let values: SmallVec<[Value; 1]> = values.into_iter().collect();
        let at = position(self.updates.len());
        for (i, value) in values.iter().enumerate() {
            let root = Root::Update { at, value: position(i) };
            self.roots.entry(*value).or_default().push(root);
        }
        self.updates.push(Update { param, values });
    }

    /// Declares a parameter; [`Graph::add_param_node`] makes it a value.
    pub(crate) fn add_param(&mut self, param: Param) -> ParamId {
        self.params.push(param);
        ParamId(int::<u32>(self.params.len() - 1))
    }

    /// Sets what a parameter's elements are.
    pub(crate) fn set_hash(&mut self, id: ParamId, hash: ContentHash) {
        self.params[id.0 as usize].hash = hash;
    }

    /// Sets where a parameter's elements come from.
    pub(crate) fn set_source(&mut self, id: ParamId, source: Source) {
        self.params[id.0 as usize].source = source;
    }

    /// Adds the parameter as `device` holds it.
    pub(crate) fn add_param_node(&mut self, param: ParamId, device: Device) -> Value {
        let Param { name, ty, .. } = self.param(param);
        let results = smallvec![ResultInfo { name: name.clone(), ty: ty.clone(), ints: None }];
        let place = DevicePlacement { device, replica: None };
        let node = Node { kind: NodeKind::Param(param), results, place, origin: Origin::default() };
        Value { node: self.flow.add(node, &[]), output: 0 }
    }

    /// The results that an operator has with these operands.
    pub(crate) fn infer(&self, op: &Op, operands: &[Value]) -> Result<Results, OpError> {
        let inputs: SmallVec<[Operand<'_>; 4]> = operands
            .iter()
            .map(|v| self.info(*v))
            .map(|info| Operand { ty: &info.ty, ints: info.ints.as_deref() })
            .collect();
        op.infer(&inputs)
    }

    /// Adds an operator with a name for each of its results; their types are inferred.
    pub fn add(
        &mut self,
        op: Op,
        operands: &[Value],
        names: &[Arc<str>],
        place: DevicePlacement,
        origin: Origin,
    ) -> Result<NodeId, GraphError> {
        let inferred = self.infer(&op, operands).map_err(|error| {
            let label =
                origin.0.as_ref().or(names.first()).map_or_else(String::new, ToString::to_string);
            GraphError::Op { label, op: op.name(), error: Box::new(error) }
        })?;
        if inferred.len() != names.len() {
            let (results, names) = (inferred.len(), names.len());
            return Err(GraphError::ResultCount { op: op.name(), results, names });
        }
        // A type that the operator keeps is held once.
        let kept = operands.first().map(|v| self.ty(*v).clone());
        let results = inferred.into_iter().zip(names);
        let results = results.map(|(r, name)| {
            let ty = kept.clone().filter(|kept| *kept == r.ty).unwrap_or(r.ty);
            ResultInfo { name: name.clone(), ty, ints: r.ints }
        });
        let results = results.collect();
        Ok(self.add_typed(op, operands, results, place, origin))
    }

    /// Adds an operator whose results are known, as those of a clone are; [`verify`](super::verify)
    /// infers them again.
    pub(crate) fn add_typed(
        &mut self,
        op: impl Into<Arc<Op>>,
        operands: &[Value],
        results: SmallVec<[ResultInfo; 1]>,
        place: DevicePlacement,
        origin: Origin,
    ) -> NodeId {
        let node = Node { kind: NodeKind::Op(op.into()), results, place, origin };
        self.flow.add(node, operands)
    }

    /// Sets where a node came from.
    pub(crate) fn set_origin(&mut self, node: NodeId, origin: Origin) {
        self.flow.node_mut(node).origin = origin;
    }

    /// Makes every user of `old`, and every output and update that is `old`, take `new` instead.
    pub fn replace(&mut self, old: Value, new: Value) -> Result<(), GraphError> {
        if self.ty(old) != self.ty(new) {
            let boxed = |value| Box::new(self.ty(value).clone());
            let (old, new) = (boxed(old), boxed(new));
            return Err(GraphError::TypesDiffer { old, new });
        }
        if old == new {
            return Ok(());
        }
        self.flow.replace(old, new);
        if let Some(roots) = self.roots.remove(&old) {
            for root in &roots {
                match *root {
                    Root::Output(at) => self.outputs[at as usize].value = new,
                    Root::Update { at, value } => {
                        self.updates[at as usize].values[value as usize] = new;
                    }
                }
            }
            self.roots.entry(new).or_default().extend(roots);
        }
        Ok(())
    }

    /// Removes the operators and parameter nodes that no output and no update depends on, and the
    /// parameters left without a node and without an update; inputs stay. Returns how many nodes
    /// were removed.
    pub fn remove_unused(&mut self) -> usize {
        let mut live = vec![false; self.id_bound()];
        let mut stack: Vec<NodeId> = self.kept().map(|value| value.node).collect();
        stack.extend(&self.inputs);
        while let Some(n) = stack.pop() {
            if !std::mem::replace(&mut live[n.index()], true) {
                stack.extend(self.operand_list(n).iter().map(|value| value.node));
            }
        }
        let before = self.len();
        if self.flow.ids().any(|id| !live[id.index()]) {
            self.flow.retain(&live);
        }
        self.remove_unused_params();
        before - self.len()
    }

    fn remove_unused_params(&mut self) {
        let mut used = vec![false; self.params.len()];
        for id in self.flow.ids() {
            if let NodeKind::Param(id) = self.flow.node(id).kind {
                used[id.0 as usize] = true;
            }
        }
        for update in &self.updates {
            used[update.param.0 as usize] = true;
        }
        let mut renamed = vec![0u32; used.len()];
        let mut next = 0;
        for (slot, used) in renamed.iter_mut().zip(&used) {
            *slot = next;
            next += u32::from(*used);
        }
        let mut used = used.into_iter();
        self.params.retain(|_| invariant(used.next(), "that every parameter was looked at"));
        for node in self.flow.nodes_mut() {
            if let NodeKind::Param(id) = &mut node.kind {
                id.0 = renamed[id.0 as usize];
            }
        }
        for update in &mut self.updates {
            update.param.0 = renamed[update.param.0 as usize];
        }
    }
}

fn position(at: usize) -> u32 {
    int::<u32>(at)
}

impl PartialEq for Graph {
    /// Equality of everything that is printed: ids may differ, the order of nodes may not. A node
    /// without an origin equals one whose origin is the name of its first result.
    fn eq(&self, other: &Self) -> bool {
        let (Ok(left), Ok(right)) = (self.order(), other.order()) else { return false };
        let header = self.name == other.name
            && self.params == other.params
            && self.split == other.split
            && self.inputs.len() == other.inputs.len()
            && self.outputs.len() == other.outputs.len()
            && self.updates.len() == other.updates.len();
        // Inputs and parameters are named wherever they are used, so only the order of operators
        // counts.
        let is_op = |g: &Self, n: &NodeId| g.node(*n).op().is_some();
        let left: Vec<NodeId> = left.into_iter().filter(|n| is_op(self, n)).collect();
        let right: Vec<NodeId> = right.into_iter().filter(|n| is_op(other, n)).collect();
        let same = |a: Value, b: Value| {
            let (Some(info), Some(other_info)) = (self.get(a), other.get(b)) else { return false };
            let (na, nb) = (self.node(a.node), other.node(b.node));
            a.output == b.output && na.kind == nb.kind && na.place == nb.place && info == other_info
        };
        header
            && left.len() == right.len()
            && self.inputs().zip(other.inputs()).all(|(a, b)| same(a, b))
            && self
                .outputs
                .iter()
                .zip(&other.outputs)
                .all(|(a, b)| a.name == b.name && same(a.value, b.value))
            && self.updates.iter().zip(&other.updates).all(|(a, b)| {
                a.param == b.param
                    && a.values.len() == b.values.len()
                    && a.values.iter().zip(&b.values).all(|(x, y)| same(*x, *y))
            })
            && left.iter().zip(&right).all(|(a, b)| {
                let (oa, ob) = (self.operands(*a), other.operands(*b));
                let (na, nb) = (self.node(*a), other.node(*b));
                na.kind == nb.kind
                    && na.results == nb.results
                    && na.place == nb.place
                    && na.label() == nb.label()
                    && oa.len() == ob.len()
                    && oa.iter().zip(&ob).all(|(x, y)| same(*x, *y))
            })
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "graph {} of {} nodes", self.name, self.len())
    }
}
