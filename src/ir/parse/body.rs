use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::super::assemble::{Declared, OpPart};
use super::super::text::{MAX_ATTRS, SPLIT};
use super::super::{DevicePlacement, NodeKind, Origin, Value};
use super::Parser;
use super::scan::{Fault, ScanResult};
use crate::op::{Attr, AttrError, CustomOps, Op};
use crate::types::{Device, Quoted, TensorType, closest};

/// A result as it is written, and where its name and its type are.
struct ParsedResult {
    name: Arc<str>,
    at: Range<usize>,
    ty: TensorType,
    ty_at: Range<usize>,
}

/// The attributes as they are written, and where the name of each is.
type Attrs = (Vec<(String, Attr)>, Vec<Range<usize>>);

impl Parser<'_> {
    /// Everything between the brackets of the graph.
    pub(super) fn body(&mut self) -> ScanResult<()> {
        loop {
            match self.values.scan.peek() {
                Some(b'%') => self.op(DevicePlacement::HOST)?,
                // Words, not prefixes: a value is marked by `%`, so no name collides with them.
                _ if self.values.scan.eat_word("on") => self.block()?,
                _ if self.values.scan.eat_word("update") => self.update()?,
                _ if self.values.scan.eat_word("return") => break,
                _ => {
                    return Err(self
                        .values
                        .scan
                        .expected("an operation, a block `on …`, `update`, or `return`"));
                }
            }
        }
        // The signature declared names and types; the values follow here, in its order.
        for (i, (name, ty)) in std::mem::take(&mut self.outputs).into_iter().enumerate() {
            if i > 0 {
                self.values.scan.expect(",")?;
            }
            let from = self.values.scan.next();
            let value = self.operand(Device::HOST)?;
            // The declared type must be that of the value: the signature is what callers rely on.
            let output = self.assembly.output(name, &ty, value);
            output.map_err(|message| Fault::new(self.values.scan.since(from), message))?;
        }
        self.values.scan.expect("}")
    }

    /// A block `on DEVICE`, with the replica that its nodes belong to where there is one: they run
    /// only where that replica has rows, which the text repeats for the reader.
    fn block(&mut self) -> ScanResult<()> {
        let mut place = DevicePlacement { device: self.device()?, replica: None };
        if self.values.scan.eat_word("replica") {
            let from = self.values.scan.next();
            self.values.split_name()?;
            let replica = self.values.replica()?;
            let whole = self.values.scan.since(from);
            self.values.scan.keyword("if")?;
            // The guard says nothing new; another one would promise what the executor does not do.
            if self.values.scan.word() != format!("n{replica}") {
                let message = format!("a block of replica {replica} is guarded by its own rows");
                let help = format!("write `if n{replica}@{SPLIT} > 0`");
                return Err(Fault::new(whole, message).help(help));
            }
            self.values.split_name()?;
            self.values.scan.expect(">")?;
            self.values.scan.expect("0")?;
            place.replica = Some(replica);
        }
        self.values.scan.expect("{")?;
        while !self.values.scan.eat("}") {
            self.op(place)?;
        }
        Ok(())
    }

    /// The new value of a parameter after a run, on each device that holds it.
    fn update(&mut self) -> ScanResult<()> {
        let (name, at) = self.name("@", "a parameter such as `@w`")?;
        let param = self.assembly.param_id(&name);
        let param = param.map_err(|message| Fault::new(at.clone(), message))?;
        self.values.scan.expect("=")?;
        let mut values: SmallVec<[Value; 1]> = SmallVec::new();
        loop {
            self.values.fits(values.len())?;
            // Values stand in the order of the devices that hold the parameter.
            let home = self.assembly.home(param, values.len());
            values.push(self.operand(home)?);
            if !self.values.scan.eat(",") {
                break;
            }
        }
        self.assembly.update(param, values).map_err(|message| Fault::new(at, message))
    }

    /// One operation. Types are written for each result and inferred again: a text cannot claim a
    /// type that the operator does not have.
    fn op(&mut self, place: DevicePlacement) -> ScanResult<()> {
        let written = self.results()?;
        let from = self.values.scan.next();
        let name = self.values.scan.word();
        if name.is_empty() {
            return Err(self.values.scan.expected("an operator such as `relu`"));
        }
        let at = self.values.scan.since(from);
        self.values.scan.expect("(")?;
        let mut operands: SmallVec<[Value; 4]> = SmallVec::new();
        while !self.values.scan.eat(")") {
            // Every list is bounded before it grows: the text may be hostile.
            self.values.fits(operands.len())?;
            operands.push(self.operand(place.device)?);
            if self.values.scan.peek() != Some(b')') {
                self.values.scan.expect(",")?;
            }
        }
        // The operator reads its attributes itself; only it knows which there are.
        let (attrs, places) = self.attrs()?;
        let op = self.ops.read(name, attrs).map_err(|e| {
            let named = |name: &str| places.iter().find(|p| self.values.scan.text(p) == name);
            unreadable(&e, at.clone(), self.ops, named)
        })?;
        self.add(op, at, &operands, &written, place)
    }

    /// The results to the left of `=`, each with its type.
    fn results(&mut self) -> ScanResult<SmallVec<[ParsedResult; 1]>> {
        let mut declared = SmallVec::new();
        loop {
            self.values.fits(declared.len())?;
            let (name, at) = self.name("%", "an operation such as `%y : f32[N] = relu(%x)`")?;
            self.values.scan.expect(":")?;
            let from = self.values.scan.next();
            let ty = self.values.ty()?;
            let ty_at = self.values.scan.since(from);
            declared.push(ParsedResult { name, at, ty, ty_at });
            if !self.values.scan.eat(",") {
                break;
            }
        }
        self.values.scan.expect("=")?;
        Ok(declared)
    }

    /// The attributes in braces, if there are any.
    fn attrs(&mut self) -> ScanResult<Attrs> {
        let (mut attrs, mut places) = (Vec::new(), Vec::new());
        if self.values.scan.peek() != Some(b'{') {
            return Ok((attrs, places));
        }
        self.values.scan.expect("{")?;
        while !self.values.scan.eat("}") {
            let from = self.values.scan.next();
            let name = self.values.scan.word();
            if name.is_empty() {
                return Err(self.values.scan.expected("the name of an attribute"));
            }
            let at = self.values.scan.since(from);
            self.values.scan.expect("=")?;
            if attrs.len() == MAX_ATTRS {
                return Err(Fault::new(
                    at,
                    format!("an operator has at most {MAX_ATTRS} attributes"),
                ));
            }
            // Which of two would count is not defined.
            if attrs.iter().any(|(other, _)| other == name) {
                return Err(Fault::new(
                    at,
                    format!("the attribute {} is given twice", Quoted(name)),
                ));
            }
            attrs.push((name.to_owned(), self.values.attr()?));
            places.push(at);
            if self.values.scan.peek() != Some(b'}') {
                self.values.scan.expect(",")?;
            }
        }
        Ok((attrs, places))
    }

    /// A value that was defined, or a parameter as `device` sees it.
    fn operand(&mut self, device: Device) -> ScanResult<Value> {
        if self.values.scan.peek() != Some(b'@') {
            let (name, at) = self.name("%", "a value such as `%x` or `@w`")?;
            return self.assembly.value(&name).ok_or_else(|| {
                let fault = Fault::new(
                    at,
                    format!("the value {} is not defined before this line", Quoted(&name)),
                );
                fault.help("a value must be defined before it is used")
            });
        }
        let (name, at) = self.name("@", "a parameter such as `@w`")?;
        // Without `on`, the parameter is the one that its placement puts on the device of the user.
        let home = if self.values.scan.eat_word("on") { Some(self.device()?) } else { None };
        self.assembly.held(&name, home, device).map_err(|message| Fault::new(at, message))
    }

    /// Adds the node, and places an error at the part of the line that is wrong.
    fn add(
        &mut self,
        op: Op,
        at: Range<usize>,
        operands: &[Value],
        written: &[ParsedResult],
        place: DevicePlacement,
    ) -> ScanResult<()> {
        let declared = written.iter().map(|w| Declared { name: &w.name, ty: &w.ty });
        let added = self.assembly.op(op, operands, declared, place, Origin::default());
        added.map(|_| ()).map_err(|wrong| {
            let place = match wrong.part {
                OpPart::Op => None,
                OpPart::Name(i) => written.get(i).map(|w| w.at.clone()),
                OpPart::Type(i) => written.get(i).map(|w| w.ty_at.clone()),
            };
            Fault { at: place.unwrap_or(at), message: wrong.message, help: wrong.help }
        })
    }

    /// The names that nodes have in their source.
    pub(super) fn locations(&mut self) -> ScanResult<()> {
        self.values.scan.expect("{")?;
        while !self.values.scan.eat("}") {
            let mut nodes = Vec::new();
            loop {
                let (name, at) = self.name("%", "a value such as `%x`")?;
                // The origin belongs to the node, which its first result names.
                let value = self.assembly.value(&name).filter(|v| v.output == 0);
                let op =
                    |v: &Value| matches!(self.assembly.graph.node(v.node).kind(), NodeKind::Op(_));
                let Some(value) = value.filter(op) else {
                    let message = format!("{} is not a first result of an operator", Quoted(&name));
                    return Err(Fault::new(at, message));
                };
                nodes.push(value.node);
                if !self.values.scan.eat(",") {
                    break;
                }
            }
            self.values.scan.expect("=")?;
            let origin: Arc<str> = self.values.scan.string("a string")?.into();
            for node in nodes {
                self.assembly.graph.set_origin(node, Origin(Some(origin.clone())));
            }
        }
        Ok(())
    }
}

/// The fault that an operator's name or attributes cannot be read.
fn unreadable<'a>(
    error: &AttrError,
    op: Range<usize>,
    ops: &CustomOps,
    place: impl Fn(&str) -> Option<&'a Range<usize>>,
) -> Fault {
    let attr = match error {
        AttrError::UnknownOp(_)
        | AttrError::Unregistered(_)
        | AttrError::Custom { .. }
        | AttrError::Missing { .. } => None,
        AttrError::Kind { attr, .. } => place(attr),
        AttrError::Unknown { attr, .. } => place(attr),
    };
    let fault = Fault::new(attr.cloned().unwrap_or(op), error.to_string());
    match error {
        AttrError::UnknownOp(name) => match closest(name, Op::names()) {
            Some(op) => fault.help(format!("did you mean `{op}`?")),
            None => fault,
        },
        AttrError::Unregistered(name) => match closest(name, ops.names()) {
            Some(op) => fault.help(format!("did you mean `{op}`?")),
            None => fault.help("its framework gives it to `ir::parse_with`"),
        },
        AttrError::Custom { .. }
        | AttrError::Missing { .. }
        | AttrError::Kind { .. }
        | AttrError::Unknown { .. } => fault,
    }
}
