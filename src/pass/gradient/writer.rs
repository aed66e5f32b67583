//! Formulas behind a graph.

use smallvec::{SmallVec, smallvec};

use super::error::TrainingError;
use super::recompute::Again;
use crate::ir::{Builder, GraphError, Origin, Value};
use crate::op::{Emit, Op, OpError, RuleError, Term};
use crate::types::TensorType;
use crate::types::invariant::int;

/// Takes in the operators of a formula.
pub(super) struct Writer<'b> {
    builder: &'b mut Builder,
    /// What new values are named after.
    name: &'b str,
}

impl<'b> Writer<'b> {
    pub(super) fn new(builder: &'b mut Builder, name: &'b str) -> Self {
        Self { builder, name }
    }
}

impl Emit for Writer<'_> {
    type Value = Value;
    type Error = RuleError;

    fn ty(&self, value: Value) -> &TensorType {
        self.builder.graph().ty(value)
    }

    fn emit(&mut self, op: Op, operands: &[Value]) -> Result<SmallVec<[Value; 2]>, RuleError> {
        Ok(self.builder.all(self.name, op, operands).map_err(plain)?.into())
    }
}

/// Takes in the operators of a gradient rule.
pub(super) struct Terms<'b> {
    writer: Writer<'b>,
    /// The values that terms stand for.
    values: Vec<Value>,
    /// The values that are computed again where they are used.
    again: &'b mut Again,
    /// What is written comes from here.
    origin: Origin,
}

impl<'b> Terms<'b> {
    pub(super) fn new(writer: Writer<'b>, again: &'b mut Again, origin: Origin) -> Self {
        Self { writer, values: Vec::new(), again, origin }
    }

    /// What stands for a value.
    pub(super) fn term(&mut self, value: Value) -> Term {
        self.values.push(value);
        Term(int::<u32>(self.values.len() - 1))
    }

    /// The value that a term stands for.
    pub(super) fn value(&self, term: Term) -> Value {
        self.values[term.0 as usize]
    }
}

impl Emit for Terms<'_> {
    type Value = Term;
    type Error = RuleError;

    fn ty(&self, term: Term) -> &TensorType {
        self.writer.ty(self.value(term))
    }

    fn emit(&mut self, op: Op, operands: &[Term]) -> Result<SmallVec<[Term; 2]>, RuleError> {
        let mut values: SmallVec<[Value; 4]> = smallvec![];
        for term in operands {
            let value = self.value(*term);
            values.push(self.again.value(self.writer.builder, value).map_err(plain)?);
        }
        self.writer.builder.set_origin(self.origin.clone());
        let results = self.writer.emit(op, &values)?;
        Ok(results.into_iter().map(|v| self.term(v)).collect())
    }
}

/// Writes formulas behind a graph, whose values are named after `name`; `what` they are.
pub(super) fn draft<T>(
    builder: &mut Builder,
    name: &str,
    what: &str,
    write: impl FnOnce(&mut Writer<'_>) -> Result<T, RuleError>,
) -> Result<T, TrainingError> {
    write(&mut Writer::new(builder, name))
        .map_err(|error| TrainingError::Rule { what: what.to_owned(), error })
}

/// What an operator says against its operands.
fn plain(error: GraphError) -> OpError {
    if let GraphError::Op { error, .. } = error {
        *error
    } else {
        OpError::Unsupported(error.to_string())
    }
}
