//! Gradients of recurrent cells, in two launches.

use super::recurrent::{Cell, THREADS, define, function, products, supported};
use super::{Call, CodegenError, Context, CudaOp, Support, Types};
use crate::codegen::builder::{Builder, divisible_by_four, float};
use crate::lower::BufferId;
use crate::op::{Activation, RecurrentGrad, Unary};

/// The derivative of a function at `x`, where it is `y`, as that of the operator; `None` where that
/// has none.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are no functions of cells")]
fn slope(op: &Activation) -> Option<String> {
    let step = |bound: f32, above: f32, below: &str| {
        format!("x > {} ? {} : {below}", float(bound), float(above))
    };
    Some(match op {
        Activation::Affine(a, _) => float(*a),
        Activation::ScaledTanh(a, b) => {
            format!("scaled_tanh_slope(x, {}, {})", float(*a), float(*b))
        }
        Activation::Unary(op) => match *op {
            Unary::Relu => step(0.0, 1.0, "0.0f"),
            Unary::Tanh => "1.0f - y * y".to_owned(),
            Unary::Sigmoid => "y * (1.0f - y)".to_owned(),
            Unary::Softsign => "1.0f / ((1.0f + fabsf(x)) * (1.0f + fabsf(x)))".to_owned(),
            Unary::Softplus => "sigmoid(x)".to_owned(),
            Unary::LeakyRelu { alpha } => step(0.0, 1.0, &float(alpha)),
            Unary::ThresholdedRelu { alpha } => step(alpha, 1.0, "0.0f"),
            // Below 0, `y = alpha * (e^x - 1)`: the slope `alpha * e^x` is `y + alpha`.
            Unary::Elu { alpha } => step(0.0, 1.0, &format!("y + {}", float(alpha))),
            Unary::HardSigmoid { alpha, .. } => {
                format!("y > 0.0f && y < 1.0f ? {} : 0.0f", float(alpha))
            }
            _ => return None,
        },
    })
}

impl Cell<'_> {
    /// Their derivatives, as text; `None` where one is not offered.
    fn slopes(&self) -> Option<String> {
        self.each(|name, op| {
            Some(function(&format!("{name}_slope(float x, float y)"), &slope(op)?))
        })
    }

    /// The results of the gradient, by their names in the kernel.
    fn write(&self, b: &mut Builder<'_>, results: &[BufferId]) {
        let lstm = self.kind == 0;
        let all = [
            ("sums", true),
            ("states", true),
            // A plain RNN keeps nothing beside its sums.
            ("kept", self.kind < 2),
            ("products", self.peepholes),
            ("initial_grad", self.initial),
            ("initial_cell_grad", self.initial && lstm),
        ];
        // The operator lists its results in this order, without those that the cell does not have.
        let names = all.iter().filter(|(_, given)| *given).map(|(name, _)| *name);
        names.zip(results).for_each(|(name, id)| b.write(name, *id));
    }
}

impl CudaOp for RecurrentGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        supported(&self.forward(), types).with_own_bits(true)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let results = &context.launch.results;
        let [_, _, r, rest @ ..] = context.launch.operands.as_slice() else {
            return Err(context.unsupported("it is not a gradient of a recurrent cell"));
        };
        let op = self.forward();
        let cell = Cell::new(&op);
        let (mut b, grid) = define(context, &op, &cell)?;
        let quads =
            divisible_by_four(&b.ty(*r).shape[2]) && results.iter().all(|id| b.is_aligned(*id));
        b.flag("GRADIENT_VECTORS", quads);
        cell.read(&mut b, rest, true);
        cell.write(&mut b, results);
        let slopes = cell.slopes();
        let slopes =
            slopes.ok_or_else(|| context.unsupported("one of its functions has no slope"))?;
        Ok(b.finish("recurrent_grad.cu", THREADS, cell.expression() + &slopes, grid))
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        products(context)
    }
}
