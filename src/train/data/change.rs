use super::{Column, DataError, RowKey};
use crate::types::Tensor;

/// A transform of rows, called on any thread and in any order of rows.
pub trait Change: Send + Sync {
    /// The columns of the rows that it makes, of those that it is given.
    ///
    /// # Errors
    /// If it cannot be given such rows.
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError>;

    /// Makes the row: it has a tensor for each column of `before`, and afterwards one for each of
    /// those that [`columns`](Change::columns) says. What is drawn is drawn from `key` alone.
    ///
    /// # Errors
    /// If the row holds what it may not.
    fn apply(
        &self,
        key: &RowKey,
        before: &[Column],
        row: &mut Vec<Tensor>,
    ) -> Result<(), DataError>;
}
