//! Operators applied to operands that a line of text says, and what comes of them.
//!
//! `add(i8[1] [127], i8[1] [1])` is evaluated. Where operands are types alone, the types of the
//! results are inferred; where one has a claim, `softmax(f32[N,3] shard(0)) {axis=1}`, the split
//! rule is asked, and executed for batches of 0 to 7 rows. `eval`, `infer` or `split` before the
//! operator asks for that whatever the operands are, `call` for the calls of
//! kernels on a GPU, `gradient` for what gives the operands their gradients.

pub(crate) mod calls;
pub(crate) mod gradients;

use std::collections::BTreeMap;
use std::iter;

use fanwise::backend::{CPU, CUDA, Cpu, Executable, RunOptions};
use fanwise::internal::Traits;
use fanwise::internal::{Inferred, Operand, SplitOperand};
use fanwise::ir::{self, Builder, Graph, Value, Weights};
use fanwise::lower::lower;
use fanwise::op::{Attr, Binary, Op, Reduce};
use fanwise::pass::{Repair, Replicate, replicate};
use fanwise::types::{Claim, Combine, Device, Dim, Shard, Tensor, TensorType};

use crate::splits;

/// An operand as its text says it.
struct Given {
    ty: TensorType,
    /// Its elements, if they are integers and written.
    ints: Option<Vec<Dim>>,
    /// Its value, if all of it is written.
    value: Option<Tensor>,
    claim: Claim,
}

/// An operator and its operands.
struct Applied {
    op: Op,
    operands: Vec<Given>,
}

/// Every line of a text with what comes of it; empty lines and headings stay as they are.
pub(crate) fn table(text: &str) -> String {
    let told = |line: &str| {
        let stays = line.is_empty() || line.starts_with('#');
        if stays { format!("{line}\n") } else { format!("{line}\n  -> {}\n", outcome(line)) }
    };
    text.lines().map(told).collect()
}

fn outcome(line: &str) -> String {
    let asked = |what| line.strip_prefix(what).map(Applied::read);
    if let Some(applied) = asked("split ") {
        return applied.split();
    }
    if let Some(applied) = asked("infer ") {
        return applied.inferred();
    }
    if let Some(applied) = asked("gradient ") {
        return applied.differentiated();
    }
    if let Some(applied) = asked("call ") {
        return applied.called();
    }
    if let Some(applied) = asked("eval ") {
        return applied.evaluated();
    }
    let applied = Applied::read(line);
    if applied.operands.iter().any(|x| x.claim != Claim::Invariant) {
        return applied.split();
    }
    let whole = |results: Vec<Inferred>| results.iter().all(|r| r.ty.shape.as_const().is_some());
    match applied.values() {
        Some(_) if applied.infer().is_ok_and(whole) => applied.evaluated(),
        _ => applied.inferred(),
    }
}

fn join(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

/// A type, and its elements where they are known.
fn written(ty: &TensorType, ints: Option<&[Dim]>) -> String {
    let ints = ints.map(|ints| format!(" [{}]", join(ints.iter().map(ToString::to_string))));
    format!("{ty}{}", ints.unwrap_or_default())
}

impl Applied {
    fn read(line: &str) -> Self {
        let (name, rest) = line.split_once('(').expect("an operator and its operands");
        let (operands, attrs) = rest.split_at(closing(rest));
        let attrs = attrs[1..].trim().trim_start_matches('{').trim_end_matches('}');
        let attrs = parts(attrs).into_iter().map(|attr| {
            let (name, value) = attr.split_once('=').unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), attribute(value))
        });
        let op = Op::read(name, attrs.collect()).unwrap_or_else(|e| panic!("{line}: {e}"));
        Self { op, operands: parts(operands).into_iter().map(operand).collect() }
    }

    fn infer(&self) -> Result<Vec<Inferred>, fanwise::op::OpError> {
        let known = |x: &Given| x.ints.clone();
        let ints: Vec<Option<Vec<Dim>>> = self.operands.iter().map(known).collect();
        let operands = self.operands.iter().zip(&ints);
        let operands = operands.map(|(x, ints)| Operand { ty: &x.ty, ints: ints.as_deref() });
        self.op.infer(&operands.collect::<Vec<_>>()).map(smallvec::SmallVec::into_vec)
    }

    /// The values of the operands, if all of them are written.
    fn values(&self) -> Option<Vec<&Tensor>> {
        self.operands.iter().map(|x| x.value.as_ref()).collect()
    }

    fn inferred(&self) -> String {
        match self.infer() {
            Err(error) => format!("error: {error}"),
            Ok(results) => join(results.iter().map(|r| written(&r.ty, r.ints.as_deref()))),
        }
    }

    fn evaluated(&self) -> String {
        let values = self.values().expect("the values of all operands");
        if let Err(error) = self.op.eval(&values) {
            return format!("error: {error}");
        }
        let results = splits::eval(&self.op, &values);
        let split = self.on_devices(&values, &results);
        let results = join(results.iter().map(|t| Attr::Tensor(t.clone()).to_string()));
        if split { format!("{results}  ; on 1, 2 and 3 devices") } else { results }
    }

    /// What gives the operands of floats their gradients, from that of the first result, `dy`.
    fn differentiated(&self) -> String {
        let mut builder = Builder::new("differentiated");
        let operands: Vec<Value> = self
            .operands
            .iter()
            .enumerate()
            .map(|(i, x)| match &x.value {
                Some(value) => builder.param(&format!("x{i}"), value.clone()),
                None => builder.input(&format!("x{i}"), x.ty.clone()),
            })
            .collect();
        let results =
            builder.all("y", self.op.clone(), &operands).expect("the operator takes them");
        let ty = builder.graph().ty(results[0]).clone();
        let axes = (0..ty.rank()).map(|axis| axis.try_into().expect("an axis")).collect();
        let dy = builder.input("dy", ty);
        let product = builder.op("product", Binary::Mul, &[results[0], dy]).unwrap();
        let loss = builder.op("loss", Reduce::Sum { axes, keepdims: false }, &[product]).unwrap();
        builder.output("loss", loss);
        let told = match gradients::told(builder.finish().0) {
            Ok(told) => told,
            Err(error) => return format!("error: {error}"),
        };
        // What leads to the loss is no news, and neither is where nodes come from.
        let known = ["%loss", "%product", "return"];
        let is_news = |line: &&str| {
            let node = line.strip_prefix("  ").is_some_and(|node| node.contains(" : "));
            line.starts_with("none") || (node && !known.iter().any(|k| line[2..].starts_with(k)))
        };
        told.lines().filter(is_news).map(str::trim).collect::<Vec<_>>().join("\n     ")
    }

    /// The calls on a GPU; operands without a batch are parameters.
    fn called(&self) -> String {
        let mut builder = Builder::new("called");
        let mut operands = Vec::new();
        for (i, x) in self.operands.iter().enumerate() {
            let name = format!("x{i}");
            let zeros = |sizes: &[usize]| {
                x.value.clone().unwrap_or_else(|| Tensor::zeros(x.ty.dtype, sizes).unwrap())
            };
            operands.push(match x.ty.shape.as_const() {
                Some(sizes) => builder.param(&name, zeros(&sizes)),
                None => builder.input(&name, x.ty.clone()),
            });
        }
        let results =
            builder.all("y", self.op.clone(), &operands).expect("the operator takes them");
        for (i, value) in results.into_iter().enumerate() {
            builder.output(&format!("y{i}"), value);
        }
        let how = Replicate::over(vec![Device::gpu(0)]);
        let graph = replicate(&builder.finish().0, &how).unwrap_or_else(|e| panic!("{e}"));
        let program = lower(&ir::verify(&graph).unwrap(), &CUDA).unwrap();
        calls::told(&program).unwrap().trim_end().replace('\n', "\n     ")
    }

    /// Runs the operator on one device, where one can, and on several with the first axes as the
    /// batch, where that can be split. True if it was split.
    fn on_devices(&self, values: &[&Tensor], expected: &[Tensor]) -> bool {
        let cpu = Cpu::new(1).expect("a device");
        let Some(whole) = self.graph(values, None) else { return false };
        let Some(one) = run(&whole.0, &whole.1, values, &cpu) else { return false };
        for (got, expected) in one.iter().zip(expected) {
            assert_eq!(got.tensor_type(), expected.tensor_type(), "{:?}", self.op);
            let tolerance = splits::tolerance(got.dtype());
            splits::assert_close(got, &expected.to_f64(), tolerance);
        }
        let rows = values.iter().find_map(|x| x.dims().first()).copied();
        let Some((template, weights)) = rows.and_then(|n| self.graph(values, Some(n))) else {
            return false;
        };
        let on = |devices: u32| {
            let devices = (0..devices).map(Device::gpu).collect();
            let how = Replicate { repair: Repair::None, ..Replicate::over(devices) };
            replicate(&template, &how).ok()
        };
        let (Some(two), Some(three)) = (on(2), on(3)) else { return false };
        let Some(one) = run(&template, &weights, values, &cpu) else { return false };
        for graph in [two, three] {
            let many =
                run(&graph, &weights, values, &cpu).expect("replicas run as one device does");
            assert_eq!(many, one, "{:?}", self.op);
        }
        true
    }

    /// The operator alone: operands whose first axis has `rows` entries are inputs with a batch.
    fn graph(&self, values: &[&Tensor], rows: Option<usize>) -> Option<(Graph, Weights)> {
        let mut builder = Builder::new("applied");
        let mut operands = Vec::new();
        for (i, value) in values.iter().enumerate() {
            let mut ty = value.tensor_type();
            if rows.is_some() && value.dims().first().copied() == rows {
                ty.shape[0] = Dim::n();
            } else if rows.is_some() {
                operands.push(builder.param(&format!("x{i}"), (*value).clone()));
                continue;
            }
            operands.push(builder.input(&format!("x{i}"), ty));
        }
        for (i, value) in builder.all("y", self.op.clone(), &operands).ok()?.into_iter().enumerate()
        {
            builder.output(&format!("y{i}"), value);
        }
        let (graph, weights) = builder.finish();
        ir::verify(&graph).is_ok().then_some((graph, weights))
    }

    /// The claims of the results, and their types, or who refuses. An accepted split is executed.
    fn split(&self) -> String {
        let split: Vec<SplitOperand<'_>> =
            self.operands.iter().map(|x| SplitOperand { claim: x.claim, ty: &x.ty }).collect();
        let inferred = self.infer();
        let fits = inferred.is_ok();
        let inferred = inferred.unwrap_or_default();
        let results: Vec<TensorType> = inferred.into_iter().map(|r| r.ty).collect();
        let claims = match self.op.split(&split, &results) {
            Err(refusal) => {
                return format!("{} by operand {}", refusal.code, refusal.operand);
            }
            Ok(claims) => claims,
        };
        let types = results.iter().map(|ty| format!("{ty} ")).chain(iter::repeat(String::new()));
        let told = join(types.zip(&claims).map(|(ty, claim)| format!("{ty}{claim}")));
        let executed = fits && [0, 1, 2, 5, 7].into_iter().filter(|n| self.execute(*n)).count() > 0;
        if executed { told } else { format!("{told}  ; not executed") }
    }

    /// Executes the split rule on a batch of `n` rows, unless the operator stands between replicas
    /// or does not take the values that are drawn for the operands.
    fn execute(&self, n: usize) -> bool {
        // What replicas hold of their own, and a whole value with rows, no cut of operands gives.
        let uncut = |x: &Given| {
            let whole = x.claim == Claim::Invariant;
            x.claim == Claim::Own || (whole && x.ty.shape.iter().any(Dim::depends_on_batch))
        };
        if self.op.is(Traits::COLLECTIVE) || self.operands.iter().any(uncut) {
            return false;
        }
        let rows: Dim = i64::try_from(n).expect("a few rows").into();
        let mut rng = splits::rng(1);
        let mut draw = |x: &Given, bits: bool| {
            if let Some(value) = &x.value {
                return value.clone();
            }
            let sizes = x.ty.shape.at_rows(&rows).as_const().expect("sizes for these rows");
            let value = splits::random(&mut rng, x.ty.dtype, &sizes);
            if !bits || x.ty.dtype.is_float() {
                return value;
            }
            let bits: Vec<f64> = value.to_f64().iter().map(|v| v.abs() % 2.0).collect();
            splits::tensor(x.ty.dtype, &sizes, &bits)
        };
        let mut at = self.op.clone();
        at.at_rows(&rows);
        for bits in [false, true] {
            let values: Vec<Tensor> = self.operands.iter().map(|x| draw(x, bits)).collect();
            if at.eval(&values.iter().collect::<Vec<_>>()).is_ok() {
                let held: Vec<(&Tensor, Claim)> =
                    values.iter().zip(&self.operands).map(|(t, x)| (t, x.claim)).collect();
                splits::check_split(&self.op, &held, n).expect("the rule accepts");
                return true;
            }
        }
        false
    }
}

fn run(graph: &Graph, weights: &Weights, values: &[&Tensor], cpu: &Cpu) -> Option<Vec<Tensor>> {
    let verified = ir::verify(graph).ok()?;
    let program = lower(&verified, &CPU).ok()?;
    let executable = cpu.executable(program, weights).ok()?;
    let inputs: BTreeMap<String, Tensor> = values
        .iter()
        .enumerate()
        .map(|(i, value)| (format!("x{i}"), (*value).clone()))
        .filter(|(name, _)| weights.get(name).is_none())
        .collect();
    let run = executable.run(&inputs, &RunOptions::default()).ok()?;
    Some(run.outputs.into_iter().map(|(_, tensor)| tensor).collect())
}

/// The places of the characters of a text, and how many brackets are open after each; in quotes
/// there are none.
fn depths(text: &str) -> impl Iterator<Item = (usize, char, i32)> {
    let (mut depth, mut quoted) = (0, false);
    text.char_indices().map(move |(at, c)| {
        quoted ^= c == '"';
        depth += match c {
            '(' | '[' | '{' if !quoted => 1,
            ')' | ']' | '}' if !quoted => -1,
            _ => 0,
        };
        (at, c, depth + i32::from(quoted))
    })
}

/// Where the bracket that is open at the start closes.
fn closing(text: &str) -> usize {
    depths(text).find(|(.., depth)| *depth < 0).expect("a bracket that closes").0
}

/// The parts between the commas that stand in no bracket.
fn parts(text: &str) -> Vec<&str> {
    let mut from = 0;
    let commas = depths(text).filter(|(_, c, depth)| *c == ',' && *depth == 0);
    let mut found: Vec<&str> =
        commas.map(|(at, ..)| text[std::mem::replace(&mut from, at + 1)..at].trim()).collect();
    let last = text[from..].trim();
    found.extend((!last.is_empty()).then_some(last));
    found
}

fn operand(text: &str) -> Given {
    let end = text.find(']').expect("a type") + 1;
    let ty: TensorType = text[..end].parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut rest = text[end..].trim();
    let (mut value, mut ints) = (None, None);
    if let Some(list) = rest.strip_prefix('[') {
        let close = closing(list);
        value = tensor(&text[..end], &list[..close]);
        ints = match &value {
            Some(value) => value.to_i64().map(|ints| ints.into_iter().map(Dim::from).collect()),
            None => Some(parts(&list[..close]).into_iter().map(dim).collect()),
        };
        rest = list[close + 1..].trim();
    }
    Given { ty, ints, value, claim: claim(rest) }
}

fn dim(text: &str) -> Dim {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The tensor of these elements, if they are constants of its type.
fn tensor(ty: &str, elements: &str) -> Option<Tensor> {
    let text = format!(
        "fanwise 1\nsymbol N >= 0\ngraph @c() -> (c: {ty}) {{\n  \
         %c : {ty} = constant() {{value={ty} [{elements}]}}\n  return %c\n}}\n"
    );
    let graph = ir::parse(&text).ok()?;
    graph.ids().find_map(|id| {
        let Some(Op::Constant(constant)) = graph.node(id).op() else { return None };
        Some(constant.value.clone())
    })
}

fn attribute(text: &str) -> Attr {
    if let Some(list) = text.strip_prefix('[') {
        let items: Vec<Attr> = parts(&list[..closing(list)]).into_iter().map(attribute).collect();
        let ints = items.iter().map(|a| if let Attr::Int(d) = a { Some(d.clone()) } else { None });
        let floats = items.iter().map(|a| if let Attr::Float(x) = a { Some(*x) } else { None });
        return match ints.collect() {
            Some(ints) => Attr::Ints(ints),
            None => Attr::Floats(floats.collect::<Option<_>>().expect("floats")),
        };
    }
    if text.starts_with('"') {
        return Attr::Name(text.trim_matches('"').to_owned());
    }
    if let Some((ty, elements)) = text.split_once("] [").map(|(ty, list)| (format!("{ty}]"), list))
    {
        return Attr::Tensor(tensor(&ty, elements.trim_end_matches(']')).expect("a tensor"));
    }
    let float =
        || text.parse().ok().filter(|_| text.contains(['.', 'e', 'i', 'n'])).map(Attr::Float);
    match text {
        "true" => Attr::Bool(true),
        "false" => Attr::Bool(false),
        _ => (text.parse().map(Attr::Int).ok())
            .or_else(float)
            .unwrap_or_else(|| Attr::Name(text.to_owned())),
    }
}

fn claim(text: &str) -> Claim {
    let (name, inside) = text.split_once('(').unwrap_or((text, ")"));
    let numbers: Vec<&str> = inside.trim_end_matches(')').split([';', ',']).collect();
    let int = |i: usize| numbers[i].parse::<u64>().expect("a number");
    match (name, numbers.len()) {
        ("", _) => Claim::Invariant,
        ("own", _) => Claim::Own,
        ("mixed", _) => Claim::Mixed,
        ("partial", _) => {
            let by = Combine::ALL.into_iter().find(|by| by.name() == numbers[0]);
            Claim::Partial(by.expect("a way to combine"))
        }
        ("shard", count) => {
            let axis = usize::try_from(int(0)).expect("an axis");
            let inner = if count > 1 { int(count - 1) } else { 1 };
            Claim::Shard(Shard { axis, outer: if count > 2 { int(1) } else { 1 }, inner })
        }
        _ => panic!("{text} is no claim"),
    }
}
