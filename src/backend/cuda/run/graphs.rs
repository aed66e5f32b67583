//! The captured graphs of a GPU's worker, and what else it keeps for each batch size.

use std::collections::VecDeque;
use std::time::Duration;

use crate::backend::cuda::driver::stream::Graph;

/// The number of batch sizes whose graphs are kept. Graphs take device memory, so an embedder that
/// runs every batch size must not keep one set for each; the least recently used goes first.
const KEPT_SIZES: usize = 16;

/// The number of runs of a batch size for which kernels are launched one by one after there was no
/// memory for its graphs. To try costs a capture, and another process may have had the memory.
const RUNS_UNTIL_RETRY: u32 = 64;

/// The way in which work is put on the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Task by task, each waited for, so that a failure has a name.
    Proving,
    /// Task by task.
    Streamed,
    /// As graphs.
    Replayed,
}

/// The state that is kept for one batch size.
#[derive(Debug)]
struct Size {
    n: i64,
    /// The arena's address in the graphs, which hold it as a constant: with another arena they
    /// would write to freed memory.
    arena: u64,
    /// One for each unit of work that was captured.
    graphs: Vec<Option<Graph>>,
    /// The longest time that a unit took.
    longest: Duration,
    /// True once every kernel has run alone without an error.
    is_proven: bool,
    /// The runs that do without graphs.
    runs_without: u32,
}

/// The graphs of each batch size; that of the present run comes first.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    sizes: VecDeque<Size>,
}

impl Graphs {
    /// Begins a run of `n` rows with the arena at an address; how its work is put on the streams.
    pub(super) fn begin(&mut self, n: i64, arena: u64, wants_graphs: bool) -> Mode {
        let known = self.sizes.iter().position(|s| s.n == n);
        let mut size = known.and_then(|at| self.sizes.remove(at)).unwrap_or(Size {
            n,
            arena,
            graphs: Vec::new(),
            longest: Duration::ZERO,
            is_proven: false,
            runs_without: 0,
        });
        let is_without = size.runs_without > 0;
        if size.arena != arena || is_without {
            // The graphs hold addresses of the old arena, or were too large together.
            size.graphs.clear();
            size.arena = arena;
            size.runs_without = size.runs_without.saturating_sub(1);
        }
        let mode = match (size.is_proven, wants_graphs && !is_without) {
            (false, _) => Mode::Proving,
            (true, false) => Mode::Streamed,
            (true, true) => Mode::Replayed,
        };
        self.sizes.truncate(KEPT_SIZES - 1);
        self.sizes.push_front(size);
        mode
    }

    /// The longest time that a unit of the present batch size took.
    pub(super) fn longest(&self) -> Duration {
        // Before the first run of a batch size nothing is known of it.
        self.sizes.front().map_or(Duration::ZERO, |size| size.longest)
    }

    /// Remembers the time that a unit of the present run took.
    pub(super) fn took(&mut self, time: Duration) {
        if let Some(size) = self.sizes.front_mut() {
            size.longest = size.longest.max(time);
        }
    }

    /// Says that every kernel of the present run has run without an error.
    pub(super) fn prove(&mut self) {
        if let Some(size) = self.sizes.front_mut() {
            size.is_proven = true;
        }
    }

    /// The graph of a unit of the present run.
    pub(super) fn get(&self, unit: usize) -> Option<&Graph> {
        self.sizes.front()?.graphs.get(unit)?.as_ref()
    }

    /// Keeps the graph of a unit of the present run.
    pub(super) fn keep(&mut self, unit: usize, graph: Graph) {
        if let Some(size) = self.sizes.front_mut() {
            if size.graphs.len() <= unit {
                size.graphs.resize_with(unit + 1, || None);
            }
            size.graphs[unit] = Some(graph);
        }
    }

    /// Gives up the graphs of the batch size that was used longest ago, but not those of the
    /// present run; true if there were any.
    pub(super) fn give_way(&mut self) -> bool {
        let mut others = self.sizes.iter_mut().skip(1).rev();
        let oldest = others.find(|size| size.graphs.iter().any(Option::is_some));
        oldest.is_some_and(|size| {
            size.graphs.clear();
            true
        })
    }

    /// Does without a graph for a unit of the present run, and without any in the next ones.
    pub(super) fn refuse(&mut self, unit: usize) {
        if let Some(size) = self.sizes.front_mut() {
            if let Some(graph) = size.graphs.get_mut(unit) {
                *graph = None;
            }
            size.runs_without = RUNS_UNTIL_RETRY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Graphs, Mode, RUNS_UNTIL_RETRY};

    #[test]
    fn graphs_for_which_memory_was_short_are_tried_again() {
        let mut graphs = Graphs::default();
        assert_eq!(graphs.begin(4, 0, true), Mode::Proving);
        graphs.prove();
        assert_eq!(graphs.begin(4, 0, false), Mode::Streamed);
        assert_eq!(graphs.begin(4, 0, true), Mode::Replayed);
        graphs.refuse(0);
        assert_eq!(graphs.begin(5, 0, true), Mode::Proving);
        for _ in 0..RUNS_UNTIL_RETRY {
            assert_eq!(graphs.begin(4, 0, true), Mode::Streamed);
        }
        assert_eq!(graphs.begin(4, 0, true), Mode::Replayed);
        assert!(!graphs.give_way() && graphs.get(0).is_none());
    }
}
