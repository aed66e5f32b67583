//! The command line of fanwise; [`fanwise::cli`] has all of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    fanwise::cli::main(std::env::args_os())
}
