//! Symbolic integers over the batch size `N >= 0`: the sizes of tensors and the offsets of shards.

mod parse;
mod poly;
mod prove;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

use poly::{Poly, Unknown};

/// The largest size of an axis, and the largest number of elements of a tensor.
///
/// A formula with a number beyond the ends of `i64`, or of too many parts, is an *overflow*: a dim
/// of which nothing is known, and nothing can be proved. No type may hold one.
pub const MAX_SIZE: i64 = 1 << 48;

/// A named size.
///
/// After import a graph knows one symbol, [`Symbol::BATCH`]; the others stand for sizes that a file
/// names and that are bound or equated while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Symbol(pub(crate) u32);

impl Symbol {
    /// The number of rows of the global batch, written `N`.
    pub(crate) const BATCH: Self = Self(0);
}

/// An integer that may depend on the batch size `N >= 0`.
///
/// Two dims that were built from the same formula by different steps are equal: sums and products
/// are kept as one polynomial, `x mod c` as `x - c*(x/c)`, and `/` divides towards minus infinity.
///
/// ```
/// use fanwise::types::Dim;
/// let n = Dim::n();
/// assert_eq!((n.clone() * 6 + 4).floor_div(&2.into()), n.clone() * 3 + 2);
/// assert_eq!((n.clone() - n.floor_div(&3.into()) * 2).to_string(), "N-2*(N/3)");
/// assert!((n.clone() - n.floor_div(&3.into()) * 2).is_nonnegative());
/// ```
///
/// Elsewhere: bounded dynamic dimension (XLA); symbolic shape (PyTorch); dynamic dimension (MLIR);
/// `dim_param` (ONNX); batch dimension (Keras).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Const(i64),
    Expr(Arc<Poly<Atom>>),
    /// No number: what arithmetic with a number beyond the ends of `i64`, or a formula of too many
    /// parts, gives.
    Overflow,
}

impl Dim {
    /// The size 0.
    pub const ZERO: Self = Self(Repr::Const(0));
    /// The size 1.
    pub const ONE: Self = Self(Repr::Const(1));

    /// The batch size.
    pub fn n() -> Self {
        Self::symbol(Symbol::BATCH)
    }

    /// The value of a symbol.
    pub(crate) fn symbol(symbol: Symbol) -> Self {
        Self::atom(Atom::Symbol(symbol))
    }

    fn atom(atom: Atom) -> Self {
        Self::from_poly(Poly::atom(atom))
    }

    /// The polynomial, or an overflow where there is none.
    fn from_poly(poly: Option<Poly<Atom>>) -> Self {
        match poly {
            None => Self(Repr::Overflow),
            Some(poly) => match poly.as_const() {
                Some(c) => Self(Repr::Const(c)),
                None => Self(Repr::Expr(Arc::new(poly))),
            },
        }
    }

    /// The constant, or an overflow where there is none.
    fn from_checked(value: Option<i64>) -> Self {
        Self(value.map_or(Repr::Overflow, Repr::Const))
    }

    /// True if nothing is known of the value, because a number or a formula became too large. An
    /// overflow stays one through all arithmetic. Two of them compare as equal, which says nothing
    /// of their values.
    pub(crate) fn is_overflow(&self) -> bool {
        matches!(self.0, Repr::Overflow)
    }

    fn extent(&self) -> (u32, u32) {
        match &self.0 {
            Repr::Const(_) => (1, 0),
            Repr::Expr(p) => p.extent(),
            Repr::Overflow => (u32::MAX, 0),
        }
    }

    /// What `f` gives for the polynomial; that of an overflow, which no formula contains, is 0.
    fn with_poly<T>(&self, f: impl FnOnce(&Poly<Atom>) -> T) -> T {
        match &self.0 {
            Repr::Const(c) => f(&Poly::constant(*c)),
            Repr::Expr(p) => f(p),
            Repr::Overflow => f(&Poly::constant(0)),
        }
    }

    /// The value, where it does not depend on a symbol.
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(c) => Some(c),
            Repr::Expr(_) | Repr::Overflow => None,
        }
    }

    /// The symbol, where this is a symbol and nothing more.
    pub(crate) fn as_symbol(&self) -> Option<Symbol> {
        match &self.0 {
            Repr::Const(_) | Repr::Overflow => None,
            Repr::Expr(p) => match p.as_atom() {
                Some(Atom::Symbol(s)) => Some(*s),
                _ => None,
            },
        }
    }

    /// True if the value is the same for every batch size.
    pub(crate) fn is_const(&self) -> bool {
        self.as_const().is_some()
    }

    /// Division towards minus infinity. Dividing by the constant 0 gives 0.
    #[must_use]
    pub fn floor_div(&self, by: &Self) -> Self {
        match (self.as_const(), by.as_const()) {
            (_, Some(0)) => Self::ZERO,
            _ if self.is_overflow() || by.is_overflow() => Self(Repr::Overflow),
            (Some(a), Some(b)) => {
                let quotient = a.checked_div_euclid(b);
                let below = i64::from(b < 0 && a.checked_rem_euclid(b) != Some(0));
                Self::from_checked(quotient.and_then(|q| q.checked_sub(below)))
            }
            (_, Some(1)) => self.clone(),
            (None, Some(c)) if c > 1 => self.div_const(c),
            _ => Self::atom(Atom::Div(self.clone(), by.clone())),
        }
    }

    fn div_const(&self, c: i64) -> Self {
        let Some((quotient, rest)) = self.with_poly(|p| p.div_rem_coefficients(c)) else {
            return Self(Repr::Overflow);
        };
        let rest = Self::from_poly(Some(rest));
        let tail = match rest.as_const() {
            Some(r) => Self::from(r.div_euclid(c)),
            None => match rest.as_div_atom() {
                Some((x, Some(d))) if d > 0 => match d.checked_mul(c) {
                    Some(product) => Self::atom(Atom::Div(x.clone(), Self::from(product))),
                    None => Self(Repr::Overflow),
                },
                _ => Self::atom(Atom::Div(rest, Self::from(c))),
            },
        };
        Self::from_poly(Some(quotient)) + tail
    }

    fn as_div_atom(&self) -> Option<(&Self, Option<i64>)> {
        match &self.0 {
            Repr::Const(_) | Repr::Overflow => None,
            Repr::Expr(p) => match p.as_atom() {
                Some(Atom::Div(x, d)) => Some((x, d.as_const())),
                _ => None,
            },
        }
    }

    /// The remainder of [`Dim::floor_div`]: `self - by * (self / by)`.
    #[must_use]
    pub fn modulo(&self, by: &Self) -> Self {
        self.clone() - by.clone() * self.floor_div(by)
    }

    /// The quotient, where `by` divides `self` term by term and is not the constant 0.
    ///
    /// The answer holds wherever `by` is not 0, so `N*8 / N` is 8.
    pub fn exact_div(&self, by: &Self) -> Option<Self> {
        if self.is_overflow() || by.is_overflow() {
            return None;
        }
        if self == by && by.as_const() != Some(0) {
            return Some(Self::ONE);
        }
        let quotient = by.with_poly(|b| self.with_poly(|a| a.exact_div(b)))?;
        Some(Self::from_poly(Some(quotient)))
    }

    /// The smaller of two values.
    #[must_use]
    pub fn minimum(&self, other: &Self) -> Self {
        if self.is_overflow() || other.is_overflow() {
            return Self(Repr::Overflow);
        }
        match (other.clone() - self.clone()).as_const() {
            Some(d) if d >= 0 => self.clone(),
            Some(_) => other.clone(),
            None => {
                let (a, b) = if self <= other { (self, other) } else { (other, self) };
                Self::atom(Atom::Min(a.clone(), b.clone()))
            }
        }
    }

    /// The larger of two values.
    #[must_use]
    pub(crate) fn maximum(&self, other: &Self) -> Self {
        if self.is_overflow() || other.is_overflow() {
            return Self(Repr::Overflow);
        }
        match (other.clone() - self.clone()).as_const() {
            Some(d) if d >= 0 => other.clone(),
            Some(_) => self.clone(),
            None => {
                let (a, b) = if self <= other { (self, other) } else { (other, self) };
                Self::atom(Atom::Max(a.clone(), b.clone()))
            }
        }
    }

    /// The value at a batch of `n` rows; other symbols count as 0. Saturates at the ends of `i64`;
    /// an overflow gives `i64::MAX`.
    pub fn eval(&self, n: i64) -> i64 {
        match &self.0 {
            Repr::Overflow => i64::MAX,
            Repr::Const(c) => *c,
            Repr::Expr(p) => p.eval(&mut |s| if s == Symbol::BATCH { n } else { 0 }),
        }
    }

    /// The same formula with every symbol replaced by what `value` gives for it.
    #[must_use]
    pub(crate) fn substitute(&self, value: &mut dyn FnMut(Symbol) -> Self) -> Self {
        match &self.0 {
            Repr::Const(_) | Repr::Overflow => self.clone(),
            Repr::Expr(p) => p.substitute(value),
        }
    }

    /// The same formula with the batch size replaced by `rows`.
    #[must_use]
    pub fn at_rows(&self, rows: &Self) -> Self {
        if self.is_const() {
            return self.clone();
        }
        if self.as_symbol() == Some(Symbol::BATCH) {
            return rows.clone();
        }
        self.substitute(&mut |s| if s == Symbol::BATCH { rows.clone() } else { Self::symbol(s) })
    }

    /// Calls `f` with every symbol that occurs.
    pub(crate) fn symbols(&self, f: &mut dyn FnMut(Symbol)) {
        if let Repr::Expr(p) = &self.0 {
            p.symbols(f);
        }
    }

    /// True if it is no overflow, and no number in the formula exceeds [`MAX_SIZE`] in magnitude.
    pub(crate) fn has_small_numbers(&self) -> bool {
        let mut small = !self.is_overflow();
        self.with_poly(|p| {
            p.numbers(&mut |c| small &= c.unsigned_abs() <= MAX_SIZE.unsigned_abs());
        });
        small
    }

    /// True if the value depends on the batch size.
    pub fn depends_on_batch(&self) -> bool {
        if self.is_const() {
            return false;
        }
        let mut found = false;
        self.symbols(&mut |s| found |= s == Symbol::BATCH);
        found
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Self {
        Self(Repr::Const(value))
    }
}

impl Add for Dim {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        match (&self.0, &other.0) {
            (Repr::Overflow, _) | (_, Repr::Overflow) => Self(Repr::Overflow),
            (Repr::Const(a), Repr::Const(b)) => Self::from_checked(a.checked_add(*b)),
            (Repr::Const(0), _) => other,
            (_, Repr::Const(0)) => self,
            _ => Self::from_poly(self.with_poly(|a| other.with_poly(|b| a.add(b, 1)))),
        }
    }
}

impl Sub for Dim {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        match (&self.0, &other.0) {
            (Repr::Overflow, _) | (_, Repr::Overflow) => Self(Repr::Overflow),
            (Repr::Const(a), Repr::Const(b)) => Self::from_checked(a.checked_sub(*b)),
            (_, Repr::Const(0)) => self,
            _ => Self::from_poly(self.with_poly(|a| other.with_poly(|b| a.add(b, -1)))),
        }
    }
}

impl Mul for Dim {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        match (&self.0, &other.0) {
            (Repr::Overflow, _) | (_, Repr::Overflow) => Self(Repr::Overflow),
            (Repr::Const(a), Repr::Const(b)) => Self::from_checked(a.checked_mul(*b)),
            (Repr::Const(0), _) | (_, Repr::Const(0)) => Self::ZERO,
            (Repr::Const(1), _) => other,
            (_, Repr::Const(1)) => self,
            _ => Self::from_poly(self.with_poly(|a| other.with_poly(|b| a.mul(b)))),
        }
    }
}

impl Neg for Dim {
    type Output = Self;
    fn neg(self) -> Self {
        Self::ZERO - self
    }
}

impl Add<i64> for Dim {
    type Output = Self;
    fn add(self, other: i64) -> Self {
        self + Self::from(other)
    }
}

impl Sub<i64> for Dim {
    type Output = Self;
    fn sub(self, other: i64) -> Self {
        self - Self::from(other)
    }
}

impl Mul<i64> for Dim {
    type Output = Self;
    fn mul(self, other: i64) -> Self {
        self * Self::from(other)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Const(c) => write!(f, "{c}"),
            Repr::Expr(p) => p.fmt(f),
            Repr::Overflow => f.write_str("overflow"),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An unknown of a formula.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Atom {
    Symbol(Symbol),
    Div(Dim, Dim),
    Min(Dim, Dim),
    Max(Dim, Dim),
}

impl Poly<Atom> {
    fn eval(&self, value: &mut dyn FnMut(Symbol) -> i64) -> i64 {
        let mut sum = 0i64;
        for (m, c) in self.terms() {
            let mut product = *c;
            for atom in m {
                product = product.saturating_mul(atom.eval(value));
            }
            sum = sum.saturating_add(product);
        }
        sum
    }

    fn substitute(&self, value: &mut dyn FnMut(Symbol) -> Dim) -> Dim {
        let mut sum = Dim::ZERO;
        for (m, c) in self.terms() {
            let mut product = Dim::from(*c);
            for atom in m {
                product = product * atom.substitute(value);
            }
            sum = sum + product;
        }
        sum
    }

    /// Calls `f` with every number that occurs.
    fn numbers(&self, f: &mut dyn FnMut(i64)) {
        for (m, c) in self.terms() {
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

    fn symbols(&self, f: &mut dyn FnMut(Symbol)) {
        for atom in self.terms().iter().flat_map(|(m, _)| m) {
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

impl Unknown for Atom {
    fn extent(&self) -> (u32, u32) {
        match self {
            Self::Symbol(_) => (1, 0),
            Self::Div(a, b) | Self::Min(a, b) | Self::Max(a, b) => {
                let ((wa, da), (wb, db)) = (a.extent(), b.extent());
                (wa.saturating_add(wb).saturating_add(1), da.max(db) + 1)
            }
        }
    }
}

impl Atom {
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
            Self::Div(a, b) => write!(f, "({}/{})", dividend(a), divisor(b)),
            Self::Min(a, b) => write!(f, "min({a},{b})"),
            Self::Max(a, b) => write!(f, "max({a},{b})"),
        }
    }
}

/// A dim inside a quotient: in brackets unless it is a number or one atom, as a divisor also where
/// it is a quotient itself, since quotients are read from the left.
struct Factor<'a> {
    dim: &'a Dim,
    divides: bool,
}

fn dividend(dim: &Dim) -> Factor<'_> {
    Factor { dim, divides: false }
}

fn divisor(dim: &Dim) -> Factor<'_> {
    Factor { dim, divides: true }
}

impl fmt::Display for Factor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dim, divides } = self;
        let quotient = |atom: &Atom| matches!(atom, Atom::Div(..));
        let plain = dim.as_const().is_some_and(|c| c >= 0)
            || dim.with_poly(|p| p.as_atom().is_some_and(|atom| !divides || !quotient(atom)));
        if plain { write!(f, "{dim}") } else { write!(f, "({dim})") }
    }
}

impl fmt::Display for Poly<Atom> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (constant, products): (Vec<_>, Vec<_>) =
            self.terms().iter().partition(|t| t.0.is_empty());
        let single = self.terms().len() == 1;
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
                write!(f, "{}/{}", dividend(a), divisor(b))?;
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
