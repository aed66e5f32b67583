//! What combines over the batch.

use fanwise::ir::Value;
use fanwise::op::Attr;
use fanwise::types::{DType, Dim};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::draw::{Added, Draw};
use super::truth::Truth;
use crate::random::{Attrs, int, ints};

/// A name, what adds it, and how often it is drawn beside others.
type Family = (&'static str, fn(&mut Draw) -> Added, u32);

/// What combines floats.
pub(super) const FLOATS: &[Family] = &[
    ("reduce", Draw::reduction, 30),
    ("matmul", Draw::matmul, 5),
    ("gemm", Draw::gemm, 4),
    ("einsum", Draw::einsum, 5),
    ("lp_norm", Draw::lp_norm, 3),
    ("layer_norm", Draw::layer_norm, 4),
    ("variance", Draw::variance, 5),
    ("moments", Draw::moments, 2),
    ("batch_norm", Draw::batch_norm, 4),
    ("softmax", Draw::softmax, 6),
    ("scan", Draw::scan, 6),
    ("arg", Draw::arg, 4),
    ("top_k", Draw::top_k, 3),
    ("sort", Draw::sort, 2),
    ("dynamic_quantize", Draw::dynamic_quantize, 6),
    ("segment_sum", Draw::segment_sum, 3),
    ("masked_mean", Draw::masked_mean, 2),
    ("weighted_mean", Draw::weighted_mean, 2),
    ("written_mean", Draw::written_mean, 2),
    ("written_lse", Draw::written_lse, 2),
    ("between_extremes", Draw::between_extremes, 2),
    ("fake_quantize", Draw::fake_quantize, 2),
    ("blocks", Draw::blocks, 3),
    ("similarities", Draw::similarities, 2),
    ("count", Draw::count, 2),
    ("any", Draw::any, 1),
    ("taps", Draw::taps, 2),
    ("scatter", Draw::scatter, 2),
    ("quantize", Draw::quantize, 2),
];

/// What combines integers.
pub(super) const INTEGERS: &[Family] = &[
    ("reduce", Draw::reduction, 10),
    ("scan", Draw::scan, 3),
    ("arg", Draw::arg, 2),
    ("top_k", Draw::top_k, 2),
    ("sort", Draw::sort, 1),
    ("segment_sum", Draw::segment_sum, 1),
    ("blocks", Draw::blocks, 1),
    ("count", Draw::count, 1),
    ("scatter", Draw::scatter, 1),
];

const REDUCTIONS: [&str; 10] = [
    "reduce_sum",
    "reduce_mean",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_l1",
    "reduce_l2",
    "reduce_log_sum",
    "reduce_log_sum_exp",
    "reduce_sum_square",
];

impl Draw {
    /// A reduction over the batch, alone or with other axes.
    pub(super) fn reduction(&mut self) -> Added {
        let name = *REDUCTIONS.choose(&mut self.rng)?;
        let rank = self.ty(self.x).rank();
        let all = self.one_of(4);
        let axes: Vec<usize> = (0..rank).filter(|axis| all || *axis == self.axis).collect();
        if self.is_input() && self.dtype.is_float() {
            self.truth = Some(Truth::Reduce(name, axes.clone()));
        }
        let keepdims = self.flag();
        self.add(name, vec![("axes", ints(axes)), ("keepdims", keepdims)], &[self.x])
    }

    /// A reduction over the batch alone, which stays with size 1.
    fn total(&mut self, name: &str, of: Value) -> Option<Value> {
        let attrs = vec![("axes", ints([self.axis])), ("keepdims", Attr::Bool(true))];
        self.op(name, attrs, &[of])
    }

    /// Another operand with the rows of `x`: `x` itself, or an input.
    fn other(&mut self) -> Value {
        if self.one_of(4) { self.x } else { self.beside("z", self.sizes()) }
    }

    pub(super) fn matmul(&mut self) -> Added {
        let (rank, x) = (self.ty(self.x).rank(), self.x);
        match (rank, self.axis) {
            (2, 0) => {
                let z = self.other();
                let turned = self.op("transpose", vec![("perm", ints([1, 0]))], &[x])?;
                if self.is_input() {
                    self.truth = Some(Truth::Products);
                }
                self.add("matmul", vec![], &[turned, z])
            }
            (2, _) => {
                let width = self.rng.random_range(1..4);
                let z = self.beside("z", vec![Dim::n(), width.into()]);
                self.add("matmul", vec![], &[x, z])
            }
            (3, 1) => {
                let z = self.other();
                let turned = self.op("transpose", vec![("perm", ints([0, 2, 1]))], &[x])?;
                self.add("matmul", vec![], &[turned, z])
            }
            _ => None,
        }
    }

    pub(super) fn gemm(&mut self) -> Added {
        if (self.ty(self.x).rank(), self.axis) != (2, 0) {
            return None;
        }
        let z = self.other();
        let mut attrs: Attrs = vec![("trans_a", Attr::Bool(true))];
        let mut operands = vec![self.x, z];
        if self.one_of(3) {
            attrs.push(("alpha", Attr::Float(0.5)));
        }
        if self.one_of(3) {
            operands.push(self.beside("b", vec![self.sizes()[1].clone()]));
        } else if attrs.len() == 1 && self.is_input() {
            self.truth = Some(Truth::Products);
        }
        self.add("gemm", attrs, &operands)
    }

    pub(super) fn einsum(&mut self) -> Added {
        let equations: &[&str] = match (self.ty(self.x).rank(), self.axis) {
            (1, _) => &["n,n->"],
            (2, 0) => &["ni,nj->ij", "ni,ni->i", "ni,ni->", "ni,nj->i"],
            (2, _) => &["in,jn->ij", "in,in->i"],
            (3, 1) => &["bni,bnj->bij", "bni,bnj->ij"],
            _ => &["nik,njk->ij", "nik,njk->ijk"],
        };
        let equation = Attr::Name((*equations.choose(&mut self.rng)?).to_owned());
        let z = self.other();
        self.add("einsum", vec![("equation", equation)], &[self.x, z])
    }

    pub(super) fn lp_norm(&mut self) -> Added {
        let p = self.rng.random_range(1..3);
        self.add("lp_norm", vec![("axis", int(self.axis)), ("p", int(p))], &[self.x])
    }

    /// Normalised by the statistics of the batch and of the axes behind it.
    pub(super) fn layer_norm(&mut self) -> Added {
        let name = *["layer_norm", "rms_norm"].choose(&mut self.rng)?;
        let attrs = vec![("axis", int(self.axis)), ("epsilon", Attr::Float(1e-5))];
        let plain = self.add(name, attrs.clone(), &[self.x]);
        if plain.is_some() {
            return plain;
        }
        let sizes = self.sizes()[self.axis..].to_vec();
        let scale = self.beside("scale", sizes);
        self.add(name, attrs, &[self.x, scale])
    }

    /// The mean of the squared distances from the mean, its root, or what is divided by that.
    pub(super) fn variance(&mut self) -> Added {
        let mean = self.total("reduce_mean", self.x)?;
        let shifted = self.op("sub", vec![], &[self.x, mean])?;
        let squares = self.op("mul", vec![], &[shifted, shifted])?;
        let variance = self.total("reduce_mean", squares)?;
        match self.rng.random_range(0..4) {
            0 => Some(vec![variance, mean]),
            1 => self.add("sqrt", vec![], &[variance]),
            more => {
                let epsilon = self.constant(if more == 2 { 1e-5 } else { 0.0 }, self.dtype)?;
                let above = self.op("add", vec![], &[variance, epsilon])?;
                let deviation = self.op("sqrt", vec![], &[above])?;
                self.add("div", vec![], &[shifted, deviation])
            }
        }
    }

    /// The mean of the squares less the square of the mean.
    pub(super) fn moments(&mut self) -> Added {
        let squares = self.op("mul", vec![], &[self.x, self.x])?;
        let of_squares = self.total("reduce_mean", squares)?;
        let mean = self.total("reduce_mean", self.x)?;
        let square = self.op("mul", vec![], &[mean, mean])?;
        self.add("sub", vec![], &[of_squares, square])
    }

    pub(super) fn batch_norm(&mut self) -> Added {
        if self.axis != 0 || self.ty(self.x).rank() < 2 {
            return None;
        }
        let channels = self.sizes()[1].clone();
        let mut operands = vec![self.x];
        for name in ["scale", "bias", "mean", "var"] {
            operands.push(self.beside(name, vec![channels.clone()]));
        }
        self.add("batch_norm_train", vec![], &operands)
    }

    pub(super) fn softmax(&mut self) -> Added {
        let names = ["softmax", "softmax", "log_softmax", "log_softmax", "hardmax"];
        let name = *names.choose(&mut self.rng)?;
        self.add(name, vec![("axis", int(self.axis))], &[self.x])
    }

    pub(super) fn scan(&mut self) -> Added {
        let name = *["cumsum", "cumsum", "cumprod"].choose(&mut self.rng)?;
        let (exclusive, reverse) = (self.flag(), self.flag());
        let attrs = vec![("axis", int(self.axis)), ("exclusive", exclusive), ("reverse", reverse)];
        self.add(name, attrs, &[self.x])
    }

    pub(super) fn arg(&mut self) -> Added {
        let name = *["arg_max", "arg_min"].choose(&mut self.rng)?;
        let (keepdims, last) = (self.flag(), self.flag());
        let attrs =
            vec![("axis", int(self.axis)), ("keepdims", keepdims), ("select_last_index", last)];
        self.add(name, attrs, &[self.x])
    }

    pub(super) fn top_k(&mut self) -> Added {
        let k = *[0, 1, 1, 2, 3].choose(&mut self.rng)?;
        let largest = self.flag();
        self.add(
            "top_k",
            vec![("axis", int(self.axis)), ("k", int(k)), ("largest", largest)],
            &[self.x],
        )
    }

    pub(super) fn sort(&mut self) -> Added {
        let descending = self.flag();
        self.add("sort", vec![("axis", int(self.axis)), ("descending", descending)], &[self.x])
    }

    pub(super) fn dynamic_quantize(&mut self) -> Added {
        self.add("dynamic_quantize", vec![], &[self.x])
    }

    pub(super) fn segment_sum(&mut self) -> Added {
        if self.axis != 0 {
            return None;
        }
        let ids = self.input("ids", DType::I64, vec![Dim::n()]);
        self.add("segment_sum", vec![("segments", int(3))], &[self.x, ids])
    }

    /// 1 where an element is above 0, else 0.
    fn mask(&mut self) -> Option<Value> {
        let zero = self.constant(0.0, self.dtype)?;
        let above = self.op("greater", vec![], &[self.x, zero])?;
        self.cast(above, self.dtype)
    }

    pub(super) fn masked_mean(&mut self) -> Added {
        let mask = self.mask()?;
        let kept = self.op("mul", vec![], &[self.x, mask])?;
        let sum = self.total("reduce_sum", kept)?;
        let count = self.total("reduce_sum", mask)?;
        self.add("div", vec![], &[sum, count])
    }

    pub(super) fn weighted_mean(&mut self) -> Added {
        let weights = self.beside("positive", self.sizes());
        let product = self.op("mul", vec![], &[self.x, weights])?;
        let sum = self.total("reduce_sum", product)?;
        let all = self.total("reduce_sum", weights)?;
        self.add("div", vec![], &[sum, all])
    }

    /// A sum divided by the number of rows.
    pub(super) fn written_mean(&mut self) -> Added {
        let rows = Attr::Ints(vec![Dim::n()]);
        let rows = self.op("dims", vec![("scalar", Attr::Bool(true)), ("values", rows)], &[])?;
        let count = self.cast(rows, self.dtype)?;
        let sum = self.total("reduce_sum", self.x)?;
        self.add("div", vec![], &[sum, count])
    }

    /// The logarithm of a sum of exponentials, written out.
    pub(super) fn written_lse(&mut self) -> Added {
        let most = self.total("reduce_max", self.x)?;
        let shifted = self.op("sub", vec![], &[self.x, most])?;
        let powers = self.op("exp", vec![], &[shifted])?;
        let sum = self.total("reduce_sum", powers)?;
        let log = self.op("log", vec![], &[sum])?;
        self.add("add", vec![], &[log, most])
    }

    /// Scaled so that the smallest is 0 and the largest 1.
    pub(super) fn between_extremes(&mut self) -> Added {
        let [most, least] = [self.total("reduce_max", self.x)?, self.total("reduce_min", self.x)?];
        let width = self.op("sub", vec![], &[most, least])?;
        let above = self.op("sub", vec![], &[self.x, least])?;
        self.add("div", vec![], &[above, width])
    }

    /// Quantised by the largest magnitude, or by the mean one, and back.
    pub(super) fn fake_quantize(&mut self) -> Added {
        let magnitudes = self.op("abs", vec![], &[self.x])?;
        let name = *["reduce_max", "reduce_mean"].choose(&mut self.rng)?;
        let most = self.total(name, magnitudes)?;
        let steps = self.constant(127.0, self.dtype)?;
        let scale = self.op("div", vec![], &[most, steps])?;
        let scaled = self.op("div", vec![], &[self.x, scale])?;
        let whole = self.op("round", vec![], &[scaled])?;
        self.add("mul", vec![], &[whole, scale])
    }

    /// A reduction of rows in several blocks, or of those with several entries each.
    pub(super) fn blocks(&mut self) -> Added {
        let sizes = self.sizes();
        let joined = if (sizes.len(), self.axis) == (3, 0) {
            let shape = vec![sizes[0].clone() * sizes[1].as_const()?, sizes[2].clone()];
            self.op("reshape", vec![("shape", Attr::Ints(shape))], &[self.x])?
        } else {
            let z = self.other();
            self.op("concat", vec![("axis", int(self.axis))], &[self.x, z])?
        };
        let name = *REDUCTIONS.choose(&mut self.rng)?;
        Some(vec![self.total(name, joined)?])
    }

    /// Products of all pairs of rows.
    pub(super) fn similarities(&mut self) -> Added {
        if self.many || (self.ty(self.x).rank(), self.axis) != (2, 0) {
            return None;
        }
        let turned = self.op("transpose", vec![("perm", ints([1, 0]))], &[self.x])?;
        let pairs = self.op("matmul", vec![], &[self.x, turned])?;
        let weights = self.op("softmax", vec![("axis", int(1))], &[pairs])?;
        self.add("matmul", vec![], &[weights, self.x])
    }

    /// How many elements are above 0.
    pub(super) fn count(&mut self) -> Added {
        let mask = self.mask()?;
        let name = *["reduce_sum", "reduce_mean"].choose(&mut self.rng)?;
        Some(vec![self.total(name, mask)?])
    }

    /// Whether any element is above 0, or all are.
    pub(super) fn any(&mut self) -> Added {
        let zero = self.constant(0.0, self.dtype)?;
        let above = self.op("greater", vec![], &[self.x, zero])?;
        let name = *["reduce_max", "reduce_min"].choose(&mut self.rng)?;
        Some(vec![self.total(name, above)?])
    }

    /// What a convolution's kernel gets of all samples.
    pub(super) fn taps(&mut self) -> Added {
        if (self.ty(self.x).rank(), self.axis) != (3, 0) {
            return None;
        }
        let z = self.beside("z", vec![Dim::n(), 2.into(), 2.into()]);
        self.add("conv_weight_grad", vec![("kernel", ints([1]))], &[self.x, z])
    }

    /// Rows that go where numbers say, some to the same place.
    pub(super) fn scatter(&mut self) -> Added {
        let (rank, axis) = (self.ty(self.x).rank(), self.axis);
        if axis != 0 || rank > 2 {
            return None;
        }
        let mut places = self.sizes();
        places[0] = 3.into();
        let data = self.beside("b", places);
        let ids = self.input("ids", DType::I64, self.sizes());
        let reduction = *["add", "mul", "max", "min"].choose(&mut self.rng)?;
        let attrs = vec![("reduction", Attr::Name(reduction.to_owned()))];
        self.add("scatter_elements", attrs, &[data, ids, self.x])
    }

    /// Quantised to bytes by the mean magnitude of all elements.
    pub(super) fn quantize(&mut self) -> Added {
        let axes = ints(0..self.ty(self.x).rank());
        let magnitudes = self.op("abs", vec![], &[self.x])?;
        let attrs = vec![("axes", axes), ("keepdims", Attr::Bool(false))];
        let scale = self.op("reduce_mean", attrs, &[magnitudes])?;
        let zero = self.constant(128.0, DType::U8)?;
        let attrs = vec![("to", Attr::Name("u8".to_owned()))];
        self.add("quantize_linear", attrs, &[self.x, scale, zero])
    }
}
