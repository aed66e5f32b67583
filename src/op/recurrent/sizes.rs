//! The sizes of a recurrent cell's call, and where its states lie among its results.

use std::ops::Range;

/// The sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Steps of a sequence.
    pub steps: usize,
    /// Sequences.
    pub rows: usize,
    /// Elements of a step.
    pub input: usize,
    /// Elements of the state.
    pub hidden: usize,
    /// Directions.
    pub directions: usize,
    /// Whether the sequences are the first axis, and not the steps.
    pub batch_first: bool,
}

impl Sizes {
    /// The position of a step of a sequence among those of the operand.
    pub(crate) fn step(&self, time: usize, row: usize) -> usize {
        if self.batch_first { row * self.steps + time } else { time * self.rows + row }
    }

    /// The sequence and the step at a position among those of the operand.
    pub(crate) fn row_and_time(&self, at: usize) -> (usize, usize) {
        if self.batch_first {
            (at / self.steps, at % self.steps)
        } else {
            (at % self.rows, at / self.rows)
        }
    }

    /// The position of a state among those after all steps.
    pub(crate) fn state(&self, direction: usize, row: usize) -> usize {
        if self.batch_first {
            row * self.directions + direction
        } else {
            direction * self.rows + row
        }
    }

    /// Writes the states of some sequences of a direction among those after all steps.
    pub(crate) fn write_states<R: Copy>(
        &self,
        direction: usize,
        rows: Range<usize>,
        states: &[R],
        to: &mut [R],
    ) {
        // States without elements are none.
        for (row, state) in rows.zip(states.chunks_exact(self.hidden.max(1))) {
            let at = self.state(direction, row) * self.hidden;
            to[at..at + self.hidden].copy_from_slice(state);
        }
    }

    /// The position of the state after a step among those of all steps.
    pub(crate) fn states(&self, time: usize, direction: usize, row: usize) -> usize {
        if self.batch_first {
            (row * self.steps + time) * self.directions + direction
        } else {
            (time * self.directions + direction) * self.rows + row
        }
    }

    /// The step, the direction and the sequence of the state at a position among those of all
    /// steps.
    pub(crate) fn place(&self, at: usize) -> (usize, usize, usize) {
        if self.batch_first {
            let (at, direction) = (at / self.directions, at % self.directions);
            (at % self.steps, direction, at / self.steps)
        } else {
            let (at, row) = (at / self.rows, at % self.rows);
            (at / self.directions, at % self.directions, row)
        }
    }
}
