//! The functions of the gates.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::fmt;

use crate::op::attr::{Attr, AttrValue};
use crate::op::real::Real;
use crate::op::{Apply, Unary};
use crate::types::invariant::invariant;

/// A function that a recurrent cell applies to each element of a gate or of its state.
#[derive(Clone, Debug)]
pub enum Activation {
    /// An elementwise operator of the same name and parameters.
    Unary(Unary),
    /// `affine(a, b)`: `a x + b`.
    Affine(f32, f32),
    /// `scaled_tanh(a, b)`: `a tanh(b x)`.
    ScaledTanh(f32, f32),
}

/// The loop over a row.
struct Row<'a, R>(&'a mut [R]);

impl<R: Real> Apply<R> for Row<'_, R> {
    type Output = ();

    #[inline(always)]
    fn apply(self, f: impl Fn(R) -> R) {
        self.0.iter_mut().for_each(|x| *x = f(*x));
    }
}

impl Activation {
    /// The function of gates.
    pub const SIGMOID: Self = Self::Unary(Unary::Sigmoid);
    /// The function of states.
    pub const TANH: Self = Self::Unary(Unary::Tanh);

    /// The function with this name and these parameters, those of ONNX where they are absent;
    /// `None` where there is no such function.
    pub fn new(name: &str, alpha: Option<f32>, beta: Option<f32>) -> Option<Self> {
        Some(match name {
            "relu" => Self::Unary(Unary::Relu),
            "tanh" => Self::TANH,
            "sigmoid" => Self::SIGMOID,
            "softsign" => Self::Unary(Unary::Softsign),
            "softplus" => Self::Unary(Unary::Softplus),
            "leaky_relu" => Self::Unary(Unary::LeakyRelu { alpha: alpha.unwrap_or(0.01) }),
            "thresholded_relu" => {
                Self::Unary(Unary::ThresholdedRelu { alpha: alpha.unwrap_or(1.0) })
            }
            "elu" => Self::Unary(Unary::Elu { alpha: alpha.unwrap_or(1.0) }),
            "hard_sigmoid" => Self::Unary(Unary::HardSigmoid {
                alpha: alpha.unwrap_or(0.2),
                beta: beta.unwrap_or(0.5),
            }),
            "affine" => Self::Affine(alpha.unwrap_or(1.0), beta.unwrap_or(0.0)),
            "scaled_tanh" => Self::ScaledTanh(alpha.unwrap_or(1.0), beta.unwrap_or(1.0)),
            _ => return None,
        })
    }

    /// The name and the parameters.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have no parameters")]
    pub(crate) fn parts(&self) -> (&'static str, [Option<f32>; 2]) {
        match self {
            Self::Affine(a, b) => ("affine", [Some(*a), Some(*b)]),
            Self::ScaledTanh(a, b) => ("scaled_tanh", [Some(*a), Some(*b)]),
            Self::Unary(op) => {
                let parameters = match *op {
                    Unary::LeakyRelu { alpha }
                    | Unary::ThresholdedRelu { alpha }
                    | Unary::Elu { alpha } => [Some(alpha), None],
                    Unary::HardSigmoid { alpha, beta } => [Some(alpha), Some(beta)],
                    _ => [None, None],
                };
                (crate::op::OpText::name(op), parameters)
            }
        }
    }

    /// Hands the function to `v`.
    pub(crate) fn visit<R: Real, V: Apply<R>>(&self, v: V) -> V::Output {
        let of = |parameter: f32| R::of(parameter.into());
        match *self {
            Self::Unary(ref op) => op.visit(v),
            Self::Affine(a, b) => {
                let (a, b) = (of(a), of(b));
                v.apply(move |x| a * x + b)
            }
            Self::ScaledTanh(a, b) => {
                let (a, b) = (of(a), of(b));
                v.apply(
                    #[inline(always)]
                    move |x: R| a * (b * x).tanh(),
                )
            }
        }
    }

    /// Applies the function to every element of a row.
    pub(in crate::op) fn row<R: Real>(&self, x: &mut [R]) {
        self.visit(Row(x));
    }
}

impl Activation {
    /// The derivative at `x`, where the function is `y`; where two slopes meet it is that of the
    /// side below. `None` of functions that no name stands for.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have no name here")]
    #[inline(always)]
    pub(in crate::op) fn slope<R: Real>(&self, x: R, y: R) -> Option<R> {
        let (zero, one) = (R::of(0.0), R::of(1.0));
        let step =
            |bound: f32, above: R, below: R| if x > R::of(bound.into()) { above } else { below };
        Some(match self {
            Self::Affine(a, _) => R::of((*a).into()),
            Self::ScaledTanh(a, b) => {
                let (a, b) = (R::of((*a).into()), R::of((*b).into()));
                let inner = (b * x).tanh();
                a * b * (one - inner * inner)
            }
            Self::Unary(op) => match *op {
                Unary::Relu => step(0.0, one, zero),
                Unary::Tanh => one - y * y,
                Unary::Sigmoid => y * (one - y),
                Unary::Softsign => one / ((one + x.abs()) * (one + x.abs())),
                Unary::Softplus => x.sigmoid(),
                Unary::LeakyRelu { alpha } => step(0.0, one, R::of(alpha.into())),
                Unary::ThresholdedRelu { alpha } => step(alpha, one, zero),
                Unary::Elu { alpha } => step(0.0, one, y + R::of(alpha.into())),
                Unary::HardSigmoid { alpha, .. } if y > zero && y < one => R::of(alpha.into()),
                Unary::HardSigmoid { .. } => zero,
                _ => return None,
            },
        })
    }

    /// The derivatives at the elements of `x`, where the function is those of `y`; see
    /// [`Self::slope`].
    #[inline(always)]
    pub(in crate::op) fn slopes<R: Real>(&self, x: &[R], y: &[R], to: &mut [R]) {
        let each = {
            #[inline(always)]
            |function: &Self, to: &mut [R]| {
                for (to, (x, y)) in to.iter_mut().zip(x.iter().zip(y)) {
                    *to = invariant(function.slope(*x, *y), "that functions of gates have slopes");
                }
            }
        };
        // Loops of their own, of which vectors are made.
        match self {
            Self::Unary(Unary::Sigmoid) => each(&Self::SIGMOID, to),
            Self::Unary(Unary::Tanh) => each(&Self::TANH, to),
            Self::Unary(_) | Self::Affine(..) | Self::ScaledTanh(..) => each(self, to),
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (name, [Some(a), Some(b)]) => write!(f, "{name}({a:?}, {b:?})"),
            (name, [Some(a), None]) => write!(f, "{name}({a:?})"),
            (name, _) => f.write_str(name),
        }
    }
}

impl AttrValue for Activation {
    const EXPECTED: &'static str = "a function: affine(a, b), elu(a), hard_sigmoid(a, b), \
        leaky_relu(a), relu, \
        scaled_tanh(a, b), sigmoid, softplus, softsign, tanh or thresholded_relu(a)";

    fn to_attr(&self) -> Option<Attr> {
        Some(Attr::Name(self.to_string()))
    }

    fn from_attr(attr: &Attr) -> Option<Self> {
        let Attr::Name(text) = attr else { return None };
        let (name, list) = match text.split_once('(') {
            None => (text.as_str(), None),
            Some((name, list)) => (name, Some(list.strip_suffix(')')?)),
        };
        let mut given = list.into_iter().flat_map(|list| list.split(','));
        let mut next = || given.next().map(|x| x.trim().parse::<f32>().ok());
        let parameters = [next(), next()];
        let function = Self::new(name, parameters[0].flatten(), parameters[1].flatten())?;
        // All parameters are given, and no others.
        let wanted = function.parts().1.map(|p| p.is_some());
        let fits = parameters.iter().zip(wanted).all(|(p, w)| match p {
            None => !w,
            Some(number) => w && number.is_some(),
        });
        (fits && given.next().is_none()).then_some(function)
    }
}

#[cfg(test)]
mod tests {
    use super::Activation;
    use crate::op::attr::{Attr, AttrValue};

    /// The names of all functions.
    const NAMES: [&str; 11] = [
        "relu",
        "tanh",
        "sigmoid",
        "softsign",
        "softplus",
        "leaky_relu",
        "thresholded_relu",
        "elu",
        "hard_sigmoid",
        "affine",
        "scaled_tanh",
    ];

    #[test]
    fn a_printed_function_is_read_again() {
        for name in NAMES {
            for (alpha, beta) in
                [(None, None), (Some(0.1), Some(-3e-9)), (Some(f32::INFINITY), None)]
            {
                let function = Activation::new(name, alpha, beta).unwrap();
                let attr = function.to_attr().unwrap();
                let read = Activation::from_attr(&attr).unwrap();
                assert_eq!(read.to_attr().unwrap(), attr);
            }
        }
        for text in [
            "",
            "erf",
            "relu(1)",
            "relu()",
            "elu",
            "elu(",
            "elu()",
            "elu(x)",
            "elu(1, 2)",
            "affine(1)",
            "affine(1, 2, 3)",
            "affine(1, 2",
            "tanh,",
            "affine(1,)",
        ] {
            assert!(Activation::from_attr(&Attr::Name(text.to_owned())).is_none(), "{text}");
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the values are exact")]
    fn a_row_is_mapped() {
        let map = |name, alpha, beta| {
            let mut row = [-1.0f64, 0.0, 2.0];
            Activation::new(name, alpha, beta).unwrap().row(&mut row);
            row
        };
        assert_eq!(map("affine", Some(2.0), Some(1.0)), [-1.0, 1.0, 5.0]);
        assert_eq!(map("relu", None, None), [0.0, 0.0, 2.0]);
        assert_eq!(
            map("scaled_tanh", Some(3.0), Some(0.5))[2],
            3.0 * crate::op::real::Real::tanh(1.0f64)
        );
    }
}
