//! Offsets for regions of one arena, each live over a range of steps.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes that are live from one step to another, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) size: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Item {
    fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Above this number of items only the methods run whose cost is nearly linear.
const MAX_QUADRATIC: usize = 8192;

/// Attempts at repairing the best order found, of so many items at most.
const REPAIRS: usize = 64;
const MAX_REPAIRED: usize = 2048;

/// An offset for each item so that no two that are live at the same step overlap, and the bytes
/// taken.
///
/// The best of several greedy methods: in the order of size, of the breadth of the steps (the bytes
/// live there), of the start, each into the tightest gap; then the same with the item that ends
/// highest moved to the front.
pub(super) fn plan(items: &[Item]) -> (Vec<usize>, usize) {
    let bound = live(items);
    let mut best = sweep(items);
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

/// The most bytes that are live at one step: no plan takes fewer.
pub(super) fn live(items: &[Item]) -> usize {
    let mut changes: Vec<(usize, bool, usize)> = Vec::with_capacity(2 * items.len());
    for item in items {
        changes.push((item.first, true, item.size));
        changes.push((item.last + 1, false, item.size));
    }
    // At one step the ends (false) come before the beginnings.
    changes.sort_unstable();
    let (mut now, mut most) = (0usize, 0usize);
    for (_, begins, size) in changes {
        now = if begins { now + size } else { now - size };
        most = most.max(now);
    }
    most
}

fn by_size(items: &[Item]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(items[*i].size), items[*i].first));
    order
}

fn by_start(items: &[Item]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| (items[*i].first, std::cmp::Reverse(items[*i].size)));
    order
}

/// The items of the fullest step first, large before small, then those of the next.
fn by_breadth(items: &[Item]) -> Vec<usize> {
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

/// Places the items in this order, each into the tightest gap between those placed that it meets.
fn greedy(items: &[Item], order: &[usize]) -> (Vec<usize>, usize) {
    let mut offsets = vec![0; items.len()];
    // With their places, by which they are ordered.
    let mut placed: Vec<(Item, usize)> = Vec::with_capacity(items.len());
    let mut total = 0;
    for i in order {
        let item = items[*i];
        let (mut end, mut best): (usize, Option<(usize, usize)>) = (0, None);
        for (other, start) in &placed {
            if !other.meets(item) {
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

/// Places the items in the order in which they become live, each into the tightest free block.
fn sweep(items: &[Item]) -> (Vec<usize>, usize) {
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

/// Adds a block to the free ones, joined with its neighbours.
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

    use super::{Item, greedy, live, plan, sweep};

    fn assert_sound(items: &[Item], offsets: &[usize], total: usize) {
        for (i, a) in items.iter().enumerate() {
            assert!(offsets[i] + a.size <= total);
            for (j, b) in items.iter().enumerate().take(i) {
                let apart = offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i];
                assert!(apart || !a.meets(*b) || a.size == 0 || b.size == 0, "{i} and {j}");
            }
        }
    }

    #[test]
    fn no_two_live_items_overlap() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for count in 0..60 {
            let items: Vec<Item> = (0..count)
                .map(|_| {
                    let first = rng.random_range(0..40);
                    let last = first + rng.random_range(0..8);
                    Item { size: 64 * rng.random_range(0..20), first, last }
                })
                .collect();
            let order: Vec<usize> = (0..count).collect();
            for (offsets, total) in [sweep(&items), greedy(&items, &order), plan(&items)] {
                assert_sound(&items, &offsets, total);
                assert!(total >= live(&items));
            }
            let (_, total) = plan(&items);
            assert!(total <= sweep(&items).1);
        }
    }

    #[test]
    fn a_chain_takes_its_widest_pair() {
        let items: Vec<Item> =
            (0..100).map(|i| Item { size: 64 * (1 + i % 7), first: i, last: i + 1 }).collect();
        assert_eq!(plan(&items).1, live(&items));
    }
}
