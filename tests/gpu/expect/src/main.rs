//! Prints the expected times of all models of the zoo, and what steps of training launch, move and
//! exchange: `cargo run -p expect [ROWS]`.
#![expect(clippy::print_stdout, reason = "it is what this program is for")]

fn main() -> Result<(), std::num::ParseIntError> {
    let rows = std::env::args().nth(1).map_or(Ok(256), |rows| rows.parse())?;
    println!("{}", expect::table(rows, |_| true));
    println!("{}", expect::counts(|_| true));
    Ok(())
}
