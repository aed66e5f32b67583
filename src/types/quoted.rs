use std::fmt::{self, Write as _};

/// The characters of a name that are shown.
const SHOWN: usize = 80;

/// The characters of those that are of its end.
const END: usize = 16;

/// A name from a file as errors show it: between backticks, control characters escaped, a long one
/// with its middle left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

/// A name from a file as errors show it where it stands for itself: as [`Quoted`], without the
/// backticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", Escaped(self.0))
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, SHOWN, END, true)
    }
}

/// What another reader says of a file, which may repeat any part of it: as [`Escaped`], but longer,
/// with its backticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotedMessage<'a>(pub(crate) &'a str);

impl fmt::Display for QuotedMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, 4 * SHOWN, SHOWN, false)
    }
}

/// Writes a text of which `shown` characters are shown, `end` of them those of its end.
fn write(
    f: &mut fmt::Formatter<'_>,
    text: &str,
    shown: usize,
    end: usize,
    backticks: bool,
) -> fmt::Result {
    // A character has at most four bytes: no more of a long text is looked at than is shown.
    if text.len() <= 4 * shown && text.chars().count() <= shown {
        return escape(f, text, backticks);
    }
    let head = text.char_indices().nth(shown - end).map_or(text.len(), |(at, _)| at);
    let tail = text.char_indices().nth_back(end - 1).map_or(0, |(at, _)| at);
    escape(f, &text[..head], backticks)?;
    write!(f, "…({} bytes)…", tail.saturating_sub(head))?;
    escape(f, &text[tail.max(head)..], backticks)
}

/// Writes a text without what a terminal obeys; `backticks` are escaped as well.
fn escape(f: &mut fmt::Formatter<'_>, text: &str, backticks: bool) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() {
            write!(f, "{}", c.escape_default())?;
        } else if (c == '`' && backticks) || is_unseen(c) {
            write!(f, "{}", c.escape_unicode())?;
        } else {
            f.write_char(c)?;
        }
    }
    Ok(())
}

/// True of marks that are not seen or turn the direction of text: they would show another name than
/// it is.
pub(crate) fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::{Quoted, QuotedMessage};

    #[test]
    fn names_are_shown_short_and_printable() {
        for (name, shown) in [
            ("conv1/w", "`conv1/w`"),
            ("", "``"),
            ("größe", "`größe`"),
            ("a\nb\u{1b}[31m", "`a\\nb\\u{1b}[31m`"),
            ("a`b\u{202e}", "`a\\u{60}b\\u{202e}`"),
        ] {
            assert_eq!(Quoted(name).to_string(), shown);
        }
        let long = "é".repeat(1 << 20);
        let shown = Quoted(&long).to_string();
        assert!(shown.chars().count() < 110 && shown.contains("…(2096992 bytes)…"), "{shown}");
        let said = QuotedMessage(&long).to_string();
        assert!(said.chars().count() < 350, "{said}");
        assert_eq!(QuotedMessage("no `a\0`").to_string(), "no `a\\u{0}`");
        let just = "é".repeat(80);
        assert_eq!(Quoted(&just).to_string(), format!("`{just}`"));
    }
}
