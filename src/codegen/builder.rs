//! The builder of calls: macros, parameters and arguments, collected from a launch.

use std::sync::Arc;

use super::kernel::{Arg, Call, Kernel, ParamDecl};
use crate::lower::{BufferId, DeviceProgram, Storage};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Order, Shape, TensorType};

/// The most blocks of a kernel with a grid-stride loop.
const MAX_BLOCKS: i64 = 1 << 14;

/// A kernel and the values of its argument.
pub(super) struct Builder<'a> {
    device: &'a DeviceProgram,
    defines: Vec<(String, String)>,
    params: Vec<ParamDecl>,
    args: Vec<Arg>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(device: &'a DeviceProgram) -> Self {
        Self { device, defines: Vec::new(), params: Vec::new(), args: Vec::new() }
    }

    /// The type of a buffer.
    pub(super) fn ty(&self, id: BufferId) -> &'a TensorType {
        &self.device.buffer(id).ty
    }

    /// The axes of a buffer in memory order, outermost first.
    pub(super) fn axes(&self, id: BufferId) -> Vec<usize> {
        let buffer = self.device.buffer(id);
        let rank = buffer.ty.rank();
        match buffer.order {
            // The samples, the spatial axes, the channels. Without a spatial axis the orders are
            // the same.
            Order::ChannelsLast if rank > 2 => {
                std::iter::once(0).chain(2..rank).chain(std::iter::once(1)).collect()
            }
            Order::ChannelsLast | Order::RowMajor => (0..rank).collect(),
            Order::RowPanels | Order::GatePanels | Order::Heads => {
                invariant(None, "that GPUs have neither panels nor heads apart")
            }
        }
    }

    /// The stride of each axis of a buffer, in elements.
    pub(super) fn strides(&self, id: BufferId) -> Vec<Dim> {
        let shape = &self.ty(id).shape;
        let mut steps = vec![Dim::ONE; shape.rank()];
        let mut step = Dim::ONE;
        for axis in self.axes(id).into_iter().rev() {
            steps[axis] = step.clone();
            step = step * shape[axis].clone();
        }
        steps
    }

    /// True if the bytes of a buffer are in channels-last order. A value whose two orders are the
    /// same bytes counts as both.
    pub(super) fn is_channels_last(&self, id: BufferId) -> bool {
        let buffer = self.device.buffer(id);
        buffer.order == Order::ChannelsLast || !differs(&buffer.ty.shape)
    }

    /// True if the bytes of a buffer are in row-major order.
    pub(super) fn is_row_major(&self, id: BufferId) -> bool {
        let buffer = self.device.buffer(id);
        buffer.order == Order::RowMajor || !differs(&buffer.ty.shape)
    }

    /// True if a buffer is aligned to 16 bytes for every batch size, as vector loads require. Arena
    /// buffers and tensors are aligned by allocation; only the offset of a part may break it.
    pub(super) fn is_aligned(&self, id: BufferId) -> bool {
        match &self.device.buffer(id).storage {
            Storage::Part { offset, .. } => offset.modulo(&16.into()) == Dim::ZERO,
            Storage::Strip { of, channel, .. } => {
                let width: Dim = int::<i64>(self.ty(id).dtype.bytes()).into();
                let sixteen = |channels: &Dim| {
                    (channels.clone() * width.clone()).modulo(&16.into()) == Dim::ZERO
                };
                sixteen(channel) && sixteen(&self.ty(*of).shape[1])
            }
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Param(_)
            | Storage::Update(_)
            | Storage::Arena
            | Storage::Reuse { .. } => true,
        }
    }

    /// Adds the result of a kernel that writes images with the channels last, and the channels of
    /// the image in memory (`PITCH`), of which the result may be some.
    pub(super) fn write_image(&mut self, name: &str, id: BufferId) {
        self.write(name, id);
        let whole = match &self.device.buffer(id).storage {
            Storage::Strip { of, .. } => *of,
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Param(_)
            | Storage::Update(_)
            | Storage::Arena
            | Storage::Part { .. }
            | Storage::Reuse { .. } => id,
        };
        let pitch = self.ty(whole).shape[1].clone();
        self.size("PITCH", &pitch);
    }

    /// Adds a pointer to elements that are read.
    pub(super) fn read(&mut self, name: &str, id: BufferId) {
        let ty = c_type(self.ty(id).dtype);
        self.read_as(name, id, ty);
    }

    /// Adds a pointer to elements that are read as another CUDA type.
    pub(super) fn read_as(&mut self, name: &str, id: BufferId, ty: &'static str) {
        self.params.push(ParamDecl::Read(name.to_owned(), ty));
        self.args.push(Arg::Buffer(id));
    }

    /// Adds a pointer to elements that are written.
    pub(super) fn write(&mut self, name: &str, id: BufferId) {
        let ty = c_type(self.ty(id).dtype);
        self.write_as(name, id, ty);
    }

    /// Adds a pointer to elements that are written as another CUDA type.
    pub(super) fn write_as(&mut self, name: &str, id: BufferId, ty: &'static str) {
        self.params.push(ParamDecl::Write(name.to_owned(), ty));
        self.args.push(Arg::Buffer(id));
    }

    #[expect(clippy::needless_pass_by_value, reason = "callers give what they have just made")]
    pub(super) fn define(&mut self, name: &str, text: impl ToString) {
        self.defines.push((name.to_owned(), text.to_string()));
    }

    /// Adds a macro that is 0 or 1.
    pub(super) fn flag(&mut self, name: &str, is: bool) {
        self.define(name, u8::from(is));
    }

    /// Adds a size: a macro if it is constant, otherwise a member of the argument. A constant lets
    /// the compiler unroll loops and replace divisions.
    pub(super) fn size(&mut self, name: &str, size: &Dim) {
        if let Some(known) = size.as_const() {
            self.define(name, known);
        } else {
            self.params.push(ParamDecl::Size(name.to_owned()));
            self.args.push(Arg::Size(size.clone()));
        }
    }

    /// Adds the arguments with which `report.cuh` reports an invalid element.
    pub(super) fn report(&mut self) {
        self.params.push(ParamDecl::Write("word".to_owned(), "u64"));
        self.args.push(Arg::Report);
        self.params.push(ParamDecl::Size("STEP".to_owned()));
        // Larger for earlier steps, so that the first of several errors is kept.
        self.args.push(Arg::Step);
    }

    /// Adds a list of numbers as arguments, even constant ones: kernels that differ in them only
    /// are compiled once.
    pub(super) fn arguments(&mut self, name: &str, numbers: impl IntoIterator<Item = Dim>) {
        let mut parts = Vec::new();
        for (i, number) in numbers.into_iter().enumerate() {
            let part = format!("{name}_{i}");
            self.params.push(ParamDecl::Size(part.clone()));
            self.args.push(Arg::Size(number));
            parts.push(part);
        }
        self.define(name, format!("{{{}}}", parts.join(", ")));
    }

    /// Adds a list of sizes as an initialiser.
    pub(super) fn list(&mut self, name: &str, sizes: &[Dim]) {
        let mut parts = Vec::with_capacity(sizes.len());
        for (i, size) in sizes.iter().enumerate() {
            let part = format!("{name}_{i}");
            if let Some(known) = size.as_const() {
                parts.push(known.to_string());
            } else {
                self.size(&part, size);
                parts.push(part);
            }
        }
        self.define(name, format!("{{{}}}", parts.join(", ")));
    }

    /// Adds a list of constant numbers as an initialiser.
    pub(super) fn numbers<T: ToString>(
        &mut self,
        name: &str,
        numbers: impl IntoIterator<Item = T>,
    ) {
        let parts: Vec<String> = numbers.into_iter().map(|n| n.to_string()).collect();
        self.define(name, format!("{{{}}}", parts.join(", ")));
    }

    pub(super) fn finish(
        self,
        file: &'static str,
        threads: u32,
        expression: String,
        grid: [Dim; 3],
    ) -> Call {
        let Self { defines, params, args, .. } = self;
        let kernel =
            Kernel { file, defines, expression, params, threads, shared: 0, parts: Vec::new() };
        Call { kernel: Arc::new(kernel), grid, args }
    }
}

/// True if the two memory orders of a value differ.
fn differs(shape: &Shape) -> bool {
    let wide = |d: &Dim| *d != Dim::ONE;
    shape.rank() >= 3 && wide(&shape[1]) && shape[2..].iter().any(wide)
}

/// The quotient, rounded up.
pub(super) fn ceil_div(size: &Dim, by: i64) -> Dim {
    (size.clone() + (by - 1)).floor_div(&by.into())
}

/// True if the size is divisible by 4 for every batch size.
pub(super) fn divisible_by_four(size: &Dim) -> bool {
    size.modulo(&4.into()) == Dim::ZERO
}

/// The blocks for `size` elements, capped at [`MAX_BLOCKS`]; beyond it the threads loop. No result
/// depends on the cap, because an element is computed by one thread in any case.
pub(super) fn block_count(size: &Dim, per_block: i64) -> Dim {
    ceil_div(size, per_block).minimum(&MAX_BLOCKS.into())
}

/// A one-dimensional grid.
pub(super) fn grid_x(blocks: Dim) -> [Dim; 3] {
    [blocks, Dim::ONE, Dim::ONE]
}

/// The CUDA type of an element in memory.
pub(super) fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::I64 => "i64",
        DType::I32 => "i32",
        DType::I16 => "i16",
        DType::I8 => "i8",
        DType::U64 => "u64",
        DType::U32 => "u32",
        DType::F16 => "f16",
        DType::Bf16 => "bf16",
        DType::U16 => "u16",
        // A truth value is a byte that is 0 or 1.
        DType::U8 | DType::Bool => "u8",
    }
}

/// The unsigned type of the same width as an element, for kernels that only move bits.
pub(super) fn bits_type(dtype: DType) -> &'static str {
    match dtype.bytes() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// A number as a CUDA literal of type `double` or `float`.
pub(super) fn number(x: f64, ty: DType) -> String {
    // `{:?}` always has a point or an exponent, so that the literal is no integer.
    if ty == DType::F64 && x.is_finite() {
        return format!("{x:?}");
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounded as the reference rounds it")]
    let text = float(x as f32);
    if ty == DType::F64 { format!("(double){text}") } else { text }
}

/// A number as a CUDA literal of type `float`. `{:?}` prints the shortest text that parses back to
/// the same number.
pub(super) fn float(x: f32) -> String {
    if x.is_nan() {
        "not_a_number()".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { "infinity()".to_owned() } else { "-infinity()".to_owned() }
    } else {
        format!("{x:?}f")
    }
}

/// The widest type for moving elements of two buffers, and the number of elements that it holds:
/// 16 bytes if both buffers are aligned and all sizes of contiguous runs are divisible.
pub(super) fn vector(
    b: &Builder<'_>,
    values: [BufferId; 2],
    sizes: &[&Dim],
) -> (&'static str, i64) {
    let dtype = b.ty(values[0]).dtype;
    let many = 16 / int::<i64>(dtype.bytes());
    let fits = |size: &&Dim| size.modulo(&many.into()) == Dim::ZERO;
    if values.into_iter().all(|id| b.is_aligned(id)) && sizes.iter().all(fits) {
        ("uint4", many)
    } else {
        (bits_type(dtype), 1)
    }
}

/// Threads of a block of a kernel with a grid-stride loop.
const THREADS: u32 = 256;

/// Finishes the call of a kernel with a grid-stride loop over `count` elements.
pub(super) fn finish(b: Builder<'_>, file: &'static str, count: &Dim) -> Call {
    b.finish(file, THREADS, String::new(), grid_x(block_count(count, i64::from(THREADS))))
}

/// The type into which an element is converted when it is read.
pub(super) fn real(dtype: DType) -> &'static str {
    if matches!(dtype, DType::F16 | DType::Bf16) { "float" } else { c_type(dtype) }
}

/// The type of accumulators for sums and products.
pub(super) fn wide(dtype: DType) -> &'static str {
    if dtype.is_float() { "double" } else { "u64" }
}
