use std::path::Path;

use super::column::{check, truths};
use super::{Column, DataError, RowMut, Source};
use crate::format::{Array, Budget, npy, npz, safetensors};
use crate::types::{DType, Quoted};

/// Arrays that hold the rows along their first axis. Those of files are mapped: a row is read when
/// it is used.
#[derive(Clone, Debug)]
pub struct Arrays {
    columns: Vec<Column>,
    held: Vec<Array>,
    rows: usize,
}

impl Arrays {
    /// The rows of these arrays, by name.
    ///
    /// # Errors
    /// If they differ in their rows, or one is a number or holds nothing.
    pub fn new<N: Into<String>, A: Into<Array>>(
        arrays: impl IntoIterator<Item = (N, A)>,
    ) -> Result<Self, DataError> {
        let (mut columns, mut held): (Vec<Column>, Vec<Array>) = (Vec::new(), Vec::new());
        let mut first: Option<(String, usize)> = None;
        for (name, array) in arrays {
            let (name, array): (String, Array) = (name.into(), array.into());
            let shown = Quoted(&name);
            let Some((rows, dims)) = array.dims().split_first() else {
                return Err(DataError::Columns(format!(
                    "the array {shown} is a number, without rows; give it an axis of rows"
                )));
            };
            if let Some((other, count)) = first.as_ref().filter(|(_, count)| count != rows) {
                let other = Quoted(other);
                let reason = format!("{other} has {count} rows, {shown} has {rows}");
                return Err(DataError::Columns(format!(
                    "the arrays differ in their rows: {reason}; give each the same number"
                )));
            }
            first.get_or_insert_with(|| (name.clone(), *rows));
            columns.push(Column::new(name, array.dtype(), dims));
            held.push(array);
        }
        check(&columns)?;
        let rows = first.map_or(0, |(_, rows)| rows);
        if rows == 0 {
            return Err(DataError::Columns("the data have no rows; give at least one".to_owned()));
        }
        Ok(Self { columns, held, rows })
    }

    /// The arrays of an `.npz` archive.
    ///
    /// # Errors
    /// If the file is none, what of it must be read takes more than `budget` allows, or as
    /// [`Arrays::new`].
    pub fn npz(path: &Path, budget: &mut Budget) -> Result<Self, DataError> {
        Self::new(npz::map(path, budget)?)
    }

    /// The array of a `.npy` file, under the name `x`.
    ///
    /// # Errors
    /// As [`Arrays::npz`].
    pub fn npy(path: &Path, budget: &mut Budget) -> Result<Self, DataError> {
        Self::new([("x".to_owned(), npy::map(path, budget)?)])
    }

    /// The tensors of a `.safetensors` file.
    ///
    /// # Errors
    /// If the file is none, or as [`Arrays::new`].
    pub(crate) fn safetensors(path: &Path) -> Result<Self, DataError> {
        Self::new(safetensors::map(path)?)
    }
}

impl Source for Arrays {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        for (i, array) in self.held.iter().enumerate() {
            let cell = into.bytes(i);
            let part = array.bytes().chunks_exact(cell.len()).nth(row);
            let part = part.ok_or_else(|| DataError::row(row as u64, "there is no such row"))?;
            cell.copy_from_slice(part);
            if array.dtype() == DType::Bool {
                truths(cell);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Arrays, Budget, Source};
    use crate::format::npz;
    use crate::types::Tensor;

    #[test]
    fn rows_of_a_file_are_those_of_its_arrays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.npz");
        let x: Vec<f32> = (0..24_000u16).map(f32::from).collect();
        let x = Tensor::new(&[4000, 2, 3], &x).unwrap();
        let y: Vec<i64> = (0..4000).collect();
        let y = Tensor::new(&[4000], &y).unwrap();
        let tensors: BTreeMap<String, Tensor> = [("x".to_owned(), x), ("y".to_owned(), y)].into();
        npz::write(&path, &tensors).unwrap();
        let source = Arrays::npz(&path, &mut Budget::new(0)).unwrap();
        assert_eq!(source.rows(), 4000);
        for number in [3999u16, 0, 17] {
            let row = super::super::source::row(&source, number.into()).unwrap();
            let first = f32::from(number) * 6.0;
            assert_eq!(row[0].as_slice::<f32>()[..2], [first, first + 1.0]);
            assert_eq!(row[1].as_slice::<i64>(), [i64::from(number)]);
        }
        assert!(super::super::source::row(&source, 4000).is_err());
    }

    #[test]
    fn arrays_without_rows_are_refused() {
        let tensor = |dims: &[usize]| Tensor::zeros(crate::types::DType::F32, dims).unwrap();
        for (shapes, reason) in [
            (vec![&[] as &[usize]], "no array"),
            (vec![&[2, 3], &[3, 3]], "`a0` has 2 rows, `a1` has 3"),
            (vec![&[0, 3]], "no rows"),
            (vec![&[5, 0]], "no elements"),
        ] {
            let arrays = shapes.iter().enumerate();
            let arrays = arrays.filter(|(_, dims)| !dims.is_empty());
            let arrays = arrays.map(|(i, dims)| (format!("a{i}"), tensor(dims)));
            let error = Arrays::new(arrays).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let number = Arrays::new([("a".to_owned(), Tensor::scalar(1.0f32))]);
        assert!(number.unwrap_err().to_string().contains("is a number"));
    }
}
