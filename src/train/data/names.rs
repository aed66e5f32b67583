//! Binding of columns to the inputs and outputs of a model.

use std::collections::BTreeMap;

use super::labels::{SAMPLE_MASK, SAMPLE_WEIGHT, convert};
use super::{Batch, Change, Column, DataError, RowKey, column, validate};
use crate::types::{Quoted, Tensor};

/// The columns of the data that a model is fed with.
///
/// An input has the column of its name, and so has the target of an output. The only input may also
/// be `x`, and the only output `y`. `sample_weight` is the weight of a row, or of each of its
/// costs, in the losses of all outputs, `sample_weight:NAME` that in the loss of output `NAME`,
/// which it replaces; `sample_mask` and `sample_mask:NAME` are masks in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Inputs and their columns.
    pub inputs: BTreeMap<String, String>,
    /// Outputs and the columns of their targets.
    pub targets: BTreeMap<String, String>,
    /// Outputs and the columns of their weights, of those that have any.
    pub weights: BTreeMap<String, String>,
    /// Outputs and the columns of their masks, of those that have any.
    pub masks: BTreeMap<String, String>,
}

/// The tensors of a batch by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feed {
    /// The tensors of the inputs.
    pub inputs: BTreeMap<String, Tensor>,
    /// The targets of the outputs.
    pub targets: BTreeMap<String, Tensor>,
    /// The weights of the rows for the outputs that have any.
    pub weights: BTreeMap<String, Tensor>,
    /// The masks of the outputs that have any.
    pub masks: BTreeMap<String, Tensor>,
}

/// Columns by name, as messages list them.
fn listed(columns: &[Column]) -> String {
    const SHOWN: usize = 8;
    let all: Vec<String> =
        columns.iter().take(SHOWN).map(|c| Quoted(&c.name).to_string()).collect();
    let more = columns.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", all.join(", "))
}

/// What columns are for: the inputs of a model, or the targets of its outputs.
struct Use<'a> {
    what: &'static str,
    /// The name that serves for the only one.
    usual: &'static str,
    names: &'a [&'a str],
}

impl Use<'_> {
    /// True for a column that is for it.
    fn has(&self, column: &str) -> bool {
        column == self.usual || self.names.contains(&column)
    }

    /// The name that a column gets.
    fn own<'n>(&self, name: &'n str) -> &'n str {
        if self.names.len() == 1 { self.usual } else { name }
    }

    /// What to do where a name is that of no column.
    fn way(&self, columns: &[Column], name: &str, other: &Use<'_>) -> String {
        let own = self.own(name);
        // Names that differ in their case alone were meant to be the same.
        for name in [name, own] {
            if let Some(found) = columns.iter().find(|c| c.name.eq_ignore_ascii_case(name)) {
                return written(&found.name, name);
            }
        }
        if columns.len() == 1 && self.names.len() > 1 {
            let names: Vec<String> = self.names.iter().map(|n| Quoted(n).to_string()).collect();
            return format!("give an array for each of {}, such as in an .npz", names.join(", "));
        }
        let parts = ["x", "y"].into_iter().filter_map(|usual| Some((part(columns, usual)?, usual)));
        let parts: Vec<(&str, &str)> = parts.collect();
        if parts.iter().any(|(_, usual)| *usual == own) {
            let all: Vec<String> = parts.iter().map(|(found, own)| written(found, own)).collect();
            return all.join(", ");
        }
        let is_free =
            |c: &&Column| !self.has(&c.name) && !other.has(&c.name) && !is_weight(&c.name);
        let free: Vec<&Column> = columns.iter().filter(is_free).collect();
        match &free[..] {
            [] => format!("add it as an array {}", Quoted(own)),
            [one] if self.names.len() == 1 => written(&one.name, own),
            _ => "name it so".to_owned(),
        }
    }
}

/// The only column that is a part of some data, such as `x_train` or `train_x` of `x`, where there
/// is none of the whole.
fn part<'c>(columns: &'c [Column], usual: &str) -> Option<&'c str> {
    let is_part = |name: &str| {
        let mut words = name.split('_');
        let ends = [words.next(), words.next_back()];
        ends[1].is_some() && ends.into_iter().flatten().any(|end| end.eq_ignore_ascii_case(usual))
    };
    let mut names = columns.iter().map(|column| &*column.name).filter(|name| is_part(name));
    let found = names.next()?;
    (names.next().is_none() && columns.iter().all(|c| c.name != usual)).then_some(found)
}

/// Advice to rename a column.
fn written(found: &str, own: &str) -> String {
    format!("write {} as {}", Quoted(found), Quoted(own))
}

/// The columns of one use; `other` is that of the other columns.
fn bind(
    columns: &[Column],
    own: &Use<'_>,
    other: &Use<'_>,
) -> Result<BTreeMap<String, String>, DataError> {
    let Use { what, usual, names } = *own;
    let has = |name: &str| columns.iter().any(|column| column.name == name);
    let mut found = BTreeMap::new();
    for name in names {
        let column = if has(name) {
            *name
        } else if names.len() == 1 && has(usual) {
            usual
        } else {
            let only = names.len() == 1 && *name != usual;
            let only = if only { format!(", and no `{usual}`") } else { String::new() };
            let reason = format!("the data have no array for the {what} {}{only}", Quoted(name));
            let (known, way) = (listed(columns), own.way(columns, name, other));
            return Err(DataError::Columns(format!("{reason}; they have {known}; {way}")));
        };
        found.insert((*name).to_owned(), column.to_owned());
    }
    Ok(found)
}

/// True for the name of a column of weights or masks.
fn is_weight(name: &str) -> bool {
    let kind = name.split_once(':').map_or(name, |(kind, _)| kind);
    [SAMPLE_WEIGHT, SAMPLE_MASK].contains(&kind)
}

/// The column `KIND:OUTPUT`, or without it that named `KIND`.
fn of_output<'c>(columns: &'c [Column], kind: &str, output: &str) -> Option<&'c Column> {
    let own = format!("{kind}:{output}");
    let mut names = [own.as_str(), kind].into_iter();
    names.find_map(|name| columns.iter().find(|column| column.name == name))
}

impl Names {
    /// The column that has the weights of rows for an output, if there is one.
    pub(crate) fn weight<'c>(columns: &'c [Column], output: &str) -> Option<&'c Column> {
        of_output(columns, SAMPLE_WEIGHT, output)
    }

    /// The column that has the mask for an output, if there is one.
    pub(crate) fn mask<'c>(columns: &'c [Column], output: &str) -> Option<&'c Column> {
        of_output(columns, SAMPLE_MASK, output)
    }

    /// The columns for these inputs and for the targets of these outputs; without outputs for the
    /// inputs alone.
    ///
    /// # Errors
    /// If one has no column, or a weight is no number.
    pub(crate) fn of(
        columns: &[Column],
        inputs: &[&str],
        outputs: &[&str],
    ) -> Result<Self, DataError> {
        let of_inputs = Use { what: "input", usual: "x", names: inputs };
        let of_outputs = Use { what: "output", usual: "y", names: outputs };
        let targets = bind(columns, &of_outputs, &of_inputs)?;
        let inputs = bind(columns, &of_inputs, &of_outputs)?;
        let (mut weights, mut masks) = (BTreeMap::new(), BTreeMap::new());
        for output in outputs {
            if let Some(column) = Self::mask(columns, output) {
                masks.insert((*output).to_owned(), column.name.clone());
            }
            let Some(column) = Self::weight(columns, output) else { continue };
            if !(column.dtype.is_float() || column.dtype.is_integer()) {
                let (name, ty) = (Quoted(&column.name), column.row_type());
                let reason = format!("the weight {name} is {ty} for a row; it must be of numbers");
                return Err(DataError::Columns(reason));
            }
            weights.insert((*output).to_owned(), column.name.clone());
        }
        Ok(Self { inputs, targets, weights, masks })
    }

    /// The tensors of a batch, which are shared with it.
    ///
    /// # Errors
    /// If it lacks one.
    pub(crate) fn feed(&self, batch: &Batch) -> Result<Feed, DataError> {
        let take = |names: &BTreeMap<String, String>| {
            let tensor = |(name, column): (&String, &String)| {
                let missing = || DataError::Columns(format!("a batch has no {}", Quoted(column)));
                let tensor = batch.arrays.get(column).ok_or_else(missing)?;
                Ok((name.clone(), tensor.clone()))
            };
            names.iter().map(tensor).collect::<Result<BTreeMap<_, _>, DataError>>()
        };
        let (inputs, targets) = (take(&self.inputs)?, take(&self.targets)?);
        let (weights, masks) = (take(&self.weights)?, take(&self.masks)?);
        Ok(Feed { inputs, targets, weights, masks })
    }
}

/// Rows of the types that a model has: the columns named in `wanted` get its element types and its
/// axes. Integers must fit, and a float that becomes an integer must be one; a float may be
/// rounded. Axes of size 1 may come and go. Weights and masks are finite.
#[derive(Clone, Debug, Default)]
pub(crate) struct CastColumns {
    /// The columns, with the types that they get.
    pub(crate) wanted: Vec<Column>,
}

/// What to do with classes that come as numbers and are wanted as vectors.
const CLASSES: &str = "; if it has classes, numbered from 0, use the loss \
    `sparse_categorical_crossentropy`";

/// True for a column that may have the class of each row, where a number for each class is wanted.
/// The only input is none.
fn is_class(found: &Column, wanted: &Column) -> bool {
    let [one, many] = [found, wanted].map(Column::elements);
    let has_classes = found.dtype.is_integer() && wanted.dtype.is_float();
    has_classes && one == Some(1) && many.is_some_and(|many| many > 1) && found.name != "x"
}

impl Change for CastColumns {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        let mut columns = before.to_vec();
        for wanted in &self.wanted {
            let place = column::find(before, &wanted.name)?;
            if !before[place].has_sizes(&wanted.dims) {
                let (name, found) = (Quoted(&wanted.name), before[place].row_type());
                let expected = wanted.row_type();
                let classes = if is_class(&before[place], wanted) { CLASSES } else { "" };
                let reason = format!("a row of {name} is {found}; give it as {expected}{classes}");
                return Err(DataError::Columns(reason));
            }
            columns[place] = wanted.clone();
        }
        Ok(columns)
    }

    fn apply(
        &self,
        key: &RowKey,
        before: &[Column],
        row: &mut Vec<Tensor>,
    ) -> Result<(), DataError> {
        for wanted in &self.wanted {
            let cell = &mut row[column::find(before, &wanted.name)?];
            let wrong = |e| DataError::row(key.row, format!("{}: {e}", Quoted(&wanted.name)));
            *cell = convert(cell, wanted.dtype).map_err(wrong)?.reshaped(&wanted.dims)?;
            if is_weight(&wanted.name) {
                validate::finite(key, &wanted.name, cell)?;
            }
        }
        Ok(())
    }
}

/// A column of ones, which no row has of its own.
pub(in crate::train) struct Ones {
    column: Column,
    row: Tensor,
}

impl Ones {
    pub(in crate::train) fn new(column: Column) -> Result<Self, DataError> {
        let count = column.elements().unwrap_or(0);
        let ones = Tensor::new(&column.dims, &vec![1u8; count])?;
        let row = convert(&ones, column.dtype).map_err(DataError::Columns)?;
        Ok(Self { column, row })
    }
}

impl Change for Ones {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        Ok([before, std::slice::from_ref(&self.column)].concat())
    }

    fn apply(&self, _: &RowKey, _: &[Column], row: &mut Vec<Tensor>) -> Result<(), DataError> {
        row.push(self.row.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Batch, CastColumns, Change, Column, Names, RowKey, Tensor};
    use crate::types::DType;

    fn columns(names: &[&str]) -> Vec<Column> {
        names.iter().map(|name| Column::new(*name, DType::F32, &[])).collect()
    }

    #[test]
    fn arrays_are_found_by_name() {
        let found =
            Names::of(&columns(&["x", "y", "sample_weight"]), &["image"], &["class"]).unwrap();
        assert_eq!(found.inputs["image"], "x");
        assert_eq!(found.targets["class"], "y");
        assert_eq!(found.weights["class"], "sample_weight");
        let all = columns(&["b", "a", "p", "q", "sample_weight:q", "x"]);
        let found = Names::of(&all, &["a", "b"], &["p", "q"]).unwrap();
        assert_eq!((&*found.inputs["a"], &*found.targets["q"]), ("a", "q"));
        assert_eq!(found.weights.len(), 1);
        assert_eq!(found.weights["q"], "sample_weight:q");
        assert!(Names::of(&all, &["a"], &[]).unwrap().targets.is_empty());
        // A name goes before `x`.
        assert_eq!(Names::of(&all, &["b"], &[]).unwrap().inputs["b"], "b");
        let error = Names::of(&all, &["a", "c"], &[]).unwrap_err().to_string();
        assert!(
            error.starts_with("the data have no array for the input `c`; they have `b`"),
            "{error}"
        );
        let error = Names::of(&columns(&["x"]), &["a"], &["p"]).unwrap_err().to_string();
        assert!(error.contains("the output `p`, and no `y`"), "{error}");
        let mut wide = columns(&["x", "y", "sample_weight"]);
        wide[2].dtype = DType::Bool;
        assert!(Names::of(&wide, &["x"], &["y"]).is_err());
    }

    #[test]
    fn a_batch_feeds_the_model() {
        let names = Names::of(&columns(&["x", "y", "sample_weight"]), &["a"], &["p"]).unwrap();
        let tensor = |value: f32| Tensor::new(&[1], &[value]).unwrap();
        let arrays = [("x", 1.0), ("y", 2.0), ("sample_weight", 3.0)];
        let arrays = arrays.into_iter().map(|(n, v)| (n.to_owned(), tensor(v))).collect();
        let mut batch = Batch { at: super::super::Position::default(), first: 0, rows: 1, arrays };
        let feed = names.feed(&batch).unwrap();
        assert_eq!(feed.inputs["a"], tensor(1.0));
        assert_eq!(feed.targets["p"], tensor(2.0));
        assert_eq!(feed.weights["p"], tensor(3.0));
        // No elements are copied.
        assert_eq!(feed.inputs["a"].bytes().as_ptr(), batch.arrays["x"].bytes().as_ptr());
        batch.arrays.remove("y");
        assert!(names.feed(&batch).is_err());
    }

    #[test]
    fn rows_get_the_types_of_the_model() {
        let fit = CastColumns {
            wanted: vec![Column::new("y", DType::F32, &[1]), Column::new("x", DType::I64, &[2])],
        };
        let before = [Column::new("x", DType::F64, &[1, 2, 1]), Column::new("y", DType::U8, &[])];
        let after = fit.columns(&before).unwrap();
        assert_eq!((after[0].dtype, &*after[0].dims), (DType::I64, &[2usize] as &[usize]));
        let key = RowKey { row: 4, ..RowKey::default() };
        let mut row = vec![Tensor::new(&[1, 2, 1], &[3.0, -1.0]).unwrap(), Tensor::scalar(9u8)];
        fit.apply(&key, &before, &mut row).unwrap();
        assert_eq!(row[0], Tensor::new(&[2], &[3i64, -1]).unwrap());
        assert_eq!(row[1], Tensor::new(&[1], &[9.0f32]).unwrap());
        let mut row = vec![Tensor::new(&[1, 2, 1], &[3.5, -1.0]).unwrap(), Tensor::scalar(9u8)];
        let error = fit.apply(&key, &before, &mut row).unwrap_err().to_string();
        assert_eq!(error, "row 4: `x`: 3.5 is not of type i64; give a number that is");
        let other = [Column::new("x", DType::F64, &[2, 2]), Column::new("y", DType::U8, &[])];
        let error = fit.columns(&other).unwrap_err().to_string();
        assert_eq!(error, "a row of `x` is f64[2,2]; give it as i64[2]");
    }

    #[test]
    fn weights_are_finite() {
        for name in ["sample_weight", "sample_weight:p", "sample_mask"] {
            let column = Column::new(name, DType::F32, &[]);
            let fit = CastColumns { wanted: vec![column.clone()] };
            let key = RowKey { row: 4, ..RowKey::default() };
            let before = [column];
            let apply = |x: f32| fit.apply(&key, &before, &mut vec![Tensor::scalar(x)]);
            // As in Keras.
            apply(-1.0).unwrap();
            let error = apply(f32::NAN).unwrap_err().to_string();
            let said = format!("row 4: `{name}` has NaN at place 0; replace it by a finite number");
            assert_eq!(error, said);
        }
    }

    #[test]
    fn names_in_capitals_are_suggested() {
        let of = |names: &[&str]| Names::of(&columns(names), &["image"], &["class"]);
        let error = of(&["X", "y"]).unwrap_err().to_string();
        assert!(error.ends_with("they have `X`, `y`; write `X` as `x`"), "{error}");
        let error = of(&["x", "CLASS"]).unwrap_err().to_string();
        assert!(error.ends_with("; write `CLASS` as `class`"), "{error}");
        let many: Vec<String> = (0..20).map(|i| format!("c{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let error = of(&many).unwrap_err().to_string();
        assert!(error.ends_with("`c6`, `c7` and 12 more; name it so"), "{error}");
    }

    #[test]
    fn a_missing_array_says_what_to_do() {
        let way = |names: &[&str], inputs: &[&str], outputs: &[&str]| {
            let error = Names::of(&columns(names), inputs, outputs).unwrap_err().to_string();
            error.rsplit("; ").next().unwrap().to_owned()
        };
        let of = |names: &[&str]| way(names, &["image"], &["class"]);
        assert_eq!(of(&["x"]), "add it as an array `y`");
        assert_eq!(of(&["x", "sample_weight"]), "add it as an array `y`");
        assert_eq!(of(&["image", "kind"]), "write `kind` as `y`");
        assert_eq!(of(&["x", "a", "b"]), "name it so");
        let both = "write `x_train` as `x`, write `y_train` as `y`";
        assert_eq!(of(&["x_train", "y_train"]), both);
        assert_eq!(way(&["x_train", "y_train"], &["image"], &[]), both);
        assert_eq!(of(&["x", "test_Y"]), "write `test_Y` as `y`");
        // Of several parts none is the one.
        assert_eq!(of(&["x_train", "x_test", "y_train", "y_test"]), "name it so");
        let each = "give an array for each of `a`, `b`, such as in an .npz";
        assert_eq!(way(&["x"], &["a", "b"], &[]), each);
        assert_eq!(way(&["a", "b"], &["a", "b"], &["p", "q"]), "add it as an array `p`");
        assert_eq!(way(&["images"], &["image"], &[]), "write `images` as `x`");
    }

    #[test]
    fn classes_where_vectors_are_wanted_are_told_of_the_loss_for_them() {
        let said = |name: &str, dtype| {
            let fit = CastColumns { wanted: vec![Column::new(name, DType::F32, &[3])] };
            fit.columns(&[Column::new(name, dtype, &[])]).unwrap_err().to_string()
        };
        let classes = said("y", DType::I64);
        let way = "; if it has classes, numbered from 0, use the loss \
            `sparse_categorical_crossentropy`";
        assert_eq!(classes, format!("a row of `y` is i64[]; give it as f32[3]{way}"));
        assert_eq!(said("x", DType::I64), "a row of `x` is i64[]; give it as f32[3]");
        assert_eq!(said("y", DType::F32), "a row of `y` is f32[]; give it as f32[3]");
    }
}
