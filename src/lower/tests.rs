use super::lower;
use super::testing::{replicated, views};
use crate::ir::{Graph, Placement, verify};
use crate::snap;
use crate::types::{Device, ShardRule, Target};

fn text(graph: &Graph) -> String {
    lower(&verify(graph).unwrap(), &Target::CPU).unwrap().to_string()
}

#[test]
fn programs_print() {
    let shared = Placement::Shared(Device::HOST);
    let (on_host, _) = replicated(2, ShardRule::RemainderLast, Device::HOST, shared);
    snap::assert("program", "merge_on_host", &text(&on_host));
    let (on_gpu, _) = replicated(2, ShardRule::Balanced, Device::gpu(0), Placement::Mirrored);
    snap::assert("program", "merge_on_gpu", &text(&on_gpu));
    snap::assert("program", "views", &text(&views().0));
}
