//! Boxes of a step of training: gradients beside what they are of, an exchange between replicas as
//! one box, and what renews parameters as another.

use std::collections::BTreeSet;

use super::blocks::{Band, Block, Blocks, Lane, Role};
use crate::ir::Graph;

/// The most layers that a box of gradients has.
const MOST: usize = 3;

/// The name of what gives parameters their new values.
pub(super) const RENEWAL: &str = "new parameters";

/// Operators that move elements, or change their type.
const MOVES: [&str; 6] = ["slice", "concat", "split", "reshape", "cast", "narrow"];

impl Blocks {
    /// Finds what goes upwards: gradients, and what is computed from them.
    pub(super) fn turn(&mut self, graph: &Graph) {
        if graph.updates().is_empty() {
            return;
        }
        let before = self.before();
        for (at, near) in before.iter().enumerate() {
            let follows = near.iter().any(|from| self.blocks[*from].up);
            let block = &mut self.blocks[at];
            let is_gradient = super::blocks::backward(graph, block);
            block.up = block.band == Band::Devices && (follows || is_gradient);
        }
    }

    /// Exchanges as one box each: the collective, its copies, and what only moves its parts.
    pub(super) fn exchanges(mut self, graph: &Graph) -> Self {
        let (before, after) = (self.before(), self.after());
        let mut group: Vec<usize> = (0..before.len()).collect();
        for at in 0..before.len() {
            let own = &self.blocks[at];
            if own.role != Role::Collective || own.band != Band::Devices {
                continue;
            }
            let copies = |near: &[usize], other: &[Vec<usize>]| -> Vec<usize> {
                let copy = |b: &usize| {
                    let block = &self.blocks[*b];
                    block.role == Role::Copy && block.band == Band::Devices && other[*b] == [at]
                };
                near.iter().copied().filter(copy).collect()
            };
            let mut copies = [copies(&before[at], &after), copies(&after[at], &before)].concat();
            let lanes: BTreeSet<Lane> = copies.iter().map(|b| self.blocks[*b].lane).collect();
            let lane = match lanes.len() {
                1 => lanes.first().copied().unwrap_or(own.lane),
                _ => own.lane,
            };
            copies.retain(|b| self.blocks[*b].lane == lane);
            let mut parts: BTreeSet<usize> = copies.into_iter().collect();
            parts.insert(at);
            let moved = |near: &[Vec<usize>], other: &[Vec<usize>]| -> Vec<usize> {
                let found = parts.iter().flat_map(|part| &near[*part]).filter(|b| {
                    let block = &self.blocks[**b];
                    (block.band, block.lane) == (Band::Devices, lane)
                        && moves(graph, block)
                        && other[**b].iter().all(|b| parts.contains(b))
                });
                found.copied().collect()
            };
            let more = [moved(&before, &after), moved(&after, &before)].concat();
            parts.extend(more);
            for part in parts {
                group[part] = at;
            }
            self.blocks[at].lane = lane;
        }
        let group = self.without_loops(group);
        self.merged(&group)
    }

    /// Chains of gradients, and what only prepares an exchange, as one box with what is before.
    pub(super) fn gradients(self) -> Self {
        let (before, after) = (self.before(), self.after());
        let mut group: Vec<usize> = (0..before.len()).collect();
        let mut names: Vec<BTreeSet<&str>> =
            self.blocks.iter().map(|b| b.names.iter().map(String::as_str).collect()).collect();
        for at in 0..before.len() {
            let own = &self.blocks[at];
            let near = |b: &&usize| {
                let block = &self.blocks[**b];
                (block.band, block.flow()) == (own.band, own.flow())
            };
            let mut above = before[at].iter().filter(near);
            let (Some(from), None) = (above.next(), above.next()) else { continue };
            let is_compute = |b: usize| self.blocks[b].role == Role::Compute;
            let users = || after[*from].iter().filter(near).filter(|b| is_compute(**b));
            let prepares = !after[at].is_empty() && after[at].iter().all(|b| !is_compute(*b));
            let joined = prepares || own.up && users().eq([&at]);
            let all: BTreeSet<&str> = names[group[*from]].union(&names[at]).copied().collect();
            if is_compute(*from) && is_compute(at) && joined && all.len() <= MOST {
                group[at] = group[*from];
                names[group[at]] = all;
            }
        }
        let group = self.without_loops(group);
        self.merged(&group)
    }

    /// What renews parameters as one box of each device: what follows from exchanges, and neither
    /// leads to another one nor to an output, with what brings it there by way of the host. So do
    /// the copies that the host takes.
    pub(super) fn renewals(mut self) -> Self {
        let (before, after) = (self.before(), self.after());
        let follows = self.follows(&before);
        let leads = self.leads(&after);
        let renews = |at: usize| {
            let role = self.blocks[at].role;
            matches!(role, Role::Copy | Role::Compute) && follows[at] && !leads[at]
        };
        let renews: Vec<bool> = (0..before.len()).map(renews).collect();
        let homes = self.homes(&renews, &after);
        // How many copies are behind the last exchange: a copy and the copy of what follows from it
        // are not one box.
        let mut copies = vec![0; before.len()];
        for at in 0..before.len() {
            let behind = before[at].iter().filter(|from| follows[**from]);
            let count =
                |from: &usize| copies[*from] + usize::from(self.blocks[*from].role == Role::Copy);
            // What follows from no copy is behind none.
            copies[at] = behind.map(count).max().unwrap_or(0);
        }
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for at in 0..before.len() {
            let own = &self.blocks[at];
            let is_copy = own.role == Role::Copy;
            let returns = is_copy && own.band == Band::Returned;
            if !renews[at] && !returns {
                continue;
            }
            let alike = |first: usize| {
                let other = &self.blocks[first];
                let as_far = !is_copy || returns || copies[first] == copies[at];
                as_far && (other.band, other.lane, other.role) == (own.band, own.lane, own.role)
            };
            let joins = |group: &&mut Vec<usize>| {
                let first = group[0];
                homes[first] == homes[at] && (homes[at].is_some() || alike(first))
            };
            match groups.iter_mut().find(joins) {
                Some(group) => group.push(at),
                None => groups.push(vec![at]),
            }
        }
        let group = self.renewed(&groups, &homes);
        self.merged(&group)
    }

    /// True for what follows from an exchange.
    fn follows(&self, before: &[Vec<usize>]) -> Vec<bool> {
        let mut follows = vec![false; before.len()];
        for at in 0..before.len() {
            let of = |from: &usize| follows[*from] || self.blocks[*from].role == Role::Collective;
            follows[at] = before[at].iter().any(of);
        }
        follows
    }

    /// True for what leads to an exchange or to an output.
    fn leads(&self, after: &[Vec<usize>]) -> Vec<bool> {
        let mut leads = vec![false; after.len()];
        for at in (0..after.len()).rev() {
            let of = |to: &usize| {
                leads[*to] || matches!(self.blocks[*to].role, Role::Collective | Role::Output)
            };
            leads[at] = after[at].iter().any(of);
        }
        leads
    }

    /// The lane whose parameters all of it goes to, for what renews parameters of devices.
    fn homes(&self, renews: &[bool], after: &[Vec<usize>]) -> Vec<Option<Lane>> {
        let mut homes = vec![None; after.len()];
        for at in (0..after.len()).rev() {
            let block = &self.blocks[at];
            if !renews[at] || block.band != Band::Devices {
                continue;
            }
            let mut lanes = after[at].iter().map(|to| homes[*to]);
            homes[at] = match lanes.next() {
                None => Some(block.lane).filter(|_| block.role == Role::Compute),
                Some(lane) => lane.filter(|_| lanes.all(|other| other == lane)),
            };
        }
        homes
    }

    /// The group of each box, where these are one box each; what computes parameters is named so.
    fn renewed(&mut self, groups: &[Vec<usize>], homes: &[Option<Lane>]) -> Vec<usize> {
        let mut group: Vec<usize> = (0..self.blocks.len()).collect();
        let mut firsts = Vec::new();
        for boxes in groups {
            // The last box of a lane with parameters computes them there.
            let first = if homes[boxes[0]].is_some() { boxes.last() } else { boxes.first() };
            let Some(first) = first else { continue };
            for at in boxes {
                group[*at] = *first;
            }
            firsts.push(*first);
            self.blocks[*first].up = boxes.iter().any(|at| self.blocks[*at].up);
        }
        let group = self.without_loops(group);
        for first in firsts {
            let parts = group.iter().enumerate().filter(|(_, of)| **of == first);
            let parts: Vec<usize> = parts.map(|(part, _)| part).collect();
            if parts.len() > 1 && self.blocks[first].role == Role::Compute {
                for part in parts {
                    self.blocks[part].names = vec![RENEWAL.to_owned()];
                }
            }
        }
        group
    }
}

/// True for boxes that compute nothing.
fn moves(graph: &Graph, block: &Block) -> bool {
    let moves = |name: &str| MOVES.contains(&name);
    block.role == Role::Compute
        && block.nodes.iter().all(|id| graph.node(*id).op().is_some_and(|op| moves(op.name())))
}
