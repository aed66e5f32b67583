//! Facts about an operator that passes need, whichever operator it is.

use bitflags::bitflags;

bitflags! {
    /// Facts about an operator, like the traits of MLIR. None is the safe statement: a pass then
    /// knows nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Traits: u16 {
        /// Every element of the results is an element of an operand, unchanged.
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
    }
}
