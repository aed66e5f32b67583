//! The layers of transformers. A sequence is `[N, tokens, features]`.

use super::layers::{Activation, Layer, Net};
use super::weights::Init;
use crate::ir::Value;
use crate::op::{
    Binary, Cast, Constant, Gather, LayerNorm, MatMul, Reshape, Slice, Softmax, Squeeze, Transpose,
    Unsqueeze,
};
use crate::types::{DType, Dim, Tensor};

impl Net {
    /// A row of a table for each number.
    pub(super) fn embedding(
        &mut self,
        name: &str,
        numbers: Value,
        rows: usize,
        width: usize,
    ) -> Layer<Value> {
        let name = self.layer(name);
        let table = self.param(&format!("{name}.table"), &[rows, width], Init::near(0.0))?;
        self.op(&name, Gather { axis: 0 }, &[table, numbers])
    }

    /// Adds to each token a row of its own, the same in every sample.
    pub(super) fn positions(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        let sizes = [self.size(x, 1), self.size(x, 2)];
        let table = self.param(&format!("{name}.table"), &sizes, Init::near(0.0))?;
        self.op(&name, Binary::Add, &[x, table])
    }

    /// What is added to scores `[N, heads, tokens, tokens]`: 0 for tokens whose mask is not 0,
    /// -10000 for others.
    pub(super) fn padding_mask(&mut self, name: &str, mask: Value) -> Layer<Value> {
        let name = self.layer(name);
        let at = |kind: &str| format!("{name}.{kind}");
        let none = Constant { value: Tensor::scalar(0i64) };
        let zero = self.op(&at("zero"), none, &[])?;
        let absent = self.op(&at("absent"), crate::op::Compare::Equal, &[mask, zero])?;
        let absent = self.op(&at("number"), Cast { to: DType::F32 }, &[absent])?;
        let absent = self.op(&at("axes"), Unsqueeze { axes: vec![1, 2] }, &[absent])?;
        // As in BERT (Devlin et al. 2019): finite, so that a row whose tokens are all absent has no
        // NaN, and low enough for its exponential to be 0 in `f32`.
        let low = Constant { value: Tensor::scalar(-10_000.0f32) };
        let low = self.op(&at("low"), low, &[])?;
        self.op(&name, Binary::Mul, &[absent, low])
    }

    /// `(x - mean) / sqrt(variance + 1e-6) * gamma + beta` over each token's features.
    pub(super) fn layer_norm(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        let width = [self.size(x, 2)];
        let gamma = self.param(&format!("{name}.gamma"), &width, Init::near(1.0))?;
        let beta = self.param(&format!("{name}.beta"), &width, Init::near(0.0))?;
        let op = LayerNorm::Layer { axis: -1, epsilon: 1e-6, statistics: false };
        self.op(&name, op, &[x, gamma, beta])
    }

    /// `x kernel + bias` over the last axis of a sequence, then the function.
    pub(super) fn dense_last(
        &mut self,
        name: &str,
        x: Value,
        units: usize,
        activation: Activation,
    ) -> Layer<Value> {
        let name = self.layer(name);
        let plain = matches!(activation, Activation::None);
        let linear = if plain { name.clone() } else { format!("{name}.linear") };
        let y = self.project(&name, &linear, x, units)?;
        self.apply(&name, y, activation)
    }

    /// `x kernel + bias` with the parameters of the layer `layer`, as the value `value`.
    fn project(&mut self, layer: &str, value: &str, x: Value, units: usize) -> Layer<Value> {
        let features = self.size(x, 2);
        let init = Init::Glorot { fan_in: features, fan_out: units };
        let kernel = self.param(&format!("{layer}.kernel"), &[features, units], init)?;
        let bias = self.param(&format!("{layer}.bias"), &[units], Init::near(0.0))?;
        let y = self.op(&format!("{value}.product"), MatMul {}, &[x, kernel])?;
        self.op(value, Binary::Add, &[y, bias])
    }

    /// `[N, tokens, heads * size]` as `[N, heads, tokens, size]`, or with the last two axes
    /// exchanged.
    fn split_heads(&mut self, name: &str, x: Value, heads: i64, perm: [usize; 4]) -> Layer<Value> {
        let [tokens, width] = [1, 2].map(|axis| Dim::from(super::layers::int(self.size(x, axis))));
        let size = width.floor_div(&Dim::from(heads));
        let shape = vec![Dim::n(), tokens, Dim::from(heads), size];
        let y = self.op(&format!("{name}.apart"), Reshape { shape }, &[x])?;
        self.op(&format!("{name}.heads"), Transpose { perm: perm.to_vec() }, &[y])
    }

    /// Multi-head attention of a sequence to itself; `mask` is added to the scores.
    pub(super) fn attention(
        &mut self,
        name: &str,
        x: Value,
        mask: Value,
        heads: i64,
    ) -> Layer<Value> {
        let name = self.layer(name);
        let [tokens, width] = [self.size(x, 1), self.size(x, 2)];
        let at = |kind: &str| format!("{name}.{kind}");
        // Keys get their last two axes exchanged at once, for the product with the queries.
        let mut parts = Vec::new();
        for (kind, perm) in
            [("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])]
        {
            let y = self.project(&at(kind), &at(kind), x, width)?;
            parts.push(self.split_heads(&at(kind), y, heads, perm)?);
        }
        let size = width / usize::try_from(heads).unwrap_or(1);
        // Scaled dot products (Vaswani et al. 2017, section 3.2.1).
        let factor = Constant { value: Tensor::scalar(1.0 / (size as f32).sqrt()) };
        let factor = self.op(&at("factor"), factor, &[])?;
        let scores = self.op(&at("products"), MatMul {}, &[parts[0], parts[1]])?;
        let scores = self.op(&at("scores"), Binary::Mul, &[scores, factor])?;
        let scores = self.op(&at("masked"), Binary::Add, &[scores, mask])?;
        let weights = self.op(&at("weights"), Softmax::Softmax { axis: -1 }, &[scores])?;
        let y = self.op(&at("mixed"), MatMul {}, &[weights, parts[2]])?;
        let y = self.op(&at("joined"), Transpose { perm: vec![0, 2, 1, 3] }, &[y])?;
        let [tokens, all] = [tokens, width].map(|s| Dim::from(super::layers::int(s)));
        let y = self.op(&at("flat"), Reshape { shape: vec![Dim::n(), tokens, all] }, &[y])?;
        self.project(&at("output"), &name, y, width)
    }

    /// The features of each sample's first token.
    pub(super) fn first_token(&mut self, name: &str, x: Value) -> Layer<Value> {
        let name = self.layer(name);
        let (starts, ends) = (vec![Dim::ZERO], vec![Dim::ONE]);
        let first = Slice { axes: vec![1], starts, ends, steps: vec![1] };
        let first = self.op(&format!("{name}.slice"), first, &[x])?;
        self.op(&name, Squeeze { axes: vec![1] }, &[first])
    }
}
