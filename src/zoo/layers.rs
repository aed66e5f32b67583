//! The layers that the models are made of, as Keras defines them.
//!
//! Inside a model, images are `[N, channels, height, width]`. A layer's name is the origin of its
//! nodes, that of its last value, and with a suffix (`.kernel`) that of its parameters.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::error::ZooError;
use super::scale::Scale;
use super::weights::{Init, draw};
use crate::ir::{Builder, ContentHash, Graph, Origin, Param, ParamId, Source, Value, Weights};
use crate::op::{
    BatchNorm, Binary, Concat, Conv as ConvOp, ConvTranspose, Dropout, Flatten, GeluForm, Gemm,
    MatMul, Op, Pad, PadMode, Pool, Reduce, Softmax, Transpose, Unary,
};
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

/// What building a layer gives.
pub(super) type Layer<T> = Result<T, ZooError>;

/// A function at the end of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activation {
    None,
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    Sigmoid,
    Tanh,
    /// By the error function.
    Gelu,
    /// Over the last axis.
    Softmax,
}

/// A convolution with square kernels; "valid" padding, a stride of 1 and a bias unless said
/// otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conv {
    filters: usize,
    kernel: usize,
    stride: usize,
    /// "same" padding: `ceil(size / stride)` windows on each axis.
    same: bool,
    bias: bool,
    depthwise: bool,
}

impl Conv {
    pub(super) fn new(filters: usize, kernel: usize) -> Self {
        Self { filters, kernel, stride: 1, same: false, bias: true, depthwise: false }
    }

    pub(super) fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// Pads so that a stride of 1 keeps the size.
    pub(super) fn same(self) -> Self {
        Self { same: true, ..self }
    }

    pub(super) fn no_bias(self) -> Self {
        Self { bias: false, ..self }
    }
}

/// A model under construction.
pub(super) struct Net {
    /// `zoo:` and its name with the options of [`Scale`].
    source: Arc<str>,
    scale: Scale,
    /// The options that a layer has asked for.
    asked: Scale,
    builder: Builder,
    /// The models that the next layer is inside, each with a `.`.
    scope: String,
    /// The layers so far of each kind, where layers are numbered.
    numbers: Option<BTreeMap<String, usize>>,
    params: BTreeMap<String, Value>,
}

impl Net {
    /// The model `name`, scaled; `model` is its name with the options that say how.
    pub(super) fn new(model: &str, name: &str, scale: Scale) -> Self {
        Self {
            source: format!("zoo:{model}").into(),
            scale,
            asked: Scale::default(),
            builder: Builder::new(name),
            scope: String::new(),
            numbers: None,
            params: BTreeMap::new(),
        }
    }

    /// The options that the model has.
    pub(super) fn has(&self) -> Scale {
        self.asked
    }

    /// The graph and the weights.
    pub(super) fn finish(self) -> (Graph, Weights) {
        let (mut graph, weights) = self.builder.finish();
        let params = (0u32..).map(ParamId).zip(graph.params());
        let tensor = |(id, param): (_, &Param)| Some((id, weights.get(&param.name)?));
        let mut tensors: Vec<(ParamId, &Tensor)> = params.filter_map(tensor).collect();
        // The largest first: what is hashed last is short, so that no thread waits for long.
        tensors.sort_by_key(|(_, tensor)| Reverse(tensor.len()));
        let hash = |(id, tensor): (_, &Tensor)| (id, ContentHash::of(tensor));
        let hashes: Vec<(ParamId, ContentHash)> =
            tensors.into_par_iter().with_max_len(1).map(hash).collect();
        for (id, hash) in hashes {
            graph.set_hash(id, hash);
        }
        (graph, weights)
    }

    /// The features of a layer that has `count` of them in the model as it was published.
    pub(super) fn width(&mut self, count: usize) -> usize {
        self.asked.narrow = Some(1);
        count.div_ceil(self.scale.narrow.unwrap_or(1))
    }

    /// The height and width of the images, `size` in the model as it was published.
    pub(super) fn pixels(&mut self, size: i64) -> i64 {
        self.asked.pixels = Some(size);
        self.scale.pixels.unwrap_or(size)
    }

    /// The steps of the sequences, `count` in the model as it was published.
    pub(super) fn steps(&mut self, count: i64) -> i64 {
        self.asked.steps = Some(count);
        self.scale.steps.unwrap_or(count)
    }

    /// From now on a layer is named by its kind and its number among those: `conv2d_1`, `conv2d_2`.
    pub(super) fn number_layers(&mut self) {
        self.numbers = Some(BTreeMap::new());
    }

    /// The layers that `layers` adds are those of a model `name` inside this one. Used again with
    /// the same names, it shares their parameters.
    pub(super) fn scope<T>(
        &mut self,
        name: &str,
        layers: impl FnOnce(&mut Self) -> Layer<T>,
    ) -> Layer<T> {
        let outer = self.scope.len();
        self.scope.push_str(name);
        self.scope.push('.');
        let result = layers(self);
        self.scope.truncate(outer);
        result
    }

    /// Begins a layer: its full name, which becomes the origin of the nodes to come.
    pub(super) fn layer(&mut self, name: &str) -> String {
        let mut name = format!("{}{name}", self.scope);
        if let Some(numbers) = &mut self.numbers {
            let number = numbers.entry(name.clone()).or_insert(0);
            *number += 1;
            // Counted within the scope: a model inside a model numbers its own layers.
            name = format!("{name}_{number}");
        }
        self.builder.set_origin(Origin::new(name.as_str()));
        name
    }

    pub(super) fn op(&mut self, name: &str, op: impl Into<Op>, operands: &[Value]) -> Layer<Value> {
        Ok(self.builder.op(name, op, operands)?)
    }

    pub(super) fn ops(
        &mut self,
        names: &[&str],
        op: impl Into<Op>,
        operands: &[Value],
    ) -> Layer<Vec<Value>> {
        Ok(self.builder.ops(names, op, operands)?)
    }

    /// The parameter `name`, added when it is first asked for.
    pub(super) fn param(&mut self, name: &str, dims: &[usize], init: Init) -> Layer<Value> {
        if let Some(value) = self.params.get(name) {
            return Ok(*value);
        }
        let source = Source { file: Arc::clone(&self.source), key: name.into() };
        let tensor = draw(&source, dims, init)?;
        // Hashes are computed side by side when all parameters are known.
        let value = self.builder.param_of(name, source, tensor, ContentHash([0; 8]));
        self.params.insert(name.to_owned(), value);
        Ok(value)
    }

    /// The constant size of an axis.
    pub(super) fn size(&self, x: Value, axis: usize) -> usize {
        let size = self.builder.graph().ty(x).shape.get(axis).and_then(Dim::as_const);
        size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0)
    }

    /// The sizes of the axes from `axis` on.
    pub(super) fn sizes_from(&self, x: Value, axis: usize) -> Shape {
        self.builder.graph().ty(x).shape.iter().skip(axis).cloned().collect()
    }

    /// The channels of an image.
    pub(super) fn channels(&self, x: Value) -> usize {
        self.size(x, 1)
    }

    /// An input `[N, sizes…]`.
    pub(super) fn input(&mut self, name: &str, sizes: &[i64]) -> Value {
        let sizes = sizes.iter().map(|size| Dim::from(*size));
        let shape: Shape = std::iter::once(Dim::n()).chain(sizes).collect();
        self.builder.input(name, TensorType::new(DType::F32, shape))
    }

    /// An input `[N, sizes…]` of integers.
    pub(super) fn integers(&mut self, name: &str, sizes: &[i64]) -> Value {
        let sizes = sizes.iter().map(|size| Dim::from(*size));
        let shape: Shape = std::iter::once(Dim::n()).chain(sizes).collect();
        self.builder.input(name, TensorType::new(DType::I64, shape))
    }

    /// An input `[N, size, size, channels]`, transposed.
    pub(super) fn image(&mut self, name: &str, size: i64, channels: i64) -> Layer<Value> {
        let size = self.pixels(size);
        let x = self.input(name, &[size, size, channels]);
        self.builder.set_origin(Origin::new(name));
        self.op(&format!("{name}.channels_first"), channels_first(), &[x])
    }

    /// Images `[…, height, width, channels]` as layers take them.
    pub(super) fn channels_first(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, channels_first(), &[x])
    }

    pub(super) fn output(&mut self, name: &str, value: Value) {
        self.builder.output(name, value);
    }

    /// The padding before and after an axis of `size` with which a window of `kernel` taps gives
    /// `ceil(size / stride)` results; of an odd number the larger half comes after.
    fn same_padding(size: usize, kernel: usize, stride: usize) -> (usize, usize) {
        let windows = size.div_ceil(stride);
        let total = (windows.saturating_sub(1) * stride + kernel).saturating_sub(size);
        (total / 2, total - total / 2)
    }

    /// The padding of both spatial axes as operators take it: before each, then after each.
    fn same_pads(&self, x: Value, kernel: usize, stride: usize) -> Vec<i64> {
        let pads = [2, 3].map(|axis| Self::same_padding(self.size(x, axis), kernel, stride));
        [pads[0].0, pads[1].0, pads[0].1, pads[1].1].map(int).to_vec()
    }

    /// A convolution whose result is named `value`, with the kernel `kernel`, a parameter's name.
    fn conv(&mut self, value: &str, kernel: &str, x: Value, conv: Conv) -> Layer<Value> {
        let Conv { filters, kernel: taps, stride, .. } = conv;
        // Depthwise, every channel is a group of its own: kernels are `[filters, 1, taps, taps]`.
        let groups = if conv.depthwise { filters } else { 1 };
        let channels = self.channels(x) / groups;
        let init = Init::Glorot {
            fan_in: taps * taps * channels,
            fan_out: taps * taps * filters / groups,
        };
        let mut operands = vec![x, self.param(kernel, &[filters, channels, taps, taps], init)?];
        if conv.bias {
            operands.push(self.param(&format!("{value}.bias"), &[filters], Init::near(0.0))?);
        }
        let pads = if conv.same { self.same_pads(x, taps, stride) } else { Vec::new() };
        let op = ConvOp { strides: square(stride), pads, groups: int(groups), ..ConvOp::default() };
        self.op(value, op, &operands)
    }

    pub(super) fn conv2d(&mut self, name: &str, x: Value, conv: Conv) -> Layer<Value> {
        let name = self.layer(name);
        self.conv(&name, &format!("{name}.kernel"), x, conv)
    }

    /// A transposed convolution to `filters` channels, `times` the size, whose windows of `times`
    /// by `times` elements do not overlap.
    pub(super) fn conv2d_transpose(
        &mut self,
        name: &str,
        x: Value,
        filters: usize,
        times: usize,
    ) -> Layer<Value> {
        let name = self.layer(name);
        let channels = self.channels(x);
        let (fan_in, fan_out) = (times * times * channels, times * times * filters);
        // As Keras counts them for a kernel over the image: the channels on each side times the
        // taps.
        let init = Init::Glorot { fan_in, fan_out };
        let kernel =
            self.param(&format!("{name}.kernel"), &[channels, filters, times, times], init)?;
        let bias = self.param(&format!("{name}.bias"), &[filters], Init::near(0.0))?;
        let op = ConvTranspose { strides: square(times), ..ConvTranspose::default() };
        self.op(&name, op, &[x, kernel, bias])
    }

    /// An image `[N, height, width, channels]` again.
    pub(super) fn channels_last(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Transpose { perm: vec![0, 2, 3, 1] }, &[x])
    }

    /// One kernel for each channel. Such a kernel sees and reaches one channel only, and is drawn
    /// accordingly.
    pub(super) fn depthwise_conv2d(&mut self, name: &str, x: Value, conv: Conv) -> Layer<Value> {
        let name = self.layer(name);
        let conv = Conv { filters: self.channels(x), depthwise: true, ..conv };
        self.conv(&name, &format!("{name}.depthwise_kernel"), x, conv)
    }

    /// A depthwise convolution without a bias, then one of 1×1 taps to `conv.filters` channels.
    pub(super) fn separable_conv2d(&mut self, name: &str, x: Value, conv: Conv) -> Layer<Value> {
        let name = self.layer(name);
        let depthwise = Conv { filters: self.channels(x), depthwise: true, bias: false, ..conv };
        let kernel = format!("{name}.depthwise_kernel");
        let x = self.conv(&format!("{name}.depthwise"), &kernel, x, depthwise)?;
        // The stride and the padding belong to the depthwise half.
        let pointwise = Conv { kernel: 1, stride: 1, ..conv };
        self.conv(&name, &format!("{name}.pointwise_kernel"), x, pointwise)
    }

    /// `gamma * (x - mean) / sqrt(variance + epsilon) + beta` for each channel, with fixed
    /// statistics.
    pub(super) fn batch_norm(&mut self, name: &str, x: Value, epsilon: f64) -> Layer<Value> {
        let name = self.layer(name);
        let channels = [self.channels(x)];
        // Keras starts gamma and the moving variance at 1, beta and the moving mean at 0; drawn
        // near these, no channel is like another and no normalisation is the identity.
        let mut operands = vec![x];
        for (kind, center) in
            [("gamma", 1.0), ("beta", 0.0), ("moving_mean", 0.0), ("moving_variance", 1.0)]
        {
            operands.push(self.param(&format!("{name}.{kind}"), &channels, Init::near(center))?);
        }
        self.op(&name, BatchNorm { epsilon, ..BatchNorm::default() }, &operands)
    }

    /// `x kernel + bias`, then the function.
    pub(super) fn dense(
        &mut self,
        name: &str,
        x: Value,
        units: usize,
        activation: Activation,
    ) -> Layer<Value> {
        let name = self.layer(name);
        let plain = matches!(activation, Activation::None);
        let linear = if plain { name.clone() } else { format!("{name}.linear") };
        let kernel = self.kernel(&name, x, units)?;
        let bias = self.param(&format!("{name}.bias"), &[units], Init::near(0.0))?;
        let y = self.op(&linear, Gemm::default(), &[x, kernel, bias])?;
        self.apply(&name, y, activation)
    }

    /// `x kernel`.
    pub(super) fn linear(&mut self, name: &str, x: Value, units: usize) -> Layer<Value> {
        let name = self.layer(name);
        let kernel = self.kernel(&name, x, units)?;
        self.op(&name, MatMul {}, &[x, kernel])
    }

    /// The kernel of a dense layer after `x`.
    fn kernel(&mut self, layer: &str, x: Value, units: usize) -> Layer<Value> {
        let features = self.size(x, 1);
        let init = Init::Glorot { fan_in: features, fan_out: units };
        self.param(&format!("{layer}.kernel"), &[features, units], init)
    }

    pub(super) fn activation(
        &mut self,
        name: &str,
        x: Value,
        activation: Activation,
    ) -> Layer<Value> {
        let name = self.layer(name);
        self.apply(&name, x, activation)
    }

    pub(super) fn apply(&mut self, name: &str, x: Value, activation: Activation) -> Layer<Value> {
        let op: Op = match activation {
            Activation::None => return Ok(x),
            Activation::Relu => Unary::Relu.into(),
            Activation::Relu6 => Unary::Clip { min: Some(0.0), max: Some(6.0) }.into(),
            Activation::Sigmoid => Unary::Sigmoid.into(),
            Activation::Tanh => Unary::Tanh.into(),
            Activation::Gelu => Unary::Gelu { approximate: GeluForm::Exact }.into(),
            Activation::Softmax => Softmax::Softmax { axis: -1 }.into(),
        };
        self.op(name, op, &[x])
    }

    pub(super) fn max_pool(
        &mut self,
        name: &str,
        x: Value,
        kernel: usize,
        stride: usize,
    ) -> Layer<Value> {
        self.max_pool_padded(name, x, kernel, stride, Vec::new())
    }

    /// With "same" padding, which is less than every element.
    pub(super) fn max_pool_same(
        &mut self,
        name: &str,
        x: Value,
        kernel: usize,
        stride: usize,
    ) -> Layer<Value> {
        let pads = self.same_pads(x, kernel, stride);
        self.max_pool_padded(name, x, kernel, stride, pads)
    }

    fn max_pool_padded(
        &mut self,
        name: &str,
        x: Value,
        kernel: usize,
        stride: usize,
        pads: Vec<i64>,
    ) -> Layer<Value> {
        let name = self.layer(name);
        let pool = Pool::Max {
            kernel: square(kernel),
            strides: square(stride),
            dilations: Vec::new(),
            pads,
            ceil_mode: false,
            indices: false,
            column_major: false,
        };
        self.op(&name, pool, &[x])
    }

    pub(super) fn average_pool(
        &mut self,
        name: &str,
        x: Value,
        kernel: usize,
        stride: usize,
    ) -> Layer<Value> {
        let name = self.layer(name);
        let pool = Pool::Average {
            kernel: square(kernel),
            strides: square(stride),
            dilations: Vec::new(),
            pads: Vec::new(),
            ceil_mode: false,
            count_include_pad: false,
        };
        self.op(&name, pool, &[x])
    }

    /// The mean of each channel: `[N, channels]`.
    pub(super) fn average_all(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Reduce::Mean { axes: vec![2, 3], keepdims: false }, &[x])
    }

    /// The sum of each sample's features: `[N, 1]`.
    pub(super) fn sum_features(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Reduce::Sum { axes: vec![1], keepdims: true }, &[x])
    }

    /// Zeros around an image: this many before and after each spatial axis.
    pub(super) fn zero_pad(&mut self, name: &str, x: Value, pads: [i64; 2]) -> Layer<Value> {
        let name = self.layer(name);
        let [before, after] = pads;
        let pads = vec![0, 0, before, before, 0, 0, after, after];
        self.op(&name, Pad { mode: PadMode::Constant, pads, value: 0.0 }, &[x])
    }

    pub(super) fn dropout(&mut self, name: &str, x: Value, rate: f32) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Dropout { mask: false, rate }, &[x])
    }

    pub(super) fn flatten(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Flatten { axis: 1 }, &[x])
    }

    /// The channels of all, in order.
    pub(super) fn concat(&mut self, name: &str, values: &[Value]) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Concat { axis: 1 }, values)
    }

    pub(super) fn add(&mut self, name: &str, values: [Value; 2]) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Binary::Add, &values)
    }

    pub(super) fn multiply(&mut self, name: &str, values: [Value; 2]) -> Layer<Value> {
        let name = self.layer(name);
        self.op(&name, Binary::Mul, &values)
    }
}

/// From `[N, height, width, channels]` to `[N, channels, height, width]`.
fn channels_first() -> Transpose {
    Transpose { perm: vec![0, 3, 1, 2] }
}

/// The same number for both spatial axes.
fn square(size: usize) -> Vec<i64> {
    vec![int(size); 2]
}

pub(super) fn int(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
