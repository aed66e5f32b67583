//! Polynomials with integer coefficients over symbols, floor divisions, minima and maxima.

use std::fmt;

use super::{Dim, Symbol};

/// A formula of more parts, or whose quotients and extremes nest deeper, counts as an overflow: a
/// bound on the work and the stack that a hostile formula can ask for.
const MAX_WEIGHT: u32 = 1024;
const MAX_DEPTH: u32 = 24;

/// What a polynomial treats as an unknown.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Atom {
    Symbol(Symbol),
    Div(Dim, Dim),
    Min(Dim, Dim),
    Max(Dim, Dim),
}

/// A sum of terms; each is a sorted product of atoms (empty for the constant term) and its
/// coefficient. Sorted by product, without zero coefficients: equal polynomials are equal values.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Poly {
    terms: Vec<(Vec<Atom>, i64)>,
    /// The number of terms and atoms, those inside atoms included.
    weight: u32,
    /// How deeply quotients and extremes nest.
    depth: u32,
}

impl Poly {
    /// The polynomial of these terms, which are sorted and without zeros; `None` if it is too
    /// large.
    fn new(terms: Vec<(Vec<Atom>, i64)>) -> Option<Self> {
        let (mut weight, mut depth) = (0u32, 0);
        for (m, _) in &terms {
            weight = weight.saturating_add(1);
            for atom in m {
                let (w, d) = atom.extent();
                weight = weight.saturating_add(w);
                depth = depth.max(d);
            }
        }
        (weight <= MAX_WEIGHT && depth <= MAX_DEPTH).then_some(Self { terms, weight, depth })
    }

    pub(super) fn constant(c: i64) -> Self {
        let terms = if c == 0 { Vec::new() } else { vec![(Vec::new(), c)] };
        Self { weight: u32::from(c != 0), depth: 0, terms }
    }

    pub(super) fn atom(atom: Atom) -> Option<Self> {
        Self::new(vec![(vec![atom], 1)])
    }

    /// The number of terms and atoms, those inside atoms included, and how deeply quotients and
    /// extremes nest.
    pub(super) fn extent(&self) -> (u32, u32) {
        (self.weight, self.depth)
    }

    pub(super) fn terms(&self) -> &[(Vec<Atom>, i64)] {
        &self.terms
    }

    pub(super) fn as_const(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [(m, c)] if m.is_empty() => Some(*c),
            _ => None,
        }
    }

    pub(super) fn as_atom(&self) -> Option<&Atom> {
        match self.terms.as_slice() {
            [(m, 1)] if m.len() == 1 => m.first(),
            _ => None,
        }
    }

    /// The sum of these terms; `None` if a coefficient overflows or it is too large.
    fn normalise(mut terms: Vec<(Vec<Atom>, i64)>) -> Option<Self> {
        terms.sort_by(|a, b| a.0.cmp(&b.0));
        let mut fits = true;
        terms.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                let sum = kept.1.checked_add(next.1);
                fits &= sum.is_some();
                kept.1 = sum.unwrap_or(1);
            }
            same
        });
        terms.retain(|t| t.1 != 0);
        Self::new(terms).filter(|_| fits)
    }

    /// `self + sign * other`; `None` if it overflows.
    pub(super) fn add(&self, other: &Self, sign: i64) -> Option<Self> {
        let mut terms = self.terms.clone();
        for (m, c) in &other.terms {
            terms.push((m.clone(), c.checked_mul(sign)?));
        }
        Self::normalise(terms)
    }

    /// The product; `None` if it overflows.
    pub(super) fn mul(&self, other: &Self) -> Option<Self> {
        let count = self.terms.len() * other.terms.len();
        if count > MAX_WEIGHT as usize {
            return None;
        }
        let mut terms = Vec::with_capacity(count);
        for (ma, ca) in &self.terms {
            for (mb, cb) in &other.terms {
                let mut m: Vec<Atom> = ma.iter().chain(mb).cloned().collect();
                m.sort();
                terms.push((m, ca.checked_mul(*cb)?));
            }
        }
        Self::normalise(terms)
    }

    /// `(q, r)` with `self = c*q + r` and every coefficient of `r` in `0..c`, for `c > 0`.
    pub(super) fn div_rem_coefficients(&self, c: i64) -> Option<(Self, Self)> {
        let part = |f: &dyn Fn(i64) -> i64| {
            Self::normalise(self.terms.iter().map(|(m, k)| (m.clone(), f(*k))).collect())
        };
        Some((part(&|k| k.div_euclid(c))?, part(&|k| k.rem_euclid(c))?))
    }

    /// The quotient by a single term that divides every term.
    pub(super) fn exact_div(&self, by: &Self) -> Option<Self> {
        let [(divisor, c)] = by.terms.as_slice() else { return None };
        let mut terms = Vec::with_capacity(self.terms.len());
        for (m, k) in &self.terms {
            if k.checked_rem(*c) != Some(0) {
                return None;
            }
            let mut rest = m.clone();
            for atom in divisor {
                let at = rest.iter().position(|a| a == atom)?;
                rest.remove(at);
            }
            terms.push((rest, k.checked_div(*c)?));
        }
        Self::normalise(terms)
    }

    pub(super) fn eval(&self, value: &mut dyn FnMut(Symbol) -> i64) -> i64 {
        let mut sum = 0i64;
        for (m, c) in &self.terms {
            let mut product = *c;
            for atom in m {
                product = product.saturating_mul(atom.eval(value));
            }
            sum = sum.saturating_add(product);
        }
        sum
    }

    pub(super) fn substitute(&self, value: &mut dyn FnMut(Symbol) -> Dim) -> Dim {
        let mut sum = Dim::ZERO;
        for (m, c) in &self.terms {
            let mut product = Dim::from(*c);
            for atom in m {
                product = product * atom.substitute(value);
            }
            sum = sum + product;
        }
        sum
    }

    /// Calls `f` with every number that occurs.
    pub(super) fn numbers(&self, f: &mut dyn FnMut(i64)) {
        for (m, c) in &self.terms {
            f(*c);
            for atom in m {
                match atom {
                    Atom::Symbol(_) => {}
                    Atom::Div(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                        a.with_poly(|p| p.numbers(f));
                        b.with_poly(|p| p.numbers(f));
                    }
                }
            }
        }
    }

    pub(super) fn symbols(&self, f: &mut dyn FnMut(Symbol)) {
        for atom in self.terms.iter().flat_map(|(m, _)| m) {
            match atom {
                Atom::Symbol(s) => f(*s),
                Atom::Div(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                    a.symbols(f);
                    b.symbols(f);
                }
            }
        }
    }
}

impl Atom {
    /// Its weight and depth.
    fn extent(&self) -> (u32, u32) {
        match self {
            Self::Symbol(_) => (1, 0),
            Self::Div(a, b) | Self::Min(a, b) | Self::Max(a, b) => {
                let ((wa, da), (wb, db)) = (a.extent(), b.extent());
                (wa.saturating_add(wb).saturating_add(1), da.max(db) + 1)
            }
        }
    }

    fn eval(&self, value: &mut dyn FnMut(Symbol) -> i64) -> i64 {
        let mut at = |d: &Dim| d.with_poly(|p| p.eval(value));
        match self {
            Self::Symbol(s) => value(*s),
            Self::Div(a, b) => {
                Dim::from(at(a)).floor_div(&Dim::from(at(b))).as_const().unwrap_or(0)
            }
            Self::Min(a, b) => at(a).min(at(b)),
            Self::Max(a, b) => at(a).max(at(b)),
        }
    }

    fn substitute(&self, value: &mut dyn FnMut(Symbol) -> Dim) -> Dim {
        match self {
            Self::Symbol(s) => value(*s),
            Self::Div(a, b) => a.substitute(value).floor_div(&b.substitute(value)),
            Self::Min(a, b) => a.substitute(value).minimum(&b.substitute(value)),
            Self::Max(a, b) => a.substitute(value).maximum(&b.substitute(value)),
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(Symbol::BATCH) => f.write_str("N"),
            Self::Symbol(Symbol(i)) => write!(f, "S{i}"),
            Self::Div(a, b) => write!(f, "({}/{})", Factor(a), Factor(b)),
            Self::Min(a, b) => write!(f, "min({a},{b})"),
            Self::Max(a, b) => write!(f, "max({a},{b})"),
        }
    }
}

/// A dim inside a quotient: in brackets unless it is a number or one atom.
struct Factor<'a>(&'a Dim);

impl fmt::Display for Factor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.0.as_const().is_some_and(|c| c >= 0)
            || self.0.with_poly(|p| p.as_atom().is_some());
        if plain { write!(f, "{}", self.0) } else { write!(f, "({})", self.0) }
    }
}

impl fmt::Display for Poly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (constant, products): (Vec<_>, Vec<_>) =
            self.terms.iter().partition(|t| t.0.is_empty());
        let single = self.terms.len() == 1;
        for (i, (m, c)) in products.iter().chain(&constant).enumerate() {
            match (*c < 0, i) {
                (true, _) => f.write_str("-")?,
                (false, 0) => {}
                (false, _) => f.write_str("+")?,
            }
            let size = c.unsigned_abs();
            if let [Atom::Div(a, b)] = m.as_slice()
                && size == 1
                && single
                && *c > 0
            {
                write!(f, "{}/{}", Factor(a), Factor(b))?;
                continue;
            }
            if size != 1 || m.is_empty() {
                write!(f, "{size}")?;
            }
            for (j, atom) in m.iter().enumerate() {
                if j > 0 || size != 1 {
                    f.write_str("*")?;
                }
                write!(f, "{atom}")?;
            }
        }
        Ok(())
    }
}
