//! Convolutions of images whose channels are last in memory.

use rayon::prelude::*;

use super::super::cpu_op::CpuKernel;
use super::super::elementwise::Epilogue;
use super::super::scratch;
use super::depthwise_last::DepthwiseLast;
use super::last::Last;
use super::operands::ConvOperands;
use crate::backend::host::{Each, Unsuited};
use crate::op::window::WindowAxis;
use crate::types::invariant::invariant;
use crate::types::{Dim, Order, TensorType};

/// How a convolution of images with the channels last is computed.
#[derive(Debug)]
pub(super) enum InImages {
    /// By products, all channels to all filters.
    Products(Last),
    /// Channel by channel.
    Depthwise(DepthwiseLast),
}

impl InImages {
    /// The way of a convolution over these axes of values of these types, if it has one.
    pub(super) fn new(axes: &[WindowAxis], x: &TensorType, w: &TensorType) -> Option<Self> {
        let size = |ty: &TensorType, axis: usize| {
            usize::try_from(ty.shape.get(axis).and_then(Dim::as_const)?).ok()
        };
        let (channels, own, filters) = (size(x, 1)?, size(w, 1)?, size(w, 0)?);
        match own {
            _ if own == channels => Last::new(axes, channels, filters).map(Self::Products),
            1 if filters == channels => DepthwiseLast::new(axes, channels).map(Self::Depthwise),
            _ => None,
        }
    }
}

/// A convolution of images with the channels last, whose weights lie in an order.
#[derive(Debug)]
pub(super) struct InOrder {
    pub(super) plan: InImages,
    pub(super) order: Order,
    /// The channels of a filter.
    pub(super) channels: usize,
}

impl CpuKernel for InOrder {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, w, bias @ ..], [y]) = (operands, results) else { return Err(Unsuited) };
        let operands = ConvOperands { x, w, bias: bias.first().copied(), epilogue: chain.steps() };
        let convolve = |operands: ConvOperands<'_>, y: &mut [f32]| match &self.plan {
            InImages::Products(plan) => plan.convolve(operands, y),
            InImages::Depthwise(plan) => plan.convolve(operands, y),
        };
        if self.order == Order::RowPanels {
            convolve(operands, y);
            return Ok(());
        }
        let terms = match &self.plan {
            InImages::Products(plan) => plan.terms(),
            InImages::Depthwise(plan) => plan.terms(),
        };
        let taps = terms / self.channels;
        let steps = match self.order {
            Order::RowMajor => [1, taps],
            Order::ChannelsLast => [self.channels, 1],
            Order::RowPanels | Order::GatePanels | Order::Heads => {
                invariant(None, "that weights in panels are taken so, and none have heads")
            }
        };
        scratch::weights(w.len(), |panels| {
            let all = panels.par_chunks_mut(Order::PANEL * terms);
            all.zip(w.par_chunks(Order::PANEL * terms)).each(|(to, from)| {
                let filters = from.len() / terms;
                for (term, to) in to.chunks_exact_mut(filters).enumerate() {
                    let at = term / self.channels * steps[0] + term % self.channels * steps[1];
                    let column = from[at..].iter().step_by(terms);
                    to.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
                }
            });
            convolve(ConvOperands { w: panels, ..operands }, y);
        });
        Ok(())
    }

    fn ends_in_chain(&self) -> bool {
        true
    }
}
