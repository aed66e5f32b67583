//! Operators that are the same in ONNX.

use super::ANY;
use super::alike::alike;
use crate::op::{
    Arg, Classify, Concat, Flatten, GatherAt, GridPadding, GridSample, Identity, LpNorm, Lrn,
    MatMul, Reduction, ResizeMode, Scatter, ShapeOp, SizeOp, Where,
};

alike! {
    Arg {
        "ArgMax" first 1 => Arg::Max { axis = 0, keepdims = true, select_last_index = false },
        "ArgMin" first 1 => Arg::Min { axis = 0, keepdims = true, select_last_index = false },
    }
    Classify {
        "IsNaN" first 1 => Classify::IsNan,
        "IsInf" first 1 => Classify::IsInf {
            negative as "detect_negative" = true, positive as "detect_positive" = true
        },
    }
    Concat { "Concat" all ANY => Concat { axis }, }
    Flatten { "Flatten" first 1 => Flatten { axis = 1 }, }
    GatherAt {
        "GatherElements" all 2 => GatherAt::Elements { axis = 0 },
        "GatherND" all 2 => GatherAt::Nd { batch_dims = 0 },
    }
    GridSample {
        "GridSample" first 2 => GridSample {
            mode = ResizeMode::Linear, padding as "padding_mode" = GridPadding::Zeros,
            align_corners = false
        },
    }
    Identity { "Identity" first 1 => Identity, }
    LpNorm { "LpNormalization" first 1 => LpNorm { axis = -1, p = 2 }, }
    Lrn { "LRN" first 1 => Lrn { alpha = 1e-4, beta = 0.75, bias = 1.0, size }, }
    MatMul { "MatMul" first 2 => MatMul, }
    Scatter {
        // Opset 11 renamed `Scatter`. Of two names with one meaning the first is the one written.
        "ScatterElements" all 3 => Scatter::Elements { axis = 0, reduction = Reduction::None },
        "Scatter" all 3 => Scatter::Elements { axis = 0, reduction = Reduction::None },
        "ScatterND" all 3 => Scatter::Nd { reduction = Reduction::None },
    }
    ShapeOp { "Shape" first 1 => ShapeOp { start = 0, end = None }, }
    SizeOp { "Size" first 1 => SizeOp, }
    Where { "Where" first 3 => Where, }
}
