//! A framework embeds the pass: its graph has a custom operator, is replicated over three devices,
//! walked as one would to translate it back, and run.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;

use fanwise::Session;
use fanwise::ir::{Builder, Model, NodeKind};
use fanwise::op::{Assume, External, MatMul, Softmax};
use fanwise::types::Tensor;

/// `y = softmax(gate(x w))`, for every batch size. The gate multiplies each row by its largest
/// element: that rows are independent is the framework's word.
fn model() -> Result<Model, Box<dyn Error>> {
    let mut b = Builder::new("gated");
    let x = b.input("x", "f32[N,2]".parse()?);
    let w = b.param("w", Tensor::new(&[2, 2], &[1.0f32, -2.0, 0.5, 3.0])?);
    let hidden = b.op("hidden", MatMul {}, &[x, w])?;
    let gate = External::new("com.acme.Gate", ["f32[N,2]".parse()?]);
    let gate = gate.assuming(Assume::Rowwise(0)).calling(|operands| {
        let mut y = operands[0].clone();
        for row in y.as_mut_slice::<f32>().chunks_exact_mut(2) {
            let largest = row[0].max(row[1]);
            row[0] *= largest;
            row[1] *= largest;
        }
        Ok(vec![y])
    });
    let gated = b.op("gated", gate, &[hidden])?;
    let y = b.op("y", Softmax::Softmax { axis: -1 }, &[gated])?;
    b.output("y", y);
    Ok(b.finish().into())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (one, three) = (Session::new(model()?)?, Session::builder(model()?).gpus(3).build()?);
    let graph = three.graph();
    for node in graph.order()?.into_iter().map(|id| graph.node(id)) {
        if let NodeKind::Op(op) = node.kind() {
            println!("{:?} {}", node.place(), op.name());
        }
    }
    let x = Tensor::new(&[7, 2], &[0.5f32; 14])?;
    let (one, three) = (one.run([("x", x.clone())])?, three.run([("x", x)])?);
    assert_eq!(one["y"], three["y"], "three devices give the bits of one");
    Ok(())
}
