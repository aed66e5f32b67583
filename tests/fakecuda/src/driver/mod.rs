//! The driver: contexts, streams, memory, modules, and the functions that the library exports.

pub mod api;
mod capture;
mod clock;
mod code;
mod config;
mod current;
mod execute;
mod leaks;
mod queue;
mod schedule;
mod state;
