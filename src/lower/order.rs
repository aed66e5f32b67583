//! In which order the elements of images lie in memory, on targets whose kernels take them channels
//! last.

use super::chain::{Access, Chain, ChainStep};
use super::layout::{Group, Layout, Role, Table};
use super::support::{Images, is_image};
use crate::ir::{Graph, NodeId, Value};
use crate::op::Traits;
use crate::types::invariant::int;
use crate::types::{Dim, Order, TensorType};

/// The orders that lowering chooses.
pub(super) struct Orders {
    /// The order in which the launch of a node takes its images and gives its results, by node.
    launches: Vec<Order>,
    /// The order of every value's buffer.
    values: Table<Order>,
}

impl Orders {
    /// Images are channels last from a kernel that gives them so on; what lies in another value, is
    /// copied or handed out is row-major.
    pub(super) fn new(layout: &Layout<'_>) -> Self {
        let graph = layout.graph;
        let mut orders = Self {
            launches: vec![Order::RowMajor; graph.id_bound()],
            values: Table::new(graph, &Order::RowMajor),
        };
        if !layout.kernels.target().channels_last {
            return orders;
        }
        let fixed = fixed(layout);
        for id in layout.order.iter().filter(|id| layout.role(**id) == Role::Launch) {
            if !orders.takes_channels_last(layout, *id) {
                continue;
            }
            orders.launches[id.index()] = Order::ChannelsLast;
            for (output, result) in (0u32..).zip(graph.node(*id).results()) {
                let value = Value { node: *id, output };
                if !fixed.get(value) && differs(&result.ty) {
                    orders.values.set(value, Order::ChannelsLast);
                }
            }
        }
        orders.turn_params(layout, &fixed);
        orders
    }

    /// Parameters that every launch takes channels last are held so, but for variables: what a run
    /// gives them is row-major.
    fn turn_params(&mut self, layout: &Layout<'_>, fixed: &Table<bool>) {
        let graph = layout.graph;
        let mut as_rows = fixed.clone();
        for id in &layout.order {
            for (slot, operand) in layout.operands(*id).into_iter().enumerate() {
                if self.operand(layout, *id, slot) == Order::RowMajor {
                    as_rows.set(operand, true);
                }
            }
        }
        let stays = |id: &NodeId| layout.param(*id).is_some_and(|p| !layout.variables.contains(&p));
        for id in layout.order.iter().filter(|id| stays(id)) {
            let value = Value { node: *id, output: 0 };
            if !as_rows.get(value) && differs(graph.ty(value)) {
                self.values.set(value, Order::ChannelsLast);
            }
        }
    }

    /// The order in which the launch of a node takes an operand, by its position: images and the
    /// weights of convolutions in that of the launch, of a chain's operands those that it takes
    /// whole.
    pub(super) fn operand(&self, layout: &Layout<'_>, id: NodeId, slot: usize) -> Order {
        let operands = layout.operands(id);
        let chain = layout.groups.get(&id).map(|g| &g.chain);
        // A node without a group has no chain.
        let own = operands.len().saturating_sub(chain.map_or(0, Chain::operands));
        let is_image = match (slot.checked_sub(own), chain) {
            (Some(operand), Some(chain)) => chain.takes_whole(operand),
            _ => operands.get(slot).is_some_and(|v| is_aligned(layout.graph, id, *v)),
        };
        if is_image { self.launch(id) } else { Order::RowMajor }
    }

    /// The order of the images that the launch of a node takes and gives.
    pub(super) fn launch(&self, id: NodeId) -> Order {
        self.launches[id.index()]
    }

    /// The order of a value's buffer.
    pub(super) fn value(&self, value: Value) -> Order {
        *self.values.get(value)
    }

    fn takes_channels_last(&self, layout: &Layout<'_>, id: NodeId) -> bool {
        let graph = layout.graph;
        let Some(result) = graph.node(id).results().first() else { return false };
        let operands = layout.operands(id);
        let is_last =
            |v: &Value| self.launch(v.node) == Order::ChannelsLast && differs(graph.ty(*v));
        if let Some(Group { head: None, chain, .. }) = layout.groups.get(&id) {
            return operands.first().is_some_and(is_last) && in_order(chain, &result.ty).is_some();
        }
        match layout.support(id).images {
            Images::RowMajor => false,
            Images::ChannelsLast => {
                is_image(&result.ty) && operands.first().is_some_and(|v| is_image(graph.ty(*v)))
            }
            Images::First => operands.first().is_some_and(is_last),
            Images::All => operands.iter().all(is_last),
            Images::Any => {
                let follows = |v: &Value| is_last(v) && graph.ty(*v).shape == result.ty.shape;
                is_image(&result.ty) && operands.iter().any(follows)
            }
        }
    }
}

/// The values whose buffers are row-major: those that lie in others or hold others, and those that
/// another device or the caller reads.
fn fixed(layout: &Layout<'_>) -> Table<bool> {
    let graph = layout.graph;
    let mut fixed = Table::new(graph, &false);
    for id in &layout.order {
        for output in 0..int::<u32>(graph.node(*id).results().len()) {
            let value = Value { node: *id, output };
            if let Some(link) = layout.links.get(value) {
                fixed.set(link.to, true);
                fixed.set(value, true);
            }
        }
        let launches = layout.role(*id) == Role::Launch && !layout.collectives.contains_key(id);
        for operand in layout.operands(*id) {
            if !launches || layout.device(operand.node) != layout.device(*id) {
                fixed.set(operand, true);
            }
        }
    }
    for value in graph.kept() {
        fixed.set(value, true);
    }
    fixed
}

/// True if axis 1 of an operand holds channels: not if the operand is broadcast to a result of more
/// axes.
fn is_aligned(graph: &Graph, id: NodeId, operand: Value) -> bool {
    let (node, rank) = (graph.node(id), graph.ty(operand).rank());
    let meets = node.op().is_some_and(|op| op.is(Traits::ELEMENTWISE));
    rank >= 3 && (!meets || node.results().first().is_some_and(|r| r.ty.rank() == rank))
}

/// True if the two orders of a value are not the same bytes: there are several channels and several
/// places.
pub(super) fn differs(ty: &TensorType) -> bool {
    let wide = |d: &Dim| *d != Dim::ONE;
    ty.rank() >= 3 && wide(&ty.shape[1]) && ty.shape[2..].iter().any(wide)
}

/// The chain with its accesses in terms of a running value of this type whose channels are last;
/// `None` if one of them crosses the channels and other axes.
pub(super) fn in_order(chain: &Chain, ty: &TensorType) -> Option<Chain> {
    let mut chain = chain.clone();
    for step in &mut chain.steps {
        match step {
            ChainStep::Unary(_) => {}
            ChainStep::Binary { access, .. } | ChainStep::ScaleShift { access, .. } => {
                *access = moved(*access, ty)?;
            }
            ChainStep::Mixed { accesses, .. } => {
                for access in accesses {
                    *access = moved(*access, ty)?;
                }
            }
        }
    }
    Some(chain)
}

/// The same elements, counted with the channels last.
fn moved(access: Access, ty: &TensorType) -> Option<Access> {
    let Access::Axis { inner, size } = access else { return Some(access) };
    let sizes: Option<Vec<usize>> =
        ty.shape.get(1..)?.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
    let sizes = sizes?;
    let channels = *sizes.first()?;
    // `places` is the number of elements behind the channels; an access that reaches over them
    // crosses axes.
    let places = sizes[1..].iter().try_fold(1usize, |product, d| product.checked_mul(*d))?;
    if inner == places && size == channels {
        return Some(Access::Axis { inner: 1, size });
    }
    let behind = inner.checked_mul(size)?;
    (behind <= places).then_some(Access::Axis { inner: inner.checked_mul(channels)?, size })
}

#[cfg(test)]
mod tests {
    use super::moved;
    use crate::lower::Access;
    use crate::types::{DType, Dim, Shape, TensorType};

    /// Every element of the running value meets the same element of the operand in both orders.
    #[test]
    fn accesses_follow_the_elements() {
        let dims: [Dim; 4] = [Dim::n(), 3.into(), 4.into(), 5.into()];
        let ty = TensorType::new(DType::F32, Shape::from(dims.as_slice()));
        let at = |access: Access, i: usize| match access {
            Access::Full => i,
            Access::Scalar => 0,
            Access::Axis { inner, size } => (i / inner) % size,
        };
        for (inner, size) in [(20, 3), (5, 4), (1, 5), (1, 20), (1, 1)] {
            let access = Access::Axis { inner, size };
            let last = moved(access, &ty).unwrap();
            for n in 0..2 {
                for (c, h, w) in
                    (0..3).flat_map(|c| (0..4).flat_map(move |h| (0..5).map(move |w| (c, h, w))))
                {
                    let (first, then) =
                        (((n * 3 + c) * 4 + h) * 5 + w, ((n * 4 + h) * 5 + w) * 3 + c);
                    assert_eq!(at(access, first), at(last, then), "{inner} {size}");
                }
            }
        }
        for (inner, size) in [(5, 12), (1, 60)] {
            assert_eq!(moved(Access::Axis { inner, size }, &ty), None);
        }
    }
}
