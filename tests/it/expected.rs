//! What the model of GPUs in `tests/gpu/expect` says of the models of the zoo.

#[test]
fn the_page_has_the_expected_times() {
    let page = std::fs::read_to_string("docs/performance.md").unwrap();
    let table = expect::table(256);
    assert!(page.contains(&table), "docs/performance.md should have this table:\n{table}");
}
