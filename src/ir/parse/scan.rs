use std::borrow::Cow;
use std::ops::Range;

/// A fault in a text, with its position.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Range<usize>,
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl Fault {
    /// A fault at these bytes of the text.
    pub(super) fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), help: None }
    }

    /// With what the writer of the text can do.
    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// The result of a read.
pub(super) type ScanResult<T> = Result<T, Fault>;

/// Reads a text from left to right, past blanks and the comments from `;` to the end of a line.
pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The rest of the text.
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The text at a position.
    pub(super) fn text(&self, at: &Range<usize>) -> &'a str {
        &self.text[at.clone()]
    }

    /// The position of what comes next.
    pub(super) fn next(&mut self) -> usize {
        let bytes = self.text.as_bytes();
        loop {
            match bytes.get(self.at) {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.at += 1,
                Some(b';') => {
                    let line = bytes[self.at..].iter().position(|b| *b == b'\n');
                    self.at = line.map_or(bytes.len(), |len| self.at + len);
                }
                _ => return self.at,
            }
        }
    }

    /// The bytes from `from` to the end of what was read last.
    pub(super) fn since(&self, from: usize) -> Range<usize> {
        from..self.at
    }

    /// Goes back to a position.
    pub(super) fn back(&mut self, to: usize) {
        self.at = to;
    }

    /// The first byte of what comes next.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let at = self.next();
        self.text.as_bytes().get(at).copied()
    }

    /// Takes a symbol if it comes next.
    pub(super) fn eat(&mut self, symbol: &str) -> bool {
        self.next();
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len();
        }
        found
    }

    /// Takes a symbol, which must come next.
    pub(super) fn expect(&mut self, symbol: &str) -> ScanResult<()> {
        if self.eat(symbol) { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"))) }
    }

    /// The fault that something else comes next.
    pub(super) fn expected(&mut self, what: &str) -> Fault {
        let from = self.next();
        let len = match self.rest().chars().next() {
            None => {
                return Fault::new(
                    from..from,
                    format!("expected {what}, found the end of the text"),
                );
            }
            Some(c) if is_word(c) => self.rest().find(|c| !is_word(c)).unwrap_or(self.rest().len()),
            Some(c) => c.len_utf8(),
        };
        // A hostile word may be as long as the text.
        let found: String = self.rest()[..len].chars().take(40).collect();
        Fault::new(from..from + len, format!("expected {what}, found `{}`", found.escape_debug()))
    }

    /// The characters that satisfy `test`, as many as there are.
    pub(super) fn run(&mut self, test: impl Fn(char) -> bool) -> &'a str {
        self.next();
        let rest = self.rest();
        let len = rest.find(|c| !test(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// A letter or `_`, then letters, digits, `_` and `.`; empty if something else comes next.
    pub(super) fn word(&mut self) -> &'a str {
        match self.peek() {
            Some(b) if b.is_ascii_alphabetic() || b == b'_' => self.run(is_word),
            _ => "",
        }
    }

    /// Takes a word, which must come next.
    pub(super) fn keyword(&mut self, word: &str) -> ScanResult<()> {
        let from = self.next();
        if self.word() == word {
            return Ok(());
        }
        self.back(from);
        Err(self.expected(&format!("`{word}`")))
    }

    /// Takes a word if it comes next.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let from = self.next();
        let found = self.word() == word;
        if !found {
            self.back(from);
        }
        found
    }

    /// A name: a word or a string.
    pub(super) fn name(&mut self, what: &str) -> ScanResult<Cow<'a, str>> {
        if self.peek() == Some(b'"') {
            return self.string(what);
        }
        match self.word() {
            "" => Err(self.expected(what)),
            word => Ok(Cow::Borrowed(word)),
        }
    }

    /// A string, with its escapes resolved.
    pub(super) fn string(&mut self, what: &str) -> ScanResult<Cow<'a, str>> {
        let (from, raw) = self.quoted(what)?;
        // Borrowed where nothing is escaped, as in nearly every text.
        unescape(raw, from)
    }

    /// The text between the quotes of a string, and its position.
    pub(super) fn quoted(&mut self, what: &str) -> ScanResult<(usize, &'a str)> {
        let from = self.next();
        if !self.eat("\"") {
            return Err(self.expected(what));
        }
        let rest = self.rest();
        let mut escaped = false;
        for (i, b) in rest.bytes().enumerate() {
            match b {
                b'\n' => break,
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    self.at += i + 1;
                    return Ok((from + 1, &rest[..i]));
                }
                _ => {}
            }
        }
        Err(Fault::new(from..from + 1, "a string ends on the line on which it begins"))
    }

    /// A formula or a number: everything before the next `,`, `]` or `}` that is not in round
    /// brackets, or the end of the line.
    pub(super) fn formula(&mut self) -> &'a str {
        self.next();
        let rest = self.rest();
        let mut depth = 0u32;
        let mut len = rest.len();
        for (i, b) in rest.bytes().enumerate() {
            match b {
                b'(' => depth += 1,
                // A bracket too many is left to the parser of formulas, which says what is wrong.
                b')' => depth = depth.saturating_sub(1),
                b',' if depth > 0 => {}
                b',' | b']' | b'}' | b'\n' | b';' | b'"' => {
                    len = i;
                    break;
                }
                _ => {}
            }
        }
        let found = rest[..len].trim_end();
        self.at += found.len();
        found
    }

    /// A number without sign.
    pub(super) fn number<T: std::str::FromStr>(&mut self, what: &str) -> ScanResult<T> {
        let from = self.next();
        let digits = self.run(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(self.expected(what));
        }
        digits.parse().map_err(|_| Fault::new(self.since(from), format!("{digits} is too large")))
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

/// Resolves the escapes of a string that begins at `from`.
pub(super) fn unescape(raw: &str, from: usize) -> ScanResult<Cow<'_, str>> {
    if !raw.contains('\\') {
        return Ok(Cow::Borrowed(raw));
    }
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let code =
            |end: usize| escape.get(2..end).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let (c, len) = match escape.as_bytes().first() {
            Some(b'"') => (Some('"'), 1),
            Some(b'\\') => (Some('\\'), 1),
            Some(b'n') => (Some('\n'), 1),
            Some(b'r') => (Some('\r'), 1),
            Some(b't') => (Some('\t'), 1),
            Some(b'u') if escape.as_bytes().get(1) == Some(&b'{') => {
                // Without a bracket there is no code, which is refused below.
                let end = escape.find('}').unwrap_or(0);
                (code(end).and_then(char::from_u32), end + 1)
            }
            _ => (None, 1),
        };
        let Some(c) = c else {
            let at = from + raw.len() - rest.len() + at;
            let message = "unknown escape; the escapes are \\\" \\\\ \\n \\r \\t \\u{7}";
            return Err(Fault::new(at..at + 2, message));
        };
        out.push(c);
        rest = &escape[len..];
    }
    out.push_str(rest);
    Ok(Cow::Owned(out))
}
