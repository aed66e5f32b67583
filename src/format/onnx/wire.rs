//! The wire format of protocol buffers, as far as finding the parts of a large message needs it.
//!
//! The messages of `proto` are decoded part by part, so that a file never takes more memory at once
//! than its largest part does: a message of two bytes on the wire takes hundreds when it is
//! decoded.

use std::ops::Range;

/// A part of the file that is no protocol buffer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {reason}")]
pub(crate) struct WireError {
    /// The position in the file.
    pub at: usize,
    /// The problem at that byte.
    pub reason: String,
}

/// The range of a part within the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// A range of a file, which is shorter than 4 GiB.
    pub(super) fn new(range: Range<usize>) -> Result<Self, WireError> {
        let Range { start: at, end } = range;
        let fits = (u32::try_from(at), u32::try_from(end));
        let (Ok(start), Ok(end)) = fits else {
            let reason = format!("internal error: byte {end} of a file shorter than 4 GiB");
            return Err(WireError { at, reason });
        };
        Ok(Self { start, end })
    }

    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(super) fn len(self) -> usize {
        self.range().len()
    }
}

/// The payload of a field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A varint.
    Number(u64),
    /// Four or eight bytes.
    Fixed,
    /// A text, a message or packed numbers.
    Part(Span),
}

/// The fields of one message, in order.
pub(super) struct Fields<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Fields<'a> {
    /// The fields of the message at `span` of the file.
    pub(super) fn of(data: &'a [u8], span: Span) -> Self {
        let end = span.range().end.min(data.len());
        Self { data, at: span.range().start.min(end), end }
    }

    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.data[..self.end].get(self.at).ok_or("the number is cut off")?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("the number has more than ten bytes")
    }

    /// The bytes of the number that comes next.
    fn varint_bytes(&self) -> usize {
        let rest = &self.data[self.at..self.end];
        rest.iter().position(|byte| *byte < 0x80).map_or(rest.len(), |last| last + 1)
    }

    fn skip(&mut self, bytes: u64) -> Result<Span, &'static str> {
        let from = self.at;
        let to = usize::try_from(bytes).ok().and_then(|b| from.checked_add(b));
        let to = to.filter(|to| *to <= self.data.len()).ok_or("the file ends before the field")?;
        if to > self.end {
            return Err("the field is longer than its message");
        }
        self.at = to;
        Span::new(from..self.at).map_err(|_| "internal error: a file is shorter than 4 GiB")
    }

    fn field(&mut self) -> Result<(u64, Content), &'static str> {
        let tag = self.varint()?;
        if tag >> 3 == 0 {
            return Err("the field has the number 0");
        }
        let content = match tag & 7 {
            0 => Content::Number(self.varint()?),
            1 => self.skip(8).map(|_| Content::Fixed)?,
            2 => {
                let length = self.varint()?;
                Content::Part(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Content::Fixed)?,
            _ => return Err("the field has no known wire type"),
        };
        Ok((tag >> 3, content))
    }
}

impl Iterator for Fields<'_> {
    /// The field's number and content; an error ends the message.
    type Item = Result<(u64, Content), WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let at = self.at;
        let field = self.field();
        if field.is_err() {
            self.at = self.end;
        }
        Some(field.map_err(|reason| WireError { at, reason: reason.to_owned() }))
    }
}

/// The bytes of a message in which `new` gives other bytes for some of its parts, by the number of
/// their field.
pub(super) fn rewritten(
    data: &[u8],
    span: Span,
    mut new: impl FnMut(u64, Span) -> Result<Option<Vec<u8>>, WireError>,
) -> Result<Vec<u8>, WireError> {
    let (mut fields, mut out) = (Fields::of(data, span), Vec::new());
    loop {
        let from = fields.at;
        let Some(field) = fields.next() else { return Ok(out) };
        let (number, content) = field?;
        let part = match content {
            Content::Part(part) => new(number, part)?.map(|bytes| (part, bytes)),
            Content::Number(_) | Content::Fixed => None,
        };
        let Some((part, bytes)) = part else {
            out.extend_from_slice(&data[from..fields.at]);
            continue;
        };
        // The key of the field stays; the length behind it is another one.
        let key = Span::new(from..part.range().start)?;
        let key = Fields::of(data, key).varint_bytes();
        out.extend_from_slice(&data[from..from + key]);
        prost::encoding::encode_varint(bytes.len() as u64, &mut out);
        out.extend_from_slice(&bytes);
    }
}

/// The parts of a message that the field `number` holds. Memory is taken once, for as many as there
/// are.
pub(super) fn parts(data: &[u8], span: Span, number: u64) -> Result<Vec<Span>, WireError> {
    let part = |field: Result<(u64, Content), WireError>| match field {
        Ok((n, Content::Part(part))) if n == number => Some(Ok(part)),
        Ok(_) => None,
        Err(e) => Some(Err(e)),
    };
    let mut count = 0;
    for found in Fields::of(data, span).filter_map(part) {
        found?;
        count += 1;
    }
    let mut found = Vec::with_capacity(count);
    for part in Fields::of(data, span).filter_map(part) {
        found.push(part?);
    }
    Ok(found)
}

/// The text at `span`.
pub(super) fn text(data: &[u8], span: Span) -> Result<&str, WireError> {
    let wrong = || WireError { at: span.range().start, reason: "the text is not UTF-8".to_owned() };
    data.get(span.range()).and_then(|b| std::str::from_utf8(b).ok()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::{Content, Fields, Span, parts};

    fn span(range: std::ops::Range<usize>) -> Span {
        Span::new(range).unwrap()
    }

    fn read(data: &[u8]) -> Result<Vec<(u64, Content)>, String> {
        Fields::of(data, span(0..data.len())).collect::<Result<_, _>>().map_err(|e| e.to_string())
    }

    #[test]
    fn fields_are_found() {
        let data = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1d, 0, 0, 0, 0, 0x12, 0x00];
        let found = read(&data).unwrap();
        assert_eq!(found[0], (1, Content::Number(150)));
        assert_eq!(found[1], (2, Content::Part(span(5..7))));
        assert_eq!(found[2], (3, Content::Fixed));
        let spans = parts(&data, span(0..data.len()), 2).unwrap();
        assert_eq!(spans, [span(5..7), span(14..14)]);
    }

    #[test]
    fn a_range_beyond_the_largest_file_is_no_other_range() {
        assert_eq!(span(0..0xffff_ffff).len(), 0xffff_ffff);
        let error = Span::new(7..1 << 32).unwrap_err();
        assert!(error.to_string().starts_with("byte 7: internal error: byte 4294967296"));
    }

    #[test]
    fn wrong_bytes_are_refused() {
        for (data, reason) in [
            (&[0x08][..], "cut off"),
            (&[0x12, 0x05, 0x00], "the file ends before the field"),
            (&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "ends before"),
            (&[0x0b], "no known wire type"),
            (&[0x00, 0x00], "the number 0"),
            (&[0xff; 12], "more than ten bytes"),
        ] {
            let error = read(data).unwrap_err();
            assert!(error.contains(reason), "{data:?}: {error}");
        }
        let inner = Fields::of(&[0x12, 0x02, 0, 0], span(0..3)).next();
        assert!(inner.unwrap().unwrap_err().to_string().ends_with("longer than its message"));
    }
}
