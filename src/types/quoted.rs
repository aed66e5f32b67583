use std::fmt::{self, Write as _};

/// The characters of a name that are shown.
const SHOWN: usize = 80;

/// The characters of those that are of its end.
const END: usize = 16;

/// A name from a file as errors show it: between backticks, control characters escaped, a long one with its middle
/// left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

/// A name from a file as errors show it where it stands for itself: as [`Quoted`], without the backticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", Escaped(self.0))
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0)
    }
}

fn write(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    // A character has at most four bytes: no more of a long name is looked at than is shown.
    if name.len() <= 4 * SHOWN && name.chars().count() <= SHOWN {
        return escape(f, name);
    }
    let head = name.char_indices().nth(SHOWN - END).map_or(name.len(), |(at, _)| at);
    let tail = name.char_indices().nth_back(END - 1).map_or(0, |(at, _)| at);
    escape(f, &name[..head])?;
    write!(f, "…({} bytes)…", tail.saturating_sub(head))?;
    escape(f, &name[tail.max(head)..])
}

fn escape(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() {
            write!(f, "{}", c.escape_default())?;
        } else if c == '`' || is_unseen(c) {
            write!(f, "{}", c.escape_unicode())?;
        } else {
            f.write_char(c)?;
        }
    }
    Ok(())
}

/// True of marks that are not seen or turn the direction of text: they would show another name than it is.
fn is_unseen(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::Quoted;

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
        let just = "é".repeat(80);
        assert_eq!(Quoted(&just).to_string(), format!("`{just}`"));
    }
}
