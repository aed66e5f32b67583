//! What the launches of a program do: operations, those that tiles make of them, bytes.

use fanwise::internal::{Arg, Call, ParamDecl};
use fanwise::lower::{BufferId, DeviceProgram, Launch};
use fanwise::op::{Gemm, Op};
use fanwise::types::KernelClass;

/// Bytes of a sample that a device keeps on chip at least: `sm_80` has 40 MB of cache beside what
/// its cores have.
const ON_CHIP: i64 = 32 << 20;

/// The work of a launch in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// The multiplications and additions that the operator asks for, of convolutions, products and
    /// cells; 0 for all else.
    pub operations: f64,
    /// Those that the launch makes, with what tiles compute beyond the edges.
    pub performed: f64,
    /// Operations in `f64`.
    pub doubles: f64,
    /// The bytes that it reads and writes at least.
    pub bytes: f64,
    /// The bytes that its blocks read from the shared cache.
    pub cached: f64,
    /// The part of its instructions that multiply, in the machine code of its kernel.
    pub density: f64,
}

/// The shapes of a launch's buffers in a batch of `n` rows.
pub(crate) struct Shapes<'a> {
    pub(crate) device: &'a DeviceProgram,
    pub(crate) launch: &'a Launch,
    pub(crate) n: i64,
}

impl Shapes<'_> {
    fn bytes(&self, id: BufferId) -> f64 {
        self.device.buffers[id.0 as usize].ty.bytes().eval(self.n) as f64
    }

    fn elements_of(&self, id: BufferId) -> f64 {
        self.device.buffers[id.0 as usize].ty.shape.elements().eval(self.n) as f64
    }

    fn elements(&self, operand: usize) -> f64 {
        self.elements_of(self.launch.operands[operand])
    }

    fn result(&self) -> f64 {
        self.elements_of(self.launch.results[0])
    }

    fn axis(&self, id: BufferId, axis: usize) -> f64 {
        let shape = &self.device.buffers[id.0 as usize].ty.shape;
        shape.get(axis).map_or(1.0, |size| size.eval(self.n) as f64).max(1.0)
    }

    fn last(&self, operand: usize) -> f64 {
        let id = self.launch.operands[operand];
        let rank = self.device.buffers[id.0 as usize].ty.shape.rank();
        self.axis(id, rank.saturating_sub(1))
    }

    /// Whether the launch reads a buffer once more, of which `partial` launches before it took
    /// parts. A line that stays on chip is read once at least, in however many launches.
    fn reads_again(&self, partial: &[&Launch], b: BufferId) -> bool {
        let is_line = matches!(self.launch.class, KernelClass::Softmax | KernelClass::Norm);
        let of = |p: &&&Launch| p.results.iter().any(|r| self.launch.operands.contains(r));
        let mut read = partial.iter().filter(of).flat_map(|p| &p.operands);
        let row = self.device.buffers[b.0 as usize].ty.bytes().eval(1);
        is_line && row <= ON_CHIP && read.any(|read| *read == b)
    }

    /// The bytes that the launch reads and writes at least, behind `partial` ones.
    pub(crate) fn moved(&self, partial: &[&Launch]) -> f64 {
        let written: f64 = self.launch.results.iter().map(|b| self.bytes(*b)).sum();
        // What picks elements reads no more of an operand than it writes.
        let picks = matches!(self.launch.class, KernelClass::Move | KernelClass::Index);
        let most = if picks { written } else { f64::INFINITY };
        let read = self.launch.operands.iter().filter(|b| !self.reads_again(partial, **b));
        read.map(|b| self.bytes(*b).min(most)).sum::<f64>() + written
    }

    /// The multiplications and additions that the operator asks for.
    #[allow(clippy::wildcard_enum_match_arm, reason = "all others only move and compare")]
    fn operations(&self) -> f64 {
        let operand = |i: usize| self.launch.operands[i];
        match &self.launch.op {
            // The first launch has the products, the second adds its parts up.
            Some(Op::ConvWeightGrad(_)) if self.launch.class == KernelClass::Partial => {
                let parts = self.launch.results[0];
                2.0 * self.elements(1) * self.axis(parts, 2) * self.axis(parts, 3)
            }
            _ if self.launch.class == KernelClass::Partial => 0.0,
            Some(Op::Conv(_)) => 2.0 * self.result() * self.elements(1) / self.axis(operand(1), 0),
            Some(Op::ConvTranspose(_)) => {
                2.0 * self.elements(0) * self.elements(1) / self.axis(operand(1), 0)
            }
            Some(Op::Gemm(Gemm { trans_a: true, .. })) => {
                2.0 * self.result() * self.axis(operand(0), 0)
            }
            Some(Op::Gemm(_) | Op::MatMul(_)) => 2.0 * self.result() * self.last(0),
            Some(Op::Recurrent(_)) => {
                2.0 * self.elements(0) / self.last(0) * (self.elements(1) + self.elements(2))
            }
            _ => 0.0,
        }
    }

    /// The work of the launch, which makes these calls.
    pub(crate) fn work(&self, partial: &[&Launch], calls: &[Call]) -> Work {
        let (operations, bytes) = (self.operations(), self.moved(partial));
        let none =
            Work { operations, performed: operations, bytes, cached: bytes, ..Work::default() };
        let mut work = Work { density: 1.0, ..none };
        for call in calls {
            self.add(&mut work, call);
        }
        work
    }

    /// Adds what only the kernel of a call tells.
    fn add(&self, work: &mut Work, call: &Call) {
        let of = Sizes { call, n: self.n };
        let first = self.launch.operands.first().map_or(0.0, |id| self.elements_of(*id));
        match call.kernel.file {
            "conv.cu" => of.tiles(work, of.get("TAPS") * of.get("C_EACH")),
            "matmul.cu" => of.tiles(work, of.get("TERMS")),
            "conv_weight_grad.cu" => of.tiles(work, of.get("PART").min(of.get("PLACES"))),
            "depthwise.cu" => {
                // The strips have places beyond the end of a line, the blocks channels beyond the
                // last. A transposed convolution meets no holes.
                let channels = of.grid(1) * of.get("CHANNEL_THREADS") * of.get("VECTOR");
                let places = of.get("STRIPS") * of.get("STRIP");
                work.performed *= places * channels / self.result();
                // Each weight is read from shared memory for each place.
                work.density = 0.5;
                work.cached *= of.get("TAPS").sqrt();
            }
            "few_weight_grad.cu" => {
                let lines = of.get("LINES");
                let all = of.get("GROUPS") * of.get("M_EACH");
                work.performed *= (all / lines).ceil() * lines / all;
                work.density = 0.2;
                work.cached *= of.get("TAPS");
            }
            "recurrent.cu" | "recurrent_grad.cu" => work.density = 0.7,
            "batch_statistics.cu" => {
                work.doubles += first * if of.get("GRADIENT") > 0.0 { 6.0 } else { 3.0 };
            }
            "batch_norm.cu" => {
                work.doubles += first * if of.get("GRADIENT") > 0.0 { 8.0 } else { 4.0 };
            }
            "reduce.cu" | "norm.cu" | "long_norm.cu" | "softmax.cu" | "long_softmax.cu" => {
                work.doubles += 2.0 * first;
            }
            "all_reduce.cu" => work.doubles += self.result() * of.get("PARTS"),
            _ => {}
        }
    }
}

/// The sizes that a call gives its kernel.
struct Sizes<'a> {
    call: &'a Call,
    n: i64,
}

impl Sizes<'_> {
    /// The number of this name, a macro or an argument; 0 without one.
    fn get(&self, name: &str) -> f64 {
        let kernel = &self.call.kernel;
        let fixed = kernel.defines.iter().find(|(own, _)| own == name);
        if let Some(number) = fixed.and_then(|(_, text)| text.parse::<f64>().ok()) {
            return number;
        }
        let is = |decl: &ParamDecl| matches!(decl, ParamDecl::Size(own) if own == name);
        let at = kernel.params.iter().position(is);
        match at.map(|at| &self.call.args[at]) {
            Some(Arg::Size(size)) => size.eval(self.n) as f64,
            Some(Arg::Buffer(_) | Arg::Report | Arg::Step) | None => 0.0,
        }
    }

    fn grid(&self, axis: usize) -> f64 {
        self.call.grid[axis].eval(self.n) as f64
    }

    /// Adds what tiles of `BM` by `BN` over so many terms do.
    fn tiles(&self, work: &mut Work, terms: f64) {
        let (bm, bn, bk) = (self.get("BM"), self.get("BN"), self.get("BK"));
        let terms = (terms / bk).ceil() * bk;
        work.performed = 2.0 * self.grid(0) * bm * bn * terms;
        work.cached = 4.0 * self.grid(0) * (bm + bn) * terms;
        let scalar = ["X_VECTORS", "A_VECTORS"].iter().any(|name| self.is_off(name));
        // Shares of multiply-adds among the instructions of the main loops, for `sm_90a`.
        work.density = match (scalar, bn <= 64.0, self.get("TAPS") > 1.0) {
            (true, ..) => 0.44,
            (_, true, _) => 0.72,
            (_, _, true) => 0.80,
            _ => 0.86,
        };
    }

    fn is_off(&self, flag: &str) -> bool {
        self.call.kernel.defines.iter().any(|(own, value)| own == flag && value == "0")
    }
}
