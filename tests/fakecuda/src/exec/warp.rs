//! A warp: its lanes' control flow.

use super::fault::{Fault, code};
use super::kernel::{NOWHERE, Reg};
use super::rows::{LANES, Rows};

/// A path that waits for another to reach their join.
#[derive(Clone, Copy, Debug)]
struct Path {
    pc: u32,
    mask: u32,
    join: u32,
}

/// A copy to shared memory that has not completed.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The lane that issued it.
    pub lane: u32,
    /// Where the bytes go.
    pub to: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What a warp does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Ready,
    /// It waits at the barrier with that number.
    Waiting(u32),
    /// All of its lanes have exited.
    Done,
}

/// A warp.
#[derive(Clone, Debug)]
pub struct Warp {
    /// Its index in the block.
    pub index: usize,
    /// Its registers.
    pub rows: Rows,
    /// Lanes that have not exited.
    pub alive: u32,
    /// Lanes that execute.
    pub active: u32,
    /// The instruction they are at.
    pub pc: u32,
    /// What it does next.
    pub state: State,
    join: u32,
    waiting: Vec<Path>,
    /// Local memory, lane after lane.
    pub local: Vec<u8>,
    /// Which bytes of it were written.
    pub local_written: Vec<bool>,
    /// Asynchronous copies by group; the last group is open.
    pub copies: Vec<Vec<Pending>>,
}

impl Warp {
    /// A warp with registers and local memory for `LANES` threads.
    pub fn new(index: usize, rows: Rows, local: usize) -> Self {
        Self {
            index,
            rows,
            alive: 0,
            active: 0,
            pc: 0,
            state: State::Done,
            join: NOWHERE,
            waiting: Vec::new(),
            local: vec![0xff; local * LANES],
            local_written: vec![false; local * LANES],
            copies: Vec::new(),
        }
    }

    /// Begins a block with the lanes in `mask`.
    pub fn start(&mut self, mask: u32) {
        self.alive = mask;
        self.active = mask;
        self.pc = 0;
        self.join = NOWHERE;
        self.waiting.clear();
        self.copies.clear();
        self.copies.push(Vec::new());
        self.state = if mask == 0 { State::Done } else { State::Ready };
        self.local_written.fill(false);
    }

    /// Lanes of the active ones for which the guard holds.
    #[inline]
    pub fn guarded(&self, guard: Option<(u32, bool)>) -> u32 {
        match guard {
            None => self.active,
            Some((pred, negated)) => {
                let holds = self.rows.preds[pred as usize];
                self.active & if negated { !holds } else { holds }
            }
        }
    }

    /// Goes on with the next instruction, or with the path that waits where this one has arrived.
    #[inline]
    pub fn advance(&mut self) {
        self.pc += 1;
        self.settle();
    }

    /// Takes up waiting paths while the current one is at its join or empty.
    #[inline]
    pub fn settle(&mut self) {
        while self.pc == self.join || self.active == 0 {
            let Some(path) = self.waiting.pop() else {
                if self.active == 0 {
                    self.state = State::Done;
                }
                return;
            };
            self.pc = path.pc;
            self.active = path.mask & self.alive;
            self.join = path.join;
        }
    }

    /// The lanes in `mask` go to `target`, the other active ones to the next instruction.
    #[inline]
    pub fn branch(&mut self, mask: u32, target: u32, join: u32) {
        let rest = self.active & !mask;
        if rest == 0 {
            self.pc = target;
        } else if mask == 0 {
            self.pc += 1;
        } else {
            let next = self.pc + 1;
            self.split(&[(target, mask), (next, rest)], join);
        }
        self.settle();
    }

    /// Lanes go different ways and meet at `join`.
    pub fn split(&mut self, ways: &[(u32, u32)], join: u32) {
        if join != self.join && join != NOWHERE {
            self.waiting.push(Path { pc: join, mask: self.active, join: self.join });
        }
        let outer = if join == NOWHERE { self.join } else { join };
        let mut first = true;
        self.active = 0;
        for &(pc, mask) in ways {
            if pc == join {
                continue;
            }
            if !first {
                let (pc, mask, join) = (self.pc, self.active, outer);
                self.waiting.push(Path { pc, mask, join });
            }
            first = false;
            (self.pc, self.active) = (pc, mask);
        }
        self.join = outer;
        if first {
            self.pc = join;
        }
    }

    /// The lanes in `mask` end.
    pub fn exit(&mut self, mask: u32) {
        self.alive &= !mask;
        self.active &= !mask;
        if self.alive == 0 {
            self.state = State::Done;
        } else if self.active == 0 {
            self.settle();
        } else {
            self.advance();
        }
    }

    /// The value of a register that must be the same in all lanes of `mask`.
    pub fn uniform(&self, reg: Reg, mask: u32, what: &str) -> Result<u64, Fault> {
        let value = |lane: usize| {
            if reg.wide {
                self.rows.wide(reg.row)[lane]
            } else {
                u64::from(self.rows.narrow(reg.row)[lane])
            }
        };
        let first = value(mask.trailing_zeros() as usize % LANES);
        match lanes(mask).find(|&lane| value(lane as usize) != first) {
            None => Ok(first),
            Some(lane) => Err(Fault::lane(
                code::LAUNCH_FAILED,
                lane,
                format!("{what} differs between the lanes of a warp"),
            )),
        }
    }
}

/// The lanes in a mask.
pub fn lanes(mask: u32) -> impl Iterator<Item = u32> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros();
        rest &= rest - 1;
        Some(lane)
    })
}
