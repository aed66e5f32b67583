#![allow(warnings)]
#[path = "../../../it/cuda_traffic.rs"]
mod cuda_traffic;
#[path = "../../../it/cuda_training.rs"]
mod cuda_training;
