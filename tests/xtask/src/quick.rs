//! `cargo xtask quick`: what a change broke, in a minute or two.

use std::collections::BTreeSet;

use crate::step::Step;
use crate::{Failure, format, say};

/// Format, lints, the unit tests of the rooms of `src` that changed, cases, what holds the house
/// (layering, circles, mentions, defaults) and documentation, in the profile that `cargo test` has
/// by itself.
pub(crate) fn quick() -> Result<(), Failure> {
    format()?;
    Step::cargo(&["clippy", "--lib", "--bins", "--tests", "--", "-D", "warnings"]).run()?;
    let changed = changed()?;
    let rooms = rooms(&changed);
    let mut unit = Step::cargo(&["test", "--lib", "--"]);
    for room in &rooms {
        unit = unit.args(&[&format!("{room}::")]);
    }
    let unit = unit.run_tests()?;
    let house = ["layering", "circles", "mentions", "defaults", "docs"];
    let whole = Step::cargo(&["test", "--test", "it", "--"]).args(&house).run_tests()?;
    let all = unit + whole + Step::cargo(&["test", "--test", "cases"]).run_tests()?;
    say(&format!("{} passed, {} failed", all.passed, all.failed));
    Ok(())
}

/// The files that differ from the last commit; those of the last commit where none does.
fn changed() -> Result<Vec<String>, Failure> {
    let mut files = Step::new("git", &["diff", "--name-only", "HEAD"]).lines()?;
    files.extend(Step::new("git", &["ls-files", "--others", "--exclude-standard"]).lines()?);
    if files.is_empty() {
        files = Step::new("git", &["diff", "--name-only", "HEAD~1"]).lines()?;
    }
    Ok(files)
}

/// The modules at the top of the library that have one of these files; none stands for all.
fn rooms(files: &[String]) -> BTreeSet<String> {
    let rooms = files.iter().filter_map(|file| file.strip_prefix("src/"));
    let rooms = rooms.filter(|file| !file.starts_with("bin/"));
    let name = |file: &str| file.split(['/', '.']).next().unwrap_or(file).to_owned();
    rooms.map(name).filter(|room| room != "lib").collect()
}

#[cfg(test)]
mod tests {
    use super::rooms;

    #[test]
    fn files_lie_in_rooms() {
        let files = ["src/op/add.rs", "src/model.rs", "src/model/kind.rs", "src/bin/fanwise.rs"];
        let files: Vec<String> = files.map(str::to_owned).into();
        let found: Vec<String> = rooms(&files).into_iter().collect();
        assert_eq!(found, ["model", "op"]);
    }
}
