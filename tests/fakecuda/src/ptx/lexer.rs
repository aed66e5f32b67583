//! Tokens of PTX text.

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name, an opcode with its dots, a register or a directive with its leading dot.
    Word(String),
    /// An integer.
    Int(i128),
    /// Bits of a single-precision constant.
    F32(u32),
    /// Bits of a double-precision constant.
    F64(u64),
    /// A quoted string.
    Text(String),
    /// A character that stands for itself.
    Mark(char),
}

/// A token and the line it begins on.
#[derive(Clone, Debug)]
pub(super) struct Spanned {
    /// The token.
    pub token: Token,
    /// Its line, from 1.
    pub line: u32,
}

/// Splits `text` into tokens, or says what it cannot read.
pub(super) fn tokens(text: &str) -> Result<Vec<Spanned>, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len() / 4);
    let (mut i, mut line) = (0, 1);
    while i < bytes.len() {
        let c = bytes[i];
        if c == b'\n' {
            line += 1;
            i += 1;
        } else if c.is_ascii_whitespace() {
            i += 1;
        } else if bytes[i..].starts_with(b"//") {
            i += bytes[i..].iter().position(|&b| b == b'\n').unwrap_or(bytes.len() - i);
        } else if bytes[i..].starts_with(b"/*") {
            let end = find(bytes, i + 2, b"*/").ok_or("a comment that does not end")?;
            line += count_lines(&bytes[i..end]);
            i = end + 2;
        } else {
            let (token, next) = one(bytes, i).map_err(|e| format!("line {line}: {e}"))?;
            out.push(Spanned { token, line });
            i = next;
        }
    }
    Ok(out)
}

/// The number of line ends in `bytes`.
fn count_lines(bytes: &[u8]) -> u32 {
    bytes.iter().map(|&b| u32::from(b == b'\n')).sum()
}

/// Where `what` begins at or after `from`.
fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes.get(from..)?.windows(what.len()).position(|w| w == what).map(|p| p + from)
}

/// The token that begins at `i`, and where the next may begin.
fn one(bytes: &[u8], i: usize) -> Result<(Token, usize), String> {
    let c = bytes[i];
    if c == b'"' {
        let end = find(bytes, i + 1, b"\"").ok_or("a string that does not end")?;
        return Ok((Token::Text(lossy(&bytes[i + 1..end])), end + 1));
    }
    if c.is_ascii_digit() {
        return number(bytes, i);
    }
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$' | b'%' | b'.' | b':');
    if c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.') {
        let mut end = i + 1;
        while end < bytes.len() && word(bytes[end]) {
            // A single colon ends a label; `::` is part of a modifier such as `shared::cta`.
            if bytes[end] == b':' {
                if bytes.get(end + 1) != Some(&b':') {
                    break;
                }
                end += 1;
            }
            end += 1;
        }
        return Ok((Token::Word(lossy(&bytes[i..end])), end));
    }
    Ok((Token::Mark(char::from(c)), i + 1))
}

/// `bytes` as text.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number that begins at `i`.
fn number(bytes: &[u8], i: usize) -> Result<(Token, usize), String> {
    let mut end = i;
    while end < bytes.len() && (bytes[end].is_ascii_alphanumeric() || bytes[end] == b'.') {
        end += 1;
        let exponent = matches!(bytes[end - 1], b'e' | b'E') && bytes[i + 1] != b'x';
        if exponent && matches!(bytes.get(end), Some(b'+' | b'-')) && !bytes[i..].starts_with(b"0f")
        {
            end += 1;
        }
    }
    let text = lossy(&bytes[i..end]);
    let lower = text.to_ascii_lowercase();
    let bad = |_| format!("the number {text} cannot be read");
    let token = if let Some(hex) = lower.strip_prefix("0x") {
        Token::Int(i128::from_str_radix(hex.trim_end_matches('u'), 16).map_err(bad)?)
    } else if lower.starts_with("0f") && lower.len() == 10 {
        Token::F32(u32::from_str_radix(&lower[2..], 16).map_err(bad)?)
    } else if lower.starts_with("0d") && lower.len() == 18 {
        Token::F64(u64::from_str_radix(&lower[2..], 16).map_err(bad)?)
    } else if lower.contains(['.', 'e']) {
        let value = lower.parse::<f64>().map_err(|_| format!("the number {text} is no float"))?;
        Token::F64(value.to_bits())
    } else {
        Token::Int(lower.trim_end_matches('u').parse::<i128>().map_err(bad)?)
    };
    Ok((token, end))
}
