//! Facts about an operator that passes need, whichever operator it is.

use bitflags::bitflags;

bitflags! {
    /// Facts about an operator, like the traits of MLIR. Where one is absent a pass knows less;
    /// only `UNREPEATABLE`, `COLLECTIVE`, `REDUCES`, `SUMS_NARROW` and `JUMPS` warn, and must be
    /// stated.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Traits: u32 {
        /// Every element of the results is an element of an operand, unchanged; which one, the
        /// elements do not decide.
        const MOVES = 1;
        /// The result has each element of the operand once.
        const PERMUTES = 1 << 1 | Self::MOVES.bits();
        /// The result has the elements of the operand in their order.
        const VIEW = 1 << 2 | Self::PERMUTES.bits();
        /// Each element of the result follows from the elements at its place in the operands, which
        /// are broadcast.
        const ELEMENTWISE = 1 << 3;
        /// Computing it again costs little more than reading its operands.
        const CHEAP = 1 << 4;
        /// The split rule holds for any entries of an axis that a replica has, in their order, or
        /// tells their blocks.
        const FOLLOWS_BLOCKS = 1 << 5;
        /// It joins values of all replicas.
        const COLLECTIVE = 1 << 6;
        /// It takes parts of sums and products in several components.
        const WIDE_PARTS = 1 << 7;
        /// It may give other results when it runs again, or needs another program.
        const UNREPEATABLE = 1 << 8;
        /// The result has the elements of the operand with the other sign.
        const NEGATES = 1 << 9;
        /// The result has the elements of the operand in another element type.
        const CONVERTS = 1 << 10;
        /// Each element of the result is one number for many elements of the first operand, which
        /// one device combines in a wider type than theirs, or exactly.
        const REDUCES = 1 << 11;
        /// Each element of the result is a sum that one device computes in the type of the
        /// elements.
        const SUMS_NARROW = 1 << 12;
        /// The result is a product of matrices, of the first two operands.
        const MATRIX_PRODUCT = 1 << 13 | Self::SUMS_NARROW.bits();
        /// A rounding of its floats may change a result by any amount.
        const JUMPS = 1 << 14;
        /// Training gives it another meaning: what prepares a graph for training keeps it.
        const TRAINS = 1 << 15;
        /// Its time grows with the elements that it reads and writes, not with their product. Said
        /// of what is neither `MOVES` nor `ELEMENTWISE`, of which it holds anyway.
        const READS_ONCE = 1 << 16;
        /// A replica that computes on its own rows may take a value of the whole batch beside them.
        const MEETS_WHOLE = 1 << 17;
    }
}

impl Traits {
    /// What is said of an operator of which none of them holds whatever its attributes are.
    pub const NONE: Self = Self::empty();
}

/// The rows whose statistics an operator normalises by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistics {
    /// All rows of the batch.
    OfBatch,
    /// Those that a replica has.
    OfReplica,
}
