//! What the launches of a program do: operations, those that tiles make of them, bytes.

use std::sync::Arc;

use fanwise::internal::{Arg, Call, Kernel, ParamDecl, work as asked};
use fanwise::lower::{BufferId, DeviceProgram, Launch};
use fanwise::types::KernelClass;

use crate::doubles::doubles;
use crate::machine::{ON_CHIP, density};

/// The work of a launch in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// The multiplications and additions that the operator asks for, of convolutions, products and
    /// cells; 0 for all else.
    pub operations: f64,
    /// Those that the launch makes, with what tiles compute beyond the edges.
    pub performed: f64,
    /// Instructions in `f64`.
    pub doubles: f64,
    /// The bytes that it reads and writes at least.
    pub bytes: f64,
    /// Those of them that no other way to compute the layer saves.
    pub least: f64,
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
    fn bytes_of(&self, id: BufferId) -> f64 {
        self.device.buffers[id.0 as usize].ty.bytes().eval(self.n) as f64
    }

    fn sum<'b>(&self, ids: impl IntoIterator<Item = &'b BufferId>) -> f64 {
        ids.into_iter().map(|id| self.bytes_of(*id)).sum()
    }

    /// The work of the launch, by this kernel if it is one that calls tell apart.
    pub(crate) fn work(&self, partial: &[&Launch], kernel: Option<&Started<'_>>) -> Work {
        let asked = asked(self.device, self.launch, partial, ON_CHIP, self.n);
        let writes = |p: &&&Launch| p.results.iter().any(|id| self.launch.operands.contains(id));
        let first = partial.iter().find(writes).copied();
        let (operations, mut bytes) = (asked.operations, asked.bytes);
        if let (Some(_), Some(kernel)) = (first, kernel) {
            // What only the first launch of two reads is an operand of the second one, too.
            let read: Vec<BufferId> = kernel.read().collect();
            bytes -= self.sum(self.launch.operands.iter().filter(|id| !read.contains(id)));
        }
        let mut work = Work {
            operations,
            performed: operations,
            bytes,
            least: self.least(first).min(bytes),
            cached: bytes,
            density: 1.0,
            doubles: 0.0,
        };
        let Some(kernel) = kernel else { return work };
        work.performed *= kernel.excess(self.n);
        work.doubles = doubles(kernel, self.n);
        match kernel.kernel.file {
            "conv.cu" | "matmul.cu" | "conv_weight_grad.cu" => kernel.tiles(&mut work, self.n),
            "depthwise.cu" => {
                work.density = density::DEPTHWISE;
                // The rows of a window are read anew for each line of places.
                work.cached *= kernel.get("TAPS", self.n).sqrt();
            }
            "few_weight_grad.cu" => {
                work.density = density::FEW_CHANNELS;
                work.cached *= kernel.get("TAPS", self.n).sqrt();
            }
            "recurrent.cu" | "recurrent_grad.cu" => {
                work.density = density::CELL;
                work.cached += kernel.weights(self.n);
            }
            _ => {}
        }
        work
    }

    /// The bytes of a layer that every way to compute it moves: its operands and its results once,
    /// however many launches it takes; `first` is the one that has taken parts for this one.
    ///
    /// Chains, numbers that are drawn and what only moves elements can be a part of the launch
    /// before or behind, and so can the sum of a gradient. The further operands of a chain are read
    /// in any case: residuals, and what slopes follow from.
    fn least(&self, first: Option<&Launch>) -> f64 {
        let Launch { class, op, operands, results, .. } = self.launch;
        #[expect(clippy::wildcard_enum_match_arm, reason = "all others are layers")]
        match class {
            KernelClass::Move | KernelClass::Reorder | KernelClass::Index | KernelClass::Random => {
                0.0
            }
            KernelClass::Elementwise | KernelClass::Broadcast => {
                let sizes = operands.iter().map(|id| self.bytes_of(*id));
                self.sum(operands) - sizes.fold(0.0, f64::max)
            }
            _ if op.as_ref().is_some_and(|op| op.name() == "reduce_sum") => 0.0,
            // Its results are parts, which are read at once.
            KernelClass::Partial => self.sum(operands),
            _ => {
                let taken = |id: &BufferId| {
                    first.is_some_and(|of| of.operands.contains(id) || of.results.contains(id))
                };
                self.sum(operands.iter().filter(|id| !taken(id))) + self.sum(results)
            }
        }
    }
}

/// A kernel with its argument, alone or one of several side by side.
#[derive(Clone, Copy, Debug)]
pub struct Started<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Its argument.
    pub args: &'a [Arg],
}

impl<'a> Started<'a> {
    /// The kernels that a call runs.
    pub fn of(call: &'a Call) -> Vec<Self> {
        if call.kernel.parts.is_empty() {
            return vec![Self { kernel: &call.kernel, args: &call.args }];
        }
        let mut at = 0;
        let part = |kernel: &'a Arc<Kernel>| {
            let args = &call.args[at..at + kernel.params.len()];
            at += args.len();
            Self { kernel, args }
        };
        call.kernel.parts.iter().map(part).collect()
    }

    /// The buffers that it writes.
    pub(crate) fn written(&self) -> impl Iterator<Item = BufferId> + use<'a> {
        let params = self.kernel.params.iter().zip(self.args);
        params.filter_map(|(decl, arg)| match (decl, arg) {
            (ParamDecl::Write(..), Arg::Buffer(id)) => Some(*id),
            _ => None,
        })
    }

    /// The buffers that it reads.
    fn read(&self) -> impl Iterator<Item = BufferId> + use<'a> {
        let params = self.kernel.params.iter().zip(self.args);
        params.filter_map(|(decl, arg)| match (decl, arg) {
            (ParamDecl::Read(..), Arg::Buffer(id)) => Some(*id),
            _ => None,
        })
    }

    /// The text of a macro that the kernel has.
    pub(crate) fn text(&self, name: &str) -> &'a str {
        let found = self.kernel.defines.iter().find(|(own, _)| own == name);
        let (_, text) = found.unwrap_or_else(|| panic!("{} has no {name}", self.kernel.file));
        text
    }

    /// The number of this name in a batch of `n` rows, a macro or an argument; 0 without one, as of
    /// a flag that the kernel does not have.
    pub(crate) fn get(&self, name: &str, n: i64) -> f64 {
        self.find(name, n).unwrap_or(0.0)
    }

    /// A number that the kernel has.
    pub(crate) fn size(&self, name: &str, n: i64) -> f64 {
        let missing = || panic!("{} has no number {name}", self.kernel.file);
        self.find(name, n).unwrap_or_else(missing)
    }

    fn find(&self, name: &str, n: i64) -> Option<f64> {
        let fixed = self.kernel.defines.iter().find(|(own, _)| own == name);
        if let Some(number) = fixed.and_then(|(_, text)| text.parse::<f64>().ok()) {
            return Some(number);
        }
        let is = |decl: &ParamDecl| matches!(decl, ParamDecl::Size(own) if own == name);
        let at = self.kernel.params.iter().position(is);
        match at.map(|at| &self.args[at]) {
            Some(Arg::Size(size)) => Some(size.eval(n) as f64),
            Some(Arg::Buffer(_) | Arg::Report | Arg::Step) | None => None,
        }
    }

    /// The constant numbers of a list.
    fn list(&self, name: &str) -> Vec<f64> {
        let text = self.text(name).trim_matches(['{', '}']);
        text.split(',').filter_map(|number| number.trim().parse().ok()).collect()
    }

    /// How many times the multiplications that a convolution or a product asks for its kernel
    /// makes, with those beyond the edges of tiles; 1 for all else.
    pub fn excess(&self, n: i64) -> f64 {
        let get = |name: &str| self.size(name, n);
        let over = |size: f64, by: f64| if size > 0.0 { up(size, by) / size } else { 1.0 };
        match self.kernel.file {
            "conv.cu" => {
                let rows = up(n as f64 * get("CELLS"), get("BM")) / (n as f64 * get("OUTPUTS"));
                let terms = get("TAPS") * get("C_EACH");
                let own = |taps: f64| up(taps * get("C_EACH"), get("BK"));
                let done: f64 = self.phases().into_iter().map(own).sum();
                let strides: f64 = self.list("STRIDE").iter().product();
                let meets = if self.get("TRANSPOSED", n) > 0.0 { terms / strides } else { terms };
                rows * over(get("M_EACH"), get("BN")) * done / meets
            }
            "conv_weight_grad.cu" => {
                let weights = get("TAPS") * get("C_EACH");
                let (places, part) = (get("PLACES"), get("PART"));
                let last = places % part;
                let terms = (places - last) / part * up(part, get("BK")) + up(last, get("BK"));
                over(get("M_EACH"), get("BM")) * over(weights, get("BN")) * terms / places
            }
            "few_weight_grad.cu" => {
                let channels = get("M_EACH") * get("GROUPS");
                over(channels, get("LINES") * get("VECTOR"))
                    * over(get("TAPS") * get("C_EACH"), get("HELD"))
            }
            "depthwise.cu" => {
                let channels = get("CHANNELS") / get("C_EACH") * get("EACH");
                let along =
                    self.list("OUTPUT").last().map_or(1.0, |last| over(*last, get("STRIP")));
                along * over(channels, get("CHANNEL_THREADS") * get("VECTOR"))
            }
            "matmul.cu" => {
                let sides = over(get("HEIGHT"), get("BM")) * over(get("WIDTH"), get("BN"));
                sides * over(get("TERMS"), get("BK"))
            }
            "recurrent.cu" | "recurrent_grad.cu" => over(get("ROWS"), get("TOGETHER")),
            _ => 1.0,
        }
    }

    /// The bytes of a cell's weights of the state that its blocks read from the cache: all of a
    /// direction in each step, and for gradients once more on the way back.
    fn weights(&self, n: i64) -> f64 {
        let get = |name: &str| self.size(name, n);
        let gates = match self.text("KIND") {
            "0" => 4.0,
            "1" => 3.0,
            _ => 1.0,
        };
        let times = if self.kernel.file == "recurrent_grad.cu" { 2.0 } else { 1.0 };
        let blocks = (get("ROWS") / get("TOGETHER")).ceil() * get("DIRECTIONS");
        4.0 * times * gates * get("HIDDEN").powi(2) * get("STEPS") * blocks
    }

    /// The taps that the places of each phase of a convolution meet.
    fn phases(&self) -> Vec<f64> {
        let [kernel, stride, before] = ["KERNEL", "STRIDE", "BEFORE"].map(|name| self.list(name));
        let count = self.get("PHASES", 0);
        if count <= 1.0 {
            return vec![kernel.iter().product()];
        }
        let mut phases = Vec::new();
        let mut phase = 0.0;
        while phase < count {
            let (mut rest, mut taps) = (phase, 1.0);
            for axis in (0..kernel.len()).rev() {
                let first = (rest % stride[axis] + before[axis]) % stride[axis];
                rest = (rest / stride[axis]).floor();
                taps *= ((kernel[axis] - first) / stride[axis]).ceil();
            }
            phases.push(taps);
            phase += 1.0;
        }
        phases
    }

    /// What tiles of `BM` by `BN` read from the cache, and how densely they multiply.
    fn tiles(&self, work: &mut Work, n: i64) {
        let [rows, columns] = ["BM", "BN"].map(|name| self.get(name, n));
        // Each multiplication of a tile takes one element of a row and one of a column.
        work.cached = 4.0 * work.performed / 2.0 * (rows + columns) / (rows * columns);
        let is_off =
            |flag: &str| self.kernel.defines.iter().any(|(own, value)| own == flag && value == "0");
        let elements = self.get("TM", n) * self.get("TN", n);
        let tiles = density::TILES.iter().find(|tiles| tiles.elements <= elements);
        let tiles = tiles.unwrap_or_else(|| panic!("a tile of {elements} elements for a thread"));
        work.density = match self.kernel.file {
            "conv_weight_grad.cu" => tiles.weights,
            _ if self.get("TAPS", n) > 1.0 => tiles.taps,
            _ => tiles.product,
        };
        if is_off("X_VECTORS") || is_off("A_VECTORS") {
            work.density *= density::SCALAR;
        }
    }
}

/// The next multiple.
fn up(size: f64, by: f64) -> f64 {
    (size / by).ceil() * by
}
