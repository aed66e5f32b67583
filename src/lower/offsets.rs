//! Offset assignment: places regions with live ranges into one arena (offline dynamic storage
//! allocation, as in XLA's heap simulator). The problem is NP-hard, so several greedy heuristics
//! compete, and the lower bound of [`peak_live`] ends the search early.

use std::collections::{BTreeMap, BTreeSet};

/// A region that is live from step `first` to step `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LiveRange {
    pub(super) size: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl LiveRange {
    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The most items for the greedy methods, whose cost is quadratic in the number of items. Beyond
/// it only [`linear_scan`] runs, whose cost is nearly linear.
const MAX_QUADRATIC: usize = 8192;

/// The repairs of the best order, and the most items for which it is repaired: each repair costs
/// one quadratic pass.
const REPAIRS: usize = 64;
const MAX_REPAIRED: usize = 2048;

/// Returns an offset for each item, and the size of the arena. No two items that are live at the
/// same step overlap.
///
/// The result is the best of several greedy methods: items in the order of size, of breadth (the
/// bytes that are live at a step) and of start, each placed into the tightest gap; then the best of
/// these orders again, with the item that ends highest moved to the front.
pub(super) fn assign_offsets(items: &[LiveRange]) -> (Vec<usize>, usize) {
    let bound = peak_live(items);
    let mut best = linear_scan(items);
    if best.1 == bound || items.len() > MAX_QUADRATIC {
        return best;
    }
    let mut best_order = Vec::new();
    for order in [by_size(items), by_breadth(items), by_start(items)] {
        let found = greedy(items, &order);
        if best_order.is_empty() || found.1 < best.1 {
            best_order = order;
        }
        if found.1 < best.1 {
            best = found;
        }
        if best.1 == bound {
            return best;
        }
    }
    let mut order = best_order;
    // The item that ends highest determines the size of the arena. Placing it first gives it a low
    // offset, at the cost of the others; repeated, this often removes a single outlier.
    let repairs = if items.len() > MAX_REPAIRED { 0 } else { REPAIRS };
    for _ in 0..repairs {
        let found = greedy(items, &order);
        let end = |i: &usize| found.0[*i] + items[*i].size;
        let Some(at) = (0..order.len()).max_by_key(|at| (end(&order[*at]), *at)) else { break };
        let highest = order.remove(at);
        order.insert(0, highest);
        if found.1 < best.1 {
            best = found;
        }
        if best.1 == bound {
            break;
        }
    }
    best
}

/// Returns the peak of live bytes over the steps, a lower bound for every arena.
pub(super) fn peak_live(items: &[LiveRange]) -> usize {
    peak(items).0
}

/// Returns the peak of live bytes over the steps, and the first step that reaches it.
pub(super) fn peak(items: &[LiveRange]) -> (usize, usize) {
    let mut changes: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * items.len());
    for item in items {
        changes.push((item.first, true, item.size));
        changes.push((item.last + 1, false, item.size));
    }
    // At one step `false` (an end) sorts before `true` (a start): an item that ends at step 3 frees
    // its bytes before an item that starts at step 4 takes them.
    changes.sort_unstable();
    let (mut now, mut most) = (0usize, (0usize, 0usize));
    for (step, begins, size) in changes {
        now = if begins { now + size } else { now - size };
        if now > most.0 {
            most = (now, step);
        }
    }
    most
}

fn by_size(items: &[LiveRange]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(items[*i].size), items[*i].first));
    order
}

fn by_start(items: &[LiveRange]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| (items[*i].first, std::cmp::Reverse(items[*i].size)));
    order
}

/// The order by breadth: the items of the step with the most live bytes, large before small, then
/// the items of the next step.
fn by_breadth(items: &[LiveRange]) -> Vec<usize> {
    let mut changes: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for item in items {
        changes.entry(item.first).or_default().0 += item.size;
        changes.entry(item.last + 1).or_default().1 += item.size;
    }
    let mut now = 0;
    let mut steps: Vec<(usize, usize)> = Vec::with_capacity(changes.len());
    for (step, (begins, ends)) in changes {
        now = now + begins - ends;
        steps.push((step, now));
    }
    steps.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    let mut left: Vec<usize> = (0..items.len()).collect();
    let mut order = Vec::with_capacity(items.len());
    for (step, _) in steps {
        let live = |i: &usize| items[*i].first <= step && step <= items[*i].last;
        let mut taken: Vec<usize> = left.iter().copied().filter(live).collect();
        left.retain(|i| !live(i));
        taken.sort_by_key(|i| std::cmp::Reverse(items[*i].size));
        order.extend(taken);
    }
    order
}

/// Places the items in this order, each into the tightest gap between the placed items that are
/// live at the same time (best fit).
fn greedy(items: &[LiveRange], order: &[usize]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; items.len()];
    // Ordered by offset, so that one walk finds all gaps.
    let mut placed: Vec<(LiveRange, usize)> = Vec::with_capacity(items.len());
    let mut total = 0;
    for i in order {
        let item = items[*i];
        let (mut end, mut best): (usize, Option<(usize, usize)>) = (0, None);
        for (other, start) in &placed {
            if !other.overlaps(item) {
                continue;
            }
            if *start > end {
                let gap = start - end;
                if gap >= item.size && best.is_none_or(|(tightest, _)| gap < tightest) {
                    best = Some((gap, end));
                }
            }
            end = end.max(start + other.size);
        }
        let offset = best.map_or(end, |(_, offset)| offset);
        offsets[*i] = offset;
        total = total.max(offset + item.size);
        let at = placed.partition_point(|(_, start)| *start <= offset);
        placed.insert(at, (item, offset));
    }
    (offsets, total)
}

/// Places the items in the order of their starts, each into the tightest free block: the linear
/// scan of register allocators, with a free list.
fn linear_scan(items: &[LiveRange]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; items.len()];
    let mut free: BTreeMap<usize, usize> = BTreeMap::new();
    let mut ends: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut total = 0;
    for i in by_start(items) {
        let item = items[i];
        while let Some((last, j)) = ends.first().copied().filter(|(last, _)| *last < item.first) {
            ends.remove(&(last, j));
            release(&mut free, offsets[j], items[j].size);
        }
        let fits = free.iter().filter(|(_, size)| **size >= item.size);
        let fit = fits.min_by_key(|(offset, size)| (**size, **offset)).map(|(o, s)| (*o, *s));
        // A free block at the end of the arena may be too small and still saves bytes: the arena
        // grows by the difference only.
        let tail = free.last_key_value().map(|(o, s)| (*o, *s)).filter(|(o, s)| o + s == total);
        let (offset, size) = fit.or(tail).unwrap_or((total, 0));
        free.remove(&offset);
        if size > item.size {
            free.insert(offset + item.size, size - item.size);
        }
        offsets[i] = offset;
        total = total.max(offset + item.size);
        ends.insert((item.last, i));
    }
    (offsets, total)
}

/// Adds a block to the free list and merges it with adjacent blocks, so that a later, larger item
/// fits.
fn release(free: &mut BTreeMap<usize, usize>, offset: usize, size: usize) {
    if size == 0 {
        return;
    }
    let (mut offset, mut size) = (offset, size);
    if let Some(next) = free.remove(&(offset + size)) {
        size += next;
    }
    if let Some((before, length)) = free.range(..offset).next_back().map(|(o, s)| (*o, *s))
        && before + length == offset
    {
        offset = before;
        size += length;
    }
    free.insert(offset, size);
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{LiveRange, assign_offsets, greedy, linear_scan, peak, peak_live};

    fn assert_sound(items: &[LiveRange], offsets: &[usize], total: usize) {
        for (i, a) in items.iter().enumerate() {
            assert!(offsets[i] + a.size <= total);
            for (j, b) in items.iter().enumerate().take(i) {
                let apart = offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i];
                assert!(apart || !a.overlaps(*b) || a.size == 0 || b.size == 0, "{i} and {j}");
            }
        }
    }

    #[test]
    fn no_two_live_items_overlap() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for count in 0..60 {
            let items: Vec<LiveRange> = (0..count)
                .map(|_| {
                    let first = rng.random_range(0..40);
                    let last = first + rng.random_range(0..8);
                    LiveRange { size: 64 * rng.random_range(0..20), first, last }
                })
                .collect();
            let order: Vec<usize> = (0..count).collect();
            for (offsets, total) in
                [linear_scan(&items), greedy(&items, &order), assign_offsets(&items)]
            {
                assert_sound(&items, &offsets, total);
                assert!(total >= peak_live(&items));
            }
            let (_, total) = assign_offsets(&items);
            assert!(total <= linear_scan(&items).1);
        }
    }

    #[test]
    fn a_chain_takes_its_widest_pair() {
        let items: Vec<LiveRange> =
            (0..100).map(|i| LiveRange { size: 64 * (1 + i % 7), first: i, last: i + 1 }).collect();
        assert_eq!(assign_offsets(&items).1, peak_live(&items));
        // Items 5 and 6 are the first of 6 and 7 units.
        assert_eq!(peak(&items), (64 * 13, 6));
        assert_eq!(peak(&[]), (0, 0));
    }
}
