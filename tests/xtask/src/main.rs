//! Development tasks of fanwise.
fn main() {}
