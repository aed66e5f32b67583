//! The command line of fanwise.
fn main() {}
