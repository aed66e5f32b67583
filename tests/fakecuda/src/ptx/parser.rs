//! The parser of PTX text.

use super::lexer::{Spanned, Token, tokens};
use super::{Arg, Func, Instr, Module, RegDecl, Space, Stmt, Ty, Var};
use std::collections::HashMap;

/// Reads a module.
///
/// # Errors
/// Text that is no PTX, or a construct outside of what this interpreter takes; the message names
/// the line.
pub fn parse(text: &str) -> Result<Module, String> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, scopes: Vec::new(), scoped: 0 };
    let mut module = Module::default();
    while parser.at < tokens.len() {
        parser.top(&mut module).map_err(|e| format!("line {}: {e}", parser.line()))?;
    }
    Ok(module)
}

/// The state of parsing.
struct Parser<'a> {
    tokens: &'a [Spanned],
    at: usize,
    /// For each open brace of a body, the names declared there and what they became.
    scopes: Vec<HashMap<String, String>>,
    /// Number of inner scopes opened so far in this function.
    scoped: u32,
}

type Parsed<T> = Result<T, String>;

impl Parser<'_> {
    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |t| t.line)
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.token)
    }

    fn next(&mut self) -> Parsed<Token> {
        let token = self.peek().cloned().ok_or("the text ends too early")?;
        self.at += 1;
        Ok(token)
    }

    fn is(&self, mark: char) -> bool {
        self.peek() == Some(&Token::Mark(mark))
    }

    fn eat(&mut self, mark: char) -> bool {
        let found = self.is(mark);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: char) -> Parsed<()> {
        if self.eat(mark) {
            return Ok(());
        }
        Err(format!("`{mark}` is missing before {:?}", self.peek()))
    }

    fn word(&mut self) -> Parsed<String> {
        match self.next()? {
            Token::Word(w) => Ok(w),
            other => Err(format!("a name is missing before {other:?}")),
        }
    }

    fn is_word(&self, text: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(w)) if w == text)
    }

    fn int(&mut self) -> Parsed<i128> {
        let negative = self.eat('-');
        match self.next()? {
            Token::Int(v) => Ok(if negative { -v } else { v }),
            other => Err(format!("an integer is missing before {other:?}")),
        }
    }

    fn small(&mut self) -> Parsed<u32> {
        u32::try_from(self.int()?).map_err(|_| "an integer is out of range".to_owned())
    }

    /// One item outside of functions.
    fn top(&mut self, module: &mut Module) -> Parsed<()> {
        let word = self.word()?;
        match word.as_str() {
            ".version" => match self.next()? {
                Token::F64(bits) => {
                    let tenths = (f64::from_bits(bits) * 10.0).round();
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "a version is small"
                    )]
                    let tenths = tenths as u32;
                    module.version = (tenths / 10, tenths % 10);
                }
                other => return Err(format!("no version: {other:?}")),
            },
            ".target" => {
                module.target = self.word()?;
                while self.eat(',') {
                    self.word()?;
                }
            }
            ".address_size" => {
                if self.int()? != 64 {
                    return Err("only 64-bit addresses are taken".to_owned());
                }
            }
            ".visible" | ".weak" | ".common" | ".extern" => {}
            ".file" => {
                let number = self.small()?;
                let Token::Text(name) = self.next()? else { return Err("no file name".into()) };
                module.files.push((number, name));
                while self.eat(',') {
                    self.int()?;
                }
            }
            ".section" => {
                self.word()?;
                self.skip_braces()?;
            }
            ".entry" | ".func" => {
                let func = self.func(word == ".entry")?;
                module.funcs.push(func);
            }
            ".global" | ".const" | ".shared" => {
                let space = space_of(&word).ok_or("no state space")?;
                self.variables(space, &mut module.vars)?;
            }
            ".pragma" | ".alias" => {
                while !self.eat(';') {
                    self.next()?;
                }
            }
            other => return Err(format!("{other} is not taken outside of functions")),
        }
        Ok(())
    }

    /// Skips a braced block, such as a debug section.
    fn skip_braces(&mut self) -> Parsed<()> {
        self.expect('{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next()? {
                Token::Mark('{') => depth += 1,
                Token::Mark('}') => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// A list of declarations in one state space, up to its semicolon.
    fn variables(&mut self, space: Space, out: &mut Vec<Var>) -> Parsed<()> {
        let (align, ty, lanes) = self.var_type()?;
        loop {
            let name = self.word()?;
            let mut var = self.var_rest(name, space, align, ty, lanes)?;
            if self.eat('=') {
                self.initialiser(ty, &mut var)?;
            }
            out.push(var);
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')
    }

    /// Alignment, element type and vector lanes of a declaration.
    fn var_type(&mut self) -> Parsed<(usize, Ty, usize)> {
        let (mut align, mut lanes) = (0, 1);
        loop {
            let word = self.word()?;
            match word.as_str() {
                ".align" => align = self.small()? as usize,
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                ".ptr" | ".global" | ".shared" | ".const" | ".local" | ".attribute" => {}
                other => {
                    let ty = other.strip_prefix('.').and_then(Ty::parse);
                    let ty = ty.ok_or_else(|| format!("no type: {other}"))?;
                    // A parameter may say after its type where it points.
                    while self.is_word(".ptr") || self.is_word(".global") || self.is_word(".align")
                    {
                        if self.word()? == ".align" {
                            let pointee = self.small()? as usize;
                            if align == 0 && !matches!(ty, Ty::B(64) | Ty::U(64)) {
                                align = pointee;
                            }
                        }
                    }
                    return Ok((align.max(ty.bytes() * lanes), ty, lanes));
                }
            }
        }
    }

    /// The dimensions after a variable's name.
    fn var_rest(
        &mut self,
        name: String,
        space: Space,
        align: usize,
        ty: Ty,
        lanes: usize,
    ) -> Parsed<Var> {
        let mut size = ty.bytes() * lanes;
        while self.eat('[') {
            if self.eat(']') {
                size = 0;
            } else {
                size *= self.small()? as usize;
                self.expect(']')?;
            }
        }
        Ok(Var { name, space, align, size, init: Vec::new(), pointers: Vec::new() })
    }

    /// The values after `=`.
    fn initialiser(&mut self, ty: Ty, var: &mut Var) -> Parsed<()> {
        if self.eat('{') {
            while !self.eat('}') {
                self.initialiser(ty, var)?;
                self.eat(',');
            }
            return Ok(());
        }
        let width = ty.bytes();
        let negative = self.eat('-');
        match self.next()? {
            Token::Int(v) => {
                let v = if negative { -v } else { v };
                var.init.extend_from_slice(&v.to_le_bytes()[..width]);
            }
            Token::F32(bits) => var.init.extend_from_slice(&bits.to_le_bytes()),
            Token::F64(bits) => var.init.extend_from_slice(&bits.to_le_bytes()),
            Token::Word(name) if width == 8 => {
                let name = if name == "generic" {
                    self.expect('(')?;
                    let inner = self.word()?;
                    self.expect(')')?;
                    inner
                } else {
                    name
                };
                var.pointers.push((var.init.len(), name));
                var.init.extend_from_slice(&[0; 8]);
            }
            other => return Err(format!("{other:?} is no initial value")),
        }
        Ok(())
    }

    /// A function after `.entry` or `.func`.
    fn func(&mut self, entry: bool) -> Parsed<Func> {
        let mut func = Func { entry, ..Func::default() };
        if self.is('(') {
            func.returns = self.parameters()?;
        }
        func.name = self.word()?;
        if self.is('(') {
            func.params = self.parameters()?;
        }
        while let Some(Token::Word(word)) = self.peek().cloned() {
            self.at += 1;
            match word.as_str() {
                ".maxntid" | ".reqntid" => func.max_threads = self.product()?,
                ".minnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                    self.int()?;
                }
                ".reqnctapercluster" => {
                    self.product()?;
                }
                ".noreturn" | ".explicitcluster" => {}
                ".pragma" => {
                    while !self.eat(';') {
                        self.next()?;
                    }
                }
                other => return Err(format!("{other} is not taken before a function's body")),
            }
        }
        if self.eat(';') {
            return Ok(func);
        }
        self.expect('{')?;
        self.scopes = vec![HashMap::new()];
        self.scoped = 0;
        func.defined = true;
        while !self.scopes.is_empty() {
            self.statement(&mut func)?;
        }
        Ok(func)
    }

    /// Up to three numbers, multiplied.
    fn product(&mut self) -> Parsed<u32> {
        let mut product = self.small()?;
        while self.eat(',') {
            product = product.saturating_mul(self.small()?);
        }
        Ok(product)
    }

    /// A parenthesised list of parameters.
    fn parameters(&mut self) -> Parsed<Vec<Var>> {
        self.expect('(')?;
        let mut out = Vec::new();
        while !self.eat(')') {
            let word = self.word()?;
            if word != ".param" && word != ".reg" {
                return Err(format!("a parameter begins with .param, not {word}"));
            }
            let (align, ty, lanes) = self.var_type()?;
            let name = self.word()?;
            out.push(self.var_rest(name, Space::Param, align, ty, lanes)?);
            self.eat(',');
        }
        Ok(out)
    }

    /// What a name of the text is called in this scope.
    fn resolve(&self, name: String) -> String {
        for scope in self.scopes.iter().skip(1).rev() {
            if let Some(inner) = scope.get(&name) {
                return inner.clone();
            }
            // A numbered register of an inner declaration.
            let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
            if let Some(inner) = scope.get(&format!("{stem}<")) {
                return format!("{inner}{}", &name[stem.len()..]);
            }
        }
        name
    }

    /// Declares a name of the text in the innermost scope and gives its unique form.
    fn declare(&mut self, name: String, numbered: bool) -> String {
        if self.scopes.len() <= 1 {
            return name;
        }
        let unique = format!("{name}#{}_", self.scoped);
        let key = if numbered { format!("{name}<") } else { name };
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(key, unique.clone());
        }
        unique
    }

    /// Declares the labels of the scope that begins here, which may be named before they come.
    fn declare_labels(&mut self) {
        let mut depth = 0;
        let mut names = Vec::new();
        for pair in self.tokens[self.at..].windows(2) {
            match (&pair[0].token, &pair[1].token) {
                (Token::Mark('{'), _) => depth += 1,
                (Token::Mark('}'), _) if depth == 0 => break,
                (Token::Mark('}'), _) => depth -= 1,
                (Token::Word(name), Token::Mark(':')) if depth == 0 => names.push(name.clone()),
                _ => {}
            }
        }
        for name in names {
            self.declare(name, false);
        }
    }

    /// One statement of a body.
    fn statement(&mut self, func: &mut Func) -> Parsed<()> {
        if self.eat('{') {
            self.scoped += 1;
            self.scopes.push(HashMap::new());
            self.declare_labels();
            return Ok(());
        }
        if self.eat('}') {
            self.scopes.pop();
            return Ok(());
        }
        if self.eat(';') {
            return Ok(());
        }
        if self.is('@') {
            let instr = self.instruction()?;
            func.body.push(Stmt::Instr(instr));
            return Ok(());
        }
        let Some(Token::Word(word)) = self.peek().cloned() else {
            return Err(format!("a statement cannot begin with {:?}", self.peek()));
        };
        if word.starts_with('.') {
            self.at += 1;
            return self.directive(&word, func);
        }
        if self.tokens.get(self.at + 1).map(|t| &t.token) == Some(&Token::Mark(':')) {
            self.at += 2;
            return self.label(word, func);
        }
        let instr = self.instruction()?;
        func.body.push(Stmt::Instr(instr));
        Ok(())
    }

    /// What follows a label's colon: a list of branch targets, or nothing.
    fn label(&mut self, name: String, func: &mut Func) -> Parsed<()> {
        if self.is_word(".branchtargets") {
            self.at += 1;
            let mut labels = vec![self.word()?];
            while self.eat(',') {
                labels.push(self.word()?);
            }
            self.expect(';')?;
            func.body.push(Stmt::Targets(name, labels));
        } else if self.is_word(".callprototype") || self.is_word(".calltargets") {
            return Err("calls through a pointer are not supported".to_owned());
        } else {
            let unique = self.resolve(name);
            func.body.push(Stmt::Label(unique));
        }
        Ok(())
    }

    /// A directive inside a body.
    fn directive(&mut self, word: &str, func: &mut Func) -> Parsed<()> {
        match word {
            ".reg" => self.registers(func),
            ".loc" => {
                let (file, line) = (self.small()?, self.small()?);
                self.int()?;
                while self.eat(',') {
                    self.location_part()?;
                }
                func.body.push(Stmt::Loc(file, line));
                Ok(())
            }
            ".pragma" => {
                while !self.eat(';') {
                    self.next()?;
                }
                Ok(())
            }
            other => {
                let space =
                    space_of(other).ok_or_else(|| format!("{other} is not taken in a body"))?;
                let first = func.vars.len();
                self.variables(space, &mut func.vars)?;
                for at in first..func.vars.len() {
                    let name = func.vars[at].name.clone();
                    func.vars[at].name = self.declare(name, false);
                }
                Ok(())
            }
        }
    }

    /// One part of the inlining record after a `.loc`: words, numbers and a label sum.
    fn location_part(&mut self) -> Parsed<()> {
        let word = self.word()?;
        if word == "inlined_at" {
            for _ in 0..3 {
                self.int()?;
            }
        } else if word == "function_name" {
            self.word()?;
            if self.eat('+') {
                self.int()?;
            }
        }
        Ok(())
    }

    /// `.reg .b32 %r<5>, a;`
    fn registers(&mut self, func: &mut Func) -> Parsed<()> {
        let ty = self.word()?;
        let ty = ty.strip_prefix('.').and_then(Ty::parse).ok_or(format!("no type: {ty}"))?;
        loop {
            let prefix = self.word()?;
            let mut count = None;
            if self.eat('<') {
                count = Some(self.small()?);
                self.expect('>')?;
            }
            let prefix = self.declare(prefix, count.is_some());
            func.regs.push(RegDecl { prefix, count, ty });
            if !self.eat(',') {
                return self.expect(';');
            }
        }
    }

    /// One instruction with its guard, up to its semicolon.
    fn instruction(&mut self) -> Parsed<Instr> {
        let line = self.line();
        let mut guard = None;
        if self.eat('@') {
            let negated = self.eat('!');
            let name = self.word()?;
            guard = Some((self.resolve(name), negated));
        }
        let op = self.word()?;
        let mut args = Vec::new();
        while !self.eat(';') {
            args.push(self.arg().map_err(|e| format!("{op}: {e}"))?);
            self.eat(',');
        }
        Ok(Instr { guard, op, args, line })
    }

    /// One operand.
    fn arg(&mut self) -> Parsed<Arg> {
        if self.eat('{') {
            return Ok(Arg::Vector(self.arg_list('}')?));
        }
        if self.eat('(') {
            return Ok(Arg::List(self.arg_list(')')?));
        }
        if self.eat('!') {
            let name = self.word()?;
            return Ok(Arg::Not(self.resolve(name)));
        }
        if self.eat('[') {
            return self.address();
        }
        let negative = self.eat('-');
        match self.next()? {
            Token::Int(v) => Ok(Arg::Int(if negative { -v } else { v })),
            Token::F32(bits) => Ok(Arg::F32(bits ^ (u32::from(negative) << 31))),
            Token::F64(bits) => Ok(Arg::F64(bits ^ (u64::from(negative) << 63))),
            Token::Word(name) => {
                let name = self.resolve(name);
                if self.eat('|') {
                    let other = self.word()?;
                    return Ok(Arg::Pair(name, self.resolve(other)));
                }
                if self.eat('+') {
                    // `variable + offset`, as in `mov`.
                    let offset = i64::try_from(self.int()?).map_err(|e| e.to_string())?;
                    return Ok(Arg::Address(Some(name), offset));
                }
                Ok(Arg::Name(name))
            }
            other => Err(format!("{other:?} is no operand")),
        }
    }

    fn arg_list(&mut self, close: char) -> Parsed<Vec<Arg>> {
        let mut out = Vec::new();
        while !self.eat(close) {
            out.push(self.arg()?);
            self.eat(',');
        }
        Ok(out)
    }

    /// What follows `[`.
    fn address(&mut self) -> Parsed<Arg> {
        let mut base = None;
        let mut offset = 0i128;
        if let Some(Token::Word(name)) = self.peek().cloned() {
            self.at += 1;
            base = Some(self.resolve(name));
            if self.eat('+') || self.is('-') {
                offset = self.int()?;
            }
        } else {
            offset = self.int()?;
        }
        self.expect(']')?;
        let offset = i64::try_from(offset).map_err(|_| "an offset is out of range".to_owned())?;
        Ok(Arg::Address(base, offset))
    }
}

/// The state space of a directive.
fn space_of(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".const" => Space::Const,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".param" => Space::Param,
        _ => return None,
    })
}
