//! The state of decoding one kernel.

use super::{Decoded, Globals, Op, flow, instruction};
use crate::exec::kernel::{Inst, Kernel, NOWHERE, Preset, Reg, RowFn, Step};
use crate::ptx::{Arg, Func, Module, RegDecl, Space, Stmt, Ty, Var};
use std::collections::HashMap;

/// The deepest nesting of calls that is inlined.
const MAX_DEPTH: usize = 24;

/// A function whose body is being read.
struct Frame<'a> {
    func: &'a Func,
    /// Distinguishes the names of this inlined copy.
    id: usize,
    /// Where parameters and results lie: by name, the space and offset.
    places: HashMap<String, (Space, u64)>,
    regs: HashMap<&'a str, &'a RegDecl>,
}

/// What decoding a kernel gathers.
pub(super) struct Builder<'a> {
    module: &'a Module,
    globals: &'a Globals,
    frames: Vec<Frame<'a>>,
    copies: usize,
    regs: HashMap<(usize, String), (Reg, Ty)>,
    preds: HashMap<(usize, String), u32>,
    presets: HashMap<(Preset, bool), Reg>,
    rows: u32,
    pred_count: u32,
    code: Vec<Inst>,
    labels: HashMap<String, u32>,
    /// Names that branch targets stand for until all labels are known.
    wanted: Vec<String>,
    targets: HashMap<(usize, String), Vec<String>>,
    shared: HashMap<String, u64>,
    shared_top: usize,
    local_top: usize,
    /// The register with the first address of dynamic shared memory.
    dynamic: Option<Reg>,
    guard: Option<(u32, bool)>,
    line: u32,
    loc: (u32, u32),
    /// Conversions of results that follow the next step.
    pub(super) after: Vec<RowFn>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(module: &'a Module, globals: &'a Globals) -> Self {
        Self {
            module,
            globals,
            frames: Vec::new(),
            copies: 0,
            regs: HashMap::new(),
            preds: HashMap::new(),
            presets: HashMap::new(),
            rows: 0,
            pred_count: 0,
            code: Vec::new(),
            labels: HashMap::new(),
            wanted: Vec::new(),
            targets: HashMap::new(),
            shared: HashMap::new(),
            shared_top: 0,
            local_top: 0,
            dynamic: None,
            guard: None,
            line: 0,
            loc: (0, 0),
            after: Vec::new(),
        }
    }

    /// Decodes a kernel.
    pub(super) fn kernel(mut self, entry: &'a Func) -> Result<Kernel, String> {
        let mut places = HashMap::new();
        let (mut params, mut top) = (Vec::new(), 0usize);
        for param in &entry.params {
            top = top.next_multiple_of(param.align.max(1));
            places.insert(param.name.clone(), (Space::Param, top as u64));
            params.push((param.size, top));
            top += param.size;
        }
        self.body(entry, places)?;
        self.guard = None;
        self.emit(Step::Exit);
        let base = self.shared_top.next_multiple_of(16);
        let mut presets: Vec<_> = self.presets.iter().map(|(k, &reg)| (reg, k.0)).collect();
        if let Some(reg) = self.dynamic {
            presets.push((reg, Preset::Constant(base as u64)));
            self.shared_top = base;
        }
        presets.sort_by_key(|p| p.0.row);
        self.resolve()?;
        flow::joins(&mut self.code);
        let registers = entry.regs.iter().filter(|r| r.ty != Ty::Pred);
        let registers = registers.map(|r| r.count.unwrap_or(1) * r.ty.bits().div_ceil(32)).sum();
        Ok(Kernel {
            name: entry.name.clone(),
            code: self.code,
            rows: self.rows as usize,
            preds: self.pred_count as usize,
            presets,
            params,
            param_bytes: top,
            static_shared: self.shared_top,
            local: self.local_top.next_multiple_of(16),
            max_threads: entry.max_threads,
            files: self.module.files.clone(),
            registers,
        })
    }

    /// Reads a function's body at the current place.
    fn body(&mut self, func: &'a Func, mut places: HashMap<String, (Space, u64)>) -> Decoded {
        for var in &func.vars {
            let place = match var.space {
                Space::Shared => (Space::Shared, self.shared_place(var, &func.name)),
                Space::Local | Space::Param => (Space::Local, self.local_place(var)),
                _ => return Err(format!("a variable in the body: {}", var.name)),
            };
            places.insert(var.name.clone(), place);
        }
        self.copies += 1;
        let id = self.copies;
        let regs = func.regs.iter().map(|r| (r.prefix.as_str(), r)).collect();
        self.frames.push(Frame { func, id, places, regs });
        for stmt in &func.body {
            if let Stmt::Targets(name, labels) = stmt {
                let labels = labels.iter().map(|l| self.local_label(l)).collect();
                self.targets.insert((id, name.clone()), labels);
            }
        }
        for stmt in &func.body {
            self.statement(stmt)?;
        }
        let end = self.end_label();
        self.place_label(end);
        self.frames.pop();
        Ok(())
    }

    fn statement(&mut self, stmt: &'a Stmt) -> Decoded {
        match stmt {
            Stmt::Label(name) => {
                let label = self.local_label(name);
                self.place_label(label);
            }
            Stmt::Loc(file, line) => self.loc = (*file, *line),
            Stmt::Targets(..) => {}
            Stmt::Instr(instr) => {
                self.line = instr.line;
                let outer = self.guard;
                if let Some((name, negated)) = &instr.guard {
                    self.guard = Some((self.pred(name)?, *negated));
                }
                let line = instr.line;
                instruction(self, &Op::new(instr)).map_err(|e| format!("line {line}: {e}"))?;
                self.guard = outer;
            }
        }
        Ok(())
    }

    /// The frame that is being read.
    fn frame(&self) -> &Frame<'a> {
        self.frames.last().expect("instructions are read inside of a function")
    }

    /// A label of this function's copy.
    pub(super) fn local_label(&self, name: &str) -> String {
        format!("{}:{name}", self.frames.last().map_or(0, |f| f.id))
    }

    /// The label behind this function's copy.
    pub(super) fn end_label(&self) -> String {
        self.local_label("%end")
    }

    fn place_label(&mut self, label: String) {
        let here = u32::try_from(self.code.len()).unwrap_or(NOWHERE);
        self.labels.insert(label, here);
    }

    /// Whether the function is the kernel itself.
    pub(super) fn in_kernel(&self) -> bool {
        self.frames.len() == 1
    }

    /// The labels of a `.branchtargets` list.
    pub(super) fn branch_targets(&self, name: &str) -> Option<Vec<String>> {
        self.targets.get(&(self.frame().id, name.to_owned())).cloned()
    }

    /// A number that stands for a label until all are known.
    pub(super) fn want(&mut self, label: String) -> u32 {
        self.wanted.push(label);
        u32::try_from(self.wanted.len() - 1).unwrap_or(NOWHERE)
    }

    /// Puts instruction numbers in place of labels.
    fn resolve(&mut self) -> Decoded {
        let find = |at: u32| {
            let name = &self.wanted[at as usize];
            self.labels.get(name).copied().ok_or_else(|| format!("label {name} does not exist"))
        };
        for inst in &mut self.code {
            match &mut inst.step {
                Step::Branch { target, .. } => *target = find(*target)?,
                Step::Switch { targets, .. } => {
                    for target in targets {
                        *target = find(*target)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Inlines a call.
    pub(super) fn call(&mut self, name: &str, results: &[Arg], args: &[Arg]) -> Decoded {
        let module = self.module;
        let func = module.funcs.iter().find(|f| f.name == name && f.defined);
        let Some(func) = func else {
            return Err(format!("the function {name} has no body: a call of the runtime library"));
        };
        if self.frames.len() >= MAX_DEPTH || self.frames.iter().any(|f| f.func.name == name) {
            return Err(format!("{name} calls itself: recursion is not supported"));
        }
        if func.params.len() != args.len() || func.returns.len() != results.len() {
            return Err(format!("a call of {name} with other parameters than it has"));
        }
        let mut places = HashMap::new();
        let pairs = func.params.iter().zip(args).chain(func.returns.iter().zip(results));
        for (formal, actual) in pairs {
            let Arg::Name(actual) = actual else {
                return Err(format!("an argument of {name} is no parameter"));
            };
            let place = self.place_of(actual).ok_or_else(|| format!("{actual} is unknown"))?;
            places.insert(formal.name.clone(), place);
        }
        // A guarded call jumps around the body; inside of it the guard is no longer needed.
        let skip = self.guard.map(|(pred, negated)| {
            self.copies += 1;
            let label = format!("{}:%skip", self.copies);
            let target = self.want(label.clone());
            self.guard = Some((pred, !negated));
            self.emit(Step::Branch { target, join: NOWHERE });
            label
        });
        self.guard = None;
        self.body(func, places)?;
        if let Some(label) = skip {
            self.place_label(label);
        }
        Ok(())
    }

    fn shared_place(&mut self, var: &Var, func: &str) -> u64 {
        let key = format!("{func}:{}", var.name);
        if let Some(&at) = self.shared.get(&key) {
            return at;
        }
        let at = self.shared_top.next_multiple_of(var.align.max(1));
        self.shared_top = at + var.size;
        self.shared.insert(key, at as u64);
        at as u64
    }

    fn local_place(&mut self, var: &Var) -> u64 {
        let at = self.local_top.next_multiple_of(var.align.max(1));
        self.local_top = at + var.size;
        at as u64
    }

    /// Where a variable lies, but for dynamic shared memory.
    pub(super) fn place_of(&mut self, name: &str) -> Option<(Space, u64)> {
        if let Some(&place) = self.frames.last().and_then(|f| f.places.get(name)) {
            return Some(place);
        }
        let module = self.module;
        let var = module.vars.iter().find(|v| v.name == name)?;
        if var.space == Space::Shared {
            if var.size == 0 {
                return None;
            }
            return Some((Space::Shared, self.shared_place(var, "")));
        }
        self.globals.get(name).copied()
    }

    /// The register with the first address of dynamic shared memory, if `name` is that.
    pub(super) fn dynamic_base(&mut self, name: &str) -> Option<Reg> {
        let mut vars = self.module.vars.iter();
        vars.find(|v| v.name == name && v.space == Space::Shared && v.size == 0)?;
        if self.dynamic.is_none() {
            self.dynamic = Some(self.row(true));
        }
        self.dynamic
    }

    /// A new register.
    pub(super) fn row(&mut self, wide: bool) -> Reg {
        let row = self.rows;
        self.rows += if wide { 2 } else { 1 };
        Reg { row, wide }
    }

    /// The register with a preset value.
    pub(super) fn preset(&mut self, preset: Preset, wide: bool) -> Reg {
        if let Some(&reg) = self.presets.get(&(preset, wide)) {
            return reg;
        }
        let reg = self.row(wide);
        self.presets.insert((preset, wide), reg);
        reg
    }

    /// The declaration of a register.
    fn declaration(&self, name: &str) -> Option<Ty> {
        let frame = self.frame();
        if let Some(decl) = frame.regs.get(name).filter(|d| d.count.is_none()) {
            return Some(decl.ty);
        }
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let decl = frame.regs.get(stem)?;
        let number: u32 = name[stem.len()..].parse().ok()?;
        (number < decl.count?).then_some(decl.ty)
    }

    /// A declared register and its type.
    pub(super) fn register(&mut self, name: &str) -> Option<(Reg, Ty)> {
        let key = (self.frame().id, name.to_owned());
        if let Some(&found) = self.regs.get(&key) {
            return Some(found);
        }
        let ty = self.declaration(name)?;
        if ty == Ty::Pred {
            return None;
        }
        let reg = self.row(ty.bits() > 32);
        self.regs.insert(key, (reg, ty));
        Some((reg, ty))
    }

    /// A predicate register.
    pub(super) fn pred(&mut self, name: &str) -> Result<u32, String> {
        if name == "_" {
            return Ok(self.new_pred());
        }
        let key = (self.frame().id, name.to_owned());
        if let Some(&found) = self.preds.get(&key) {
            return Ok(found);
        }
        if self.declaration(name) != Some(Ty::Pred) {
            return Err(format!("{name} is no predicate"));
        }
        let pred = self.new_pred();
        self.preds.insert(key, pred);
        Ok(pred)
    }

    /// A predicate that no name stands for.
    pub(super) fn new_pred(&mut self) -> u32 {
        self.pred_count += 1;
        self.pred_count - 1
    }

    /// A predicate operand and whether it is negated. Constants 0 and 1 are taken too.
    pub(super) fn pred_arg(&mut self, arg: &Arg) -> Result<(u32, bool), String> {
        match arg {
            Arg::Name(name) => Ok((self.pred(name)?, false)),
            Arg::Not(name) => Ok((self.pred(name)?, true)),
            Arg::Int(value) => {
                // A predicate that nothing sets is false.
                Ok((self.new_pred(), *value != 0))
            }
            _ => Err("an operand is no predicate".to_owned()),
        }
    }

    /// Emits a step under the current guard, and the conversions of its results.
    pub(super) fn emit(&mut self, step: Step) {
        let (guard, line, loc) = (self.guard, self.line, self.loc);
        self.code.push(Inst { guard, step, line, loc });
        for convert in std::mem::take(&mut self.after) {
            self.code.push(Inst { guard, step: Step::Rows(convert), line, loc });
        }
    }

    /// Emits a computation of registers.
    pub(super) fn rows(
        &mut self,
        compute: impl Fn(&mut crate::exec::rows::Rows, u32) + Send + Sync + 'static,
    ) {
        self.emit(Step::Rows(Box::new(compute)));
    }
}
