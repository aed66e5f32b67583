//! Equations of labels.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::op::OpError;

/// The first label of an axis that `...` stands for; the last such axis has it, the others the
/// numbers behind it.
const ELLIPSIS: u8 = 128;

/// A label for each axis of the operands and the result: a letter, or a number from 128 on for an
/// axis that `...` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Labels {
    /// Those of each operand's axes.
    pub operands: Vec<SmallVec<[u8; 8]>>,
    /// Those of the result's axes, each once.
    pub result: SmallVec<[u8; 8]>,
}

fn wrong(reason: impl Into<String>) -> OpError {
    OpError::attr("equation", reason)
}

/// The letters of one value before and behind its `...`, if there is one.
#[derive(Default)]
struct Term {
    before: SmallVec<[u8; 8]>,
    dots: bool,
    behind: SmallVec<[u8; 8]>,
}

impl Term {
    fn read(text: &str) -> Result<Self, OpError> {
        let mut term = Self::default();
        let mut rest = text;
        while let Some(c) = rest.bytes().next() {
            if c.is_ascii_alphabetic() {
                if term.dots { &mut term.behind } else { &mut term.before }.push(c);
                rest = &rest[1..];
            } else if let Some(after) = rest.strip_prefix("...").filter(|_| !term.dots) {
                term.dots = true;
                rest = after;
            } else {
                return Err(wrong(format!("`{}` is not a list of labels", text.escape_debug())));
            }
        }
        Ok(term)
    }

    fn letters(&self) -> impl Iterator<Item = u8> {
        self.before.iter().chain(&self.behind).copied()
    }

    /// The labels, where `...` stands for `hidden` axes.
    fn labels(&self, hidden: usize) -> Option<SmallVec<[u8; 8]>> {
        let hidden = u8::try_from(hidden).ok().filter(|h| *h < ELLIPSIS)?;
        let middle = (0..hidden).rev().map(|i| ELLIPSIS + i);
        Some(self.before.iter().copied().chain(middle).chain(self.behind.iter().copied()).collect())
    }
}

impl Labels {
    /// The labels that `equation` gives operands with this many axes each.
    pub(crate) fn new(equation: &str, ranks: &[usize]) -> Result<Self, OpError> {
        let text: String = equation.chars().filter(|c| *c != ' ').collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(Term::read(right)?)),
            None => (text.as_str(), None),
        };
        let terms = left.split(',').map(Term::read).collect::<Result<Vec<_>, _>>()?;
        if terms.len() != ranks.len() {
            let reason = format!("has {} terms for {} operands", terms.len(), ranks.len());
            return Err(wrong(reason));
        }
        let mut operands = Vec::with_capacity(terms.len());
        let mut most = 0;
        for (i, (term, rank)) in terms.iter().zip(ranks).enumerate() {
            let named = term.letters().count();
            let hidden = rank.checked_sub(named).filter(|hidden| term.dots || *hidden == 0);
            let labels = hidden.and_then(|hidden| term.labels(hidden));
            let does_not_fit = || wrong(format!("does not name the {rank} axes of operand {i}"));
            operands.push(labels.ok_or_else(does_not_fit)?);
            most = most.max(hidden.unwrap_or(0));
        }
        let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
        for letter in terms.iter().flat_map(Term::letters) {
            *counts.entry(letter).or_insert(0) += 1;
        }
        let result = if let Some(term) = right {
            check_result(&term, &counts, most)?;
            term
        } else {
            let once = counts.iter().filter(|(_, n)| **n == 1).map(|(letter, _)| *letter);
            Term { before: SmallVec::new(), dots: true, behind: once.collect() }
        };
        let too_many = || wrong("has too many axes".to_owned());
        let result = result.labels(if result.dots { most } else { 0 }).ok_or_else(too_many)?;
        Ok(Self { operands, result })
    }
}

/// Fails unless the result names labels of the operands, each once, and loses no axis that `...`
/// stands for.
fn check_result(term: &Term, counts: &BTreeMap<u8, usize>, most: usize) -> Result<(), OpError> {
    let mut seen = Vec::new();
    for letter in term.letters() {
        let name = char::from(letter);
        if seen.contains(&letter) {
            return Err(wrong(format!("names {name} twice in the result")));
        }
        if !counts.contains_key(&letter) {
            return Err(wrong(format!("names {name} in the result only")));
        }
        seen.push(letter);
    }
    if most > 0 && !term.dots {
        return Err(wrong("has `...` in an operand, but not in the result".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Labels;

    fn labels(equation: &str, ranks: &[usize]) -> Option<(Vec<String>, String)> {
        let name = |l: &u8| if *l < 128 { char::from(*l) } else { char::from(b'0' + l - 128) };
        let found = Labels::new(equation, ranks).ok()?;
        let operands = found.operands.iter().map(|o| o.iter().map(name).collect()).collect();
        Some((operands, found.result.iter().map(name).collect()))
    }

    fn named(operands: &[&str], result: &str) -> (Vec<String>, String) {
        (operands.iter().map(|o| (*o).to_owned()).collect(), result.to_owned())
    }

    #[test]
    fn equations_name_axes() {
        assert_eq!(labels("bij, bjk -> bik", &[3, 3]), Some(named(&["bij", "bjk"], "bik")));
        assert_eq!(labels("...ij,jk", &[4, 2]), Some(named(&["10ij", "jk"], "10ik")));
        assert_eq!(labels("a...,...b->...", &[3, 2]), Some(named(&["a10", "0b"], "10")));
        assert_eq!(labels("ii", &[2]), Some(named(&["ii"], "")));
        assert_eq!(labels("zBa", &[3]), Some(named(&["zBa"], "Baz")));
        assert_eq!(labels(",->", &[0, 0]), Some(named(&["", ""], "")));
        assert_eq!(labels("i...->...", &[1]), Some(named(&["i"], "")));
    }

    #[test]
    fn equations_without_a_meaning_are_errors() {
        let wrong: [(&str, &[usize]); 12] = [
            ("ij", &[3]),
            ("ij", &[1]),
            ("i,j", &[1]),
            ("i->j", &[1]),
            ("i->ii", &[1]),
            ("...i->i", &[2]),
            ("..i", &[1]),
            ("......", &[1]),
            ("i->i->i", &[1]),
            ("i1", &[2]),
            ("é", &[1]),
            ("...", &[500]),
        ];
        for (equation, ranks) in wrong {
            assert_eq!(labels(equation, ranks), None, "{equation}");
        }
    }
}
