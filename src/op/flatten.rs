//! A matrix of all elements.

use super::prelude::*;
use super::view::View;

op! {
    /// The elements of its operand as a matrix: the axes before `axis` are its rows, the others its
    /// columns.
    pub struct Flatten = "flatten" is CHEAP | FOLLOWS_BLOCKS {
        /// The first axis of the columns, from minus the number of axes to that number.
        pub axis: i64 = 1,
    }
}

impl Flatten {
    /// The number of axes that make the rows.
    fn rows(&self, rank: usize) -> Result<usize, OpError> {
        let rank_i = i64::try_from(rank).unwrap_or(i64::MAX);
        let at = if self.axis < 0 { self.axis.saturating_add(rank_i) } else { self.axis };
        usize::try_from(at).ok().filter(|at| *at <= rank).ok_or_else(|| {
            OpError::attr("axis", format!("{} does not divide a value with {rank} axes", self.axis))
        })
    }
}

impl View for Flatten {
    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let (rows, columns) = x.shape.split_at(self.rows(x.rank())?);
        let product = |sizes: &[Dim]| sizes.iter().fold(Dim::ONE, |product, d| product * d.clone());
        Ok([product(rows), product(columns)].into_iter().collect())
    }
}
