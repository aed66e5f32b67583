//! The decision whether a formula is at least 0 for every batch size.
//!
//! With `L` the least common multiple of all (nested) divisors, `N = L*q + r` turns each formula that is
//! linear in `N` into a linear function of `q` from some `q` on, for every residue `r < L`. The formula is
//! non-negative if, for each `r`, it is so at the finitely many `q` before that point, at the point, and if
//! it does not fall after it.

use super::poly::Atom;
use super::{Dim, Symbol};

const MAX_PERIOD: i64 = 1 << 16;
const MAX_EXPLICIT: i64 = 1 << 12;
/// Evaluations of one part of a formula.
const MAX_STEPS: i64 = 1 << 20;

/// `slope * q + base` for every `q >= from`.
#[derive(Clone, Copy)]
struct Line {
    slope: i64,
    base: i64,
    from: i64,
}

pub(super) fn is_nonnegative(dim: &Dim) -> bool {
    if let Some(c) = dim.as_const() {
        return c >= 0;
    }
    if by_signs(dim) {
        return true;
    }
    let weight = i64::from(dim.extent().0);
    let mut steps = MAX_STEPS / weight.max(1);
    period(dim).is_some_and(|l| (0..l).all(|r| residue_is_nonnegative(dim, l, r, &mut steps)))
}

/// True if every coefficient and every atom is plainly non-negative.
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
        Atom::Min(a, b) => {
            Some(extreme(line(a, period, residue)?, line(b, period, residue)?, true))
        }
        Atom::Max(a, b) => {
            Some(extreme(line(a, period, residue)?, line(b, period, residue)?, false))
        }
    }
}

/// The lower (or upper) of two lines, from where they no longer cross.
fn extreme(a: Line, b: Line, lower: bool) -> Line {
    let from = a.from.max(b.from);
    let slope = a.slope.saturating_sub(b.slope);
    let base = a.base.saturating_sub(b.base);
    let crossing = match slope.saturating_abs() {
        0 => 0,
        slope => (base.saturating_abs() / slope).saturating_add(1),
    };
    let a_is_lower = if slope == 0 { base <= 0 } else { slope < 0 };
    let chosen = if a_is_lower == lower { a } else { b };
    Line { from: from.max(crossing), ..chosen }
}

#[cfg(test)]
mod tests {
    use super::super::Dim;

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
        ];
        for (dim, expected) in cases {
            assert_eq!(dim.is_nonnegative(), expected, "{dim}");
            assert_eq!((0..200).all(|k| dim.eval(k) >= 0), expected, "{dim} by trial");
        }
    }
}
