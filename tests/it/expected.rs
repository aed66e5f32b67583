//! What the model of GPUs in `tests/gpu/expect` says of the models of the zoo.

use expect::{Cost, costs, on_gpus, step};
use fanwise::lower::Program;
use fanwise::pass::Repair;
use fanwise::types::KernelClass;
use fanwise::zoo;

#[test]
fn the_page_has_the_expected_times() {
    let page = std::fs::read_to_string("docs/performance.md").unwrap();
    let table = expect::table(256);
    assert!(page.contains(&table), "docs/performance.md should have this table:\n{table}");
}

/// The launches of convolutions, forward and backward, that compute more than twice the
/// multiplications that their operators ask for.
fn wasted(program: &Program, n: i64) -> Vec<String> {
    let costs = costs(&program.devices[1], n);
    let wasteful = costs.iter().filter(|cost| cost.work.performed > 2.0 * cost.work.operations);
    let is_conv = |cost: &&Cost<'_>| {
        let class = cost.launch.map(|launch| launch.class);
        matches!(class, Some(KernelClass::Conv | KernelClass::Partial))
    };
    let times = |cost: &Cost<'_>| cost.work.performed / cost.work.operations;
    wasteful.filter(is_conv).map(|cost| format!("{} {:.1}", cost.label, times(cost))).collect()
}

#[test]
fn convolutions_waste_at_most_half_of_their_multiplications() {
    let mut found = Vec::new();
    for name in zoo::names() {
        let (graph, weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
        let training = step(&graph, &weights, "sgd");
        let programs = [on_gpus(&graph, 1, Repair::Local), on_gpus(&training, 1, Repair::Comm)];
        let wasted = programs.iter().flat_map(|program| wasted(program, 256));
        found.extend(wasted.map(|launch| format!("{name}: {launch}")));
    }
    assert_eq!(found, [""; 0]);
}
