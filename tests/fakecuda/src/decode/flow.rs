//! Where the lanes of a warp come together again after a branch: its immediate post-dominator.

use crate::exec::kernel::{Inst, NOWHERE, Step};

/// Sets the join of every branch.
pub(super) fn joins(code: &mut [Inst]) {
    let blocks = Blocks::new(code);
    // Paths that leave the kernel early do not keep the others from coming together.
    let inner = blocks.post_dominators(code, true);
    let outer = blocks.post_dominators(code, false);
    for block in 0..blocks.starts.len() {
        let last = blocks.end(block, code.len()) - 1;
        let join = inner[block].or(outer[block]).map_or(NOWHERE, |b| number(blocks.starts[b]));
        match &mut code[last].step {
            Step::Branch { join: to, .. } | Step::Switch { join: to, .. } => *to = join,
            _ => {}
        }
    }
}

/// An index as an instruction number.
fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(NOWHERE)
}

/// Basic blocks, in order.
struct Blocks {
    starts: Vec<usize>,
    /// The block of each instruction.
    of: Vec<usize>,
}

impl Blocks {
    fn new(code: &[Inst]) -> Self {
        let mut leads = vec![false; code.len() + 1];
        leads[0] = true;
        for (at, inst) in code.iter().enumerate() {
            match &inst.step {
                Step::Branch { target, .. } => {
                    leads[*target as usize] = true;
                    leads[at + 1] = true;
                }
                Step::Switch { targets, .. } => {
                    for &target in targets {
                        leads[target as usize] = true;
                    }
                    leads[at + 1] = true;
                }
                Step::Exit | Step::Trap => leads[at + 1] = true,
                _ => {}
            }
        }
        let starts: Vec<usize> = (0..code.len()).filter(|&i| leads[i]).collect();
        let mut of = vec![0; code.len()];
        for (block, &start) in starts.iter().enumerate() {
            let end = starts.get(block + 1).copied().unwrap_or(code.len());
            of[start..end].fill(block);
        }
        Self { starts, of }
    }

    fn end(&self, block: usize, len: usize) -> usize {
        self.starts.get(block + 1).copied().unwrap_or(len)
    }

    /// The blocks that may follow; the number of blocks stands for the end of the kernel.
    /// `pruned` leaves out jumps to the end.
    fn successors(&self, block: usize, code: &[Inst], pruned: bool) -> Vec<usize> {
        let len = self.starts.len();
        let last = self.end(block, code.len()) - 1;
        let next = if block + 1 < len { block + 1 } else { len };
        let inst = &code[last];
        let leaves = |b: usize| matches!(code[self.starts[b]].step, Step::Exit);
        let jump = |target: u32| {
            let to = self.of[target as usize];
            (!(pruned && leaves(to))).then_some(to)
        };
        match &inst.step {
            Step::Branch { target, .. } => {
                let mut out: Vec<_> = jump(*target).into_iter().collect();
                if inst.guard.is_some() {
                    out.push(next);
                }
                out
            }
            Step::Switch { targets, .. } => {
                let mut out: Vec<_> = targets.iter().filter_map(|&t| jump(t)).collect();
                if inst.guard.is_some() {
                    out.push(next);
                }
                out
            }
            Step::Exit if inst.guard.is_some() => vec![next],
            Step::Exit if pruned && last + 1 < code.len() => Vec::new(),
            Step::Exit => vec![len],
            Step::Trap if inst.guard.is_none() => Vec::new(),
            _ => vec![next],
        }
    }

    /// The immediate post-dominator of each block; `None` where paths meet only at the end.
    fn post_dominators(&self, code: &[Inst], pruned: bool) -> Vec<Option<usize>> {
        let len = self.starts.len();
        let next: Vec<Vec<usize>> = (0..len).map(|b| self.successors(b, code, pruned)).collect();
        let mut before = vec![Vec::new(); len + 1];
        for (block, successors) in next.iter().enumerate() {
            for &successor in successors {
                before[successor].push(block);
            }
        }
        let order = reverse_order(&before, len);
        let mut rank = vec![usize::MAX; len + 1];
        for (at, &block) in order.iter().enumerate() {
            rank[block] = at;
        }
        let mut dominator = vec![usize::MAX; len + 1];
        dominator[len] = len;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in order.iter().skip(1) {
                let known = next[block].iter().copied().filter(|&s| dominator[s] != usize::MAX);
                let found = known.reduce(|a, b| meet(a, b, &dominator, &rank));
                if let Some(found) = found
                    && dominator[block] != found
                {
                    dominator[block] = found;
                    changed = true;
                }
            }
        }
        (0..len).map(|b| Some(dominator[b]).filter(|&d| d < len)).collect()
    }
}

/// The nearest common post-dominator of two blocks.
fn meet(mut a: usize, mut b: usize, dominator: &[usize], rank: &[usize]) -> usize {
    while a != b {
        while rank[a] > rank[b] {
            a = dominator[a];
        }
        while rank[b] > rank[a] {
            b = dominator[b];
        }
    }
    a
}

/// Blocks from the end backwards, each after one that follows it (reverse post-order).
fn reverse_order(before: &[Vec<usize>], end: usize) -> Vec<usize> {
    let mut seen = vec![false; before.len()];
    let mut order = Vec::with_capacity(before.len());
    let mut stack = vec![(end, 0)];
    seen[end] = true;
    while let Some((block, at)) = stack.pop() {
        match before[block].get(at) {
            Some(&p) => {
                stack.push((block, at + 1));
                if !seen[p] {
                    seen[p] = true;
                    stack.push((p, 0));
                }
            }
            None => order.push(block),
        }
    }
    order.reverse();
    order
}
