use super::DataError;
use crate::types::{DType, Element, Quoted, Shape, Tensor, TensorType};

/// One array of a source: its name, and what it holds for each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// The name. `sample_weight` is the weight of the row.
    pub name: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The sizes of the axes of one row; none for a number.
    pub dims: Vec<usize>,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, dtype: DType, dims: &[usize]) -> Self {
        Self { name: name.into(), dtype, dims: dims.to_vec() }
    }

    /// The column whose rows are those of a tensor; `None` where a size behind the rows is not
    /// known.
    pub(crate) fn of(name: impl Into<String>, ty: &TensorType) -> Option<Self> {
        let sizes = ty.shape.iter().skip(1).map(|d| usize::try_from(d.as_const()?).ok());
        Some(Self { name: name.into(), dtype: ty.dtype, dims: sizes.collect::<Option<_>>()? })
    }

    /// True if a row has these sizes, except for axes of size 1.
    pub(crate) fn has_sizes(&self, dims: &[usize]) -> bool {
        let own = self.dims.iter().filter(|size| **size != 1);
        own.eq(dims.iter().filter(|size| **size != 1))
    }

    /// The type of one row.
    pub(crate) fn row_type(&self) -> TensorType {
        TensorType::new(self.dtype, Shape::from(self.dims.as_slice()))
    }

    /// The elements of one row; `None` where they cannot be counted.
    pub(crate) fn elements(&self) -> Option<usize> {
        self.dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
    }

    /// The bytes of one row; `None` where they cannot be counted.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.elements()?.checked_mul(self.dtype.bytes())
    }
}

/// Fails unless the columns can be those of a source: names that differ, rows that hold elements
/// and can be counted.
pub(super) fn check(columns: &[Column]) -> Result<(), DataError> {
    if columns.is_empty() {
        return Err(DataError::Columns("the data hold no array".to_owned()));
    }
    for (i, column) in columns.iter().enumerate() {
        let shown = Quoted(&column.name);
        if columns[..i].iter().any(|other| other.name == column.name) {
            return Err(DataError::Columns(format!("the array {shown} occurs twice")));
        }
        match column.bytes() {
            None => {
                let ty = column.row_type();
                return Err(DataError::Columns(format!("a row of {shown}, {ty}, is too large")));
            }
            Some(0) => {
                let ty = column.row_type();
                let reason = format!("a row of {shown}, {ty}, has no elements");
                return Err(DataError::Columns(reason));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The place of the column with this name.
pub(super) fn find(columns: &[Column], name: &str) -> Result<usize, DataError> {
    columns.iter().position(|column| column.name == name).ok_or_else(|| {
        let known: Vec<String> = columns.iter().map(|c| Quoted(&c.name).to_string()).collect();
        let known = known.join(", ");
        DataError::Columns(format!("there is no array {}; there are {known}", Quoted(name)))
    })
}

/// The memory of one row that is to be written: the elements of every column.
#[derive(Debug)]
pub struct RowMut<'a> {
    columns: &'a [Column],
    cells: Vec<&'a mut [u8]>,
}

impl<'a> RowMut<'a> {
    /// A row in these cells, one for each column and as long as its row.
    pub(super) fn new(columns: &'a [Column], cells: Vec<&'a mut [u8]>) -> Self {
        Self { columns, cells }
    }

    /// The columns.
    pub fn columns(&self) -> &[Column] {
        self.columns
    }

    /// The elements of a column as bytes in native order, to write to: zeros, or what another row
    /// had. A truth value is 0 or 1.
    ///
    /// # Panics
    /// If there is no such column: a bug in the caller.
    pub(crate) fn bytes(&mut self, column: usize) -> &mut [u8] {
        self.cells[column]
    }

    /// Writes the elements of a column.
    ///
    /// # Errors
    /// If they are not of its type (`u8` writes `bool` as well), or more or fewer than a row has.
    pub fn write<T: Element>(&mut self, column: usize, elements: &[T]) -> Result<(), DataError> {
        let wrong = |reason: String| Err(DataError::Columns(reason));
        let Some(Column { name, dtype, .. }) = self.columns.get(column) else {
            return wrong(format!("there is no array {column}"));
        };
        let (name, bytes) = (Quoted(name), bytemuck::cast_slice::<T, u8>(elements));
        if *dtype != T::DTYPE && !(*dtype == DType::Bool && T::DTYPE == DType::U8) {
            return wrong(format!("the array {name} is written as {}; it is {dtype}", T::DTYPE));
        }
        let cell = &mut self.cells[column];
        if cell.len() != bytes.len() {
            let (found, expected) = (elements.len(), cell.len() / dtype.bytes());
            return wrong(format!("a row of {name} has {expected} elements; {found} are written"));
        }
        cell.copy_from_slice(bytes);
        if *dtype == DType::Bool {
            truths(cell);
        }
        Ok(())
    }
}

/// Makes truth values 0 or 1.
pub(super) fn truths(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = u8::from(*byte != 0);
    }
}

/// A row of its own: zeros in a tensor for each column.
pub(super) fn zeros(columns: &[Column]) -> Result<Vec<Tensor>, DataError> {
    let zeros = |c: &Column| Tensor::zeros(c.dtype, &c.dims).map_err(DataError::from);
    columns.iter().map(zeros).collect()
}

/// Reads into a row of its own.
pub(super) fn read_into<T>(
    columns: &[Column],
    row: &mut [Tensor],
    read: impl FnOnce(&mut RowMut<'_>) -> Result<T, DataError>,
) -> Result<T, DataError> {
    read(&mut RowMut::new(columns, row.iter_mut().map(Tensor::bytes_mut).collect()))
}

#[cfg(test)]
mod tests {
    use super::{Column, DType, check, find, read_into, zeros};

    #[test]
    fn rows_are_written_as_their_columns_say() {
        let columns = [Column::new("x", DType::F32, &[2]), Column::new("m", DType::Bool, &[2])];
        check(&columns).unwrap();
        let mut row = zeros(&columns).unwrap();
        read_into(&columns, &mut row, |row| {
            row.write(0, &[1.0f32, 2.0])?;
            row.write(1, &[7u8, 0])?;
            assert!(row.write(0, &[1.0f64, 2.0]).unwrap_err().to_string().contains("is f32"));
            assert!(row.write(0, &[1.0f32]).unwrap_err().to_string().contains("1 are written"));
            assert!(row.write(2, &[1.0f32]).is_err());
            assert_eq!(row.bytes(0).len(), 8);
            Ok(())
        })
        .unwrap();
        assert_eq!(row[0].as_slice::<f32>(), [1.0, 2.0]);
        assert_eq!(row[1].bytes(), [1, 0]);
    }

    #[test]
    fn columns_that_no_row_can_have_are_refused() {
        for (columns, reason) in [
            (vec![], "no array"),
            (vec![Column::new("x", DType::F32, &[0])], "no elements"),
            (vec![Column::new("x", DType::F32, &[usize::MAX, 2])], "too large"),
            (vec![Column::new("x", DType::U8, &[1]), Column::new("x", DType::U8, &[1])], "twice"),
        ] {
            let error = check(&columns).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let error = find(&[Column::new("x", DType::U8, &[])], "z").unwrap_err();
        assert_eq!(error.to_string(), "there is no array `z`; there are `x`");
    }
}
