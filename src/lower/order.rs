//! Layout assignment: the memory order of images (row-major or channels last), on targets whose
//! kernels compute with channels last, of heads of attention beside products, and of parameters.

use super::chain::{Access, Chain, ChainStep};
use super::layout::{Group, Layout, Role, ValueMap};
use super::support::{Images, is_image};
use crate::ir::{Graph, NodeId, NodeMap, Value};
use crate::op::{Op, Traits};
use crate::types::invariant::int;
use crate::types::{DType, Dim, FastMap, KernelClass, Order, TensorType};

/// The memory orders of launches and values.
pub(super) struct Orders {
    /// The order of the images that the launch of a node reads and writes, by node.
    launches: NodeMap<Order>,
    /// The order of every value's buffer.
    values: ValueMap<Order>,
    /// The transposes that launch nothing: their result has the bytes of their operand.
    free: NodeMap<bool>,
    /// Of a value on one side of such a transpose the value on the other, in whose bytes it lies.
    within: ValueMap<Option<Value>>,
}

impl Orders {
    /// Chooses the orders. Channels last spreads from the kernels that write it to the launches
    /// behind them. A value that is aliased, copied or returned to the caller is row-major; on
    /// targets whose devices do not keep parameters a copy of one may have the parameter's order.
    pub(super) fn new(layout: &Layout<'_>) -> Self {
        let graph = layout.graph;
        let mut orders = Self {
            launches: graph.node_map(Order::RowMajor),
            values: ValueMap::new(graph, &Order::RowMajor),
            free: graph.node_map(false),
            within: ValueMap::new(graph, &None),
        };
        let fixed = fixed_row_major(layout);
        let trains = trains(layout);
        let target = layout.kernels.target();
        // The host of another target computes few steps, on parameters as they are given.
        let has_images = |id: NodeId| {
            target.channels_last
                && (target.any_channels_last || !trains)
                && layout.kernels.on(layout.device(id)).target() == target
        };
        let launches = layout.order.iter().filter(|id| layout.role(**id) == Role::Launch);
        for id in launches.filter(|id| has_images(**id)) {
            if orders.lies_as_heads(layout, *id, &fixed) {
                continue;
            }
            if let Some(source) = orders.transposed(layout, *id, &fixed) {
                orders.within.set(Value { node: *id, output: 0 }, Some(source));
                orders.free[*id] = true;
            } else if !orders.takes_channels_last(layout, *id) {
                continue;
            }
            orders.launches[*id] = Order::ChannelsLast;
            for (output, result) in (0u32..).zip(graph.node(*id).results()) {
                let value = Value { node: *id, output };
                if !fixed.get(value) && differs(&result.ty) {
                    orders.values.set(value, Order::ChannelsLast);
                }
            }
        }
        orders.assign_params(layout, &fixed);
        orders
    }

    /// Stores a parameter, and what is a copy of it, in the order in which every launch reads or
    /// can read it. Variables stay row-major, because an update writes them row-major.
    fn assign_params(&mut self, layout: &Layout<'_>, fixed: &ValueMap<bool>) {
        let graph = layout.graph;
        let mut wanted = ValueMap::new(graph, &None);
        for id in &layout.order {
            for output in 0..int::<u32>(graph.node(*id).results().len()) {
                let value = Value { node: *id, output };
                wanted.set(value, fixed.get(value).then_some(Order::RowMajor));
            }
        }
        for id in layout.order.iter().filter(|id| !copied_param(layout, **id)) {
            for (slot, operand) in layout.operands(*id).into_iter().enumerate() {
                let of_launch = || self.operand(layout, *id, slot);
                let order = self.of_weights(layout, *id, slot).unwrap_or_else(of_launch);
                wanted.set(operand, Some(agreed(*wanted.get(operand), order)));
            }
        }
        let own = |id: NodeId| Value { node: id, output: 0 };
        let mut copies = Vec::new();
        for id in layout.order.iter().filter(|id| copied_param(layout, **id)) {
            let Some(param) = layout.operands(*id).first().copied() else { continue };
            copies.push((own(*id), param));
            if let Some(order) = *wanted.get(own(*id)) {
                wanted.set(param, Some(agreed(*wanted.get(param), order)));
            }
        }
        // A device holds a parameter once, even where several nodes stand for it.
        let held = |id: &NodeId| layout.param(*id).map(|param| (layout.device(*id), param));
        let nodes = || layout.order.iter().filter_map(|id| Some((*id, held(id)?)));
        let mut orders = FastMap::default();
        for (id, held) in nodes() {
            if let Some(order) = *wanted.get(own(id)) {
                let all = orders.entry(held).or_insert(order);
                *all = agreed(Some(*all), order);
            }
        }
        for (id, held) in nodes() {
            let order = orders.get(&held).filter(|_| !layout.variables.contains(&held.1));
            if let Some(order) = order.filter(|order| moves(**order, graph.ty(own(id)))) {
                self.values.set(own(id), *order);
            }
        }
        for (copy, param) in copies {
            self.values.set(copy, self.value(param));
        }
    }

    /// The order in which the launch of a node reads an operand: the order of the launch for
    /// images and operands of a chain with the full shape, that in which weights lie; otherwise
    /// row-major.
    pub(super) fn operand(&self, layout: &Layout<'_>, id: NodeId, slot: usize) -> Order {
        let operands = layout.operands(id);
        let own = operands.get(slot).map(|value| self.value(*value));
        if let Some(order @ Order::Heads) = own {
            // All who read it take it so.
            return order;
        }
        // Weights that are computed may lie in an order of images, which not all take so.
        if let (Some(taken), Some(own)) = (self.of_weights(layout, id, slot), own)
            && (own == taken || own == Order::RowMajor)
        {
            return own;
        }
        let chain = layout.groups.get(&id).map(|g| &g.chain);
        // A node without a group has no chain.
        let own = operands.len().saturating_sub(chain.map_or(0, Chain::operands));
        let is_image = match (slot.checked_sub(own), chain) {
            (Some(operand), Some(chain)) => chain.takes_whole(operand),
            _ => operands.get(slot).is_some_and(|v| is_aligned(layout.graph, id, *v)),
        };
        if is_image { self.launch(id) } else { Order::RowMajor }
    }

    /// The order of the images that the launch of a node reads and writes.
    pub(super) fn launch(&self, id: NodeId) -> Order {
        self.launches[id]
    }

    /// The order of a value's buffer.
    pub(super) fn value(&self, value: Value) -> Order {
        *self.values.get(value)
    }

    /// True of a transpose that launches nothing, as its result has the bytes of its operand.
    pub(super) fn is_free(&self, id: NodeId) -> bool {
        self.free[id]
    }

    /// The value in whose bytes another lies in an order of its own, if there is one.
    pub(super) fn within(&self, value: Value) -> Option<Value> {
        *self.within.get(value)
    }

    /// The order in which the launch of a node takes an operand, too, beside row-major: weights on
    /// a target whose devices do not keep parameters.
    fn of_weights(&self, layout: &Layout<'_>, id: NodeId, slot: usize) -> Option<Order> {
        let may_be =
            slot > 0 && layout.role(id) == Role::Launch && !layout.kernels.target().keeps_params;
        let support = may_be.then(|| layout.support(id))?;
        let order = support.kernel.map(|_| support.weights)?;
        // A cell has weights for its operand and for its state.
        let last = if order == Order::GatePanels { 2 } else { 1 };
        if slot > last {
            return None;
        }
        // A kernel that prefers its images with the channels last takes weights so for these.
        let suits = support.images == Images::RowMajor || self.launch(id) == Order::ChannelsLast;
        (suits && order != Order::RowMajor).then_some(order)
    }

    /// Lets a transpose of `[rows, heads, tokens, size]` that exchanges heads and tokens launch
    /// nothing, where products on one side of it take such an order: all that read its result, or
    /// the one whose result it reads.
    fn lies_as_heads(&mut self, layout: &Layout<'_>, id: NodeId, fixed: &ValueMap<bool>) -> bool {
        let graph = layout.graph;
        let Some(Op::Transpose(op)) = graph.node(id).op() else { return false };
        let result = Value { node: id, output: 0 };
        let operands = layout.operands(id);
        let [operand] = operands.as_slice() else { return false };
        if op.perm != [0, 2, 1, 3]
            || self.value(*operand) != Order::RowMajor
            || layout.param(operand.node).is_some()
            || layout.device(operand.node) != layout.device(id)
        {
            return false;
        }
        // Users are operators as the graph has them; the last one of a group has the launch.
        let users = graph.users(id);
        let takes = |id: NodeId| layout.support_of(id).matrices == Order::Heads;
        let are_read = !users.is_empty() && users.iter().all(|(user, ..)| takes(*user));
        let (inner, outer) = if are_read && !*fixed.get(result) {
            (result, *operand)
        } else {
            let writer = operand.node;
            let is_whole = layout.groups.get(&writer).is_none_or(|group| group.chain.is_empty());
            let is_alone = graph.users(writer).len() == 1 && !*fixed.get(*operand);
            // What is written here has to be so exactly when the transpose would write it.
            let is_written = layout.role(writer) == Role::Launch
                && layout.guard(writer) == layout.guard(id)
                && is_whole
                && takes(writer);
            if !(is_written && is_alone) {
                return false;
            }
            (*operand, result)
        };
        self.values.set(inner, Order::Heads);
        self.within.set(inner, Some(outer));
        self.free[id] = true;
        true
    }

    /// The operand whose bytes are those of a node's result, if that lies channels last: the node
    /// moves the last axis of a row-major value to the channels, as at the entry of a model whose
    /// images have their channels last.
    fn transposed(&self, layout: &Layout<'_>, id: NodeId, fixed: &ValueMap<bool>) -> Option<Value> {
        let graph = layout.graph;
        let Some(Op::Transpose(op)) = graph.node(id).op() else { return None };
        let rank = op.perm.len();
        let moved = [0].into_iter().chain(rank.checked_sub(1)).chain(1..rank.saturating_sub(1));
        let (result, operand) = (Value { node: id, output: 0 }, *layout.operands(id).first()?);
        // A parameter may lie channels last itself, as its readers want.
        let target = layout.kernels.on(layout.device(id)).target();
        let suits = op.perm.iter().copied().eq(moved)
            && (target.any_channels_last || graph.ty(result).dtype == DType::F32)
            && differs(graph.ty(result))
            && !*fixed.get(result)
            && self.value(operand) == Order::RowMajor
            && layout.param(operand.node).is_none()
            && layout.device(operand.node) == layout.device(id);
        suits.then_some(operand)
    }

    fn takes_channels_last(&self, layout: &Layout<'_>, id: NodeId) -> bool {
        let graph = layout.graph;
        let Some(result) = graph.node(id).results().first() else { return false };
        let operands = layout.operands(id);
        let is_last =
            |v: &Value| self.launch(v.node) == Order::ChannelsLast && differs(graph.ty(*v));
        if let Some(Group { head: None, chain, .. }) = layout.groups.get(&id) {
            return operands.first().is_some_and(is_last)
                && in_channels_last(chain, &result.ty).is_some();
        }
        match layout.support(id).images {
            Images::RowMajor => false,
            Images::ChannelsLast => {
                is_image(&result.ty) && operands.first().is_some_and(|v| is_image(graph.ty(*v)))
            }
            Images::First => operands.first().is_some_and(is_last),
            Images::All => operands.iter().all(is_last),
            Images::One => {
                let is_like = |v: &Value| {
                    let ty = graph.ty(*v);
                    is_image(ty) && ty.rank() == result.ty.rank()
                };
                operands.iter().all(is_like) && operands.iter().any(is_last)
            }
            Images::Any => {
                let follows = |v: &Value| is_last(v) && graph.ty(*v).shape == result.ty.shape;
                is_image(&result.ty) && operands.iter().any(follows)
            }
        }
    }
}

/// Whether the program updates parameters, or has kernels that only training needs.
fn trains(layout: &Layout<'_>) -> bool {
    let launches = || layout.order.iter().filter(|id| layout.role(**id) == Role::Launch);
    !layout.variables.is_empty()
        || launches().any(|id| layout.support(*id).class() == KernelClass::Training)
}

/// The order that suits both who wanted an operand so far, if somebody did, and another.
fn agreed(so_far: Option<Order>, other: Order) -> Order {
    if so_far.is_none_or(|order| order == other) { other } else { Order::RowMajor }
}

/// True of a copy of a parameter, on targets whose devices do not keep parameters: there the host
/// holds them in any order, from where others copy them.
fn copied_param(layout: &Layout<'_>, id: NodeId) -> bool {
    let operands = layout.operands(id);
    layout.role(id) == Role::Copy
        && !layout.kernels.target().keeps_params
        && matches!(operands.as_slice(), [param] if layout.param(param.node).is_some())
}

/// Marks the values that must be row-major: those that alias others or are aliased, because offsets
/// of aliases are computed in row-major order, and those that another device or the caller reads.
fn fixed_row_major(layout: &Layout<'_>) -> ValueMap<bool> {
    let graph = layout.graph;
    let mut fixed = ValueMap::new(graph, &false);
    for id in &layout.order {
        for output in 0..int::<u32>(graph.node(*id).results().len()) {
            let value = Value { node: *id, output };
            if let Some(alias) = layout.aliases.get(value) {
                fixed.set(alias.to, true);
                fixed.set(value, true);
            }
        }
        let launches = layout.role(*id) == Role::Launch && !layout.collectives.contains_key(id);
        for operand in layout.operands(*id) {
            let moves = layout.device(operand.node) != layout.device(*id);
            if (!launches || moves) && !copied_param(layout, *id) {
                fixed.set(operand, true);
            }
        }
    }
    for value in graph.kept() {
        fixed.set(value, true);
    }
    fixed
}

/// True if axis 1 of an operand holds channels. Broadcasting aligns shapes at the last axis, so
/// axis 1 of an operand with fewer axes than the result is not the axis of the channels.
fn is_aligned(graph: &Graph, id: NodeId, operand: Value) -> bool {
    let (node, rank) = (graph.node(id), graph.ty(operand).rank());
    let meets = node.op().is_some_and(|op| op.is(Traits::ELEMENTWISE));
    rank >= 3 && (!meets || node.results().first().is_some_and(|r| r.ty.rank() == rank))
}

/// True if the two orders of a value differ in memory: it has several channels and several
/// positions.
pub(super) fn differs(ty: &TensorType) -> bool {
    let wide = |d: &Dim| *d != Dim::ONE;
    ty.rank() >= 3 && wide(&ty.shape[1]) && ty.shape[2..].iter().any(wide)
}

/// True if the elements of a parameter lie in an order otherwise than row-major.
fn moves(order: Order, ty: &TensorType) -> bool {
    // A product without terms is evaluated by reference, which reads what is row-major.
    let is_empty = ty.shape.contains(&Dim::ZERO);
    match (order, &ty.shape[..]) {
        (Order::ChannelsLast, _) => differs(ty),
        (Order::RowPanels, [rows, columns @ ..]) if !is_empty => {
            *rows != Dim::ONE && columns.iter().any(|d| *d != Dim::ONE)
        }
        (Order::GatePanels, [_, _, terms]) if !is_empty => *terms != Dim::ONE,
        // Heads are of results alone.
        (Order::RowMajor | Order::RowPanels | Order::GatePanels | Order::Heads, _) => false,
    }
}

/// Returns the chain with its accesses for a running value of this type in channels-last order;
/// `None` if an access spans the channels and other axes.
pub(super) fn in_channels_last(chain: &Chain, ty: &TensorType) -> Option<Chain> {
    let mut chain = chain.clone();
    for step in &mut chain.steps {
        match step {
            ChainStep::Unary(_) => {}
            ChainStep::Binary { access, .. }
            | ChainStep::BatchNorm { access, .. }
            | ChainStep::ScaleShift { access, .. } => {
                *access = reindexed(*access, ty)?;
            }
            ChainStep::Mixed { accesses, .. } => {
                for access in accesses {
                    *access = reindexed(*access, ty)?;
                }
            }
        }
    }
    Some(chain)
}

/// Returns the access to the same elements, counted in channels-last order. A vector along the
/// channels becomes the innermost one (`inner == 1`); an access behind the channels repeats each
/// element for all channels (`inner * channels`).
fn reindexed(access: Access, ty: &TensorType) -> Option<Access> {
    let Access::Axis { inner, size } = access else { return Some(access) };
    let sizes: Option<Vec<usize>> =
        ty.shape.get(1..)?.iter().map(|d| usize::try_from(d.as_const()?).ok()).collect();
    let sizes = sizes?;
    let channels = *sizes.first()?;
    // The number of elements behind the channels. A longer access would span the channel axis too,
    // which is no longer adjacent to it.
    let places = sizes[1..].iter().try_fold(1usize, |product, d| product.checked_mul(*d))?;
    if inner == places && size == channels {
        return Some(Access::Axis { inner: 1, size });
    }
    let behind = inner.checked_mul(size)?;
    (behind <= places).then_some(Access::Axis { inner: inner.checked_mul(channels)?, size })
}

#[cfg(test)]
mod tests {
    use super::reindexed;
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
            let last = reindexed(access, &ty).unwrap();
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
            assert_eq!(reindexed(Access::Axis { inner, size }, &ty), None);
        }
    }
}
