//! What the model of GPUs in `tests/gpu/expect` says of the models of the zoo.

use fanwise::zoo;
use support::turn::part;

#[test]
fn the_page_has_the_expected_times_and_counts() {
    let page = std::fs::read_to_string("docs/performance.md").unwrap();
    let own: Vec<&str> = part(zoo::names(), 3, 0).collect();
    let chosen = |name: &str| own.contains(&name);
    for table in [expect::table(256, chosen), expect::counts(chosen)] {
        assert!(own.len() < zoo::names().count() || page.contains(&table), "{table}");
        for line in table.lines() {
            assert!(page.contains(line), "docs/performance.md should have this line:\n{line}");
        }
    }
}
