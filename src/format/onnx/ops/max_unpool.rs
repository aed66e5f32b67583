//! Images put together from the greatest elements of windows.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written};
use crate::op::MaxUnpool;
use crate::types::Dim;

pub(super) fn imports(all: &mut Imports) {
    all.add("MaxUnpool", 3, max_unpool);
}

/// The sizes are those of the operand of a max pool with these windows.
fn max_unpool(n: &mut Node<'_, '_>) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    let shape = n.shape(operands[0]).clone();
    let kernel = n.needed_ints("kernel_shape")?;
    let (strides, pads) = (n.ints("strides")?, n.ints("pads")?);
    let rank = kernel.len();
    let fits = |list: &[i64], count: usize| list.is_empty() || list.len() == count;
    if shape.rank() != rank + 2 || !fits(&strides, rank) || !fits(&pads, 2 * rank) {
        let text = format!("{rank} sizes of windows, their strides and pads for {shape}");
        return Err(NodeError::Unsupported(text));
    }
    // A list that is empty has `absent` for each axis.
    let at =
        |list: &[i64], i: usize, absent: i64| Dim::from(list.get(i).copied().unwrap_or(absent));
    let size = |(i, d): (usize, &Dim)| {
        let reach = (d.clone() - 1) * at(&strides, i, 1) + at(&kernel, i, 1);
        reach - at(&pads, i, 0) - at(&pads, i + rank, 0)
    };
    let sizes: Vec<Dim> = shape.iter().skip(2).enumerate().map(size).collect();
    if let Some(asked) = n.opt_sizes(2)?
        && asked.get(2..) != Some(&sizes)
    {
        let text = format!("an unpooling to {asked:?}, where windows make {sizes:?},");
        return Err(NodeError::Unsupported(text));
    }
    n.result(MaxUnpool { sizes }, &operands)
}

impl Export for MaxUnpool {
    /// The windows that make the sizes asked for, with steps of one.
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let shape = w.shape(0)?;
        // The indices say where elements go. The windows say only how large the result is, and with
        // steps of one a window of `size - length + 1` makes `size` of `length`.
        let window = |(size, length): (&Dim, &Dim)| {
            Some(size.as_const()? - length.as_const()? + 1).filter(|window| *window > 0)
        };
        let kernel = self.sizes.iter().zip(shape.iter().skip(2)).map(window);
        let kernel = kernel.collect::<Option<Vec<i64>>>().ok_or("no windows make these sizes")?;
        w.same("MaxUnpool", &[("kernel_shape", kernel.as_slice().into())])
    }
}
