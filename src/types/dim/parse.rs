//! Reading a dim: `N-2*(N/3)`, `min(2*N,7)`, `N%4`.

use std::str::FromStr;

use super::Dim;
use crate::types::{ParseValueError, Quoted};

/// Brackets may nest this deep: a bound on the stack that a hostile text can take. The deepest
/// formula that a [`Dim`] holds prints with fewer.
const MAX_DEPTH: usize = 64;

impl FromStr for Dim {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text, &[])
    }
}

impl Dim {
    /// Reads a formula of `N` and of `S1`, `S2` and so on, which are these numbers.
    pub(crate) fn parse(text: &str, symbols: &[i64]) -> Result<Self, ParseValueError> {
        let mut reader = Reader { rest: text.trim(), depth: 0, symbols };
        let dim = reader.sum().and_then(|dim| match reader.peek() {
            None if dim.is_overflow() => Err("it has too many parts, or its numbers are too large"),
            None => Ok(dim),
            Some(_) => Err("unexpected text after the formula"),
        });
        dim.map_err(|reason| {
            let text: String = text.chars().take(80).collect();
            ParseValueError::new(format!("{} is not a size: {reason}", Quoted(&text)))
        })
    }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
    /// The numbers of `S1`, `S2` and so on.
    symbols: &'a [i64],
}

type Read = Result<Dim, &'static str>;

impl Reader<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.rest = &self.rest[c.len_utf8()..];
        }
        found
    }

    fn sum(&mut self) -> Read {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("brackets nest too deeply");
        }
        let mut sum = if self.take('-') { self.negated()? } else { self.product()? };
        loop {
            if self.take('+') {
                sum = sum + self.product()?;
            } else if self.take('-') {
                sum = sum + self.negated()?;
            } else {
                self.depth -= 1;
                return Ok(sum);
            }
        }
    }

    /// The negative of the product that follows.
    fn negated(&mut self) -> Read {
        // The magnitude of the least integer is no integer.
        let least = self.rest.trim_start().strip_prefix("9223372036854775808");
        match least.filter(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric())) {
            Some(rest) => {
                self.rest = rest;
                self.product_from(Dim::from(i64::MIN))
            }
            None => Ok(-self.product()?),
        }
    }

    fn product(&mut self) -> Read {
        let first = self.factor()?;
        self.product_from(first)
    }

    fn product_from(&mut self, mut product: Dim) -> Read {
        loop {
            if self.take('*') {
                product = product * self.factor()?;
            } else if self.take('/') {
                product = product.floor_div(&self.divisor()?);
            } else if self.take('%') {
                product = product.modulo(&self.divisor()?);
            } else {
                return Ok(product);
            }
        }
    }

    fn divisor(&mut self) -> Read {
        let d = self.factor()?;
        if d.as_const() == Some(0) { Err("division by zero") } else { Ok(d) }
    }

    fn factor(&mut self) -> Read {
        if self.take('(') {
            let inner = self.sum()?;
            return if self.take(')') { Ok(inner) } else { Err("a bracket is not closed") };
        }
        let len = self.rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        match word {
            "" => Err("a number, N, min or max is expected"),
            "N" => Ok(Dim::n()),
            "min" | "max" => {
                let is_min = word == "min";
                if !self.take('(') {
                    return Err("`min` and `max` take two values in brackets");
                }
                let a = self.sum()?;
                if !self.take(',') {
                    return Err("`min` and `max` take two values in brackets");
                }
                let b = self.sum()?;
                if !self.take(')') {
                    return Err("a bracket is not closed");
                }
                Ok(if is_min { a.minimum(&b) } else { a.maximum(&b) })
            }
            _ => self
                .symbol(word)
                .or_else(|| word.parse().ok())
                .map(Dim::from)
                .ok_or("it is neither an integer nor a symbol"),
        }
    }

    /// The number of the symbol `word`.
    fn symbol(&self, word: &str) -> Option<i64> {
        let at: usize = word.strip_prefix('S')?.parse().ok()?;
        self.symbols.get(at.checked_sub(1)?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::Dim;

    #[test]
    fn wrong_texts_are_refused() {
        for s in ["", "N+", "M", "N/0", "(N", "min(N)", "1 2", "99999999999999999999", "N N"] {
            assert!(s.parse::<Dim>().is_err(), "{s}");
        }
        assert!("(".repeat(5000).parse::<Dim>().is_err());
        assert_eq!(" N % 4 ".parse::<Dim>(), Ok(Dim::n().modulo(&4.into())));
    }

    #[test]
    fn symbols_are_their_numbers() {
        let read = |text| Dim::parse(text, &[5, 7]);
        assert_eq!(read("S1*N+S2-1"), Ok(Dim::n() * 5 + 6));
        assert_eq!(read("min(S2,N)/S1"), "min(7,N)/5".parse());
        for text in ["S", "S0", "S3", "S1x", "S-1"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!("S1".parse::<Dim>().is_err());
    }
}
