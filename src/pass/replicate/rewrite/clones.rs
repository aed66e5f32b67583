//! Clones of a stage's operators, written for one replica after the other.
//!
//! What is the same for all replicas is found once: the operator, its operands, and whether its
//! attributes follow the replica's rows. What is the same for all replicas with equally many rows,
//! the attributes and types at these rows, is found once for them and shared.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::writer::{Replica, Rewrite};
use crate::ir::{Node, NodeId, NodeKind, ResultInfo, Value};
use crate::op::{Ints, Op};
use crate::types::{DType, Dim, FastMap, TensorType};

/// An operator of the template that replicas clone.
pub(super) struct Step<'a> {
    id: NodeId,
    node: &'a Node,
    op: &'a Arc<Op>,
    operands: &'a [Value],
    /// Whether `N` in its attributes and results is replaced by the replica's rows.
    is_split: bool,
}

/// An operator and the types and known elements of its results, as some replicas have them.
struct Form {
    op: Arc<Op>,
    results: SmallVec<[(TensorType, Option<Ints>); 1]>,
}

/// The operators of a stage as the replicas with a number of rows run them.
#[derive(Default)]
pub(super) struct Forms {
    rows: Option<Dim>,
    forms: Vec<Form>,
}

impl Forms {
    /// Makes the forms those at `rows`.
    pub(super) fn set(&mut self, steps: &[Step<'_>], rows: &Dim) {
        if self.rows.as_ref() == Some(rows) {
            return;
        }
        self.rows = Some(rows.clone());
        // A type that the template holds once is held once again: a comparison of two forms then
        // ends at their addresses.
        let mut types = FastMap::default();
        self.forms.clear();
        self.forms.extend(steps.iter().map(|step| step.form(rows, &mut types)));
    }
}

/// Types at some rows, by their element type and the address of the sizes in the template.
type Types = FastMap<(DType, *const Dim), TensorType>;

impl Step<'_> {
    /// The operator as a replica with these rows runs it; `types` are those known at these rows.
    fn form(&self, rows: &Dim, types: &mut Types) -> Form {
        let results = self.node.results();
        if !self.is_split {
            let same = |r: &ResultInfo| (r.ty.clone(), r.ints.clone());
            return Form { op: self.op.clone(), results: results.iter().map(same).collect() };
        }
        let op = if self.op.depends_on_batch() {
            let mut op = Op::clone(self.op);
            op.at_rows(rows);
            Arc::new(op)
        } else {
            self.op.clone()
        };
        let result = |r: &ResultInfo| {
            let key = (r.ty.dtype, r.ty.shape.as_ptr());
            let ty = types.entry(key).or_insert_with(|| r.ty.at_rows(rows)).clone();
            // Known elements that are formulas of N hold for the replica's rows in a split operator
            // and for the whole batch elsewhere, as inference would find.
            let ints = r.ints.as_ref().map(|ints| ints.iter().map(|d| d.at_rows(rows)).collect());
            (ty, ints)
        };
        Form { op, results: results.iter().map(result).collect() }
    }
}

impl<'a> Rewrite<'a> {
    /// What replicas clone, of these nodes of the template: its operators.
    pub(super) fn steps(&self, nodes: impl IntoIterator<Item = NodeId>) -> Vec<Step<'a>> {
        let template = self.template;
        let step = |id: NodeId| {
            let node = template.node(id);
            let NodeKind::Op(op) = node.kind() else { return None };
            let is_split = self.claims.is_local(template, id);
            Some(Step { id, node, op, operands: template.operand_list(id), is_split })
        };
        nodes.into_iter().filter_map(step).collect()
    }

    /// Writes the replica's forms of operators: clones, or slices of rows for `own_rows`.
    pub(super) fn clone_nodes(
        &mut self,
        replica: &mut Replica,
        steps: &[Step<'_>],
        forms: &mut Forms,
    ) {
        forms.set(steps, &replica.rows);
        for (step, form) in steps.iter().zip(&forms.forms) {
            if matches!(**step.op, Op::OwnRows(_)) && !replica.is_whole {
                let value = match (self.draw_rows(replica, step.id), step.operands) {
                    (Some(drawn), _) => Some(drawn),
                    (None, [whole]) => {
                        let whole = self.local(replica, *whole);
                        Some(self.own_rows(replica, step.id, whole))
                    }
                    (None, _) => None,
                };
                if value.is_some() {
                    replica.values[step.id] = value;
                    continue;
                }
            }
            self.clone_operator(replica, step, form);
        }
    }

    /// Clones an operator onto the replica's device.
    fn clone_operator(&mut self, replica: &mut Replica, step: &Step<'_>, form: &Form) {
        let mut operands = std::mem::take(&mut self.operands);
        operands.clear();
        for value in step.operands {
            operands.push(self.local(replica, *value));
        }
        let (place, origin) = (replica.placement(), step.node.origin().clone());
        // With a constant number of rows, as of a replica without any, sizes become constants, and
        // inference may know elements that the template does not; only then is it worth its time.
        if replica.rows.is_const() {
            let results = step.node.results().iter();
            let names: SmallVec<[Arc<str>; 1]> =
                results.map(|r| self.names.free([&r.name, &replica.suffix, ""])).collect();
            let op = Op::clone(&form.op);
            if let Ok(node) = self.out.add(op, &operands, &names, place, origin.clone()) {
                self.operands = operands;
                replica.values[step.id] = Some(Value { node, output: 0 });
                return;
            }
        }
        let names = &mut self.names;
        let mut result = |r: &ResultInfo, (ty, ints): &(TensorType, Option<Ints>)| ResultInfo {
            name: names.free([&r.name, &replica.suffix, ""]),
            ty: ty.clone(),
            ints: ints.clone(),
        };
        let results = match (step.node.results(), form.results.as_slice()) {
            ([own], [form]) => smallvec![result(own, form)],
            (own, forms) => own.iter().zip(forms).map(|(own, form)| result(own, form)).collect(),
        };
        let node = self.out.add_typed(form.op.clone(), &operands, results, place, origin);
        self.operands = operands;
        replica.values[step.id] = Some(Value { node, output: 0 });
    }
}
