//! Graphs.

use super::super::code;
use super::super::schedule::Goal;
use super::{Out, exports};

exports! {
    /// Makes a graph launchable.
    fn cuGraphInstantiateWithFlags(Other, executable: Out<u64>, graph: u64, _flags: u64) |d| {
        executable.give(d.instantiate(graph)?)?;
        Ok(Goal::Nothing)
    }

    /// Launches a graph.
    fn cuGraphLaunch(Launch, executable: u64, stream: u64) |d| {
        let stream = d.stream(stream)?;
        d.launch_graph(executable, stream)
    }

    /// Prepares a graph's launch: it takes its memory.
    fn cuGraphUpload(Other, executable: u64, stream: u64) |d| {
        d.stream(stream)?;
        if !d.executables.contains_key(&executable) {
            return Err(d.refuse(code::INVALID_VALUE, "a graph that does not exist is uploaded"));
        }
        d.upload_graph(executable)?;
        Ok(Goal::Nothing)
    }

    /// Ends a launchable graph.
    fn cuGraphExecDestroy(Release, executable: u64) |d| {
        let Some(of) = d.executables.remove(&executable) else {
            return Err(d.refuse(code::INVALID_VALUE, "a launchable graph is destroyed twice"));
        };
        d.end_graph(&of);
        for branch in of.branches {
            if let Some(stream) = d.streams.get_mut(&branch) {
                stream.destroyed = true;
            }
            d.retire(branch);
        }
        Ok(Goal::Nothing)
    }

    /// Ends a graph.
    fn cuGraphDestroy(Release, graph: u64) |d| {
        if d.graphs.remove(&graph).is_none() {
            return Err(d.refuse(code::INVALID_VALUE, "a graph is destroyed twice"));
        }
        Ok(Goal::Nothing)
    }

    /// The number of work items of a graph; the nodes themselves have no handles.
    fn cuGraphGetNodes(Other, graph: u64, nodes: Out<u64>, count: Out<usize>) |d| {
        if !nodes.0.is_null() {
            return Err(code::NOT_SUPPORTED);
        }
        count.give(d.graphs.get(&graph).ok_or(code::INVALID_VALUE)?.work.len())?;
        Ok(Goal::Nothing)
    }
}
