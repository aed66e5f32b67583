//! The decision whether a formula is at least 0 for every batch size.
//!
//! Bounds of quotients and extremes decide most formulas at once. For the others, with `L` the
//! least common multiple of all (nested) divisors, `N = L*q + r` turns each formula that is linear
//! in `N` into a linear function of `q` from some `q` on, for every residue `r < L`. The formula is
//! non-negative if, for each `r`, it is so at the finitely many `q` before that point, at the
//! point, and if it does not fall after it.

use super::{Atom, Dim, Symbol};

/// The largest period that is tried residue by residue. A formula with a larger one is left to
/// the bounds.
const MAX_PERIOD: i64 = 1 << 12;
/// The most values of `q` that are evaluated before a formula turns linear.
const MAX_EXPLICIT: i64 = 1 << 12;
/// Evaluations for one formula, divided by its extent: a proof takes bounded time for any input.
const MAX_STEPS: i64 = 1 << 15;
/// Replacements by bounds for one formula. An extreme may need two proofs, so without a limit
/// the search would be exponential in the number of extremes.
const MAX_BOUNDS: u32 = 64;

/// `slope * q + base` for every `q >= from`.
#[derive(Clone, Copy)]
struct Line {
    slope: i64,
    base: i64,
    from: i64,
}

impl Dim {
    /// True only if the value is at least 0 for every `N >= 0`.
    ///
    /// Complete for formulas that are linear in `N` with floor divisions by constants (of a common
    /// period up to 4096, as far as about 30,000 steps go), minima and maxima; a sufficient test on
    /// bounds and signs otherwise. Never true of an overflow.
    pub fn is_nonnegative(&self) -> bool {
        !self.is_overflow() && is_nonnegative(self)
    }
}

/// Tries the cheap tests first: a constant, then bounds, then all residues. Each test is sound
/// on its own, that is, it never accepts a formula that is negative somewhere. They differ only
/// in what they miss, so the order affects time and not the answer.
fn is_nonnegative(dim: &Dim) -> bool {
    if let Some(c) = dim.as_const() {
        return c >= 0;
    }
    if by_bounds(dim, &mut { MAX_BOUNDS }) {
        return true;
    }
    let weight = i64::from(dim.extent().0);
    let mut steps = MAX_STEPS / weight.max(1);
    period(dim).is_some_and(|l| (0..l).all(|r| residue_is_nonnegative(dim, l, r, &mut steps)))
}

/// True if every coefficient and every atom is plainly non-negative.
///
/// Sound because symbols are at least 0, and sums, products, quotients by positive constants,
/// minima and maxima of non-negative values are non-negative. One operand suffices for a
/// maximum. It misses every formula with a subtraction.
fn by_signs(dim: &Dim) -> bool {
    dim.with_poly(|p| {
        p.terms().iter().all(|(m, c)| {
            *c >= 0
                && m.iter().all(|atom| match atom {
                    Atom::Symbol(_) => true,
                    Atom::Div(a, b) => by_signs(a) && b.as_const().is_some_and(|b| b > 0),
                    Atom::Min(a, b) => by_signs(a) && by_signs(b),
                    Atom::Max(a, b) => by_signs(a) || by_signs(b),
                })
        })
    })
}

/// A quotient, minimum or maximum of a formula, with the number of times that it is added.
type Part<'a> = (&'a Atom, i64);

/// True if the formula is non-negative by signs once quotients and extremes are replaced by
/// bounds of them. Sound because every replacement makes the formula smaller or leaves it equal,
/// for every batch size: if the smaller formula is non-negative, so is this one. The
/// replacements, with `k > 0`:
/// - `k * (a/c) - l * (b/c)` with `a >= b` loses `min(k, l)` of both quotients, because `a/c >=
///   b/c`;
/// - `-k * (x/c)` becomes `-k * x / c`, and `k * (x/c)` becomes `k * (x - c + 1) / c` (see
///   [`bounded`]);
/// - `k * max(a, b)` and `-k * min(a, b)` may become either operand, as both are lower bounds;
/// - `k * min(a, b)` and `-k * max(a, b)` must be proved with each operand in turn. For example
///   `min(3*c, N) - min(2*c, N)` needs `3*c - min(2*c, N)` and `N - min(2*c, N)`. The second
///   minimum may be chosen: `2*c` proves the first, `N` the second.
fn by_bounds(dim: &Dim, left: &mut u32) -> bool {
    if dim.is_overflow() || *left == 0 {
        return false;
    }
    *left -= 1;
    if by_signs(dim) {
        return true;
    }
    let part = dim.with_poly(|p| {
        let terms = p.terms().iter().filter_map(|(m, k)| match m.as_slice() {
            [Atom::Symbol(_)] => None,
            [atom] => Some((atom.clone(), *k)),
            _ => None,
        });
        let parts: Vec<(Atom, i64)> = terms.collect();
        let rest = |(atom, k): Part<'_>| dim.clone() - Dim::atom(atom.clone()) * k;
        // A quotient is no less than another of a smaller dividend.
        for (more, k) in parts.iter().filter(|(_, k)| *k > 0) {
            for (less, l) in parts.iter().filter(|(_, l)| *l < 0) {
                if let (Atom::Div(a, c), Atom::Div(b, d)) = (more, less)
                    && c == d
                    && c.as_const().is_some_and(|c| c > 0)
                    && by_signs(&(a.clone() - b.clone()))
                {
                    let times = l.checked_neg().unwrap_or(i64::MAX).min(*k);
                    let rest = rest((more, times)) - Dim::atom(less.clone()) * -times;
                    return Some(by_bounds(&rest, left));
                }
            }
        }
        // What needs two proofs goes first, what has a choice next: bounds of quotients lose
        // something.
        let (atom, k) = parts.iter().min_by_key(|(atom, k)| match atom {
            Atom::Symbol(_) => 4,
            Atom::Min(..) => u8::from(*k < 0),
            Atom::Max(..) => u8::from(*k > 0),
            Atom::Div(..) => 2 + u8::from(*k > 0),
        })?;
        Some(bounded(&rest((atom, *k)), (atom, *k), left))
    });
    part.unwrap_or(false)
}

/// True if `rest + k * atom` is non-negative by bounds of the atom. For a quotient, the sum is
/// multiplied by its divisor `c > 0` first, which keeps the sign and all coefficients integers.
fn bounded(rest: &Dim, (atom, k): Part<'_>, left: &mut u32) -> bool {
    let mut with = |by: &Dim| by_bounds(&(rest.clone() + by.clone() * k), left);
    match atom {
        Atom::Symbol(_) => false,
        // x - c + 1 <= c * (x/c) <= x
        Atom::Div(x, c) => c.as_const().filter(|c| *c > 0).is_some_and(|c| {
            let x = if k < 0 { x.clone() } else { x.clone() - (c - 1) };
            by_bounds(&(rest.clone() * c + x * k), left)
        }),
        Atom::Min(a, b) | Atom::Max(a, b) => {
            if (k < 0) == matches!(atom, Atom::Min(..)) {
                with(a) || with(b)
            } else {
                with(a) && with(b)
            }
        }
    }
}

/// True if the formula is non-negative at `N = period * q + residue` for every `q >= 0`. From
/// `line.from` on the formula is a line whose slope is not negative, so its least value there is
/// the one at `line.from`. All `q` up to that point are evaluated.
fn residue_is_nonnegative(dim: &Dim, period: i64, residue: i64, steps: &mut i64) -> bool {
    let Some(line) = line(dim, period, residue) else { return false };
    *steps -= 1 + line.from.clamp(0, MAX_EXPLICIT);
    line.slope >= 0
        && line.from <= MAX_EXPLICIT
        && *steps >= 0
        && (0..=line.from).all(|q| {
            q.checked_mul(period)
                .and_then(|n| n.checked_add(residue))
                .is_some_and(|n| dim.eval(n) >= 0)
        })
}

/// The least common multiple of the products of nested divisors, if all are positive constants.
fn period(dim: &Dim) -> Option<i64> {
    dim.with_poly(|p| {
        let mut all = 1i64;
        for atom in p.terms().iter().flat_map(|(m, _)| m) {
            let one = match atom {
                Atom::Symbol(Symbol::BATCH) => 1,
                Atom::Symbol(_) => return None,
                Atom::Div(a, b) => {
                    let b = b.as_const().filter(|b| (1..=MAX_PERIOD).contains(b))?;
                    period(a)? * b
                }
                Atom::Min(a, b) | Atom::Max(a, b) => lcm(period(a)?, period(b)?),
            };
            all = lcm(all, one);
            if all > MAX_PERIOD {
                return None;
            }
        }
        Some(all)
    })
}

fn lcm(a: i64, b: i64) -> i64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// The formula at `N = period * q + residue` as a line in `q`; `None` if it has a product of
/// atoms or overflows.
fn line(dim: &Dim, period: i64, residue: i64) -> Option<Line> {
    dim.with_poly(|p| {
        let mut sum = Line { slope: 0, base: 0, from: 0 };
        for (m, c) in p.terms() {
            let one = match m.as_slice() {
                [] => Line { slope: 0, base: 1, from: 0 },
                [atom] => atom_line(atom, period, residue)?,
                _ => return None,
            };
            sum = Line {
                slope: sum.slope.checked_add(one.slope.checked_mul(*c)?)?,
                base: sum.base.checked_add(one.base.checked_mul(*c)?)?,
                from: sum.from.max(one.from),
            };
        }
        Some(sum)
    })
}

/// A quotient or extreme as a line in `q`. A quotient of the line `s*q + t` by `b` is the line
/// `(s/b)*q + t.div_euclid(b)`, but only if `b` divides `s`. The period is a multiple of all
/// divisors for this reason.
fn atom_line(atom: &Atom, period: i64, residue: i64) -> Option<Line> {
    match atom {
        Atom::Symbol(Symbol::BATCH) => Some(Line { slope: period, base: residue, from: 0 }),
        Atom::Symbol(_) => None,
        Atom::Div(a, b) => {
            let (a, b) = (line(a, period, residue)?, b.as_const().filter(|b| *b > 0)?);
            if a.slope % b != 0 {
                return None;
            }
            Some(Line { slope: a.slope / b, base: a.base.div_euclid(b), from: a.from })
        }
        Atom::Min(a, b) => extreme(line(a, period, residue)?, line(b, period, residue)?, true),
        Atom::Max(a, b) => extreme(line(a, period, residue)?, line(b, period, residue)?, false),
    }
}

/// The lower (or upper) of two lines, from where they no longer cross; `None` if their distance
/// overflows.
///
/// The lines cross at `q = -base / slope` of their difference. One step past the rounded
/// quotient, the sign of the slope alone decides which is lower, for every later `q`.
fn extreme(a: Line, b: Line, lower: bool) -> Option<Line> {
    let from = a.from.max(b.from);
    let slope = a.slope.checked_sub(b.slope)?;
    let base = a.base.checked_sub(b.base)?;
    let crossing = match slope.checked_abs()? {
        0 => 0,
        slope => (base.checked_abs()? / slope).checked_add(1)?,
    };
    let a_is_lower = if slope == 0 { base <= 0 } else { slope < 0 };
    let chosen = if a_is_lower == lower { a } else { b };
    Some(Line { from: from.max(crossing), ..chosen })
}

#[cfg(test)]
mod tests {
    use super::super::Dim;
    use crate::types::ShardRule;

    #[test]
    fn every_shard_rule_is_proved_for_many_replicas() {
        for rule in ["remainder-last", "balanced", "ceil"] {
            let offsets = rule.parse::<ShardRule>().unwrap().offsets(4096).unwrap();
            let sizes = offsets.windows(2).map(|o| o[1].clone() - o[0].clone());
            assert!(sizes.into_iter().all(|rows| rows.is_nonnegative()), "{rule}");
        }
        let weights = ShardRule::Weighted(vec![40_000, 30_000, 0, 999_983]);
        let offsets = weights.offsets(4).unwrap();
        assert!(offsets.windows(2).all(|o| (o[1].clone() - o[0].clone()).is_nonnegative()));
    }

    #[test]
    fn agrees_with_trying_every_batch() {
        let n = Dim::n;
        let third = n().floor_div(&3.into());
        let ceil = (n() + 3).floor_div(&4.into());
        let cases = [
            (n(), true),
            (n() - 1, false),
            (n() - third.clone() * 3, true),
            (n() - third.clone() * 4, false),
            (third.clone() * 3 - n() + 2, true),
            (third.clone() * 3 - n() + 1, false),
            ((ceil.clone() * 3).minimum(&n()) - (ceil.clone() * 2).minimum(&n()), true),
            ((ceil.clone() * 2).minimum(&n()) - (ceil * 3).minimum(&n()), false),
            ((n() * 3).floor_div(&4.into()) - (n() * 2).floor_div(&4.into()), true),
            (n() * n() + n(), true),
            (n().maximum(&Dim::from(5)) - 5, true),
            (n().minimum(&Dim::from(5)) - 5, false),
            (-n(), false),
            ((n() * 7).floor_div(&9.into()) - (n() * 5).floor_div(&9.into()), true),
            ((n() * 5).floor_div(&9.into()) - (n() * 7).floor_div(&9.into()), false),
            (n() - n().floor_div(&65521.into()) * 65520, true),
            (n().floor_div(&7.into()) * 7 - n() + 6, true),
            (n().minimum(&(third.clone() * 2)) - third.clone().minimum(&n()), true),
        ];
        for (dim, expected) in cases {
            assert_eq!(dim.is_nonnegative(), expected, "{dim}");
            assert_eq!((0..200).all(|k| dim.eval(k) >= 0), expected, "{dim} by trial");
        }
    }
}
