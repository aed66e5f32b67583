//! Training: the data that a training graph is fed with, and the loop around it.

pub mod data;
