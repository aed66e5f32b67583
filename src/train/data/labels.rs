//! Labels: classes as numbers and as rows of ones and zeros, weights of classes.

use std::collections::BTreeMap;

use super::column::find;
use super::{Change, Column, DataError, RowKey};
use crate::op::converted;
use crate::types::{DType, Quoted, Tensor};

/// The name of the column that holds the weight of a row, for the losses of all outputs.
pub const SAMPLE_WEIGHT: &str = "sample_weight";

/// The name of the column that holds the masks of the losses of all outputs.
pub(crate) const SAMPLE_MASK: &str = "sample_mask";

/// The elements in another type: exact, except that a float may be rounded to the nearest of its
/// new type.
pub(super) fn convert(tensor: &Tensor, to: DType) -> Result<Tensor, String> {
    let cast =
        |tensor: &Tensor, to: DType| converted(tensor, to).map_err(|error| error.to_string());
    let made = cast(tensor, to)?;
    // A float holds every truth value, and is near every number.
    if to.is_float() || tensor.dtype() == to {
        return Ok(made);
    }
    let after = integers(&made);
    let wrong = if tensor.dtype().is_float() {
        let values = tensor.to_f64().into_iter();
        values.zip(after).find(|(x, y)| !is(*x, *y)).map(|(x, _)| x.to_string())
    } else {
        let values = integers(tensor).into_iter();
        values.zip(after).find(|(x, y)| x != y).map(|(x, _)| x.to_string())
    };
    wrong.map_or(Ok(made), |x| Err(format!("{x} is not of type {to}; give a number that is")))
}

/// The elements of a tensor of integers or truth values.
fn integers(tensor: &Tensor) -> Vec<i128> {
    let unsigned = tensor.dtype() == DType::U64;
    let wide = |x: i64| if unsigned { x.cast_unsigned().into() } else { x.into() };
    tensor.to_i64().unwrap_or_default().into_iter().map(wide).collect()
}

/// True if a number is this integer.
fn is(x: f64, integer: i128) -> bool {
    #[expect(clippy::cast_possible_truncation, reason = "integers only, and none beyond its range")]
    let same = x.is_finite() && x.fract() == 0.0 && x as i128 == integer;
    same
}

/// Classes as numbers become zeros with a one at the place of the class. An axis of size 1 where
/// the classes' comes goes.
#[derive(Clone, Debug)]
pub(crate) struct Categorical {
    /// The column of the numbers, from 0.
    pub column: String,
    /// The number of classes.
    pub classes: usize,
    /// The axis of the row that the classes get: as many are before it.
    pub axis: usize,
    /// The type of the zeros and ones.
    pub dtype: DType,
}

impl Categorical {
    /// The sizes of a row of numbers before the axis of the classes, and behind it.
    fn around<'a>(&self, column: &'a Column) -> Result<(&'a [usize], &'a [usize]), DataError> {
        let Some((before, behind)) = column.dims.split_at_checked(self.axis) else {
            let (name, ty, axis) = (Quoted(&column.name), column.row_type(), self.axis);
            let reason = format!("{name}, {ty}, has fewer than {axis} axes to put before classes");
            return Err(DataError::Columns(reason));
        };
        Ok((before, behind.strip_prefix(&[1]).unwrap_or(behind)))
    }
}

impl Change for Categorical {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        let (place, name) = (find(before, &self.column)?, Quoted(&self.column));
        let mut columns = before.to_vec();
        let column = &mut columns[place];
        if self.classes == 0 {
            return Err(DataError::Setting(format!("there are no classes for {name}")));
        }
        if column.dtype == DType::Bool {
            return Err(DataError::Columns(format!("{name} holds truth values, not classes")));
        }
        let (before_it, behind) = self.around(column)?;
        column.dims = [before_it, &[self.classes], behind].concat();
        column.dtype = self.dtype;
        Ok(columns)
    }

    fn apply(
        &self,
        key: &RowKey,
        before: &[Column],
        row: &mut Vec<Tensor>,
    ) -> Result<(), DataError> {
        let place = find(before, &self.column)?;
        let wrong =
            |reason: String| DataError::row(key.row, format!("{}: {reason}", Quoted(&self.column)));
        let found = convert(&row[place], DType::I64).map_err(wrong)?;
        let (outer, inner) = self.around(&before[place])?;
        let mut ones = Tensor::zeros(DType::U8, &[outer, &[self.classes], inner].concat())?;
        let cells = ones.as_mut_slice::<u8>();
        let width: usize = inner.iter().product();
        for (i, class) in found.as_slice::<i64>().iter().enumerate() {
            let classes = self.classes;
            let cell = usize::try_from(*class).ok().filter(|class| *class < classes);
            let cell =
                cell.ok_or_else(|| wrong(format!("there is no class {class} of {classes}")))?;
            cells[(i / width * classes + cell) * width + i % width] = 1;
        }
        row[place] = convert(&ones, self.dtype).map_err(wrong)?;
        Ok(())
    }
}

/// Rows with a number for each class become the number of the class with the largest, the first of
/// several: `i64`.
#[derive(Clone, Debug)]
pub(crate) struct Integer {
    /// The column.
    pub column: String,
    /// The axis of its rows that has the classes, which goes.
    pub axis: usize,
}

/// The place of the largest of `classes` numbers, `width` apart, for all that are not of the same.
fn largest(tensor: &Tensor, classes: usize, width: usize) -> Result<Vec<i64>, String> {
    let values = tensor.to_f64();
    if values.iter().any(|x| x.is_nan()) {
        return Err("a class has the value NaN".to_owned());
    }
    let largest = |group: &[f64], at: usize| {
        let value = |class: usize| group[class * width + at];
        let first = (0..classes).reduce(|a, b| if value(b) > value(a) { b } else { a });
        i64::try_from(first.unwrap_or(0)).unwrap_or(i64::MAX)
    };
    let groups = values.chunks_exact((classes * width).max(1));
    Ok(groups.flat_map(|group| (0..width).map(move |at| largest(group, at))).collect())
}

impl Change for Integer {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        let place = find(before, &self.column)?;
        let mut columns = before.to_vec();
        let column = &mut columns[place];
        if self.axis >= column.dims.len() {
            let (name, ty, axis) = (Quoted(&self.column), column.row_type(), self.axis);
            let reason = format!("{name}, {ty}, has no axis {axis} with one element per class");
            return Err(DataError::Columns(reason));
        }
        column.dims.remove(self.axis);
        column.dtype = DType::I64;
        Ok(columns)
    }

    fn apply(
        &self,
        key: &RowKey,
        before: &[Column],
        row: &mut Vec<Tensor>,
    ) -> Result<(), DataError> {
        let place = find(before, &self.column)?;
        let mut dims = before[place].dims.clone();
        let width: usize = dims.iter().skip(self.axis + 1).product();
        let classes = dims.remove(self.axis);
        let wrong = |reason| DataError::row(key.row, format!("{}: {reason}", Quoted(&self.column)));
        row[place] = Tensor::new(&dims, &largest(&row[place], classes, width).map_err(wrong)?)?;
        Ok(())
    }
}

/// Weighs each row by its class: the `sample_weight` of a row is multiplied by the weight of its
/// class, or becomes it where there is none. It is `f64` then.
#[derive(Clone, Debug)]
pub struct ClassWeights {
    /// The column of the classes, one for each row: as a number, or as a number for each class.
    pub column: String,
    /// The weights; a class that is not among them has 1.
    pub weights: BTreeMap<i64, f64>,
    /// The column of the weights of rows, as [`SAMPLE_WEIGHT`].
    pub into: String,
}

/// The class of a row: its number, or the place of the largest of its numbers.
fn class(column: &Column, tensor: &Tensor) -> Result<i64, String> {
    let classes = column.elements().unwrap_or(1);
    let found = if classes > 1 {
        largest(tensor, classes, 1)?
    } else {
        convert(tensor, DType::I64)?.as_slice::<i64>().to_vec()
    };
    found.first().copied().ok_or_else(|| "it has no class".to_owned())
}

impl Change for ClassWeights {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        let labels = &before[find(before, &self.column)?];
        let shown = Quoted(&self.column);
        if labels.dims.iter().filter(|d| **d > 1).count() > 1 {
            let reason =
                format!("{shown}, {}, has more than one class for a row", labels.row_type());
            return Err(DataError::Columns(format!("{reason}; class weights cannot be used")));
        }
        if let Some((class, weight)) =
            self.weights.iter().find(|(_, w)| !w.is_finite() || **w < 0.0)
        {
            let reason = format!("the weight of class {class} is {weight}; it must be at least 0");
            return Err(DataError::Setting(reason));
        }
        let mut columns = before.to_vec();
        let Some(column) = columns.iter_mut().find(|c| c.name == self.into) else {
            columns.push(Column::new(&self.into, DType::F64, &[]));
            return Ok(columns);
        };
        if column.dtype == DType::Bool || column.elements() != Some(1) {
            let (name, ty) = (Quoted(&self.into), column.row_type());
            let reason = format!("{name} is {ty} for a row; it must be one number");
            return Err(DataError::Columns(reason));
        }
        column.dtype = DType::F64;
        Ok(columns)
    }

    fn apply(
        &self,
        key: &RowKey,
        before: &[Column],
        row: &mut Vec<Tensor>,
    ) -> Result<(), DataError> {
        let place = find(before, &self.column)?;
        let wrong = |reason| DataError::row(key.row, format!("{}: {reason}", Quoted(&self.column)));
        let class = class(&before[place], &row[place]).map_err(wrong)?;
        let weight = self.weights.get(&class).copied().unwrap_or(1.0);
        let Some(into) = before.iter().position(|c| c.name == self.into) else {
            row.push(Tensor::scalar(weight));
            return Ok(());
        };
        let product = row[into].to_f64().first().map_or(weight, |old| old * weight);
        row[into] = Tensor::scalar(product).reshaped(&before[into].dims)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Categorical, Change, ClassWeights, Column, DType, Integer, RowKey, SAMPLE_WEIGHT, Tensor,
        convert,
    };

    /// The columns and the row that a change makes of a row with one column.
    fn change(
        change: &dyn Change,
        name: &str,
        cell: Tensor,
    ) -> Result<(Vec<Column>, Vec<Tensor>), String> {
        let before = [Column::new(name, cell.dtype(), cell.dims())];
        let columns = change.columns(&before).map_err(|e| e.to_string())?;
        let mut row = vec![cell];
        let key = RowKey { row: 9, ..RowKey::default() };
        change.apply(&key, &before, &mut row).map_err(|e| e.to_string())?;
        let types = columns.iter().map(Column::row_type);
        assert!(types.eq(row.iter().map(Tensor::tensor_type)));
        Ok((columns, row))
    }

    #[test]
    fn classes_become_ones_and_back() {
        let ones_at =
            |axis| Categorical { column: "y".to_owned(), classes: 3, axis, dtype: DType::F32 };
        let integer_at = |axis| Integer { column: "y".to_owned(), axis };
        let (ones, integer) = (ones_at(0), integer_at(0));
        for label in 0..3u8 {
            for cell in [Tensor::scalar(label), Tensor::new(&[1], &[f64::from(label)]).unwrap()] {
                let (_, row) = change(&ones, "y", cell).unwrap();
                let mut expected = [0.0f32; 3];
                expected[usize::from(label)] = 1.0;
                assert_eq!(row[0], Tensor::new(&[3], &expected).unwrap());
                let (_, row) = change(&integer, "y", row[0].clone()).unwrap();
                assert_eq!(row[0], Tensor::scalar(i64::from(label)));
            }
        }
        let words = Tensor::new(&[2, 1], &[2i32, 0]).unwrap();
        let (columns, row) = change(&ones_at(1), "y", words.clone()).unwrap();
        assert_eq!(columns[0].dims, [2, 3]);
        assert_eq!(row[0].as_slice::<f32>(), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        let (columns, row) = change(&ones, "y", words).unwrap();
        assert_eq!(columns[0].dims, [3, 2, 1]);
        assert_eq!(row[0].as_slice::<f32>(), [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
        let first = Tensor::new(&[2, 2], &[1.0f32, 1.0, -2.0, -1.0]).unwrap();
        assert_eq!(
            change(&integer_at(1), "y", first.clone()).unwrap().1[0].as_slice::<i64>(),
            [0, 1]
        );
        assert_eq!(change(&integer, "y", first).unwrap().1[0].as_slice::<i64>(), [0, 0]);
        // Between axes, there and back.
        let between = Tensor::new(&[2, 2], &[2i64, 0, 1, 2]).unwrap();
        let (columns, row) = change(&ones_at(1), "y", between.clone()).unwrap();
        assert_eq!(columns[0].dims, [2, 3, 2]);
        let expected = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0];
        assert_eq!(row[0].as_slice::<f32>(), expected);
        assert_eq!(change(&integer_at(1), "y", row[0].clone()).unwrap().1[0], between);
        let error = change(&ones_at(3), "y", between).unwrap_err();
        assert!(error.contains("`y`, i64[2,2], has fewer than 3 axes"), "{error}");
        for (wrong, reason) in [
            (Tensor::scalar(3i64), "row 9: `y`: there is no class 3 of 3"),
            (Tensor::scalar(-1i8), "no class -1"),
            (Tensor::scalar(0.5f32), "0.5 is not of type i64"),
            (Tensor::scalar(f64::NAN), "NaN is not of type i64"),
            (Tensor::scalar(u64::MAX), "is not of type i64"),
        ] {
            let error = change(&ones, "y", wrong).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(change(&integer, "y", Tensor::scalar(1i64)).is_err());
        assert!(change(&integer, "y", Tensor::new(&[1], &[f32::NAN]).unwrap()).is_err());
    }

    #[test]
    fn weights_of_classes_weigh_rows() {
        let weights = [(0, 0.5), (2, 4.0)].into();
        let weigh =
            ClassWeights { column: "y".to_owned(), weights, into: SAMPLE_WEIGHT.to_owned() };
        for (cell, weight) in [
            (Tensor::scalar(0u8), 0.5f64),
            (Tensor::scalar(1i64), 1.0),
            (Tensor::new(&[3], &[0.0f32, 0.0, 1.0]).unwrap(), 4.0),
        ] {
            let (columns, row) = change(&weigh, "y", cell).unwrap();
            assert_eq!(columns[1].name, SAMPLE_WEIGHT);
            assert_eq!(row[1], Tensor::scalar(weight));
        }
        for (own, product) in [
            (Tensor::new(&[1], &[0.25f64]).unwrap(), 1.0),
            (Tensor::new(&[1], &[0.5f32]).unwrap(), 2.0),
            (Tensor::new(&[1], &[3u8]).unwrap(), 12.0),
        ] {
            let of = |dtype| {
                [Column::new("y", DType::I64, &[]), Column::new(SAMPLE_WEIGHT, dtype, &[1])]
            };
            let before = of(own.dtype());
            assert_eq!(weigh.columns(&before).unwrap(), of(DType::F64));
            let mut row = vec![Tensor::scalar(2i64), own];
            weigh.apply(&RowKey::default(), &before, &mut row).unwrap();
            assert_eq!(row[1], Tensor::new(&[1], &[product]).unwrap());
        }
        let many = change(&weigh, "y", Tensor::zeros(DType::F32, &[2, 3]).unwrap()).unwrap_err();
        assert!(many.contains("more than one class"), "{many}");
        let negative = ClassWeights { weights: [(1, -1.0)].into(), ..weigh };
        assert!(change(&negative, "y", Tensor::scalar(0u8)).is_err());
    }

    #[test]
    fn elements_change_their_type_where_they_fit() {
        for (from, to, fits) in [
            (Tensor::scalar(0.1f64), DType::F32, true),
            (Tensor::scalar(3.0f32), DType::U8, true),
            (Tensor::scalar(-0.0f32), DType::I32, true),
            (Tensor::scalar(256i64), DType::U8, false),
            (Tensor::scalar(-1i64), DType::U64, false),
            (Tensor::scalar(u64::MAX), DType::U64, true),
            (Tensor::scalar(1e300f64), DType::I64, false),
            (Tensor::scalar(9_223_372_036_854_775_808.0f64), DType::I64, false),
            (Tensor::scalar(9_223_372_036_854_775_808.0f64), DType::U64, true),
            (Tensor::scalar(f32::NAN), DType::U8, false),
            (Tensor::scalar(f32::INFINITY), DType::U64, false),
            (Tensor::scalar(0.5f32), DType::Bool, false),
            (Tensor::scalar(2u8), DType::Bool, false),
            (Tensor::scalar(1u8), DType::Bool, true),
        ] {
            assert_eq!(convert(&from, to).is_ok(), fits, "{from:?} {to}");
        }
    }
}
