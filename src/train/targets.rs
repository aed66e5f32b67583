//! Conversion of targets to the form that losses take: classes as numbers or one-hot, with weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::data::{
    Categorical, ClassRange, ClassWeights, Column, Data, DataError, Integer, Names, RowValidator,
    SAMPLE_WEIGHT,
};
use crate::ir::Graph;
use crate::op::Op;
use crate::op::for_training::ForTraining;
use crate::pass::{Loss, OutputLoss, Weighted, class_axis};
use crate::types::Quoted;

/// The target of an output with a loss.
pub(super) struct LossTarget {
    output: String,
    loss: Loss,
    weighted: Weighted,
    /// Whether layers of the model mask some of its costs.
    is_counted: bool,
    /// What a row of it is, where its sizes are known, and the axis of the row that has the
    /// classes.
    row: Option<(Column, usize)>,
}

/// The outputs of a model that have these losses.
pub(super) fn loss_targets(graph: &Graph, losses: &[OutputLoss]) -> Vec<LossTarget> {
    let loss_target = |loss: &OutputLoss| {
        let output = graph.outputs().iter().find(|output| *output.name == *loss.output)?;
        let axis = class_axis(graph, loss).and_then(|axis| axis.checked_sub(1));
        Some(LossTarget {
            output: loss.output.clone(),
            loss: loss.loss,
            weighted: loss.weighted,
            is_counted: matches!(
                graph.node(output.value.node).op(),
                Some(Op::ForTraining(ForTraining::Counted))
            ),
            row: Column::of(&*output.name, graph.ty(output.value)).zip(axis),
        })
    };
    losses.iter().filter_map(loss_target).collect()
}

impl LossTarget {
    /// The data with targets as the loss takes them: where it takes a number for each class, a
    /// class becomes zeros and a one, and where it takes classes, such a row its class.
    fn converted(&self, data: Data, target: &Column) -> Data {
        let Some((row, axis)) = &self.row else { return data };
        let (Some(classes), column) = (row.dims.get(*axis).copied(), target.name.clone()) else {
            return data;
        };
        let takes_ones =
            matches!(self.loss, Loss::CategoricalCrossentropy { .. } | Loss::CategoricalHinge);
        if takes_ones && classes > 1 && target.has_sizes(&without(&row.dims, *axis)) {
            // The axes before that of the classes, of which those of size 1 may be missing.
            let sizes = row.dims[..*axis].iter().filter(|size| **size != 1).count();
            let place = |(axis, size): (usize, &usize)| (*size != 1).then_some(axis + 1);
            let mut before = target.dims.iter().enumerate().filter_map(place);
            let axis = sizes.checked_sub(1).and_then(|last| before.nth(last)).unwrap_or(0);
            data.changed(Arc::new(Categorical { column, classes, axis, dtype: row.dtype }))
        } else if self.loss.takes_classes() && classes > 1 && target.dims == row.dims {
            data.changed(Arc::new(Integer { column, axis: *axis }))
        } else {
            data
        }
    }
}

/// The sizes but for that of an axis.
fn without(dims: &[usize], axis: usize) -> Vec<usize> {
    dims.iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, size)| *size).collect()
}

/// The data with targets as the losses take them.
pub(super) fn converted(
    data: Data,
    loss_targets: &[LossTarget],
    names: &Names,
    columns: &[Column],
) -> Data {
    loss_targets.iter().fold(data, |data, loss_target| {
        let name = names.targets.get(&loss_target.output);
        match columns.iter().find(|column| Some(&column.name) == name) {
            Some(target) => loss_target.converted(data, target),
            None => data,
        }
    })
}

/// The validation of rows: finite numbers in the columns
/// `inputs`, and classes that there are. Targets with a mask, those of `masked`, may hold anything
/// where they do not count.
pub(super) fn validated(
    loss_targets: &[LossTarget],
    names: &Names,
    columns: &[Column],
    inputs: Vec<String>,
    masked: &Names,
) -> RowValidator {
    let mut validated = RowValidator { finite: inputs, ..RowValidator::default() };
    let is_masked =
        |target: &&LossTarget| target.is_counted || masked.masks.contains_key(&target.output);
    for loss_target in loss_targets.iter().filter(|target| !is_masked(target)) {
        let (Some(column), Some((row, axis))) =
            (names.targets.get(&loss_target.output), &loss_target.row)
        else {
            continue;
        };
        let Some(classes) = row.dims.get(*axis).copied().filter(|classes| *classes > 1) else {
            continue;
        };
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others have no classes")]
        match loss_target.loss {
            Loss::SparseCategoricalCrossentropy { ignore_class, .. } => {
                let (column, ignored) = (column.clone(), ignore_class);
                validated.classes.push(ClassRange { column, classes, ignored });
            }
            Loss::CategoricalCrossentropy { .. } | Loss::CategoricalHinge
                if columns.iter().any(|c| c.name == *column && c.elements() == Some(classes)) =>
            {
                validated.ones.push(column.clone());
            }
            _ => {}
        }
    }
    validated
}

/// The data with rows that weigh what their classes do, besides the weights that they have.
///
/// # Errors
/// If it is not one output that has a loss, whose rows have weights.
pub(super) fn weighed(
    data: Data,
    loss_targets: &[LossTarget],
    weights: BTreeMap<i64, f64>,
) -> Result<Data, DataError> {
    let [loss_target] = loss_targets else {
        let reason = "class weights require a model with exactly one output that has a loss";
        return Err(DataError::Setting(reason.to_owned()));
    };
    let output = Quoted(&loss_target.output);
    let refused = match loss_target.weighted {
        Weighted::Rows => None,
        Weighted::Nothing => {
            Some(format!("class weights require a loss of {output} that is `weighted`"))
        }
        Weighted::Costs => Some(format!(
            "class weights cannot be used if the data have a weight for each element of {output}: \
             multiply `{SAMPLE_WEIGHT}` \
             by the class weights and leave these out, or give one weight for each row"
        )),
    };
    if let Some(reason) = refused {
        return Err(DataError::Setting(reason));
    }
    let names = Names::of(&data.columns()?, &[], &[&loss_target.output])?;
    let into =
        names.weights.get(&loss_target.output).map_or(SAMPLE_WEIGHT, String::as_str).to_owned();
    let column = names.targets[&loss_target.output].clone();
    Ok(data.changed(Arc::new(ClassWeights { column, weights, into })))
}
