//! Top-k of the top-k results of all replicas.

use super::all_reduce::combines;
use super::{Call, CodegenError, Context, CudaOp, Support, Types};
use crate::codegen::builder::{Builder, block_count, c_type};
use crate::op::MergeTopK;
use crate::types::Dim;
use crate::types::invariant::int;

const THREADS: u32 = 256;

impl CudaOp for MergeTopK {
    fn supports(&self, types: &Types<'_>) -> Support {
        combines(types)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [y, places] = context.results()?;
        let mut b = Builder::new(context.device);
        let operands = context.launch.operands.as_slice();
        let parts = operands.len() / 2;
        let rank = int::<i64>(b.ty(y).rank());
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        let shape = &b.ty(y).shape;
        let axis = usize::try_from(axis).ok().filter(|axis| *axis < shape.rank());
        let row_major = operands.iter().chain([&y, &places]).all(|id| b.is_row_major(*id));
        let (Some(axis), true) = (axis, row_major && parts > 0 && parts == self.entries.len())
        else {
            return Err(context.unsupported("its candidates are not in rows"));
        };
        let dtype = b.ty(y).dtype;
        // The operands alternate: the values of each part, then their places.
        for (i, pair) in operands.chunks_exact(2).enumerate() {
            b.read(&format!("values{i}"), pair[0]);
            b.read(&format!("places{i}"), pair[1]);
        }
        b.write("y", y);
        b.write("places", places);
        b.define("T", c_type(dtype));
        b.flag("FLOAT", dtype.is_float());
        b.flag("LARGEST", self.largest);
        b.define("PARTS", parts);
        b.numbers("VALUES", (0..parts).map(|i| format!("p.values{i}")));
        b.numbers("POSITIONS", (0..parts).map(|i| format!("p.places{i}")));
        let counts: Vec<Dim> =
            operands.iter().step_by(2).map(|id| b.ty(*id).shape[axis].clone()).collect();
        let next = |from: &mut Dim, entries: &Dim| {
            let own = from.clone();
            *from = own.clone() + entries.clone();
            Some(own)
        };
        // A running sum: the place of each part's first entry on the whole axis.
        let from: Vec<Dim> = self.entries.iter().scan(Dim::ZERO, next).collect();
        b.list("COUNTS", &counts);
        b.list("FROM", &from);
        b.list("ENTRIES", &self.entries);
        let product = |dims: &[Dim]| dims.iter().fold(Dim::ONE, |p, d| p * d.clone());
        let (blocks_before, inner) = (product(&shape[..axis]), product(&shape[axis + 1..]));
        b.size("BLOCKS", &blocks_before);
        b.size("INNER", &inner);
        b.size("K", &self.k);
        // The grid has a row of blocks for each part, as long as the longest part needs.
        let most = counts.iter().fold(Dim::ZERO, |most, count| most.maximum(count));
        let candidates = most * blocks_before * inner;
        let parts = int::<i64>(parts);
        let grid = [block_count(&candidates, i64::from(THREADS)), parts.into(), Dim::ONE];
        Ok(b.finish("merge_top_k.cu", THREADS, String::new(), grid))
    }
}
