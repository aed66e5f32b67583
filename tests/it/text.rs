//! The text form, from outside the crate.

use fanwise::ir::{Builder, verify};
use fanwise::op::Unary;
use fanwise::types::{DType, Dim, Shape, TensorType};

use crate::snap;

#[test]
fn names_that_are_no_words_are_quoted() {
    let mut b = Builder::new("a \"graph\"");
    let ty = TensorType::new(DType::F32, [Dim::n()].into_iter().collect::<Shape>());
    let x = b.input("x/é:0\n", ty);
    let y = b.op("2nd", Unary::Relu, &[x]).unwrap();
    b.output("y\\\u{7}", y);
    let graph = b.finish().0;
    verify(&graph).unwrap();
    snap::assert("print", "quoted_names", &graph.to_string());
}
