//! Tables indexed by ids.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use crate::types::invariant::invariant;

/// An id: a position among the things of its kind.
pub(crate) trait Id: Copy {
    /// The position.
    fn index(self) -> usize;
}

/// A table with an entry for each id of a graph or a program.
///
/// Indexing takes ids of that graph or program alone; another id is a bug and panics.
///
/// Elsewhere: `SecondaryMap` (Cranelift).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdMap<K, T> {
    entries: Vec<T>,
    key: PhantomData<fn(K) -> K>,
}

impl<K: Id, T> IdMap<K, T> {
    /// A table of `count` ids, with `entry` for each.
    pub(crate) fn new(count: usize, entry: T) -> Self
    where
        T: Clone,
    {
        vec![entry; count].into()
    }

    /// The entries in the order of the ids.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.entries.iter()
    }

    /// The entry of an id; none where the id came after the table.
    pub(crate) fn get(&self, id: K) -> Option<&T> {
        self.entries.get(id.index())
    }

    /// Sets an entry and returns the one before.
    pub(crate) fn replace(&mut self, id: K, entry: T) -> T {
        std::mem::replace(&mut self[id], entry)
    }
}

impl<K, T> From<Vec<T>> for IdMap<K, T> {
    fn from(entries: Vec<T>) -> Self {
        Self { entries, key: PhantomData }
    }
}

impl<K, T> Default for IdMap<K, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<K: Id, T> Index<K> for IdMap<K, T> {
    type Output = T;
    fn index(&self, id: K) -> &T {
        invariant(self.entries.get(id.index()), "that a table has an entry for each id")
    }
}

impl<K: Id, T> IndexMut<K> for IdMap<K, T> {
    fn index_mut(&mut self, id: K) -> &mut T {
        invariant(self.entries.get_mut(id.index()), "that a table has an entry for each id")
    }
}

#[cfg(test)]
mod tests {
    use super::IdMap;
    use crate::ir::ParamId;

    #[test]
    fn entries_are_found_by_id() {
        let mut table: IdMap<ParamId, bool> = IdMap::new(2, false);
        table[ParamId(1)] = true;
        assert!(table.replace(ParamId(1), false));
        assert!(!table[ParamId(0)] && !table[ParamId(1)]);
    }

    #[test]
    #[should_panic(expected = "please report it")]
    fn an_id_of_another_graph_is_a_bug() {
        let table: IdMap<ParamId, bool> = IdMap::new(2, false);
        let _ = table[ParamId(2)];
    }
}
