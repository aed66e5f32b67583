use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::DataError;

/// The key of all random numbers of a row: the same key gives the same draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowKey {
    /// The seed of the run.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The number of the row in its source, or in its stream.
    pub row: u64,
    /// The place of the change among those of the loader.
    pub change: u32,
}

impl RowKey {
    /// The draws for this row and this change.
    pub(crate) fn draws(&self) -> Draws {
        Draws::new(self.seed, self.epoch, self.row, self.change)
    }
}

/// The number of the change of which no loader has that many: the order of an epoch's rows.
const ORDER: u32 = u32::MAX;

/// Numbers that a key decides: the stream of `ChaCha8` under it.
#[derive(Clone, Debug)]
pub(crate) struct Draws(ChaCha8Rng);

impl Draws {
    fn new(seed: u64, epoch: u64, row: u64, change: u32) -> Self {
        // The key, not a stream that rows draw from in turn: so the numbers of a row do not depend
        // on the thread that makes it or on the rows before it.
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&epoch.to_le_bytes());
        key[16..24].copy_from_slice(&row.to_le_bytes());
        key[24..28].copy_from_slice(&change.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A number from 0 to `end - 1`, all as likely; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        // The method of Lemire: the high word of a product, whose low word tells the draws that
        // would make some numbers likelier than others.
        let mut product = u128::from(self.0.next_u64()) * u128::from(end);
        if low(product) < end {
            let least = end.wrapping_neg().checked_rem(end).unwrap_or(0);
            while low(product) < least {
                product = u128::from(self.0.next_u64()) * u128::from(end);
            }
        }
        (product >> 64) as u64
    }

    /// A number between `low` and `high`, all as likely: `low + (high - low) * u`, where `u` is a
    /// multiple of 2 to the power -53 with `0 <= u < 1`.
    pub(crate) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// True in one of two cases.
    pub(crate) fn flip(&mut self) -> bool {
        self.0.next_u64() >> 63 == 1
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low word is meant")]
const fn low(product: u128) -> u64 {
    product as u64
}

/// The order in which the rows of an epoch are taken: every number below `rows` once. The method of
/// Fisher and Yates, from the last place to the second, with the draws of the seed and the epoch.
///
/// # Errors
/// If there is no memory for it.
pub(crate) fn order(rows: usize, seed: u64, epoch: u64) -> Result<Vec<usize>, DataError> {
    let mut order = Vec::new();
    let full = |_| DataError::Setting(format!("there is no memory for the order of {rows} rows"));
    order.try_reserve_exact(rows).map_err(full)?;
    order.extend(0..rows);
    let mut draws = Draws::new(seed, epoch, 0, ORDER);
    for place in (1..rows).rev() {
        let other = usize::try_from(draws.below(place as u64 + 1)).unwrap_or(place);
        order.swap(place, other);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{RowKey, order};

    #[test]
    fn an_order_has_every_row_once_and_follows_from_seed_and_epoch() {
        let mut seen = BTreeSet::new();
        for rows in [0usize, 1, 2, 3, 7, 64, 1000] {
            for seed in [0, 1, u64::MAX] {
                for epoch in 0..4 {
                    let found = order(rows, seed, epoch).unwrap();
                    assert_eq!(found, order(rows, seed, epoch).unwrap());
                    let mut sorted = found.clone();
                    sorted.sort_unstable();
                    assert!(sorted.into_iter().eq(0..rows));
                    if rows == 1000 {
                        assert!(seen.insert(found));
                    }
                }
            }
        }
    }

    #[test]
    fn every_order_is_as_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for epoch in 0..24_000 {
            *counts.entry(order(4, 3, epoch).unwrap()).or_insert(0u32) += 1;
        }
        assert_eq!(counts.len(), 24);
        // Each is drawn 1000 times on the average, with a deviation of 31.
        assert!(counts.values().all(|c| (850..1150).contains(c)), "{counts:?}");
    }

    const GOLDEN: [usize; 8] = [6, 0, 4, 7, 1, 2, 3, 5];

    #[test]
    fn draws_are_in_their_range_and_of_their_key() {
        let key = RowKey { seed: 1, epoch: 2, row: 3, change: 0 };
        let mut draws = key.draws();
        let mut counts = [0u32; 3];
        for _ in 0..3000 {
            counts[usize::try_from(draws.below(3)).unwrap()] += 1;
            let x = draws.uniform(-2.0, 5.0);
            assert!((-2.0..5.0).contains(&x));
        }
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
        assert_eq!(draws.below(0), 0);
        assert_eq!(draws.below(1), 0);
        let first = |key: RowKey| key.draws().below(u64::MAX);
        let others = [
            RowKey { seed: 0, ..key },
            RowKey { epoch: 0, ..key },
            RowKey { row: 0, ..key },
            RowKey { change: 1, ..key },
        ];
        assert!(others.into_iter().all(|other| first(other) != first(key)));
        // The same on every machine and in every version: a run may go on elsewhere.
        assert_eq!(order(8, 1, 2).unwrap(), GOLDEN);
    }
}
