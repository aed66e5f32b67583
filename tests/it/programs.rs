//! Programs of whole models: what memory they plan, and that they compute what their operators do.

use fanwise::ir::{Graph, verify};
use fanwise::lower::{Program, check, lower};
use fanwise::pass::{Replicate, replicate};
use fanwise::types::{Device, Target};
use fanwise::zoo;

fn program(graph: &Graph) -> Program {
    lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), &Target::CPU).unwrap()
}

/// The replicas of a graph on `count` devices.
fn replicas(graph: &Graph, count: u32) -> Graph {
    let devices = (0..count).map(Device::gpu).collect();
    replicate(graph, &Replicate::over(devices)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_zoo_plans_hardly_more_memory_than_is_live() {
    for name in zoo::names() {
        let (template, _) = zoo::build(name).unwrap();
        for count in [1, 3] {
            let graph = if count == 1 { template.clone() } else { replicas(&template, count) };
            let program = program(&graph);
            for rows in [1, 7, 64] {
                let bound = program.bind(rows * i64::from(count)).unwrap();
                check(&program, &bound).unwrap_or_else(|e| panic!("{name}, {rows} rows: {e}"));
                for (device, plan) in program.devices.iter().zip(&bound.devices) {
                    assert!(
                        plan.planned * 100 <= plan.live * 105,
                        "{name}, {rows} rows on {}: {} bytes are planned, {} are live",
                        device.device,
                        plan.planned,
                        plan.live
                    );
                }
            }
        }
    }
}
