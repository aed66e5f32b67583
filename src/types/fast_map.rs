//! Hash tables for names and ids, of which a graph may have millions.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A hash table. Its function is seeded by chance, as that of the standard library, and takes a
/// fraction of the time.
pub(crate) type FastMap<K, V> = HashMap<K, V, RandomState>;

/// The keys of a hash table.
pub(crate) type FastSet<K> = HashSet<K, RandomState>;
