//! Another framework embeds the pass: it builds a graph with an operator of its own, has it
//! replicated, walks the result as it would to translate it back, and runs it on virtual devices.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;

use fanwise::backend::{Backend, Cpu, RunOptions, RunOutput};
use fanwise::ir::{self, Builder, Graph, NodeKind, Verified, Weights};
use fanwise::op::{Assume, External, MatMul, Softmax};
use fanwise::types::{DType, Device, Dim, Shape, Tensor, TensorType};
use fanwise::{analysis, lower, pass};

/// The width of the model's rows.
const WIDTH: usize = 4;

/// The operator that only the framework knows: each element of a row times the largest of the row.
fn gate(operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
    let [x] = operands else { return Err(format!("{} operands, not 1", operands.len())) };
    let mut y = (*x).clone();
    for row in y.as_mut_slice::<f32>().chunks_exact_mut(WIDTH) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for v in row.iter_mut() {
            *v *= largest;
        }
    }
    Ok(vec![y])
}

/// `y = softmax(gate(x w))`, for every batch size.
fn build() -> Result<(Graph, Weights), Box<dyn Error>> {
    let rows: Shape = [Dim::n(), i64::try_from(WIDTH)?.into()].into_iter().collect();
    let ty = TensorType::new(DType::F32, rows);
    let weights: Vec<f32> = (0u8..16).map(|i| f32::from(i % 5) - 2.0).collect();

    let mut b = Builder::new("gated");
    let x = b.input("x", ty.clone());
    let weight = b.param("w", Tensor::new(&[WIDTH, WIDTH], &weights)?);
    let h = b.op("h", MatMul {}, &[x, weight])?;
    // The claim is the framework's word: each row of the result depends on the same row of the
    // operand.
    let foreign = External::new("com.acme.Gate", [ty]).assuming(Assume::Rowwise(0)).calling(gate);
    let gated = b.op("gated", foreign, &[h])?;
    let y = b.op("y", Softmax::Softmax { axis: -1 }, &[gated])?;
    b.output("y", y);
    Ok(b.finish())
}

/// Prints of every operator where it runs, for which replica, and what it is.
fn walk(graph: &Graph) -> Result<Vec<String>, Box<dyn Error>> {
    let mut lines = Vec::new();
    for id in graph.order()? {
        let node = graph.node(id);
        let NodeKind::Op(op) = node.kind() else { continue };
        let place = node.place();
        let replica = place.replica.map_or("-".to_owned(), |i| i.to_string());
        let operands: Vec<&str> =
            graph.operands(id).into_iter().map(|v| &*graph.info(v).name).collect();
        let line = format!("{} {replica} {}({})", place.device, op.name(), operands.join(", "));
        lines.push(line);
    }
    Ok(lines)
}

/// Runs a graph on as many virtual devices as it names.
fn run(graph: &Verified<'_>, weights: &Weights, x: &Tensor) -> Result<RunOutput, Box<dyn Error>> {
    let cpu = Cpu::new(2)?;
    let program = lower::lower(graph, cpu.kernels())?;
    let executable = cpu.compile(program, weights)?;
    let inputs = [("x".to_owned(), x.clone())].into();
    Ok(executable.run(&inputs, &RunOptions::default())?)
}

/// The whole way, at a batch of 7 rows on 3 devices.
pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (template, weights) = build()?;
    let devices = (0..3).map(Device::gpu).collect();
    let graph = pass::replicate(&template, &pass::Replicate::over(devices))?;

    let (template, graph) = (ir::verify(&template)?, ir::verify(&graph)?);
    analysis::prove(&template, &graph)?;
    let lines = walk(&graph)?;
    for line in &lines {
        println!("{line}");
    }
    let foreign = lines.iter().filter(|line| line.contains(" external(")).count();
    assert_eq!(foreign, 3, "each replica has a clone of the foreign operator");

    let elements: Vec<f32> = (0u16..28).map(|i| f32::from(i * 37 % 19) / 8.0 - 1.0).collect();
    let x = Tensor::new(&[7, WIDTH], &elements)?;
    let (one, three) = (run(&template, &weights, &x)?, run(&graph, &weights, &x)?);
    assert_eq!(one.outputs, three.outputs, "three devices give the bits of one");
    println!("7 rows on 3 devices: equal in every bit to 1 device");
    Ok(())
}
