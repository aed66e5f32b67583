//! What the launches of a program do: operations, those that tiles make of them, bytes.

use std::sync::Arc;

use fanwise::internal::{Arg, Call, Kernel, ParamDecl, work as asked};
use fanwise::lower::{BufferId, DeviceProgram, Launch};

use crate::machine::{ON_CHIP, density};

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
    fn elements_of(&self, id: BufferId) -> f64 {
        self.device.buffers[id.0 as usize].ty.shape.elements().eval(self.n) as f64
    }

    fn result(&self) -> f64 {
        self.elements_of(self.launch.results[0])
    }

    /// The work of the launch, by this kernel if it is one that calls tell apart.
    pub(crate) fn work(&self, partial: &[&Launch], kernel: Option<&Started<'_>>) -> Work {
        let asked = asked(self.device, self.launch, partial, ON_CHIP, self.n);
        let (operations, bytes) = (asked.operations, asked.bytes);
        let first = self.launch.operands.first().map_or(0.0, |id| self.elements_of(*id));
        let mut work = Work {
            operations,
            performed: operations,
            bytes,
            cached: bytes,
            density: 1.0,
            doubles: 0.0,
        };
        let Some(kernel) = kernel else { return work };
        work.performed *= kernel.excess(self.n);
        let gradient = kernel.get("GRADIENT", self.n) > 0.0;
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
            "recurrent.cu" | "recurrent_grad.cu" => work.density = density::CELL,
            "batch_statistics.cu" => work.doubles = first * if gradient { 6.0 } else { 3.0 },
            "batch_norm.cu" => work.doubles = first * if gradient { 8.0 } else { 4.0 },
            "batch_sums.cu" => work.doubles = 4.0 * first,
            // Wide sums and products keep what each addition rounds away.
            "reduce.cu" if kernel.get("COMPONENTS", self.n) > 1.0 => work.doubles = 7.0 * first,
            "reduce.cu" | "long_norm.cu" | "long_softmax.cu" => work.doubles = 2.0 * first,
            "all_reduce.cu" => work.doubles = self.result() * kernel.get("PARTS", self.n),
            _ => {}
        }
        work
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

    /// The number of this name in a batch of `n` rows, a macro or an argument; 0 without one, as of
    /// a flag that the kernel does not have.
    fn get(&self, name: &str, n: i64) -> f64 {
        self.find(name, n).unwrap_or(0.0)
    }

    /// A number that the kernel has.
    fn size(&self, name: &str, n: i64) -> f64 {
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
        let found = self.kernel.defines.iter().find(|(own, _)| own == name);
        let (_, text) = found.unwrap_or_else(|| panic!("{} has no {name}", self.kernel.file));
        let text = text.trim_matches(['{', '}']);
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
                over(get("M_EACH"), get("BM")) * over(weights, get("BN"))
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
            _ => 1.0,
        }
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
