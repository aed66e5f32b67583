//! ONNX's operators, both ways: one file for a stem of `op`, and files for operators that are read
//! as several.

mod affine_grid;
mod alike;
mod attention;
mod batch_norm;
mod binary;
mod bit_cast;
mod blocks;
mod branches;
mod broadcast;
mod cast;
mod causal_conv;
mod center_crop_pad;
mod col2im;
mod compare;
mod compress;
mod constant;
mod constant_of_shape;
mod conv;
mod conv_transpose;
mod dft;
mod dropout;
mod einsum;
mod eye_like;
mod gather;
mod gemm;
mod group_norm;
mod integer_products;
mod layer_norm;
mod logic;
mod loops;
mod losses;
mod max_unpool;
mod mean_variance;
mod ml_features;
mod ml_labels;
mod ml_linear;
mod ml_scores;
mod ml_svm;
mod ml_tree;
mod ml_trees;
mod one_hot;
mod one_to_one;
mod optional;
mod pad;
mod pool;
mod quantize;
mod random;
mod range;
mod recurrent;
mod reduce;
mod resize;
mod reverse_sequence;
mod rotary;
mod sampled;
mod scan;
mod slice;
mod softmax;
mod split;
mod stash;
mod tensor_scatter;
mod top_k;
mod trilu;
mod unary;
mod views;
mod windows;

use std::sync::LazyLock;

use super::control::Control;
use super::file::ML;
use super::known::float;
use super::node::{Done, Node, meaning, wrong};
use super::registry::{ANY, Import, Imports};
use super::writer::{Attribute, Export, Refused, Writer, Written, long, longs, name, word};
use super::{ImportError, NodeError, free, tensor};
use crate::op::Op;

/// The registry: the files, each with the operators that it writes.
macro_rules! stems {
    ($($stem:ident $(: $($op:ident)+)?),* $(,)?) => {
        static IMPORTS: LazyLock<Imports> = LazyLock::new(|| {
            let mut all = Imports::default();
            $($stem::imports(&mut all);)*
            all
        });

        /// Writes an operator as the writer's present node.
        pub(super) fn export(w: &mut Writer<'_>, op: &Op) -> Written {
            match op {
                $($($(Op::$op(op) => op.export(w),)+)?)*
                _ => Err(Refused::unknown()),
            }
        }
    };
}

stems! {
    affine_grid,
    attention,
    batch_norm: BatchNorm BatchNormTrain,
    binary: Binary,
    bit_cast,
    blocks: Blocks,
    branches,
    cast: Cast,
    causal_conv,
    center_crop_pad,
    col2im: Col2Im,
    compare: Compare,
    compress,
    constant: Constant Dims,
    constant_of_shape: ConstantOfShape,
    conv: Conv,
    conv_transpose: ConvTranspose,
    dft: Dft,
    dropout: Dropout,
    einsum: Einsum,
    eye_like,
    gather: Gather,
    gemm: Gemm,
    group_norm: GroupNorm,
    integer_products,
    layer_norm: LayerNorm,
    logic: Logic,
    loops,
    losses,
    max_unpool: MaxUnpool,
    mean_variance,
    ml_features,
    ml_labels,
    ml_linear,
    ml_svm,
    ml_tree,
    one_hot: OneHot,
    one_to_one: Arg Classify Concat Flatten GatherAt GridSample Identity LpNorm Lrn MatMul
        Scatter ShapeOp SizeOp Where,
    optional,
    pad: Pad,
    pool: Pool,
    quantize: Quantize DynamicQuantize,
    random,
    range: Range,
    recurrent: Recurrent,
    reduce: Reduce,
    resize: Resize,
    reverse_sequence: ReverseSequence,
    rotary,
    sampled,
    scan: Scan,
    slice: Slice Reverse,
    softmax: Softmax,
    split: SplitOp,
    tensor_scatter,
    top_k: TopK,
    trilu: Trilu,
    unary: Unary,
    views: Reshape Squeeze Unsqueeze Transpose Expand Tile,
}

/// How nodes of the operator `op` of a domain are read, where it is supported.
pub(super) fn find<'a>(domain: &'a str, op: &'a str) -> Option<&'a Import> {
    IMPORTS.get(domain, op)
}

/// Whether an operator is read, by its name after its domain where that is not ONNX's own.
pub(super) fn known(full: &str) -> bool {
    match full.strip_prefix(ML).and_then(|rest| rest.strip_prefix('.')) {
        Some(name) => find(ML, name).is_some(),
        None => find("", full).is_some(),
    }
}

/// The operators of a domain that are read, in order; that of ONNX itself is empty.
pub fn supported(domain: &str) -> Vec<&'static str> {
    let own = IMPORTS.names().filter(|(of, _)| *of == domain);
    let mut names: Vec<&str> = own.map(|(_, name)| name).collect();
    names.sort_unstable();
    names
}
