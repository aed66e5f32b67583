//! From the parts of a model file to a graph.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::super::Quoted;
use super::control::Control;
use super::declared::{Assumptions, Declared};
use super::error::MAX_OPEN_SIZES;
use super::file::{File, Head};
use super::flat::{Block, FlatNode, Given, NONE, ValueId};
use super::flatten::{Layout, flatten};
use super::inputs::{Inputs, declared};
use super::node::Node;
use super::options::ImportOptions;
use super::registry::{Import, Reader};
use super::state::{State, Tensors};
use super::wire::Span;
use super::{BatchCandidate, ImportError, NodeError, foreign, ops};
use crate::ir::{Builder, Model, Origin};
use crate::op::OpError;
use crate::types::invariant::int;
use crate::types::{DType, Dim, FastMap, FastSet, Note, Symbol, Tensor};

/// Builds the model of `file`, for the values `given` of inputs that a run gives again. The tensors
/// are those that earlier imports of the file have read.
pub(super) fn run(
    source: &str,
    file: &File,
    tensors: &mut Tensors,
    options: &ImportOptions,
    given: &BTreeMap<String, Tensor>,
) -> Result<Model, ImportError> {
    // ONNX's own operators are known by name. What the user assumes holds for all others, and
    // cannot replace a known meaning.
    let own = |head: &Head<'_>| ops::find(head.domain(), head.op).is_some();
    let assume = &options.assume;
    let assumed = |head: &Head<'_>| !assume.is_empty() && assume.contains_key(&head.full_op());
    let supported = |head: &Head<'_>| own(head) || assumed(head);
    let (layout, block) = flatten(file, &supported)?;
    let mut inputs = Inputs::read(file, &block, options, given)?;
    tensors.begin();
    let mut texts: FastSet<ValueId> = FastSet::default();
    for (id, span) in block.initializers.iter().zip(&file.graph.initializers) {
        if file.is_text(*span)? {
            texts.insert(*id);
        }
    }
    let spans = file.graph.initializers.iter().copied();
    let initializers: FastMap<ValueId, Span> =
        block.initializers.iter().copied().zip(spans).collect();
    let flat = &layout.flat;
    let declared = Declared::read(file, flat, &block.nodes, &inputs, assume, ops::known)?;
    let parts = Parts {
        classes: inputs.classes.len(),
        layout: &layout,
        block: &block,
        initializers: &initializers,
        texts: &texts,
        declared: &declared,
        assume,
        source,
        builds: Cell::new(0),
        ran: Cell::new(0),
    };
    let model = if options.symbols.is_empty() {
        parts.unify(&mut inputs, tensors)?;
        inputs.note();
        // The builds above were dry: only this one makes tensors.
        parts.build(&inputs, tensors, &|_| Dim::n(), false)?
    } else {
        let symbol = |class| Dim::symbol(Symbol(int(class)));
        let mut model = parts.build(&inputs, tensors, &symbol, false)?;
        model.graph.set_symbols(inputs.symbols(options)?);
        model
    };
    tensors.check()?;
    Ok(model)
}

/// State that every pass over the nodes reads.
struct Parts<'a> {
    /// The classes of sizes that declared types may have.
    classes: usize,
    layout: &'a Layout<'a>,
    block: &'a Block,
    initializers: &'a FastMap<ValueId, Span>,
    /// The initializers that hold strings.
    texts: &'a FastSet<ValueId>,
    declared: &'a Declared,
    assume: &'a Assumptions,
    source: &'a str,
    /// The builds that tried sizes.
    builds: Cell<usize>,
    /// What calls and bodies expanded to in builds, in nodes.
    ran: Cell<usize>,
}

impl Parts<'_> {
    /// Proves that the sizes that may be the batch are one: each is a symbol of its own until types
    /// agree only if two are the same.
    fn unify(&self, inputs: &mut Inputs, tensors: &mut Tensors) -> Result<(), ImportError> {
        let found = inputs.classes.len();
        if found > MAX_OPEN_SIZES {
            return Err(ImportError::OpenSizes(found));
        }
        let mut classes =
            Classes { symbols: (1u32..).take(found).collect(), fixed: BTreeSet::new() };
        // Each turn joins two symbols, fixes at least one class, or is the last.
        while classes.symbols.iter().any(|symbol| *symbol != BATCH) {
            if self.tried() > MAX_JOINED_NODES {
                break;
            }
            let Some(failed) = self.try_sizes(inputs, tensors, &classes) else { break };
            // Whatever the batch is, this value must be known.
            if failed.deciding().is_some() {
                return Err(failed);
            }
            let fixed = match differing(&failed) {
                Some(Differing::Symbols(a, b)) => {
                    classes.join(a, b);
                    continue;
                }
                Some(Differing::Constant(symbol)) => classes.constants(inputs, symbol),
                None => BTreeSet::new(),
            };
            let fixed = if fixed.is_empty() {
                self.culprits(inputs, tensors, &classes, &failed)
            } else {
                fixed
            };
            if fixed.is_empty() {
                // Where all of them may be one, what fails with one batch as well is the error to
                // report.
                if inputs.classes.iter().all(|c| c.sizes.iter().any(|s| s.axis == 0)) {
                    self.build(inputs, tensors, &|_| Dim::n(), true)?;
                }
                break;
            }
            classes.fix(inputs, fixed);
        }
        let is_state = |i: &usize| classes.symbols[*i] != BATCH && !inputs.leads(*i);
        let states = inputs.constants.iter().copied().filter(is_state).collect();
        classes.fix(inputs, states);
        let mut merged: BTreeMap<u32, BatchCandidate> = BTreeMap::new();
        for (i, found) in inputs.classes.iter().enumerate() {
            if !classes.fixed.contains(&i) {
                let candidate = merged.entry(classes.symbols[i]).or_default();
                candidate.sizes.extend(found.sizes.iter().cloned());
            }
        }
        let merged: Vec<BatchCandidate> = merged.into_values().collect();
        if merged.len() > 1 {
            return Err(ImportError::Batches(merged));
        }
        inputs.one(merged);
        Ok(())
    }

    /// The error of the types where each class of the inputs' sizes is its symbol.
    fn try_sizes(
        &self,
        inputs: &Inputs,
        tensors: &mut Tensors,
        classes: &Classes,
    ) -> Option<ImportError> {
        self.builds.set(self.builds.get() + 1);
        let size = |i: usize| Dim::symbol(Symbol(classes.symbols[i]));
        self.build(inputs, tensors, &size, true).err()
    }

    /// The nodes that the builds that tried sizes took.
    fn tried(&self) -> usize {
        let nodes = self.block.nodes.len().saturating_mul(self.builds.get());
        nodes.saturating_add(self.ran.get())
    }

    /// The classes that are constants in fact, as a symbol is refused where they are used: the one
    /// without which this error is gone, or all that may be constants.
    fn culprits(
        &self,
        inputs: &Inputs,
        tensors: &mut Tensors,
        classes: &Classes,
        failed: &ImportError,
    ) -> BTreeSet<usize> {
        for one in inputs.constants.iter().rev() {
            if self.tried() > MAX_TRIED_NODES {
                break;
            }
            let one = BTreeSet::from([*one]);
            let mut tried = inputs.clone();
            tried.bake(&one);
            let error = self.try_sizes(&tried, tensors, classes);
            if error.is_none_or(|error| error.node() != failed.node()) {
                return one;
            }
        }
        inputs.constants.clone()
    }

    /// Builds the graph with the size `size(i)` for class `i` of the inputs' sizes. A `dry` build
    /// is for its types only.
    fn build(
        &self,
        inputs: &Inputs,
        tensors: &mut Tensors,
        size: &dyn Fn(usize) -> Dim,
        dry: bool,
    ) -> Result<Model, ImportError> {
        let Self { classes, layout, initializers, declared, source, .. } = *self;
        let file = layout.file;
        let name = if file.graph.name.is_empty() { "model" } else { &file.graph.name };
        let builder = Builder::new(name);
        let mut state = State {
            file,
            layout: layout.clone(),
            builder,
            freed: inputs.freed,
            classes: (0..classes).map(size).collect(),
            declared,
            tensors,
            initializers,
            inner: FastMap::default(),
            placed: FastMap::default(),
            shared: FastMap::default(),
            values: vec![None; layout.flat.values()],
            constants: BTreeMap::new(),
            followed: BTreeMap::new(),
            source: source.into(),
            dry,
            referred: 0,
            texts: self.texts.clone(),
            notes: Vec::new(),
        };
        let converted = self.convert(&mut state, inputs, size);
        // What fails took its time as well.
        let ran = state.layout.expanded() - layout.expanded();
        self.ran.set(self.ran.get().saturating_add(ran));
        let notes = converted?;
        let (mut graph, mut weights) = state.builder.finish();
        // Weights that only removed nodes read are not the model's: they would be loaded, and
        // counted.
        graph.remove_unused();
        let used: BTreeSet<&str> = graph.params().iter().map(|p| &*p.name).collect();
        weights.retain(|name| used.contains(name));
        Ok(Model { notes, ..Model::new(graph, weights) })
    }

    /// Adds the inputs, the nodes and the outputs; gives the notes.
    fn convert(
        &self,
        state: &mut State<'_>,
        inputs: &Inputs,
        size: &dyn Fn(usize) -> Dim,
    ) -> Result<Vec<Note>, ImportError> {
        for typed in inputs.types(size) {
            let (id, name, ty) = typed?;
            state.values[id as usize] = Some(state.builder.input(name, ty));
        }
        for (id, tensor) in &inputs.known {
            state.values[*id as usize] = Some(state.inline(*id, tensor.clone()));
        }
        for node in &self.block.nodes {
            self.node(state, node)?;
        }
        let mut notes = inputs.notes.clone();
        notes.append(&mut state.notes);
        self.outputs(state, &mut notes)?;
        Ok(notes)
    }

    /// Converts a node.
    pub(super) fn node(&self, state: &mut State<'_>, node: &FlatNode) -> Result<(), ImportError> {
        let file = state.file;
        let (head, attributes) = match node.span {
            Some(span) => (file.head(span)?, file.attributes(span)?),
            None => (Head::own("Identity"), Vec::new()),
        };
        // What only strings decide cannot be computed; what does not follow from it can.
        if node.inputs.iter().any(|id| state.texts.contains(id)) {
            state.leave_out(node.outputs.iter().copied());
            return Ok(());
        }
        let attributes: Vec<Given> =
            attributes.into_iter().map(|(proto, span)| Given::own(proto, span)).collect();
        let shared = shared(state, node, &head);
        if let (Some(key), [id, ..]) = (shared, &node.outputs[..])
            && let Some(value) = state.shared.get(&key).copied()
        {
            state.set(*id, value);
            return Ok(());
        }
        state.builder.set_origin(Origin::new(state.layout.flat.origin(head.name, node)));
        let own = if node.span.is_some() { head.inputs.len() } else { node.inputs.len() };
        let inputs = state.operands(node, head.op, own)?;
        let found = ops::find(head.domain(), head.op);
        if let Some(most) = found.map(|f| f.operands).filter(|m| inputs.len() > *m) {
            let text = format!("{} operands where there are at most {most}", inputs.len());
            return Err(state.failed(node, head.op, NodeError::Unsupported(text)));
        }
        if let Some(Import { reader: Reader::Control(decide), .. }) = found {
            let convert = |state: &mut State<'_>, node: &FlatNode| self.node(state, node);
            return decide(&mut Control::new(&convert, state, node, &head, attributes, inputs)?);
        }
        let converted = Node::new(state, head.op, node, attributes, inputs).and_then(|mut node| {
            if let Some(Import { reader: Reader::Node(convert), .. }) = found {
                convert(&mut node)?;
                return node.finish();
            }
            let name = head.full_op();
            let assumed = self.assume.get(&name).copied();
            let unknown = || NodeError::Unsupported("the operator".to_owned());
            foreign::convert(&mut node, name, assumed.ok_or_else(unknown)?)
        });
        converted.map_err(|error| state.failed(node, head.op, error))?;
        if let (Some(key), [id, ..]) = (shared, &node.outputs[..])
            && let Some(value) = state.values[*id as usize]
        {
            state.shared.insert(key, value);
        }
        Ok(())
    }

    /// Adds the outputs; a declared type that contradicts the inferred one is noted.
    fn outputs(&self, state: &mut State<'_>, notes: &mut Vec<Note>) -> Result<(), ImportError> {
        let file = self.layout.file;
        for (id, span) in self.block.outputs.iter().zip(&file.graph.outputs) {
            let name = self.layout.flat.name(*id);
            if *id != NONE && state.texts.contains(id) {
                notes.push(format!("output {} is left out: {TEXT}", Quoted(&name)).into());
                continue;
            }
            let value = match *id {
                NONE => None,
                id => state.value(id)?,
            };
            let value = value.ok_or_else(|| ImportError::Undefined {
                value: name.clone().into_owned(),
                user: "an output of the model".to_owned(),
            })?;
            let ty = state.builder.graph().ty(value);
            let info = file.value(*span)?;
            let (dtype, rank): (Option<DType>, Option<usize>) = declared(&info);
            if dtype.is_some_and(|t| t != ty.dtype) || rank.is_some_and(|r| r != ty.rank()) {
                // The file may declare the number of axes alone.
                let declared_type = dtype.map_or("?", DType::name);
                let shown = Quoted(&name);
                let axes = rank.map_or_else(|| "?".to_owned(), |r| r.to_string());
                let text = format!(
                    "the file declares output {shown} as {declared_type} with {axes} axes; \
                     it is {ty}"
                );
                notes.push(text.into());
            }
            state.builder.output(&name, value);
        }
        match self.block.outputs.first() {
            Some(first) if state.builder.graph().outputs().is_empty() => {
                let (tensor, reason) =
                    (self.layout.flat.name(*first).into_owned(), TEXT.to_owned());
                Err(ImportError::Tensor { tensor, reason })
            }
            _ => Ok(()),
        }
    }
}

/// The key of a constant that each run of a body has alike: a copy for each would be a weight for
/// each.
fn shared(state: &State<'_>, node: &FlatNode, head: &Head<'_>) -> Option<(usize, u32)> {
    let call = state.layout.flat.scope(node.scope).call;
    let is_alike = head.op == "Constant" && head.domain().is_empty() && node.inputs.is_empty();
    let named = matches!(node.outputs[..], [id] if id != NONE);
    let span = node.span.filter(|_| is_alike && named && call != node.scope)?;
    Some((span.range().start, call))
}
/// Why an output is left out, and a way out.
const TEXT: &str = "it holds strings, or depends on strings, which are not supported; train the \
    model with numeric classes and export it again";

/// The nodes that builds for single classes may take together; beyond it all classes that may be
/// constants are taken for constants at once. A hostile file has as many classes as nodes.
const MAX_TRIED_NODES: usize = 1 << 19;

/// The nodes that builds may take together before sizes that are not joined yet are taken for
/// different ones.
const MAX_JOINED_NODES: usize = 1 << 21;

/// The symbol of the first class: a leading size, where the batch is freed.
const BATCH: u32 = 1;

/// The proved facts about the classes of the inputs' sizes.
struct Classes {
    /// The symbol of each: those with the same are one size.
    symbols: Vec<u32>,
    /// Those that are constants; their symbol is that of the batch.
    fixed: BTreeSet<usize>,
}

impl Classes {
    /// Makes two symbols one.
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (a.min(b), a.max(b));
        self.symbols.iter_mut().filter(|symbol| **symbol == b).for_each(|symbol| *symbol = a);
    }

    /// The classes with this symbol that may be constants.
    fn constants(&self, inputs: &Inputs, symbol: u32) -> BTreeSet<usize> {
        inputs.constants.iter().copied().filter(|i| self.symbols[*i] == symbol).collect()
    }

    /// Makes classes constants.
    fn fix(&mut self, inputs: &mut Inputs, fixed: BTreeSet<usize>) {
        inputs.bake(&fixed);
        for i in &fixed {
            self.symbols[*i] = BATCH;
        }
        self.fixed.extend(fixed);
    }
}

/// Two sizes that would have to agree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Differing {
    /// They agree if two symbols are one.
    Symbols(u32, u32),
    /// They agree for one value of a symbol at most.
    Constant(u32),
}

/// The sizes that have to agree by an error of types.
fn differing(error: &ImportError) -> Option<Differing> {
    let ImportError::Node { error, .. } = error else { return None };
    let (NodeError::Op(error) | NodeError::Freed { error }) = error else { return None };
    let OpError::SizesDiffer { left, right, .. } = &**error else { return None };
    let only = |dim: &Dim| {
        let mut found: Vec<Symbol> = Vec::new();
        dim.symbols(&mut |s| found.push(s));
        found.dedup();
        if let [one] = found[..] { Some(one) } else { None }
    };
    match (only(left), only(right)) {
        (Some(a), Some(b)) if a != b => {
            let agree = left.substitute(&mut |_| Dim::symbol(b)) == *right;
            agree.then_some(Differing::Symbols(a.0, b.0))
        }
        (Some(a), None) if right.is_const() => Some(Differing::Constant(a.0)),
        (None, Some(b)) if left.is_const() => Some(Differing::Constant(b.0)),
        _ => None,
    }
}
