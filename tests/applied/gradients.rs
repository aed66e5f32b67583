//! The gradients of graphs.

use fanwise::internal::Printer;
use fanwise::ir::{self, Builder, Graph, Value, Weights};
use fanwise::pass::differentiate;

/// The graph with the gradients of its first output, a loss, with respect to all inputs of floats
/// as further outputs; `none` for an input on which the loss does not depend.
pub(crate) fn told(graph: Graph) -> Result<String, String> {
    let outputs = graph.outputs().to_vec();
    let loss = outputs.first().ok_or("the graph has no loss")?.value;
    let floats: Vec<Value> = graph.inputs().filter(|v| graph.ty(*v).dtype.is_float()).collect();
    let names: Vec<String> = floats.iter().map(|v| graph.info(*v).name.to_string()).collect();
    let mut builder = Builder::over(graph, Weights::default());
    let gradients = differentiate(&mut builder, loss, &floats).map_err(|e| e.to_string())?;
    let mut none = String::new();
    for (name, gradient) in names.iter().zip(gradients) {
        match gradient {
            Some(gradient) => builder.output(&format!("{name}.grad"), gradient),
            None => none.extend(["none of ", name, "\n"]),
        }
    }
    let graph = builder.finish().0;
    ir::verify(&graph).map_err(|e| e.to_string())?;
    Ok(none + &Printer::default().print(&graph))
}
