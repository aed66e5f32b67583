//! Validation of rows: classes are those of the model, and numbers are finite.

use super::{Change, Column, DataError, RowKey, column};
use crate::types::{DType, Quoted, Tensor};

/// Labels of a column: the numbers of classes.
#[derive(Clone, Debug)]
pub(crate) struct ClassRange {
    /// The column.
    pub column: String,
    /// The number of classes.
    pub classes: usize,
    /// A number that is no class and is not counted.
    pub ignored: Option<i64>,
}

/// Leaves rows as they are, and fails for one that no model can learn from.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowValidator {
    /// Columns whose floats are finite.
    pub finite: Vec<String>,
    /// Columns whose numbers are classes.
    pub classes: Vec<ClassRange>,
    /// Columns of a number for each class, of which one at least is not 0.
    pub ones: Vec<String>,
}

impl Change for RowValidator {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        Ok(before.to_vec())
    }

    fn apply(
        &self,
        key: &RowKey,
        before: &[Column],
        row: &mut Vec<Tensor>,
    ) -> Result<(), DataError> {
        let cell = |name: &str| column::find(before, name).map(|place| &row[place]);
        let wrong = |name: &str, what: String| {
            Err(DataError::row(key.row, format!("{} {what}", Quoted(name))))
        };
        for name in &self.finite {
            finite(key, name, cell(name)?)?;
        }
        for ClassRange { column, classes, ignored } in &self.classes {
            let in_range = |class: &i64| {
                Some(*class) == *ignored
                    || usize::try_from(*class).is_ok_and(|class| class < *classes)
            };
            let labels = cell(column)?.to_i64().unwrap_or_default();
            if let Some(class) = labels.iter().find(|class| !in_range(class)) {
                let last = classes.saturating_sub(1);
                // As the last class has it that is counted from 1.
                let is_next = usize::try_from(*class).is_ok_and(|class| class == *classes);
                let way = if is_next {
                    "; if the classes are numbered from 1, number them from 0"
                } else {
                    ""
                };
                let what = format!(
                    "has the class {class}; the model has the classes 0 to {last}; correct the \
                    label, or use a model with more outputs{way}"
                );
                return wrong(column, what);
            }
        }
        for name in &self.ones {
            if cell(name)?.to_f64().iter().all(|x| *x == 0.0) {
                let what = "has 0 for every class; its class must have a 1";
                return wrong(name, what.to_owned());
            }
        }
        Ok(())
    }
}

/// Fails unless all elements of a column are finite.
pub(super) fn finite(key: &RowKey, name: &str, cell: &Tensor) -> Result<(), DataError> {
    let Some((place, x)) = not_finite(cell) else { return Ok(()) };
    let what = format!("{} has {x} at place {place}; replace it by a finite number", Quoted(name));
    Err(DataError::row(key.row, what))
}

/// The first element that is not finite, and its place.
fn not_finite(tensor: &Tensor) -> Option<(usize, f64)> {
    // Without a copy, for the type that most data have.
    if tensor.dtype() == DType::F32 {
        let elements = tensor.as_slice::<f32>();
        // First without an early end, which would keep the loop from vectors: most rows are sound.
        if elements.iter().fold(true, |all, x| all & x.is_finite()) {
            return None;
        }
        let found = elements.iter().position(|x| !x.is_finite())?;
        return Some((found, f64::from(elements[found])));
    }
    let floats = tensor.dtype().is_float().then(|| tensor.to_f64());
    floats?.into_iter().enumerate().find(|(_, x)| !x.is_finite())
}

#[cfg(test)]
mod tests {
    use super::{ClassRange, RowValidator};
    use crate::train::data::{Change, Column, RowKey};
    use crate::types::{DType, Tensor};

    /// What is said of a row of `x`, `y` and `z`.
    fn said(x: f32, y: i64, z: [f32; 2]) -> Option<String> {
        let columns = [
            Column::new("x", DType::F32, &[]),
            Column::new("y", DType::I64, &[]),
            Column::new("z", DType::F32, &[2]),
        ];
        let sound = RowValidator {
            finite: vec!["x".to_owned()],
            classes: vec![ClassRange { column: "y".to_owned(), classes: 3, ignored: Some(-1) }],
            ones: vec!["z".to_owned()],
        };
        let mut row = vec![Tensor::scalar(x), Tensor::scalar(y), Tensor::new(&[2], &z).unwrap()];
        let key = RowKey { row: 7, ..RowKey::default() };
        sound.apply(&key, &columns, &mut row).err().map(|e| e.to_string())
    }

    #[test]
    fn rows_that_nothing_is_learned_from_are_named() {
        for y in [-1, 0, 2] {
            assert_eq!(said(1.0, y, [0.0, 1.0]), None);
        }
        let with = |said: Option<String>, texts: [&str; 3]| {
            let said = said.unwrap();
            for text in texts {
                assert!(said.contains(text), "{said}");
            }
        };
        with(said(1.0, 3, [0.0, 1.0]), ["row 7", "class 3", "number them from 0"]);
        with(said(1.0, -2, [0.0, 1.0]), ["row 7", "class -2", "0 to 2"]);
        let far = said(1.0, 99, [0.0, 1.0]).unwrap();
        assert!(far.ends_with("correct the label, or use a model with more outputs"), "{far}");
        with(said(f32::NAN, 0, [0.0, 1.0]), ["row 7", "NaN", "place 0"]);
        with(said(f32::INFINITY, 0, [0.0, 1.0]), ["row 7", "inf", "finite"]);
        with(said(1.0, 0, [0.0, 0.0]), ["row 7", "`z`", "every class"]);
    }
}
