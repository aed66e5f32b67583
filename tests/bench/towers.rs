//! Synthetic graphs for the benchmarks of the pass.

use std::sync::Arc;

use fanwise::ir::{DevicePlacement, Graph, Origin, Value};
use fanwise::op::{Binary, Op, Unary};
use fanwise::types::{DType, Device, Dim, Shape, TensorType};

/// So many devices.
pub(crate) fn devices(count: u32) -> Vec<Device> {
    (0..count).map(Device::gpu).collect()
}

/// Towers of unary operators that meet in sums: `nodes` operators on rows of 16.
pub(crate) fn synthetic(nodes: usize) -> Graph {
    let mut graph = Graph::new("synthetic");
    let shape: Shape = [Dim::n(), 16.into()].into_iter().collect();
    let x = graph.add_input("x", TensorType::new(DType::F32, shape));
    let mut tips = [x; 4];
    for i in 0..nodes {
        let lane = i % tips.len();
        let (op, operands): (Op, Vec<Value>) = if i % 7 == 0 {
            (Binary::Add.into(), vec![tips[lane], tips[(lane + 1) % tips.len()]])
        } else {
            (Unary::Relu.into(), vec![tips[lane]])
        };
        let name: Arc<str> = format!("v{i}").into();
        let node = graph
            .add(op, &operands, &[name], DevicePlacement::HOST, Origin::default())
            .expect("a valid operator");
        tips[lane] = Value { node, output: 0 };
    }
    for (i, tip) in tips.into_iter().enumerate() {
        graph.add_output(format!("y{i}"), tip);
    }
    graph
}
