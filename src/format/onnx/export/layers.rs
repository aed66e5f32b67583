//! Products, windows and normalisations.

use super::super::tensor;
use super::Refused;
use super::writer::{Attribute, Writer};
use crate::op::{
    BatchNormTrain, BlockOrder, Blocks, Coordinates, DynamicQuantize, GridPadding, GridSample,
    GroupNorm, LayerNorm, MaxUnpool, Nearest, Op, Pool, Quantize, Resize, ResizeMode,
};
use crate::types::Tensor;

type Done = Option<Result<(), Refused>>;

/// The attributes of windows; those that are empty are left out.
fn windows<'a>(lists: [(&'a str, &'a [i64]); 4]) -> Vec<(&'a str, Attribute<'a>)> {
    let given = lists.into_iter().filter(|(_, list)| !list.is_empty());
    given.map(|(name, list)| (name, Attribute::Ints(list))).collect()
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others are in other files")]
pub(super) fn write(w: &mut Writer<'_>, op: &Op) -> Done {
    Some(match op {
        Op::Conv(op) => {
            let lists = [
                ("strides", &*op.strides),
                ("dilations", &op.dilations),
                ("pads", &op.pads),
                ("", &[]),
            ];
            let mut given = windows(lists);
            given.push(("group", Attribute::Int(op.groups)));
            w.same("Conv", &given)
        }
        Op::ConvTranspose(op) => {
            let mut given = windows([
                ("strides", &op.strides),
                ("dilations", &op.dilations),
                ("pads", &op.pads),
                ("output_padding", &op.output_padding),
            ]);
            given.push(("group", Attribute::Int(op.groups)));
            w.same("ConvTranspose", &given)
        }
        Op::Pool(op) => pool(w, op),
        Op::MatMul(_) => w.same("MatMul", &[]),
        Op::Gemm(op) => w.same(
            "Gemm",
            &[
                ("alpha", Attribute::Float(op.alpha)),
                ("beta", Attribute::Float(op.beta)),
                ("transA", Attribute::Int(op.trans_a.into())),
                ("transB", Attribute::Int(op.trans_b.into())),
            ],
        ),
        Op::Einsum(op) => w.same("Einsum", &[("equation", Attribute::Text(&op.equation))]),
        _ => return normalisation(w, op).or_else(|| image(w, op)),
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others are no normalisations")]
fn normalisation(w: &mut Writer<'_>, op: &Op) -> Done {
    Some(match op {
        Op::BatchNorm(op) => {
            let given = [("epsilon", op.epsilon), ("momentum", op.momentum)];
            w.same("BatchNormalization", &given.map(|(name, x)| (name, Attribute::Float(x))))
        }
        Op::BatchNormTrain(op) => batch_norm_train(w, op),
        Op::LayerNorm(op) => layer_norm(w, op),
        Op::GroupNorm(GroupNorm::Group { epsilon, groups }) => w.same(
            "GroupNormalization",
            &[("epsilon", Attribute::Float(*epsilon)), ("num_groups", Attribute::Int(*groups))],
        ),
        Op::GroupNorm(GroupNorm::Instance { epsilon }) => {
            w.same("InstanceNormalization", &[("epsilon", Attribute::Float(*epsilon))])
        }
        Op::LpNorm(op) => w.same(
            "LpNormalization",
            &[("axis", Attribute::Int(op.axis)), ("p", Attribute::Int(op.p))],
        ),
        Op::Lrn(op) => w.same(
            "LRN",
            &[
                ("alpha", Attribute::Float(op.alpha)),
                ("beta", Attribute::Float(op.beta)),
                ("bias", Attribute::Float(op.bias)),
                ("size", Attribute::Int(op.size)),
            ],
        ),
        _ => return None,
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others are in other files")]
fn image(w: &mut Writer<'_>, op: &Op) -> Done {
    Some(match op {
        Op::Resize(op) => resize(w, op),
        Op::GridSample(op) => grid_sample(w, op),
        Op::Col2Im(op) => {
            let given = windows([
                ("strides", &op.strides),
                ("dilations", &op.dilations),
                ("pads", &op.pads),
                ("", &[]),
            ]);
            w.ints(&op.image).and_then(|image| {
                let mut operands = w.operands();
                operands.extend([image, w.ints(&op.kernel)?]);
                w.done("Col2Im", operands, &given)
            })
        }
        Op::MaxUnpool(op) => max_unpool(w, op),
        Op::Blocks(op) => blocks(w, op),
        Op::Quantize(op) => quantize(w, op),
        Op::DynamicQuantize(DynamicQuantize::Quantize) => w.same("DynamicQuantizeLinear", &[]),
        _ => return None,
    })
}

fn pool(w: &mut Writer<'_>, op: &Pool) -> Result<(), Refused> {
    let (name, kernel, strides, dilations, pads, ceil_mode, own) = match op {
        Pool::Max { kernel, strides, dilations, pads, ceil_mode, column_major, indices: _ } => (
            "MaxPool",
            kernel,
            strides,
            dilations,
            pads,
            ceil_mode,
            ("storage_order", i64::from(*column_major)),
        ),
        Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad } => (
            "AveragePool",
            kernel,
            strides,
            dilations,
            pads,
            ceil_mode,
            ("count_include_pad", i64::from(*count_include_pad)),
        ),
        Pool::Lp { kernel, strides, dilations, pads, ceil_mode, p } => {
            ("LpPool", kernel, strides, dilations, pads, ceil_mode, ("p", *p))
        }
    };
    let mut given = windows([
        ("kernel_shape", kernel),
        ("strides", strides),
        ("dilations", dilations),
        ("pads", pads),
    ]);
    given.push(("ceil_mode", Attribute::Int((*ceil_mode).into())));
    given.push((own.0, Attribute::Int(own.1)));
    w.same(name, &given)
}

/// ONNX has the same formulas, for a scale and a bias of one type, and a running mean and variance of one type.
fn batch_norm_train(w: &mut Writer<'_>, op: &BatchNormTrain) -> Result<(), Refused> {
    if op.local {
        let reason = "its statistics are those of each device's own rows, which ONNX cannot say; \
                      write the model with `local=false`";
        return Err(reason.to_owned());
    }
    for (a, b, what) in [(1, 2, "scale and bias"), (3, 4, "running mean and variance")] {
        let (one, other) = (w.ty(a)?.dtype, w.ty(b)?.dtype);
        if one != other {
            return Err(format!("its {what} are {one} and {other}; ONNX takes one type for both"));
        }
    }
    w.same(
        "BatchNormalization",
        &[
            ("epsilon", Attribute::Float(op.epsilon)),
            ("momentum", Attribute::Float(op.momentum)),
            ("training_mode", Attribute::Int(1)),
        ],
    )
}

fn layer_norm(w: &mut Writer<'_>, op: &LayerNorm) -> Result<(), Refused> {
    let (ty, mut operands) = (w.ty(0)?, w.operands());
    let axis_of = |axis: i64| {
        let rank = ty.rank();
        let axis = crate::op::infer::axis("axis", axis, rank).map_err(|e| e.to_string())?;
        Ok::<_, Refused>((axis..rank, i64::try_from(axis).map_err(|e| e.to_string())?))
    };
    match *op {
        LayerNorm::Layer { axis, epsilon, statistics: _ } => {
            if operands.len() == 1 {
                // ONNX needs a scale.
                let (axes, _) = axis_of(axis)?;
                let one = w.scalar(ty.dtype, 1.0)?;
                let sizes = w.sizes(&ty.shape[axes])?;
                operands.push(w.emit("Expand", &[&one, &sizes], &[]));
            }
            let given = [("axis", Attribute::Int(axis)), ("epsilon", Attribute::Float(epsilon))];
            w.done("LayerNormalization", operands, &given)
        }
        // `x / sqrt(mean of squares + epsilon) * scale`; the operator of that name came later.
        LayerNorm::Rms { axis, epsilon } => {
            let (axes, first) = axis_of(axis)?;
            let axes: Vec<i64> = (first..).take(axes.len()).collect();
            let (x, axes) = (&operands[0], w.ints(&axes)?);
            let squares = w.emit("Mul", &[x, x], &[]);
            let mean = w.emit("ReduceMean", &[&squares, &axes], &[]);
            let epsilon = w.scalar(ty.dtype, epsilon.into())?;
            let sum = w.emit("Add", &[&mean, &epsilon], &[]);
            let root = w.emit("Sqrt", &[&sum], &[]);
            if let Some(scale) = operands.get(1) {
                let normed = w.emit("Div", &[x, &root], &[]);
                return w.done("Mul", vec![normed, scale.clone()], &[]);
            }
            w.done("Div", vec![x.clone(), root], &[])
        }
    }
}

fn resize(w: &mut Writer<'_>, op: &Resize) -> Result<(), Refused> {
    let mode = match op.mode {
        ResizeMode::Nearest => "nearest",
        ResizeMode::Linear => "linear",
        ResizeMode::Cubic => "cubic",
    };
    let nearest = match op.nearest {
        Nearest::RoundPreferCeil => "round_prefer_ceil",
        Nearest::Floor => "floor",
        Nearest::Ceil => "ceil",
        Nearest::Simple if op.mode == ResizeMode::Nearest => {
            return Err("its rounding is that of operator sets before 11".to_owned());
        }
        Nearest::RoundPreferFloor | Nearest::Simple => "round_prefer_floor",
    };
    let coordinates = match op.coordinates {
        Coordinates::HalfPixel => "half_pixel",
        Coordinates::HalfPixelSymmetric => "half_pixel_symmetric",
        Coordinates::PytorchHalfPixel => "pytorch_half_pixel",
        Coordinates::AlignCorners => "align_corners",
        Coordinates::Asymmetric => "asymmetric",
        Coordinates::TfHalfPixelForNn => {
            return Err("ONNX has its coordinates no more".to_owned());
        }
        Coordinates::TfCropAndResize => "tf_crop_and_resize",
    };
    let (shape, axes) = (w.shape(0)?, &op.axes);
    let lengths: Vec<i64> = axes.iter().filter_map(|a| shape.get(*a)?.as_const()).collect();
    let own = |(length, size): (&i64, &i64)| *size as f32 / *length as f32;
    let ratios: Vec<f32> = lengths.iter().zip(&op.sizes).map(own).collect();
    let mut operands = w.operands();
    let numbers = |list: &[f32]| Tensor::new(&[list.len()], list).map_err(|e| e.to_string());
    let region = if op.roi.is_empty() { String::new() } else { w.tensor(&numbers(&op.roi)?) };
    operands.push(region);
    if ratios == op.scales {
        operands.extend([String::new(), w.ints(&op.sizes)?]);
    } else {
        operands.push(w.tensor(&numbers(&op.scales)?));
    }
    let axes: Vec<i64> = axes.iter().filter_map(|a| i64::try_from(*a).ok()).collect();
    w.done(
        "Resize",
        operands,
        &[
            ("axes", Attribute::Ints(&axes)),
            ("mode", Attribute::Text(mode)),
            ("nearest_mode", Attribute::Text(nearest)),
            ("coordinate_transformation_mode", Attribute::Text(coordinates)),
            ("cubic_coeff_a", Attribute::Float(op.cubic)),
            ("exclude_outside", Attribute::Int(op.exclude_outside.into())),
            ("antialias", Attribute::Int(op.antialias.into())),
            ("extrapolation_value", Attribute::Float(op.extrapolation)),
        ],
    )
}

fn grid_sample(w: &mut Writer<'_>, op: &GridSample) -> Result<(), Refused> {
    let mode = match op.mode {
        ResizeMode::Nearest => "nearest",
        ResizeMode::Linear => "linear",
        ResizeMode::Cubic => "cubic",
    };
    let padding = match op.padding {
        GridPadding::Zeros => "zeros",
        GridPadding::Border => "border",
        GridPadding::Reflection => "reflection",
    };
    w.same(
        "GridSample",
        &[
            ("mode", Attribute::Text(mode)),
            ("padding_mode", Attribute::Text(padding)),
            ("align_corners", Attribute::Int(op.align_corners.into())),
        ],
    )
}

/// The windows that make the sizes asked for, with steps of one.
fn max_unpool(w: &mut Writer<'_>, op: &MaxUnpool) -> Result<(), Refused> {
    let shape = w.shape(0)?;
    let window = |(size, length): (&crate::types::Dim, &crate::types::Dim)| {
        Some(size.as_const()? - length.as_const()? + 1).filter(|window| *window > 0)
    };
    let kernel = op.sizes.iter().zip(shape.iter().skip(2)).map(window).collect::<Option<Vec<_>>>();
    let kernel = kernel.ok_or("no windows make these sizes")?;
    w.same("MaxUnpool", &[("kernel_shape", Attribute::Ints(&kernel))])
}

fn blocks(w: &mut Writer<'_>, op: &Blocks) -> Result<(), Refused> {
    match op {
        Blocks::DepthToSpace { block, mode } => {
            let mode = if *mode == BlockOrder::Dcr { "DCR" } else { "CRD" };
            let given = [("blocksize", Attribute::Int(*block)), ("mode", Attribute::Text(mode))];
            w.same("DepthToSpace", &given)
        }
        Blocks::SpaceToDepth { block, mode: BlockOrder::Dcr } => {
            w.same("SpaceToDepth", &[("blocksize", Attribute::Int(*block))])
        }
        Blocks::SpaceToDepth { .. } => Err("it counts channels first".to_owned()),
    }
}

fn quantize(w: &mut Writer<'_>, op: &Quantize) -> Result<(), Refused> {
    match op {
        Quantize::Quantize { axis, block, to } => {
            let mut given =
                vec![("axis", Attribute::Int(*axis)), ("block_size", Attribute::Int(*block))];
            if w.operands().len() < 3 {
                given.push(("output_dtype", Attribute::Int(tensor::number(*to).into())));
            }
            w.same("QuantizeLinear", &given)
        }
        Quantize::Dequantize { axis, block } => w.same(
            "DequantizeLinear",
            &[("axis", Attribute::Int(*axis)), ("block_size", Attribute::Int(*block))],
        ),
    }
}
