//! Polynomials with integer coefficients.

/// A formula of more parts, or whose quotients and extremes nest deeper, counts as an overflow: a
/// bound on the work and the stack that a hostile formula can ask for.
const MAX_WEIGHT: u32 = 1024;
const MAX_DEPTH: u32 = 24;

/// An unknown of a polynomial.
pub(super) trait Unknown: Clone + Ord {
    /// Its weight and depth.
    fn extent(&self) -> (u32, u32);
}

/// A sum of terms; each is a sorted product of atoms (empty for the constant term) and its
/// coefficient. Sorted by product, without zero coefficients: equal polynomials are equal values.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Poly<A> {
    terms: Vec<(Vec<A>, i64)>,
    /// The number of terms and atoms, those inside atoms included.
    weight: u32,
    /// The depth to which quotients and extremes nest.
    depth: u32,
}

impl<A: Unknown> Poly<A> {
    /// The polynomial of these terms, which are sorted and without zeros; `None` if it is too
    /// large.
    fn new(terms: Vec<(Vec<A>, i64)>) -> Option<Self> {
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

    pub(super) fn atom(atom: A) -> Option<Self> {
        Self::new(vec![(vec![atom], 1)])
    }

    /// The number of terms and atoms, those inside atoms included, and how deeply quotients and
    /// extremes nest.
    pub(super) fn extent(&self) -> (u32, u32) {
        (self.weight, self.depth)
    }

    pub(super) fn terms(&self) -> &[(Vec<A>, i64)] {
        &self.terms
    }

    pub(super) fn as_const(&self) -> Option<i64> {
        match self.terms.as_slice() {
            [] => Some(0),
            [(m, c)] if m.is_empty() => Some(*c),
            _ => None,
        }
    }

    pub(super) fn as_atom(&self) -> Option<&A> {
        match self.terms.as_slice() {
            [(m, 1)] if m.len() == 1 => m.first(),
            _ => None,
        }
    }

    /// The sum of these terms; `None` if a coefficient overflows or it is too large.
    fn normalise(mut terms: Vec<(Vec<A>, i64)>) -> Option<Self> {
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
                let mut m: Vec<A> = ma.iter().chain(mb).cloned().collect();
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
}
