//! Tells the command line from which commit it was built: `--version` shows it.
//!
//! Only release builds ask git. A build for development would compile the whole library again after
//! each commit, because of this line alone.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FANWISE_COMMIT");
    let given = env::var("FANWISE_COMMIT").ok().filter(|commit| !commit.is_empty());
    if let Some(commit) = given.or_else(packaged).or_else(checked_out) {
        println!("cargo::rustc-env=FANWISE_BUILT_FROM={commit}");
    }
}

/// The commit of an archive that `cargo package` made.
fn packaged() -> Option<String> {
    let text = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    let sha: String = rest
        .chars()
        .skip_while(|c| !c.is_ascii_hexdigit())
        .take_while(char::is_ascii_hexdigit)
        .collect();
    sha.get(..10).map(str::to_owned)
}

/// The commit that is checked out and its date, in a release build from a repository.
fn checked_out() -> Option<String> {
    if env::var("PROFILE").ok()? != "release" || !Path::new(".git").exists() {
        return None;
    }
    let folder = git(&["rev-parse", "--absolute-git-dir"])?;
    // Written by every commit and every checkout.
    println!("cargo::rerun-if-changed={folder}/logs/HEAD");
    git(&["log", "-1", "--abbrev=10", "--format=%h %cs"])
}

/// What git prints; none where it fails, or there is none.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
