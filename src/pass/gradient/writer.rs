//! Emitters that append formulas and gradient rules to a graph.

use smallvec::{SmallVec, smallvec};

use super::error::TrainingError;
use super::recompute::Recomputation;
use crate::ir::{Builder, GraphError, Origin, Value};
use crate::op::{Emit, Op, OpError, RuleError, Term};
use crate::types::TensorType;
use crate::types::invariant::int;

/// Emitter of the operators of a formula.
pub(super) struct Writer<'b> {
    builder: &'b mut Builder,
    /// The name from which new values derive theirs.
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

/// Emitter of the operators of a gradient rule, with recomputed operands where memory is saved.
pub(super) struct Terms<'b> {
    writer: Writer<'b>,
    /// The values of terms, by number.
    values: Vec<Value>,
    /// The forward values that are computed again at their first use.
    recomputation: &'b mut Recomputation,
    /// The origin of the operators: the node whose rule this is.
    origin: Origin,
}

impl<'b> Terms<'b> {
    pub(super) fn new(
        writer: Writer<'b>,
        recomputation: &'b mut Recomputation,
        origin: Origin,
    ) -> Self {
        Self { writer, values: Vec::new(), recomputation, origin }
    }

    /// A term for a value.
    pub(super) fn term(&mut self, value: Value) -> Term {
        self.values.push(value);
        Term(int::<u32>(self.values.len() - 1))
    }

    /// The value of a term.
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
            values.push(self.recomputation.value(self.writer.builder, value).map_err(plain)?);
        }
        self.writer.builder.set_origin(self.origin.clone());
        let results = self.writer.emit(op, &values)?;
        Ok(results.into_iter().map(|v| self.term(v)).collect())
    }
}

/// Appends a formula to a graph. Its values are named after `name`; errors call it `what`.
pub(super) fn emit_formula<T>(
    builder: &mut Builder,
    name: &str,
    what: &str,
    write: impl FnOnce(&mut Writer<'_>) -> Result<T, RuleError>,
) -> Result<T, TrainingError> {
    write(&mut Writer::new(builder, name))
        .map_err(|error| TrainingError::Rule { what: what.to_owned(), error })
}

/// The error of the operator itself, without the label of a node that was never added.
fn plain(error: GraphError) -> OpError {
    if let GraphError::Op { error, .. } = error {
        *error
    } else {
        OpError::Unsupported(error.to_string())
    }
}
