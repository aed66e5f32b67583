//! What runs programs: one folder for each kind of machine.

pub mod cpu;
