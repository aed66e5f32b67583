//! Exclusive prefix scan over the replicas.

use smallvec::SmallVec;

use super::AllReduce;
use super::element::{Float, Int, for_dtype};
use super::infer::{known_all, results};
use super::prelude::*;
use super::wide::{Product, Wide};

op! {
    /// For each of its operands, the parts of a partial value in the order of the replicas, what
    /// those before it give together: a result for each. Of nothing that is the neutral element, so
    /// it is of the first, and of one operand.
    ///
    /// Parts of replicas without rows are left out. Floats are combined in `f64`, one part after
    /// the other, and rounded once.
    ///
    /// Elsewhere: exclusive prefix sum (PyTorch).
    pub struct ExclusiveScan = "exclusive_scan" is COLLECTIVE | WIDE_PARTS {
        /// The combiner: `sum`, `prod`, `max`, `min`, `wide_sum` or `wide_prod`.
        pub by: Combine,
        /// Those behind it instead of those before.
        pub reverse: bool = false,
        /// The rows of the replica that each part comes from.
        pub rows: Vec<Dim>,
    }
}

/// A tensor like `x` of what changes nothing.
fn neutral(by: Combine, x: &Tensor) -> Result<Tensor, OpError> {
    let mut y = Tensor::zeros(x.dtype(), x.dims())?;
    if by == Combine::WideProd {
        // Digits, then powers of 2.
        let results = x.len() / Product::WIDTH;
        let (digits, powers) = y.as_mut_slice::<f64>().split_at_mut(results);
        digits.fill(Product::EMPTY.component(0));
        powers.fill(Product::EMPTY.component(1));
        return Ok(y);
    }
    let value = match by {
        Combine::Prod | Combine::WideProd => 1.0,
        Combine::Max => f64::NEG_INFINITY,
        Combine::Min => f64::INFINITY,
        Combine::Sum
        | Combine::WideSum
        | Combine::Lse
        | Combine::L2
        | Combine::Mean
        | Combine::Moments => 0.0,
    };
    for_dtype!(
        y.dtype(),
        float F => y.as_mut_slice::<F>().fill(F::of_f64(value)),
        int I => y.as_mut_slice::<I>().fill(<I as Int>::truncate(value)),
        bool => y.bytes_mut().fill(u8::from(by == Combine::Min)),
    );
    Ok(y)
}

impl OpDef for ExclusiveScan {
    fn combines(&self) -> Option<Combine> {
        Some(self.by)
    }

    fn present(&self, n: i64) -> Option<Vec<bool>> {
        Some(self.rows.iter().map(|rows| rows.eval(n) > 0).collect())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let scanless = [Combine::Lse, Combine::L2, Combine::Mean, Combine::Moments];
        if scanless.contains(&self.by) {
            let reason = format!("`{}` has no scan; take sum, prod, max or min", self.by.name());
            return Err(OpError::attr("by", reason));
        }
        AllReduce { by: self.by, rows: self.rows.clone() }.infer(operands)?;
        results(operands.iter().map(|x| x.ty.clone()))
    }

    fn split(&self, _: &Splitting<'_>) -> Result<Claims, Refusal> {
        Err(rules::refuse(Code::NotPerSample, 0, "scans parts, and its operand has none"))
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        match at.operands {
            [x] if x.claim == Claim::Partial(self.by) => at.give(Claim::Own),
            _ => at.needs_whole(),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let rows = known_all("the rows", &self.rows)?;
        let count = operands.len();
        let before = |i: usize| {
            let others = if self.reverse { i + 1..count } else { 0..i };
            let present = others.filter(|j| rows.get(*j).is_some_and(|n| *n > 0));
            let parts: SmallVec<[&Tensor; 8]> = present.map(|j| operands[j]).collect();
            if parts.is_empty() {
                return Ok(vec![neutral(self.by, operands[i])?]);
            }
            AllReduce { by: self.by, rows: vec![Dim::ONE; parts.len()] }.eval(&parts)
        };
        let scanned = (0..count).map(before).collect::<Result<Vec<_>, OpError>>()?;
        Ok(scanned.into_iter().flatten().collect())
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it joins the values of replicas; gradients are taken before")
    }
}
