//! The schedule: the order of the live nodes.

use super::layout::{Groups, Role, operands};
use crate::ir::{Graph, NodeId, NodeMap};

/// Returns the nodes on which an output or an update depends, in a topological order.
///
/// It follows `order`, except that a node that occupies memory and waits for nothing (a parameter
/// copied from another device, a constant) comes right before its first use.
///
/// A depth-first walk with an explicit stack, because the depth of a graph is unbounded and a
/// recursion could overflow. A late node is not a root of the walk; its first user pulls it in as
/// an operand. Each edge is visited once.
pub(super) fn schedule(
    graph: &Graph,
    order: &[NodeId],
    roles: &NodeMap<Role>,
    groups: &Groups,
) -> Vec<NodeId> {
    let needed = needed(graph, roles, groups);
    let late = late(graph, order, roles, groups);
    let mut done = graph.node_map(false);
    let mut out = Vec::with_capacity(order.len());
    let mut stack: Vec<(NodeId, usize)> = Vec::new();
    let first = order.iter().filter(|id| !late[**id]);
    let kept: Vec<NodeId> = graph.kept().map(|value| value.node).collect();
    for id in first.chain(&kept).filter(|id| needed[**id]) {
        if done[*id] {
            continue;
        }
        stack.push((*id, 0));
        while let Some((node, next)) = stack.pop() {
            match operands(graph, roles, groups, node).get(next) {
                Some(operand) => {
                    stack.push((node, next + 1));
                    if !done[operand.node] {
                        stack.push((operand.node, 0));
                    }
                }
                None if !done[node] => {
                    done[node] = true;
                    out.push(node);
                }
                None => {}
            }
        }
    }
    out
}

/// Marks the live nodes: those that an output or an update needs, and the inputs. An unused input
/// stays, because a run is still given its tensor.
fn needed(graph: &Graph, roles: &NodeMap<Role>, groups: &Groups) -> NodeMap<bool> {
    let mut needed = graph.node_map(false);
    let mut stack: Vec<NodeId> = graph.kept().map(|value| value.node).collect();
    stack.extend(graph.inputs().map(|v| v.node));
    while let Some(id) = stack.pop() {
        if !needed.replace(id, true) {
            stack.extend(operands(graph, roles, groups, id).iter().map(|v| v.node));
        }
    }
    needed
}

/// Marks the nodes that can wait until they are used: they depend on nothing that a device
/// computes. A copy of a parameter to another device, for example, would otherwise run first and
/// occupy the arena until its use. A node that reads a computed value is not late: moving it
/// could lengthen the lifetime of that value.
fn late(graph: &Graph, order: &[NodeId], roles: &NodeMap<Role>, groups: &Groups) -> NodeMap<bool> {
    let mut late = graph.node_map(false);
    let mut external = graph.node_map(false);
    for id in order {
        let operands = operands(graph, roles, groups, *id);
        let all = |table: &NodeMap<bool>| operands.iter().all(|v| table[v.node]);
        match roles[*id] {
            Role::External => (external[*id], late[*id]) = (true, true),
            Role::View => (external[*id], late[*id]) = (all(&external), all(&late)),
            Role::Copy => late[*id] = all(&external),
            Role::Launch => late[*id] = operands.is_empty(),
            Role::Concat | Role::First | Role::Received | Role::Fused => {}
        }
    }
    late
}
