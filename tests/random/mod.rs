//! Random graphs, most of whose operators treat the rows of a batch one by one.

mod batch;
mod blocks;
mod reference;

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

use fanwise::ir::{Builder, Graph, Origin, Value, Weights};
use fanwise::op::{Attr, Op};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) use self::reference::Reference;

/// Elements of a value for each row of the batch, at most.
const MAX_ELEMENTS: i64 = 2048;

/// A graph of about `size` operators, and its weights; the same arguments give the same graph.
///
/// It has one to three inputs with a batch, sometimes one without, and one to four outputs; it can
/// be replicated. The batch is mostly the first axis; transpositions move it.
pub(crate) fn graph(seed: u64, size: usize) -> (Graph, Weights) {
    generate(Generator::new(seed), size)
}

/// The same in `f64`, with operators that need the rows of all samples; it can be replicated where
/// values may be exchanged. No rounding is made large by what follows.
pub(crate) fn across(seed: u64, size: usize) -> (Graph, Weights) {
    let generator = Generator::new(seed);
    generate(Generator { across: true, dtype: DType::F64, ..generator }, size)
}

fn generate(mut g: Generator, size: usize) -> (Graph, Weights) {
    g.inputs();
    let mut misses = 0;
    while g.operators < size && misses < 50 * (size + 1) {
        misses += usize::from(g.grow().is_none());
    }
    g.outputs();
    g.builder.finish()
}

struct Generator {
    rng: ChaCha8Rng,
    builder: Builder,
    /// Values that carry the batch.
    rows: Vec<Value>,
    operators: usize,
    params: usize,
    /// Operators need the rows of all samples.
    across: bool,
    /// The element type of inputs, parameters and most results.
    dtype: DType,
    /// Values of rows in several blocks.
    folded: Vec<Value>,
    /// Values without rows, where operators need those of all samples.
    wholes: Vec<Value>,
    /// Values that may be rounded otherwise on several devices.
    rounded: BTreeSet<Value>,
}

pub(crate) fn ints(ints: impl IntoIterator<Item = usize>) -> Attr {
    Attr::Ints(ints.into_iter().map(|i| Dim::from(i64::try_from(i).unwrap())).collect())
}

pub(crate) fn int(i: usize) -> Attr {
    Attr::Int(i64::try_from(i).unwrap().into())
}

pub(crate) type Attrs = Vec<(&'static str, Attr)>;

impl Generator {
    fn new(seed: u64) -> Self {
        let mut builder = Builder::new(format!("random_{seed}"));
        builder.set_source(format!("random:{seed}"));
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            builder,
            rows: Vec::new(),
            operators: 0,
            params: 0,
            across: false,
            dtype: DType::F32,
            folded: Vec::new(),
            wholes: Vec::new(),
            rounded: BTreeSet::new(),
        }
    }

    fn pick(&mut self, range: Range<usize>) -> usize {
        self.rng.random_range(range)
    }

    fn chance(&mut self) -> bool {
        self.rng.random()
    }

    fn ty(&self, value: Value) -> TensorType {
        self.builder.graph().ty(value).clone()
    }

    fn inputs(&mut self) {
        for i in 0..self.pick(1..4) {
            let rank = *[1, 1, 2, 3, 3].choose(&mut self.rng).unwrap();
            let sizes = (0..rank).map(|_| self.rng.random_range(1..7).into());
            let shape: Shape = iter::once(Dim::n()).chain(sizes.collect::<Vec<_>>()).collect();
            let value = self.builder.input(&format!("x{i}"), TensorType::new(self.dtype, shape));
            self.rows.push(value);
        }
        if self.pick(0..4) == 0 {
            let x = self.rows[0];
            let last = self.ty(x).shape.last().unwrap().clone();
            let shape: Shape = [last].into_iter().collect();
            let side = self.builder.input("side", TensorType::new(self.dtype, shape));
            self.add("add", vec![], &[x, side]);
        }
        if self.pick(0..4) == 0 {
            let shape: Shape = [Dim::n(), self.rng.random_range(1..5).into()].into_iter().collect();
            let ids = self.builder.input("ids", TensorType::new(DType::I64, shape));
            let table = self.param(&[9, 4]);
            self.add("gather", vec![("axis", int(0))], &[table, ids]);
        }
    }

    fn outputs(&mut self) {
        let mut outputs = vec![*self.rows.last().unwrap()];
        for _ in 0..self.pick(0..4) {
            outputs.push(*self.rows.choose(&mut self.rng).unwrap());
        }
        for _ in 0..self.pick(0..3) {
            outputs.extend(self.folded.choose(&mut self.rng));
        }
        if self.across {
            for _ in 0..2 {
                outputs.extend(self.wholes.choose(&mut self.rng));
            }
        }
        for (i, value) in outputs.into_iter().enumerate() {
            self.builder.output(&format!("out{i}"), value);
        }
        if self.pick(0..5) == 0 {
            let w = self.param(&[3]);
            let name = "whole";
            let value = self.builder.op(name, read("tanh", vec![]).unwrap(), &[w]).unwrap();
            self.builder.output(name, value);
        }
    }

    fn param(&mut self, dims: &[usize]) -> Value {
        let count: usize = dims.iter().product();
        let data: Vec<f32> = (0..count).map(|_| self.rng.random_range(-1.0f32..1.0)).collect();
        self.param_of(dims, &data)
    }

    fn param_of(&mut self, dims: &[usize], data: &[f32]) -> Value {
        self.params += 1;
        let data = if self.dtype == DType::F64 {
            let wide: Vec<f64> = data.iter().copied().map(f64::from).collect();
            Tensor::new(dims, &wide)
        } else {
            Tensor::new(dims, data)
        };
        self.builder.param(&format!("w{}", self.params), data.unwrap())
    }

    /// Adds an operator if it suits its operands, and its first result is not too large.
    fn add(&mut self, name: &'static str, attrs: Attrs, operands: &[Value]) -> Option<Vec<Value>> {
        let op = read(name, attrs)?;
        if self.jumps(name, operands) {
            return None;
        }
        let types: Vec<TensorType> = operands.iter().map(|v| self.ty(*v)).collect();
        let inputs: Vec<_> =
            types.iter().map(|ty| fanwise::internal::Operand { ty, ints: None }).collect();
        let results = op.infer(&inputs).ok()?;
        let elements = results.first()?.ty.shape.elements().eval(1);
        if !(1..=MAX_ELEMENTS).contains(&elements) {
            return None;
        }
        let numbers: Vec<String> = (0..results.len()).map(|i| format!("{name}.{i}")).collect();
        let names: Vec<&str> = match numbers.as_slice() {
            [_] => vec![name],
            numbers => numbers.iter().map(String::as_str).collect(),
        };
        let origin = if self.chance() {
            Origin(Some(format!("layer {}", self.operators).into()))
        } else {
            Origin::default()
        };
        self.builder.set_origin(origin);
        let values = self.builder.ops(&names, op, operands).ok()?;
        self.operators += 1;
        for value in &values {
            if self.ty(*value).dtype == self.dtype && self.batch(*value).is_some() {
                self.rows.push(*value);
            }
        }
        if self.across {
            self.note(name, operands, &values);
        }
        Some(values)
    }

    /// The axis of a value that is the batch.
    fn batch(&self, value: Value) -> Option<usize> {
        self.ty(value).shape.iter().position(|d| *d == Dim::n())
    }

    /// A value that carries the batch, more often a recent one; its type, and its batch axis.
    fn operand(&mut self) -> (Value, TensorType, usize) {
        let recent = self.rows.len().saturating_sub(4);
        let from = if self.chance() { recent } else { 0 };
        let at = self.pick(from..self.rows.len());
        let value = self.rows[at];
        (value, self.ty(value), self.batch(value).unwrap())
    }

    /// The size of an axis that is not the batch.
    fn size(ty: &TensorType, axis: usize) -> Option<usize> {
        ty.shape.get(axis)?.as_const().and_then(|c| usize::try_from(c).ok())
    }

    /// An axis that is not the batch, if there is one.
    fn axis(&mut self, ty: &TensorType, batch: usize) -> Option<usize> {
        let axes: Vec<usize> = (0..ty.rank()).filter(|a| *a != batch).collect();
        axes.choose(&mut self.rng).copied()
    }

    fn grow(&mut self) -> Option<Vec<Value>> {
        if self.across && self.pick(0..3) == 0 {
            return self.across();
        }
        let (x, ty, batch) = self.operand();
        match self.pick(0..22) {
            0..=3 => self.unary(x),
            4 | 5 => self.binary(x, &ty),
            6 => self.product(x, &ty, batch),
            7 | 8 => self.window(x, &ty, batch),
            9 => self.channels(x, &ty, batch),
            10 | 11 => self.join(x, &ty, batch),
            12 => self.cut(x, &ty, batch),
            13 => self.fold(x, &ty, batch),
            14 => self.turn(x, &ty),
            15 | 16 => self.reduce(x, &ty, batch),
            17 => self.normalise(x, &ty, batch),
            18 => self.choose(x, &ty),
            19 | 20 => self.blocks(x, &ty, batch),
            _ => self.cast(x),
        }
    }

    fn unary(&mut self, x: Value) -> Option<Vec<Value>> {
        let plain = [
            "relu",
            "tanh",
            "sigmoid",
            "abs",
            "neg",
            "softplus",
            "softsign",
            "sin",
            "elu",
            "gelu",
            "hard_swish",
            "identity",
            "dropout",
            "floor",
            "leaky_relu",
            "selu",
            "erf",
        ];
        let name = *plain.choose(&mut self.rng).unwrap();
        let attrs = match name {
            "leaky_relu" | "elu" => vec![("alpha", Attr::Float(0.25))],
            _ if self.pick(0..8) == 0 => {
                let bounds = vec![("min", Attr::Float(-1.5)), ("max", Attr::Float(1.25))];
                return self.add("clip", bounds, &[x]);
            }
            _ => vec![],
        };
        self.add(name, attrs, &[x])
    }

    fn binary(&mut self, x: Value, ty: &TensorType) -> Option<Vec<Value>> {
        let name = *["add", "sub", "mul", "max", "min"].choose(&mut self.rng).unwrap();
        let other = match self.pick(0..3) {
            0 => self.param(&[]),
            1 => {
                let last = Self::size(ty, ty.rank() - 1)?;
                self.param(&[last])
            }
            _ => {
                let same: Vec<Value> =
                    self.rows.iter().copied().filter(|v| self.ty(*v) == *ty).collect();
                *same.choose(&mut self.rng)?
            }
        };
        if self.chance() {
            self.add(name, vec![], &[x, other])
        } else {
            self.add(name, vec![], &[other, x])
        }
    }

    fn product(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        let inner = Self::size(ty, ty.rank() - 1)?;
        let width = self.pick(1..9);
        if batch != 0 || ty.rank() != 2 || self.chance() {
            let w = self.param(&[inner, width]);
            return self.add("matmul", vec![], &[x, w]);
        }
        let turned = self.chance();
        let w = self.param(&if turned { [width, inner] } else { [inner, width] });
        let bias = self.param(&[width]);
        self.add("gemm", vec![("trans_b", Attr::Bool(turned))], &[x, w, bias])
    }

    fn window(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        if batch != 0 || ty.rank() < 3 {
            return None;
        }
        let channels = Self::size(ty, 1)?;
        let spatial = ty.rank() - 2;
        let kernel: Vec<usize> = (0..spatial).map(|_| self.pick(1..4)).collect();
        let pads: Vec<usize> = (0..2 * spatial).map(|_| self.pick(0..2)).collect();
        let strides: Vec<usize> = (0..spatial).map(|_| self.pick(1..3)).collect();
        let windows = vec![("pads", ints(pads)), ("strides", ints(strides))];
        if self.chance() {
            let name = *["max_pool", "average_pool"].choose(&mut self.rng).unwrap();
            let mut attrs = windows;
            attrs.push(("kernel", ints(kernel)));
            attrs.push(("ceil_mode", Attr::Bool(self.chance())));
            return self.add(name, attrs, &[x]);
        }
        let groups = if self.chance() { channels } else { 1 };
        let mut dims = vec![groups * self.pick(1..4), channels / groups];
        dims.extend(kernel);
        let mut attrs = windows;
        attrs.push(("groups", int(groups)));
        let w = self.param(&dims);
        let bias = self.param(&dims[..1]);
        if self.chance() {
            self.add("conv", attrs, &[x, w, bias])
        } else {
            self.add("conv", attrs, &[x, w])
        }
    }

    fn channels(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        if batch != 0 || ty.rank() < 2 {
            return None;
        }
        let channels = Self::size(ty, 1)?;
        if ty.rank() > 2 && self.chance() {
            return self.add("lrn", vec![("size", int(3))], &[x]);
        }
        let [scale, bias, mean] = [0; 3].map(|_| self.param(&[channels]));
        let var: Vec<f32> = (0..channels).map(|_| self.rng.random_range(0.5f32..2.0)).collect();
        let var = self.param_of(&[channels], &var);
        self.add("batch_norm", vec![], &[x, scale, bias, mean, var])
    }

    fn join(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        let axis = self.axis(ty, batch)?;
        let fits = |other: &TensorType| {
            let mut same = other.clone();
            other.rank() == ty.rank() && {
                same.shape[axis] = ty.shape[axis].clone();
                same == *ty
            }
        };
        let others: Vec<Value> = self.rows.iter().copied().filter(|v| fits(&self.ty(*v))).collect();
        let mut operands = vec![x];
        for _ in 0..self.pick(1..3) {
            operands.push(*others.choose(&mut self.rng)?);
        }
        self.add("concat", vec![("axis", int(axis))], &operands)
    }

    fn cut(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        let axis = self.axis(ty, batch)?;
        let size = Self::size(ty, axis)?;
        let at = self.pick(0..size);
        match self.pick(0..4) {
            0 => {
                let attrs = vec![
                    ("axes", ints([axis])),
                    ("starts", ints([at])),
                    ("ends", ints([size])),
                    ("steps", ints([self.pick(1..3)])),
                ];
                self.add("slice", attrs, &[x])
            }
            1 if at > 0 => {
                let sizes = vec![("axis", int(axis)), ("sizes", ints([at, size - at]))];
                self.add("split", sizes, &[x])
            }
            2 => {
                let pads = (0..2 * ty.rank()).map(|i| usize::from(i % ty.rank() == axis));
                self.add("pad", vec![("pads", ints(pads))], &[x])
            }
            _ => {
                let indices = Tensor::new(&[2], &[i64::try_from(at).unwrap(), 0]).unwrap();
                let indices = read("constant", vec![("value", Attr::Tensor(indices))])?;
                let indices = self.builder.op("indices", indices, &[]).ok()?;
                self.add("gather", vec![("axis", int(axis))], &[x, indices])
            }
        }
    }

    /// Axes are joined or divided.
    fn fold(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        if batch != 0 {
            return None;
        }
        let sizes: Option<Vec<usize>> = (1..ty.rank()).map(|a| Self::size(ty, a)).collect();
        let sizes = sizes?;
        let axis = self.axis(ty, batch)?;
        match self.pick(0..4) {
            0 => self.add("flatten", vec![("axis", int(1))], &[x]),
            1 => self.add("unsqueeze", vec![("axes", ints([axis]))], &[x]),
            2 if sizes[axis - 1] == 1 => self.add("squeeze", vec![("axes", ints([axis]))], &[x]),
            _ => {
                let mut shape = vec![Dim::n()];
                for size in sizes {
                    let outer = [1, 2, 3].into_iter().filter(|d| size % d == 0).max().unwrap_or(1);
                    shape.push(i64::try_from(outer).unwrap().into());
                    shape.push(i64::try_from(size / outer).unwrap().into());
                }
                shape.truncate(6);
                self.add("reshape", vec![("shape", Attr::Ints(shape))], &[x])
            }
        }
    }

    fn turn(&mut self, x: Value, ty: &TensorType) -> Option<Vec<Value>> {
        let mut perm: Vec<usize> = (0..ty.rank()).collect();
        for i in (1..perm.len()).rev() {
            let other = self.pick(0..i + 1);
            perm.swap(i, other);
        }
        self.add("transpose", vec![("perm", ints(perm))], &[x])
    }

    fn reduce(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        let names = ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_l1"];
        let name = *names.choose(&mut self.rng).unwrap();
        let axis = self.axis(ty, batch)?;
        let keepdims = ty.rank() < 3 || self.chance();
        self.add(name, vec![("axes", ints([axis])), ("keepdims", Attr::Bool(keepdims))], &[x])
    }

    fn normalise(&mut self, x: Value, ty: &TensorType, batch: usize) -> Option<Vec<Value>> {
        let axis = self.axis(ty, batch)?;
        let name = *["softmax", "log_softmax"].choose(&mut self.rng).unwrap();
        self.add(name, vec![("axis", int(axis))], &[x])
    }

    fn choose(&mut self, x: Value, ty: &TensorType) -> Option<Vec<Value>> {
        let same: Vec<Value> = self.rows.iter().copied().filter(|v| self.ty(*v) == *ty).collect();
        let other = *same.choose(&mut self.rng)?;
        let zero = self.param(&[1]);
        let condition = self.add("less", vec![], &[x, zero])?;
        self.add("where", vec![], &[condition[0], x, other])
    }

    fn cast(&mut self, x: Value) -> Option<Vec<Value>> {
        let name = *["f64", "f16", "bf16", "f32"].choose(&mut self.rng).unwrap();
        let narrow = self.add("cast", vec![("to", Attr::Name(name.to_owned()))], &[x])?;
        self.add("cast", vec![("to", Attr::Name(self.dtype.name().to_owned()))], &narrow)
    }
}

/// The operator with this name, or none if there is no such operator.
pub(crate) fn read(name: &str, attrs: Attrs) -> Option<Op> {
    let attrs = attrs.into_iter().map(|(name, attr)| (name.to_owned(), attr)).collect();
    match Op::read(name, attrs) {
        Ok(op) => Some(op),
        Err(fanwise::op::AttrError::UnknownOp(_)) => None,
        Err(error) => panic!("{error}"),
    }
}
