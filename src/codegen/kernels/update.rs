//! Multi-tensor updates: parameters with the same update formula share one kernel call, as in the
//! `foreach` optimizers of PyTorch. A step of training would otherwise launch one tiny kernel for
//! each parameter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use super::{CodegenError, Context, elementwise};
use crate::codegen::builder::{c_type, grid_x};
use crate::codegen::expression::step_expression;
use crate::codegen::function::Element;
use crate::codegen::kernel::{Arg, Call, Kernel, ParamDecl};
use crate::codegen::unit::MAX_PARAMS;
use crate::lower::{Access, BufferId, DeviceProgram, Launch, Storage};
use crate::types::invariant::invariant;
use crate::types::{DType, Dim};

/// Threads of a block.
const THREADS: u32 = 256;

/// Elements of a block: four for each thread.
const PER_BLOCK: i64 = 4 * THREADS as i64;

/// Calls of `update.cu` for consecutive launches: one call for all parameters with the same
/// formula, split if their addresses exceed the kernel argument. If the addresses of one connected
/// group exceed it, each of its launches becomes an elementwise call.
pub(super) fn calls(
    device: &DeviceProgram,
    launches: &[Context<'_>],
) -> Result<Vec<Call>, CodegenError> {
    let mut by_formula: Vec<(Formula, Vec<Segment>)> = Vec::new();
    let mut alone: BTreeSet<&BufferId> = BTreeSet::new();
    for members in connected_launches(launches) {
        let (formula, segment) = segment(device, &members)?;
        if formula.pointers.len() > MAX_PARAMS {
            alone.extend(members.iter().flat_map(|context| &context.launch.results));
            continue;
        }
        // Formulas are compared as text and types: all layers with the same optimizer share a call.
        match by_formula.iter_mut().find(|(known, _)| *known == formula) {
            Some((_, segments)) => segments.push(segment),
            None => by_formula.push((formula, vec![segment])),
        }
    }
    let mut calls = Vec::new();
    for (formula, segments) in &by_formula {
        let shared = formula.shared(segments);
        let own = shared.iter().filter(|is_shared| !**is_shared).count();
        // Shared pointers are passed once per call; the rest of the argument is divided among the
        // parameters.
        let most = MAX_PARAMS.saturating_sub(shared.len() - own) / own.max(1);
        calls.extend(segments.chunks(most.max(1)).map(|part| formula.call(part, &shared)));
    }
    // Last and in order: unlike merged launches they write intermediate results to the arena,
    // possibly over operands of the calls before.
    let is_alone =
        |context: &&Context<'_>| context.launch.results.iter().any(|result| alone.contains(result));
    for context in launches.iter().filter(is_alone) {
        calls.push(elementwise::chain(context)?);
    }
    Ok(calls)
}

/// The connected components of the launches (a launch and those that read its result), each in the
/// order of the launches.
fn connected_launches<'a>(launches: &'a [Context<'a>]) -> Vec<Vec<&'a Context<'a>>> {
    let mut group: Vec<usize> = (0..launches.len()).collect();
    let mut producer: BTreeMap<BufferId, usize> = BTreeMap::new();
    for (i, context) in launches.iter().enumerate() {
        for from in context.launch.operands.iter().filter_map(|b| producer.get(b)) {
            let (old, new) = (group[*from], group[i]);
            group.iter_mut().filter(|g| **g == old).for_each(|g| *g = new);
        }
        producer.extend(context.launch.results.iter().map(|b| (*b, i)));
    }
    // Ordered by the label of the component, so that the calls do not depend on hashing.
    let mut members: BTreeMap<usize, Vec<&Context<'_>>> = BTreeMap::new();
    for (context, group) in launches.iter().zip(group) {
        members.entry(group).or_default().push(context);
    }
    members.into_values().collect()
}

/// The update formula of a parameter.
#[derive(Default, PartialEq)]
struct Formula {
    /// For each pointer, whether it is written, and its type.
    pointers: Vec<(bool, &'static str)>,
    /// The statements for element `i`.
    body: String,
}

/// A parameter: the buffers of [`Formula::pointers`], and the number of elements.
struct Segment {
    buffers: Vec<BufferId>,
    count: i64,
}

/// A formula under construction.
struct Writer<'a> {
    device: &'a DeviceProgram,
    formula: Formula,
    buffers: Vec<BufferId>,
    /// The elements that are loaded or computed already: of index `i` (`true`) and of scalars.
    /// Results of earlier launches of the group are found here, so they never pass through memory.
    known: BTreeMap<(BufferId, bool), Element>,
}

/// The formula and the buffers of a connected group of launches.
fn segment(
    device: &DeviceProgram,
    members: &[&Context<'_>],
) -> Result<(Formula, Segment), CodegenError> {
    let formula = Formula::default();
    let mut writer = Writer { device, formula, buffers: Vec::new(), known: BTreeMap::new() };
    let mut count = None;
    for context in members {
        let text = writer.launch(context.launch);
        text.ok_or_else(|| {
            context.unsupported("its chain takes or gives elements of another type")
        })?;
        let shape = context.launch.results.first().map(|b| &device.buffer(*b).ty.shape);
        let own = shape.and_then(|shape| shape.elements().as_const());
        if own.is_none() || count.is_some_and(|count| Some(count) != own) {
            return Err(context.unsupported("its elements are not those of the launches before"));
        }
        count = own;
    }
    let Writer { formula, buffers, .. } = writer;
    let count = invariant(count, "that a segment has launches");
    Ok((formula, Segment { buffers, count }))
}

impl Writer<'_> {
    /// Adds a pointer and returns its name.
    fn pointer(&mut self, id: BufferId, is_written: bool) -> String {
        let name = format!("a{}", self.buffers.len());
        self.buffers.push(id);
        self.formula.pointers.push((is_written, c_type(self.device.buffer(id).ty.dtype)));
        name
    }

    /// A new variable.
    fn variable(&mut self, dtype: DType, value: &str) -> Element {
        let term = Element::new(format!("v{}", self.formula.body.lines().count()), dtype);
        let line = format!("    const {} {} = {value};\n", c_type(dtype), term.text);
        self.formula.body += &line;
        term
    }

    /// The element of a buffer at index `i`, or its only one.
    fn element(&mut self, id: BufferId, access: Access) -> Option<Element> {
        let at = match access {
            Access::Full => "i",
            Access::Scalar => "0",
            Access::Axis { .. } => return None,
        };
        let key = (id, access == Access::Full);
        if let Some(known) = self.known.get(&key) {
            return Some(known.clone());
        }
        let pointer = self.pointer(id, false);
        let term = self.variable(self.device.buffer(id).ty.dtype, &format!("s.{pointer}[{at}]"));
        self.known.insert(key, term.clone());
        Some(term)
    }

    fn launch(&mut self, launch: &Launch) -> Option<()> {
        let ([own], operands) = launch.split_operands() else { return None };
        let [result] = launch.results.as_slice() else { return None };
        let mut x = self.element(*own, Access::Full)?;
        for step in &launch.chain.steps {
            let mut operand = |i: usize, access| self.element(*operands.get(i)?, access);
            let (text, to) = step_expression(step, &x, &mut operand)?;
            x = self.variable(to, &text);
        }
        let buffer = self.device.buffer(*result);
        if x.dtype != buffer.ty.dtype {
            return None;
        }
        // Intermediate results stay in registers: only later launches of this group read them.
        if matches!(buffer.storage, Storage::Update(_)) {
            let pointer = self.pointer(*result, true);
            let line = format!("    s.{pointer}[i] = {};\n", x.text);
            self.formula.body += &line;
        }
        self.known.insert((*result, true), x);
        Some(())
    }
}

impl Formula {
    /// Marks the pointers that are the same for all parameters, such as the learning rate. They are
    /// passed once, which leaves room for more parameters in the argument.
    fn shared(&self, segments: &[Segment]) -> Vec<bool> {
        let is_shared = |k: usize| segments.windows(2).all(|w| w[0].buffers[k] == w[1].buffers[k]);
        (0..self.pointers.len()).map(is_shared).collect()
    }

    /// The call for these parameters.
    fn call(&self, segments: &[Segment], shared: &[bool]) -> Call {
        let (mut params, mut args, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |name: String, (is_written, ty): (bool, &'static str), id: BufferId| {
            let declare = if is_written { ParamDecl::Write } else { ParamDecl::Read };
            params.push(declare(name, ty));
            args.push(Arg::Buffer(id));
        };
        let mut blocks = 0;
        for (at, segment) in segments.iter().enumerate() {
            let pointers = self.pointers.iter().zip(&segment.buffers).zip(shared).enumerate();
            for (k, ((pointer, id), is_shared)) in pointers {
                if !is_shared {
                    add(format!("s{at}_a{k}"), *pointer, *id);
                } else if at == 0 {
                    add(format!("a{k}"), *pointer, *id);
                }
            }
            places.push((blocks, segment.count));
            blocks += (segment.count + PER_BLOCK - 1) / PER_BLOCK;
        }
        let kernel = Kernel {
            file: "update.cu",
            defines: vec![("PER_BLOCK".to_owned(), PER_BLOCK.to_string())],
            expression: self.text(&places, shared),
            params,
            threads: THREADS,
            shared: 0,
            parts: Vec::new(),
        };
        Call { kernel: Arc::new(kernel), grid: grid_x(Dim::from(blocks)), args }
    }

    /// The text of `expression.cuh`: `Segment`, `update(s, i)` and `find(p, block)`, for parameters
    /// given by their first blocks and numbers of elements.
    fn text(&self, places: &[(i64, i64)], shared: &[bool]) -> String {
        let mut out = "struct Segment {\n".to_owned();
        // Writing to a string does not fail.
        let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").unwrap_or(());
        for (k, (is_written, ty)) in self.pointers.iter().enumerate() {
            line(format_args!("    {}{ty}* a{k};", if *is_written { "" } else { "const " }));
        }
        line(format_args!("    i64 count, first;\n}};"));
        let inline = "__device__ __forceinline__";
        line(format_args!("{inline} void update(const Segment& s, i64 i) {{\n{}}}", self.body));
        line(format_args!("{inline} Segment find(const Params& p, i64 block) {{"));
        search(places, 0, shared, &mut out);
        out += "}\n";
        out
    }
}

/// Writes a binary search for the parameter of a block, from number `from` on. The comparisons are
/// with literals and the same for all threads of a block, so they cause no divergence.
fn search(places: &[(i64, i64)], from: usize, shared: &[bool], out: &mut String) {
    if let [(first, count)] = places {
        let name = |(k, is_shared): (usize, &bool)| {
            if *is_shared { format!("p.a{k}, ") } else { format!("p.s{from}_a{k}, ") }
        };
        let pointers: String = shared.iter().enumerate().map(name).collect();
        // Writing to a string does not fail.
        writeln!(out, "    return {{{pointers}{count}, {first}}};").unwrap_or(());
        return;
    }
    let (low, high) = places.split_at(places.len() / 2);
    if let Some((first, _)) = high.first() {
        // Writing to a string does not fail.
        writeln!(out, "    if (block < {first}) {{").unwrap_or(());
        search(low, from, shared, out);
        *out += "    }\n";
        search(high, from + low.len(), shared, out);
    }
}
