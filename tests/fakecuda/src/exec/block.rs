//! Execution of a launch: its blocks one after another, the warps of a block in turn.

use super::fault::{Fault, code};
use super::kernel::{Barrier, Inst, Kernel, Preset, Reg, Step, Vote};
use super::memory::Memory;
use super::rows::{ALL, LANES, Rows};
use super::shadow::{MAX_TIME, Page, Tag};
use super::warp::{State, Warp, lanes};

/// A launch's geometry and parameters.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads along each axis.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: usize,
    /// The parameter buffer.
    pub params: Vec<u8>,
    /// The device.
    pub device: u32,
}

impl Launch {
    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// The number of threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }
}

/// The state of one launch.
pub struct Grid<'a> {
    /// What is executed.
    pub kernel: &'a Kernel,
    /// Geometry and parameters.
    pub launch: &'a Launch,
    /// Memory of all devices.
    pub memory: &'a mut Memory,
    /// The run of the current block.
    pub tag: Tag,
    /// Shared memory of the block.
    pub shared: Vec<u8>,
    /// Who touched it.
    pub shared_pages: Vec<Page>,
    /// For each warp, the first time of each other warp that it does not know of.
    pub known: [[u32; 32]; 32],
    /// The least of these for each warp.
    pub floors: [u32; 32],
    /// Advances at every synchronisation.
    pub time: u32,
    /// The allocation that each instruction used last.
    pub hints: Vec<usize>,
    /// Steps that the block may still make.
    pub steps: u64,
    /// Steps of lanes so far.
    pub executed: u64,
}

/// Steps of a warp, summed over a block's warps, after which a launch is given up.
const STEP_LIMIT: u64 = 1 << 31;

/// Runs a launch to its end and gives the number of executed warp instructions.
///
/// # Errors
/// The first thing that goes wrong, with the kernel, block, thread and place.
pub fn run(kernel: &Kernel, launch: &Launch, memory: &mut Memory, tag: Tag) -> Result<u64, Fault> {
    let shared = kernel.static_shared + launch.dynamic_shared;
    let mut grid = Grid {
        kernel,
        launch,
        memory,
        tag,
        shared: vec![0xff; shared],
        shared_pages: vec![Page::default(); shared.div_ceil(super::shadow::PAGE)],
        known: [[0; 32]; 32],
        floors: [0; 32],
        time: 1,
        hints: vec![usize::MAX; kernel.code.len()],
        steps: 0,
        executed: 0,
    };
    let count = (launch.threads() as usize).div_ceil(LANES);
    let rows = Rows::new(kernel.rows, kernel.preds);
    let mut warps: Vec<Warp> =
        (0..count).map(|i| Warp::new(i, rows.clone(), kernel.local)).collect();
    for warp in &mut warps {
        grid.preset(warp);
    }
    for z in 0..launch.grid[2] {
        for y in 0..launch.grid[1] {
            for x in 0..launch.grid[0] {
                grid.block([x, y, z], &mut warps)?;
                grid.tag.run += 1;
            }
        }
    }
    Ok(grid.executed)
}

/// The first time that is not known of.
fn least(known: &[u32; 32]) -> u32 {
    known.iter().copied().min().unwrap_or(0)
}

/// Sets all lanes of a register.
fn fill(rows: &mut Rows, reg: Reg, value: impl Fn(usize) -> u64) {
    if reg.wide {
        *rows.wide_mut(reg.row) = std::array::from_fn(&value);
    } else {
        #[expect(clippy::cast_possible_truncation, reason = "a register of 32 bits")]
        let narrow = std::array::from_fn(|lane| value(lane) as u32);
        *rows.narrow_mut(reg.row) = narrow;
    }
}

impl Grid<'_> {
    /// Sets the registers that are the same for every block.
    fn preset(&self, warp: &mut Warp) {
        let [x, y, _] = self.launch.block.map(u64::from);
        let first = (warp.index * LANES) as u64;
        let dynamic = self.launch.dynamic_shared as u64;
        for &(reg, preset) in &self.kernel.presets {
            let launch = self.launch;
            fill(&mut warp.rows, reg, |lane| {
                let (thread, lane) = (first + lane as u64, lane as u64);
                match preset {
                    Preset::Constant(value) => value,
                    Preset::Thread(0) => thread % x,
                    Preset::Thread(1) => thread / x % y,
                    Preset::Thread(_) => thread / (x * y),
                    Preset::BlockSize(axis) => u64::from(launch.block[axis]),
                    Preset::GridSize(axis) => u64::from(launch.grid[axis]),
                    Preset::Lane => lane,
                    Preset::Warp => first / 32,
                    Preset::Warps => u64::from(launch.threads().div_ceil(32)),
                    Preset::LanesBelow(and) => (1 << lane) - 1 + (u64::from(and) << lane),
                    Preset::LanesAbove(and) => {
                        u64::from(ALL) & !((1 << lane) - 1 + (u64::from(!and) << lane))
                    }
                    Preset::LaneMask => 1 << lane,
                    Preset::DynamicShared => dynamic,
                    Preset::TotalShared => dynamic + self.kernel.static_shared as u64,
                    Preset::Block(_) | Preset::Zero => 0,
                }
            });
        }
    }

    /// Runs one block.
    fn block(&mut self, at: [u32; 3], warps: &mut [Warp]) -> Result<(), Fault> {
        // Nothing is to be known of warps that the block does not have.
        let knows = std::array::from_fn(|w| if w < warps.len() { 0 } else { u32::MAX });
        self.known = [knows; 32];
        self.floors = [least(&knows); 32];
        self.time = 1;
        self.steps = STEP_LIMIT;
        let threads = self.launch.threads() as usize;
        for warp in warps.iter_mut() {
            for &(reg, preset) in &self.kernel.presets {
                if let Preset::Block(axis) = preset {
                    fill(&mut warp.rows, reg, |_| u64::from(at[axis]));
                }
            }
            let here = (threads - warp.index * LANES).min(LANES);
            warp.start(if here == LANES { ALL } else { (1 << here) - 1 });
        }
        self.turns(warps).map_err(|(warp, fault)| self.located(&fault, &warps[warp], at))
    }

    /// Lets the warps run in turn until all are done.
    fn turns(&mut self, warps: &mut [Warp]) -> Result<(), (usize, Fault)> {
        loop {
            let mut ran = false;
            for i in 0..warps.len() {
                if warps[i].state == State::Ready {
                    ran = true;
                    self.warp(&mut warps[i]).map_err(|f| (i, f))?;
                    self.barriers(warps).map_err(|f| (i, f))?;
                }
            }
            if warps.iter().all(|w| w.state == State::Done) {
                return Ok(());
            }
            if !ran && !warps.iter().any(|w| w.state == State::Ready) {
                let stuck = warps.iter().position(|w| w.state != State::Done).unwrap_or(0);
                let text = "deadlock: every warp waits at a barrier that others do not reach";
                return Err((stuck, Fault::plain(code::LAUNCH_TIMEOUT, text)));
            }
        }
    }

    /// Adds to a fault where it happened.
    fn located(&self, fault: &Fault, warp: &Warp, at: [u32; 3]) -> Fault {
        let inst = &self.kernel.code[(warp.pc as usize).min(self.kernel.code.len() - 1)];
        let lane = fault.lane.unwrap_or_else(|| warp.active.trailing_zeros() % 32) as usize;
        let linear = u32::try_from(warp.index * LANES + lane).unwrap_or(0);
        let [x, y, _] = self.launch.block;
        let thread = [linear % x, linear / x % y, linear / (x * y)];
        let file = self.kernel.files.iter().find(|f| f.0 == inst.loc.0);
        let place = match file {
            Some((_, name)) => format!("{name}:{} (PTX line {})", inst.loc.1, inst.line),
            None => format!("PTX line {}", inst.line),
        };
        let name = &self.kernel.name;
        let text = format!("{name}: block {at:?} thread {thread:?} at {place}: {}", fault.text);
        Fault { text, ..*fault }
    }

    /// Runs a warp until it waits or ends.
    fn warp(&mut self, warp: &mut Warp) -> Result<(), Fault> {
        let kernel = self.kernel;
        while warp.state == State::Ready {
            let inst = &kernel.code[warp.pc as usize];
            let mask = warp.guarded(inst.guard);
            if self.steps == 0 {
                return Err(Fault::plain(code::LAUNCH_TIMEOUT, "the step limit was reached"));
            }
            self.steps -= 1;
            self.executed += 1;
            match &inst.step {
                Step::Rows(compute) => {
                    if mask != 0 {
                        compute(&mut warp.rows, mask);
                    }
                    warp.advance();
                }
                Step::Branch { target, join } => self.branch(warp, mask, *target, *join),
                _ if mask == 0 => warp.advance(),
                _ => self.step(warp, inst, mask)?,
            }
        }
        Ok(())
    }

    /// A branch; lanes that go straight to the kernel's end are done.
    fn branch(&self, warp: &mut Warp, mask: u32, target: u32, join: u32) {
        let to = &self.kernel.code[target as usize];
        if mask != 0 && to.guard.is_none() && matches!(to.step, Step::Exit) {
            warp.exit(mask);
        } else {
            warp.branch(mask, target, join);
        }
    }

    /// An instruction that is no computation and no branch.
    fn step(&mut self, warp: &mut Warp, inst: &Inst, mask: u32) -> Result<(), Fault> {
        match &inst.step {
            Step::Warp(exchange) => exchange(&mut warp.rows, mask, warp.alive)?,
            Step::Load(transfer) => self.load(warp, transfer, mask)?,
            Step::Store(transfer) => self.store(warp, transfer, mask)?,
            Step::Atomic(atomic) => self.atomic(warp, atomic, mask)?,
            Step::AsyncCopy(copy) => self.async_copy(warp, copy, mask)?,
            Step::AsyncCommit => warp.copies.push(Vec::new()),
            Step::AsyncWait(left) => self.async_wait(warp, *left)?,
            Step::MatrixLoad(load) => self.matrix_load(warp, load, mask)?,
            Step::WarpSync(lanes) => self.warp_sync(warp, *lanes, mask)?,
            Step::Barrier(barrier) => return Self::arrive(warp, barrier, mask),
            Step::Clock(reg) => {
                let now = self.executed;
                fill(&mut warp.rows, *reg, |_| now);
            }
            Step::Exit => {
                warp.exit(mask);
                return Ok(());
            }
            Step::Trap => return Err(Fault::plain(code::ILLEGAL_INSTRUCTION, "a trap")),
            Step::Switch { index, targets, join } => {
                return Self::switch(warp, *index, targets, *join, mask);
            }
            Step::Rows(_) | Step::Branch { .. } => {}
        }
        warp.advance();
        Ok(())
    }

    /// `brx.idx`.
    fn switch(
        warp: &mut Warp,
        index: Reg,
        targets: &[u32],
        join: u32,
        mask: u32,
    ) -> Result<(), Fault> {
        let mut ways: Vec<(u32, u32)> = Vec::new();
        let indices = *warp.rows.narrow(index.row);
        for lane in lanes(mask) {
            let Some(&target) = targets.get(indices[lane as usize] as usize) else {
                return Err(Fault::lane(code::ILLEGAL_INSTRUCTION, lane, "no such branch target"));
            };
            match ways.iter_mut().find(|w| w.0 == target) {
                Some(way) => way.1 |= 1 << lane,
                None => ways.push((target, 1 << lane)),
            }
        }
        if warp.active != mask {
            ways.push((warp.pc + 1, warp.active & !mask));
        }
        if let [(target, _)] = ways[..] {
            warp.pc = target;
        } else {
            warp.split(&ways, join);
        }
        warp.settle();
        Ok(())
    }

    /// `bar.warp.sync`: what the lanes did before is ordered before what they do after.
    fn warp_sync(&mut self, warp: &Warp, reg: Reg, mask: u32) -> Result<(), Fault> {
        let wanted = warp.uniform(reg, mask, "the mask of a warp barrier")?;
        #[expect(clippy::cast_possible_truncation, reason = "a mask of 32 lanes")]
        let missing = wanted as u32 & warp.alive & !mask;
        if missing != 0 {
            let text = format!("a warp barrier that lanes {missing:#010x} do not reach");
            return Err(Fault::plain(code::LAUNCH_FAILED, text));
        }
        self.tick()?;
        self.known[warp.index][warp.index] = self.time;
        self.floors[warp.index] = least(&self.known[warp.index]);
        Ok(())
    }

    /// Advances the time.
    fn tick(&mut self) -> Result<(), Fault> {
        self.time += 1;
        if self.time >= MAX_TIME {
            return Err(Fault::plain(code::LAUNCH_TIMEOUT, "too many synchronisations"));
        }
        Ok(())
    }

    /// A warp arrives at a barrier.
    fn arrive(warp: &mut Warp, barrier: &Barrier, mask: u32) -> Result<(), Fault> {
        if mask != warp.alive {
            let text = format!(
                "a divergent barrier: lanes {mask:#010x} reach it, {:#010x} have not exited",
                warp.alive
            );
            return Err(Fault::plain(code::LAUNCH_FAILED, text));
        }
        let id = warp.uniform(barrier.id, mask, "the number of a barrier")?;
        if id >= 16 {
            return Err(Fault::plain(code::LAUNCH_FAILED, "a barrier's number is over 15"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "below 16")]
        let id = id as u32;
        if let Some(count) = barrier.count {
            let count = warp.uniform(count, mask, "the count of a barrier")?;
            if count % 32 != 0 || count == 0 {
                let text = "a barrier's count is no multiple of the warp size";
                return Err(Fault::plain(code::LAUNCH_FAILED, text));
            }
        }
        warp.state = State::Waiting(id);
        Ok(())
    }

    /// Completes the barriers that enough warps have reached.
    fn barriers(&mut self, warps: &mut [Warp]) -> Result<(), Fault> {
        for id in 0..16 {
            let here: Vec<usize> =
                (0..warps.len()).filter(|&i| warps[i].state == State::Waiting(id)).collect();
            let Some(&first) = here.first() else { continue };
            let Step::Barrier(barrier) = &self.kernel.code[warps[first].pc as usize].step else {
                continue;
            };
            if !barrier.waits {
                return Err(Fault::plain(code::LAUNCH_FAILED, "bar.arrive is not supported"));
            }
            let needed = match barrier.count {
                Some(count) => {
                    let threads =
                        warps[first].uniform(count, warps[first].active, "a barrier's count")?;
                    usize::try_from(threads / 32).unwrap_or(usize::MAX)
                }
                None => warps.iter().filter(|w| w.state != State::Done).count(),
            };
            if here.len() < needed {
                continue;
            }
            if let Some(&other) = here.iter().find(|&&i| warps[i].pc != warps[first].pc) {
                let line = self.kernel.code[warps[other].pc as usize].line;
                let text = format!("a divergent barrier: warp {other} is at PTX line {line}");
                return Err(Fault::plain(code::LAUNCH_FAILED, text));
            }
            self.release(warps, &here, barrier)?;
        }
        Ok(())
    }

    /// Lets warps go on behind a barrier: what all of them know, each of them knows.
    fn release(
        &mut self,
        warps: &mut [Warp],
        here: &[usize],
        barrier: &Barrier,
    ) -> Result<(), Fault> {
        self.tick()?;
        let mut joined = [0; 32];
        for &i in here {
            for (all, one) in joined.iter_mut().zip(self.known[i]) {
                *all = one.max(*all);
            }
        }
        for (i, known) in joined.iter_mut().enumerate().take(warps.len()) {
            // A warp that has ended counts as having arrived.
            if here.contains(&i) || warps[i].state == State::Done {
                *known = self.time;
            }
        }
        let (mut count, mut total) = (0, 0);
        if let Some((_, pred, negated)) = barrier.vote {
            for &i in here {
                let holds = warps[i].rows.preds[pred as usize];
                let holds = if negated { !holds } else { holds };
                count += (holds & warps[i].alive).count_ones();
                total += warps[i].alive.count_ones();
            }
        }
        for &i in here {
            self.known[i] = joined;
            self.floors[i] = least(&joined);
            let warp = &mut warps[i];
            if let Some(reg) = barrier.count_to {
                fill(&mut warp.rows, reg, |_| u64::from(count));
            }
            if let (Some(pred), Some((vote, ..))) = (barrier.truth_to, barrier.vote) {
                let truth = if vote == Vote::All { count == total } else { count > 0 };
                warp.rows.put_pred(pred, if truth { ALL } else { 0 }, warp.active);
            }
            warp.state = State::Ready;
            warp.advance();
        }
        Ok(())
    }
}
