//! A kernel in the form that is executed.

use super::fault::Fault;
use super::rows::Rows;
use crate::ptx::Space;

/// No instruction: where paths that end the kernel come together.
pub const NOWHERE: u32 = u32::MAX;

/// Computes registers of the lanes in the mask.
pub type RowFn = Box<dyn Fn(&mut Rows, u32) + Send + Sync>;

/// Exchanges values between the lanes of a warp: gets the lanes that execute it and those that
/// have not exited.
pub type WarpFn = Box<dyn Fn(&mut Rows, u32, u32) -> Result<(), Fault> + Send + Sync>;

/// A register as an operand: its row and whether it has 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg {
    /// The first row.
    pub row: u32,
    /// Whether it takes two.
    pub wide: bool,
}

/// An address: a register, if there is one, and an offset.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The register.
    pub base: Option<Reg>,
    /// What is added.
    pub offset: u64,
}

/// A load or a store.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The state space.
    pub space: Space,
    /// The address.
    pub address: Address,
    /// Bytes of an element.
    pub width: usize,
    /// The register of each element.
    pub regs: Vec<Reg>,
    /// Whether a loaded element keeps its sign when the register is wider.
    pub signed: bool,
    /// Width of the registers in bits, for sign extension.
    pub reg_bits: u32,
    /// Whether it is `volatile`, `relaxed`, `acquire` or `release`.
    pub strong: bool,
}

/// What an atomic operation computes of the old value and its operands.
pub type Update = fn(u64, u64, u64) -> u64;

/// An atomic operation.
#[derive(Clone, Debug)]
pub struct Atomic {
    /// The state space.
    pub space: Space,
    /// The address.
    pub address: Address,
    /// Bytes of the value.
    pub width: usize,
    /// Where the old value goes, unless it is not wanted.
    pub result: Option<Reg>,
    /// The operand.
    pub value: Reg,
    /// The second operand of a compare-and-swap.
    pub other: Option<Reg>,
    /// The operation.
    pub update: Update,
}

/// What a barrier also computes of a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The number of threads for which it holds.
    Count,
    /// Whether it holds for all.
    All,
    /// Whether it holds for any.
    Any,
}

/// A barrier of the block.
#[derive(Clone, Debug)]
pub struct Barrier {
    /// The register with its number.
    pub id: Reg,
    /// The register with the number of threads, or all.
    pub count: Option<Reg>,
    /// Whether the warp waits (`bar.arrive` does not).
    pub waits: bool,
    /// The predicate that is reduced, and how: negated or not.
    pub vote: Option<(Vote, u32, bool)>,
    /// Where the count goes.
    pub count_to: Option<Reg>,
    /// Where the truth goes.
    pub truth_to: Option<u32>,
}

/// A copy from global to shared memory that completes later.
#[derive(Clone, Debug)]
pub struct AsyncCopy {
    /// Destination in shared memory.
    pub to: Address,
    /// Source in global memory.
    pub from: Address,
    /// Bytes written.
    pub len: usize,
    /// The register with the number of bytes read; the rest is zeros.
    pub source_len: Option<Reg>,
}

/// `ldmatrix`.
#[derive(Clone, Debug)]
pub struct MatrixLoad {
    /// The state space.
    pub space: Space,
    /// The address of a row, from each lane.
    pub address: Address,
    /// One register for each matrix.
    pub regs: Vec<Reg>,
    /// Whether matrices are transposed.
    pub transposed: bool,
}

/// What an instruction does.
pub enum Step {
    /// Computes registers.
    Rows(RowFn),
    /// Exchanges values between lanes.
    Warp(WarpFn),
    /// Loads.
    Load(Transfer),
    /// Stores.
    Store(Transfer),
    /// An atomic operation.
    Atomic(Atomic),
    /// Begins a copy to shared memory.
    AsyncCopy(AsyncCopy),
    /// Closes a group of such copies.
    AsyncCommit,
    /// Waits until at most that many groups are pending.
    AsyncWait(usize),
    /// Loads matrices of 16-bit elements.
    MatrixLoad(MatrixLoad),
    /// Goes to `target`; lanes that do not come together again at `join`.
    Branch {
        /// The instruction to go to.
        target: u32,
        /// Where both paths meet.
        join: u32,
    },
    /// Goes to one of the targets.
    Switch {
        /// The register with the index.
        index: Reg,
        /// The instructions to go to.
        targets: Vec<u32>,
        /// Where all paths meet.
        join: u32,
    },
    /// A barrier of the block.
    Barrier(Barrier),
    /// `bar.warp.sync` of the lanes in the register.
    WarpSync(Reg),
    /// Reads the clock.
    Clock(Reg),
    /// The lanes end.
    Exit,
    /// The kernel is aborted.
    Trap,
}

/// One instruction.
pub struct Inst {
    /// The predicate that must hold, and whether it is negated.
    pub guard: Option<(u32, bool)>,
    /// What it does.
    pub step: Step,
    /// The line of the PTX text.
    pub line: u32,
    /// Number of the source file and its line; 0 when not known.
    pub loc: (u32, u32),
}

/// A value that is the same for every launch or known before a block starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preset {
    /// A constant.
    Constant(u64),
    /// The thread's index in its block, by axis.
    Thread(usize),
    /// The block's size, by axis.
    BlockSize(usize),
    /// The block's index, by axis.
    Block(usize),
    /// The grid's size, by axis.
    GridSize(usize),
    /// The lane in the warp.
    Lane,
    /// The warp in the block.
    Warp,
    /// The number of warps.
    Warps,
    /// Mask of the lanes before (`true`: and) this one.
    LanesBelow(bool),
    /// Mask of the lanes after (`true`: and) this one.
    LanesAbove(bool),
    /// Mask of this lane.
    LaneMask,
    /// Bytes of dynamic shared memory.
    DynamicShared,
    /// Bytes of all shared memory.
    TotalShared,
    /// Number of the multiprocessor, of multiprocessors, or of the grid: no meaning here.
    Zero,
}

/// A kernel.
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its instructions.
    pub code: Vec<Inst>,
    /// Rows of a warp's registers.
    pub rows: usize,
    /// Predicates of a warp.
    pub preds: usize,
    /// Registers with a value from the start.
    pub presets: Vec<(Reg, Preset)>,
    /// Size of each parameter and its offset in the buffer.
    pub params: Vec<(usize, usize)>,
    /// Bytes of the parameter buffer.
    pub param_bytes: usize,
    /// Bytes of shared memory that the kernel declares.
    pub static_shared: usize,
    /// Bytes of local memory of a thread.
    pub local: usize,
    /// The most threads of a block, 0 when the kernel does not say.
    pub max_threads: u32,
    /// Source files by number.
    pub files: Vec<(u32, String)>,
    /// Registers that the text declares, an estimate for occupancy.
    pub registers: u32,
}

/// First address of the window of shared memory in the generic space.
pub const SHARED_WINDOW: u64 = 1 << 56;
/// First address of the window of local memory in the generic space.
pub const LOCAL_WINDOW: u64 = 2 << 56;
/// First address of the window of parameters in the generic space.
pub const PARAM_WINDOW: u64 = 3 << 56;

/// The number of multiprocessors that a fake device says it has.
pub const MULTIPROCESSORS: u64 = 4;
