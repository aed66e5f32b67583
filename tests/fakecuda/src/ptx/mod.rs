//! PTX text: its tokens, its syntax tree and the parser from one to the other.

mod lexer;
mod parser;
mod tree;

pub use parser::parse;
pub use tree::{Arg, Func, Instr, Module, RegDecl, Space, Stmt, Ty, Var};
