//! ONNX files, and the files beside them.

mod classical;
mod control;
mod damage;
mod data;
mod drawn;
mod external;
mod functions;
mod graphs;
pub(super) mod models;
mod operators;
mod sizes;
mod tensors;
mod unrolled;

use support::snap;

use super::{Case, table};

fn cases() -> Vec<Case> {
    let mut cases = damage::cases();
    cases.extend(graphs::cases());
    cases.extend(functions::cases());
    cases.extend(control::cases());
    cases.extend(unrolled::cases());
    cases.extend(sizes::cases());
    cases.extend(tensors::cases());
    cases.extend(external::cases());
    cases.extend(operators::cases());
    cases.extend(classical::cases());
    cases.extend(data::cases());
    cases
}

#[test]
fn hostile_onnx_files_are_refused_by_place() {
    let cases = cases();
    assert!(cases.len() >= 110, "{} cases", cases.len());
    snap::assert("hostile", "onnx", &table(&cases));
}
