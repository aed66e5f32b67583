//! How a model of a Keras file was trained: its losses, metrics and optimizer, which a training
//! takes where it is not told others, and the variables of the optimizer.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "of the forms that JSON has, and of rules and losses, each place takes a few"
)]

mod decay;
mod metric;
mod objective;
mod optimizer;
mod restriction;
mod slots;
mod written;

pub(crate) use decay::Decay;
pub(crate) use written::Written;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::format::keras::Slots;
use crate::ir::Weights;
use crate::model::ModelError;
use crate::model::keras::Variables;
use crate::op::converted;
use crate::pass::gradient::names;
use crate::pass::{Optimizer, OutputLoss, Training};
use crate::types::{ParseValueError, TensorType};

/// How a model of a Keras file was trained.
pub(crate) struct Compiled {
    file: Variables,
    /// The variables that Keras trains, in its order.
    trained: Vec<(Arc<str>, TensorType)>,
    max_memory: u64,
}

impl Compiled {
    /// What a Keras file says; `None` if `spec` is none.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn of(spec: &str, max_memory: u64) -> Result<Option<Self>, ModelError> {
        let Some(file) = Variables::of(spec)? else { return Ok(None) };
        let trained = file.built.variables.iter().filter(|variable| variable.is_trainable);
        let trained = trained.map(|v| (Arc::clone(&v.name), v.ty.clone())).collect();
        Ok(Some(Self { file, trained, max_memory }))
    }

    fn field(&self, name: &str) -> &Json {
        // What a file does not state is null in others.
        self.file.reader().compiled().get(name).unwrap_or(&Json::Null)
    }

    /// The losses of the outputs of these names; none if the file has none.
    ///
    /// # Errors
    /// If one has no counterpart.
    pub(crate) fn losses(&self, outputs: &[&str]) -> Result<Vec<OutputLoss>, ParseValueError> {
        objective::losses(self.field("loss"), self.field("loss_weights"), outputs)
    }

    /// Gives losses the metrics of the file, or those that weigh rows.
    ///
    /// # Errors
    /// If one has no counterpart, or its output has no loss.
    pub(crate) fn metrics(
        &self,
        weighted: bool,
        outputs: &[&str],
        losses: &mut [OutputLoss],
    ) -> Result<(), ParseValueError> {
        let name = if weighted { "weighted_metrics" } else { "metrics" };
        let old = self.file.reader().is_before_3();
        for (output, metrics) in outputs.iter().zip(metric::of(self.field(name), outputs, old)?) {
            if metrics.is_empty() {
                continue;
            }
            let loss = losses.iter_mut().find(|loss| loss.output == **output);
            let loss = loss.ok_or_else(|| {
                ParseValueError::new(format!("the output `{output}` has metrics and no loss"))
            })?;
            if weighted {
                loss.weighted_metrics = metrics;
            } else {
                loss.metrics = metrics;
            }
        }
        Ok(())
    }

    /// The optimizer and its schedule; `None` if the file has none.
    ///
    /// # Errors
    /// If one has no counterpart.
    pub(crate) fn optimizer(&self) -> Result<Option<(Optimizer, Option<Decay>)>, ParseValueError> {
        let found = self.field("optimizer");
        if found.is_null() {
            return Ok(None);
        }
        optimizer::read(found, self.file.reader().is_before_3()).map(Some)
    }

    /// Gives a training the regularizers and constraints of the file, of the variables that it
    /// trains; the two are taken where they are asked for.
    ///
    /// # Errors
    /// If one has no counterpart.
    pub(crate) fn restrict(
        &self,
        training: &mut Training,
        penalties: bool,
        constraints: bool,
    ) -> Result<(), ParseValueError> {
        let matches = |all: &BTreeSet<String>, name: &str| all.iter().any(|own| names(own, name));
        for variable in self.file.built.variables.iter() {
            let name = &*variable.name;
            let learned = variable.is_trainable || matches(&training.learned, name);
            if !learned || matches(&training.frozen, name) {
                continue;
            }
            if let Some(own) = variable.regularizer.as_ref().filter(|_| penalties) {
                let [l1, l2] = restriction::penalties(own, name)?;
                training.l1.extend(l1);
                training.l2.extend(l2);
            }
            if let Some(own) = variable.constraint.as_ref().filter(|_| constraints) {
                training.constraints.push(restriction::constraint(own, name)?);
            }
        }
        Ok(())
    }

    /// The variables of the file's optimizer.
    fn slots(&self) -> Result<Slots, ModelError> {
        Ok(self.file.reader().optimizer(&self.file.built.variables, self.max_memory)?)
    }

    /// The names of the trained variables.
    fn names(&self) -> Vec<&str> {
        self.trained.iter().map(|(name, _)| &**name).collect()
    }

    /// The variables of the file's optimizer as a training has them, where it has the variables
    /// `own`. `None` if the file has others than its optimizer.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn state(
        &self,
        optimizer: &Optimizer,
        has_decay: bool,
        own: &Weights,
    ) -> Result<Option<Weights>, ModelError> {
        let slots = self.slots()?;
        let names = self.names();
        let mut state = Weights::default();
        let entries = slots::assigned(&slots, optimizer, &names, has_decay);
        for (entry, tensor) in entries.iter().flatten().zip(&slots.tensors) {
            let slots::Entry::Variable(name) = entry else { continue };
            let Some(before) = own.get(name) else { continue };
            let tensor = converted(tensor, before.dtype()).ok();
            match tensor.filter(|tensor| tensor.dims() == before.dims()) {
                Some(tensor) => state.insert(name.as_str(), tensor),
                None => return Ok(None),
            };
        }
        Ok(entries.map(|_| state))
    }
}
