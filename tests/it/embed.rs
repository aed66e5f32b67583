//! The example of embedding does what it says.

#[path = "../../examples/embed.rs"]
#[allow(clippy::print_stdout, reason = "an example prints")]
mod example;

#[test]
fn the_example_runs() {
    example::main().unwrap();
}
