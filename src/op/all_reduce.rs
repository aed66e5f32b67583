//! One value from the parts that the replicas hold of it.

use super::attr::{Attr, AttrValue};
use super::element::{Float, Int, for_dtype};
use super::infer::{known_all, result};
use super::narrow;
use super::prelude::*;
use super::real::Real;
use super::reduce::{larger, smaller};
use super::wide::{LargeSum, Moments, Product, Sum, Wide};

op! {
    /// The combination of its operands, the parts of a partial value in the order of the replicas.
    ///
    /// Parts of replicas without rows are left out; where no replica has any, the first part is the
    /// result. Floats are combined in `f64`, one part after the other, and rounded once; wide sums
    /// and products, and moments, are not rounded. Of one part it is the identity.
    ///
    /// Elsewhere: all-reduce (XLA); `all_reduce` (PyTorch); cross-replica sum (Keras).
    pub struct AllReduce = "all_reduce" is COLLECTIVE | WIDE_PARTS {
        /// The combiner.
        pub by: Combine,
        /// The rows of the replica that each part comes from.
        pub rows: Vec<Dim>,
    }
}

impl AttrValue for Combine {
    const EXPECTED: &'static str = "one of sum prod max min lse l2 mean wide_sum wide_prod \
         moments";

    fn to_attr(&self) -> Option<Attr> {
        Some(Attr::Name(self.name().to_owned()))
    }

    fn from_attr(attr: &Attr) -> Option<Self> {
        let Attr::Name(name) = attr else { return None };
        Self::ALL.into_iter().find(|by| by.name() == name)
    }
}

impl OpDef for AllReduce {
    fn combines(&self) -> Option<Combine> {
        Some(self.by)
    }

    fn present(&self, n: i64) -> Option<Vec<bool>> {
        let rows: Vec<i64> = self.rows.iter().map(|rows| rows.eval(n)).collect();
        Some(Self::parts_read(&rows))
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let Some((first, rest)) =
            operands.split_first().filter(|_| operands.len() == self.rows.len())
        else {
            let reason =
                format!("{} numbers of rows for {} parts", self.rows.len(), operands.len());
            return Err(OpError::attr("rows", reason));
        };
        if let Some((i, x)) = rest.iter().enumerate().find(|(_, x)| x.ty != first.ty) {
            let expected = format!("all parts are {}, as part 0 is", first.ty);
            return Err(OpError::shape(i + 1, x.ty, expected));
        }
        let of_floats = matches!(self.by, Combine::Lse | Combine::L2 | Combine::Mean);
        let dtype = first.ty.dtype;
        if of_floats && !dtype.is_float() || dtype == DType::Bool && !self.by.is_exact() {
            let expected = if of_floats { "a float" } else { "a number" }.to_owned();
            return Err(OpError::dtype(0, dtype, expected));
        }
        if self.by.is_wide() {
            narrow::check(self.by, first.ty)?;
        }
        result(first.ty.clone())
    }

    fn split(&self, _: &Splitting<'_>) -> Result<Claims, Refusal> {
        Err(rules::refuse(Code::NotPerSample, 0, "combines parts, and its operand has none"))
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        match at.operands {
            [x] if x.claim == Claim::Partial(self.by) => at.whole(),
            _ => at.needs_whole(),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let rows = known_all("the rows", &self.rows)?;
        let present = Self::parts_read(&rows);
        let parts = operands.iter().copied().zip(rows).zip(present);
        let parts: Vec<(&Tensor, i64)> =
            parts.filter(|(_, present)| *present).map(|(part, _)| part).collect();
        let Some((first, _)) = parts.first() else { return Ok(Vec::new()) };
        let mut y = (*first).clone();
        if self.by.is_wide() {
            self.join(&parts, &mut y)?;
        } else if parts.len() > 1 {
            for_dtype!(
                y.dtype(),
                float F => self.floats::<F>(&parts, y.as_mut_slice()),
                int I => self.ints::<I>(&parts, y.as_mut_slice()),
                bool => self.bools(&parts, &mut y),
            );
        }
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it joins the values of replicas; gradients are taken before")
    }
}

impl AllReduce {
    /// Returns the parts that are read, given the number of rows of each replica.
    fn parts_read(rows: &[i64]) -> Vec<bool> {
        let none = rows.iter().all(|n| *n <= 0);
        rows.iter().enumerate().map(|(i, n)| *n > 0 || (none && i == 0)).collect()
    }

    /// Joins parts of several components.
    fn join(&self, parts: &[(&Tensor, i64)], y: &mut Tensor) -> Result<(), OpError> {
        fn all<W: Wide>(parts: &[(&Tensor, i64)], y: &mut [f64]) {
            let results = y.len() / W::WIDTH;
            // Component-major: component `c` of result `i` lies at `c * results + i`.
            let read = |part: &Tensor, i: usize| {
                W::read(|component| part.as_slice::<f64>()[component * results + i])
            };
            let Some(((first, _), rest)) = parts.split_first() else { return };
            for i in 0..results {
                let joined = rest.iter().fold(read(first, i), |a, (x, _)| a.join(read(x, i)));
                for component in 0..W::WIDTH {
                    y[component * results + i] = joined.component(component);
                }
            }
        }
        narrow::check(self.by, &y.tensor_type())?;
        let components = y.dims()[0];
        let y = y.as_mut_slice();
        match (self.by, components) {
            (Combine::WideProd, _) => all::<Product>(parts, y),
            (Combine::Moments, _) => all::<Moments>(parts, y),
            (_, LargeSum::WIDTH) => all::<LargeSum>(parts, y),
            _ => all::<Sum>(parts, y),
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of rows are far below 2^53")]
    fn floats<F: Float>(&self, parts: &[(&Tensor, i64)], y: &mut [F]) {
        let parts: Vec<(&[F], f64)> =
            parts.iter().map(|(x, n)| (x.as_slice(), *n as f64)).collect();
        let total = parts.iter().fold(0.0, |sum, (_, n)| sum + n);
        // One buffer for all elements: the parts of one element side by side.
        let mut values = vec![0.0f64; parts.len()];
        for (i, y) in y.iter_mut().enumerate() {
            for (value, (part, _)) in values.iter_mut().zip(&parts) {
                *value = part.get(i).map_or(f64::NAN, |x| x.real().to_f64());
            }
            let sum = |f: &dyn Fn(f64) -> f64| values.iter().fold(0.0, |sum, v| sum + f(*v));
            let largest = || values.iter().copied().reduce(larger);
            let combined = match self.by {
                Combine::Sum | Combine::WideSum | Combine::Moments => sum(&|v| v),
                Combine::Prod | Combine::WideProd => values.iter().product(),
                Combine::Max => largest().unwrap_or(f64::NAN),
                Combine::Min => values.iter().copied().reduce(smaller).unwrap_or(f64::NAN),
                // `m + ln(sum of e^(v - m))`: shifted by the largest, no power overflows. An
                // infinite `m` is not subtracted, because `inf - inf` is NaN.
                Combine::Lse => {
                    let m = largest().filter(|m| m.is_finite()).unwrap_or(0.0);
                    m + Real::ln(sum(&|v| Real::exp(v - m)))
                }
                Combine::L2 => sum(&|v| v * v).sqrt(),
                // Replicas may have different numbers of rows: the mean of means weights each by
                // its own.
                Combine::Mean => {
                    let weighted =
                        values.iter().zip(&parts).fold(0.0, |sum, (v, (_, n))| sum + v * n);
                    weighted / total
                }
            };
            *y = F::round(<F::Real as Real>::of(combined));
        }
    }

    fn ints<I: Int>(&self, parts: &[(&Tensor, i64)], y: &mut [I]) {
        for (i, y) in y.iter_mut().enumerate() {
            let values =
                parts.iter().filter_map(|(x, _)| x.as_slice::<I>().get(i)).map(|x| x.wide());
            let combined = match self.by {
                // Wrapped after each factor: a product of a few 64-bit integers is beyond 128 bits.
                // Modulo the type's size the result is the same.
                Combine::Prod | Combine::WideProd => {
                    values.reduce(|a, b| I::wrap(a.wrapping_mul(b)).wide())
                }
                Combine::Max => values.max(),
                Combine::Min => values.min(),
                Combine::Sum
                | Combine::Lse
                | Combine::L2
                | Combine::Mean
                | Combine::WideSum
                | Combine::Moments => values.reduce(i128::wrapping_add),
            };
            *y = I::wrap(combined.unwrap_or(0));
        }
    }

    fn bools(&self, parts: &[(&Tensor, i64)], y: &mut Tensor) {
        for (i, y) in y.bytes_mut().iter_mut().enumerate() {
            let mut values = parts.iter().filter_map(|(x, _)| x.bytes().get(i)).map(|b| *b != 0);
            // Of truth values the greatest is "or", the least "and"; type inference admits no other
            // combiner.
            let any = self.by == Combine::Max;
            *y = u8::from(if any { values.any(|b| b) } else { values.all(|b| b) });
        }
    }
}
