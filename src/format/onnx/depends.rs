//! What a value that is not known depends on: the inputs of a run, the batch, or chance.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::error::list_names;
use super::state::State;
use crate::ir::{NodeKind, Value};
use crate::op::Traits;

/// What a value depends on.
#[derive(Default)]
pub(super) struct Depends {
    /// The inputs, and whether each is one number.
    inputs: BTreeMap<String, bool>,
    /// Whether it depends on the number of rows.
    batch: bool,
    /// Whether it depends on numbers that are drawn.
    drawn: bool,
}

impl Depends {
    /// The inputs, and whether each of them is one number and nothing else decides the value.
    pub(super) fn deciding(self) -> (Vec<String>, bool) {
        let alone = !self.drawn && !self.inputs.is_empty() && self.inputs.values().all(|one| *one);
        (self.inputs.into_keys().collect(), alone)
    }
}

/// As a list.
impl fmt::Display for Depends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = list_names(self.inputs.keys().map(String::as_str));
        let inputs = match self.inputs.len() {
            0 => None,
            1 => Some(format!("input {names}")),
            _ => Some(format!("inputs {names}")),
        };
        let batch = self.batch.then(|| "the batch size".to_owned());
        let drawn = self.drawn.then(|| "random numbers".to_owned());
        let all: Vec<String> = inputs.into_iter().chain(batch).chain(drawn).collect();
        if all.is_empty() {
            return f.write_str("more values than are tracked");
        }
        f.write_str(&all.join(" and "))
    }
}

impl State<'_> {
    /// What the elements of a value depend on.
    pub(super) fn depends(&self, value: Value) -> Depends {
        let (graph, mut found) = (self.builder.graph(), Depends::default());
        let (mut waiting, mut seen) = (vec![value], BTreeSet::new());
        while let Some(value) = waiting.pop() {
            if !seen.insert(value) || self.known(value).is_some() {
                continue;
            }
            let info = graph.info(value);
            if let Some(ints) = &info.ints {
                found.batch |= ints.iter().any(|size| !size.is_const());
                continue;
            }
            if self.followed.contains_key(&value) {
                found.batch = true;
                continue;
            }
            match graph.node(value.node).kind() {
                NodeKind::Input => {
                    let single = info.ty.shape.elements().as_const() == Some(1);
                    found.inputs.insert(info.name.to_string(), single);
                }
                NodeKind::Param(_) => {}
                NodeKind::Op(op) => {
                    found.drawn |= op.traits().contains(Traits::UNREPEATABLE);
                    waiting.extend(graph.operands(value.node));
                }
            }
        }
        found
    }
}
