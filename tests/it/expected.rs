//! What the model of GPUs in `tests/gpu/expect` says of the models of the zoo.

#[test]
fn the_page_has_the_expected_times_and_counts() {
    let page = std::fs::read_to_string("docs/performance.md").unwrap();
    for table in [expect::table(256), expect::counts()] {
        assert!(page.contains(&table), "docs/performance.md should have this table:\n{table}");
    }
}
