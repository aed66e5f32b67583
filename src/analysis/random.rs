//! Random inputs for a graph: for trying it, comparing two forms of it, and timing it.

use std::collections::BTreeMap;
use std::f64::consts::TAU;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::index_range::{UNBOUNDED, index_ranges};
use crate::ir::Graph;
use crate::types::{DType, Tensor, TensorError};

/// Random tensors for the inputs of a graph.
///
/// A tensor for each input, by name, at a batch of `rows`: floats are standard normal, integers
/// uniform over the range that the graph's lookups allow, `bool` even. The same seed gives the same
/// tensors.
pub fn random_inputs(
    graph: &Graph,
    rows: i64,
    seed: u64,
) -> Result<BTreeMap<String, Tensor>, TensorError> {
    let ranges = index_ranges(graph);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    graph
        .inputs()
        .map(|input| {
            let info = graph.info(input);
            let dims = info.ty.shape.at(rows);
            // Only inputs that bound positions of a lookup have a range.
            let range = ranges.get(&info.name).copied().unwrap_or(UNBOUNDED).max(1);
            let mut tensor = Tensor::zeros(info.ty.dtype, &dims)?;
            fill(&mut tensor, range, &mut rng);
            Ok((info.name.to_string(), tensor))
        })
        .collect()
}

/// A number of the standard normal distribution, by the method of Box and Muller.
#[expect(clippy::cast_possible_truncation, reason = "rounds to f32")]
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    // `1 - u` lies in (0, 1]: the logarithm of 0 is never taken. `libm` gives the same bits on
    // every platform, which the system's mathematical library does not.
    let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
    ((-2.0 * libm::log(u)).sqrt() * libm::cos(TAU * v)) as f32
}

/// Fills a tensor with random elements; integers are in `0..range`.
fn fill(tensor: &mut Tensor, range: i64, rng: &mut ChaCha8Rng) {
    macro_rules! floats {
        ($t:ty, $from:expr) => {{
            for x in tensor.as_mut_slice::<$t>() {
                *x = $from(normal(rng));
            }
        }};
    }
    macro_rules! integers {
        ($t:ty) => {{
            // A range that the type cannot hold ends at the largest number of the type.
            let end = <$t>::try_from(range).unwrap_or(<$t>::MAX);
            for x in tensor.as_mut_slice::<$t>() {
                *x = rng.random_range(0..end);
            }
        }};
    }
    match tensor.dtype() {
        DType::F64 => floats!(f64, f64::from),
        DType::F32 => floats!(f32, std::convert::identity),
        DType::F16 => floats!(half::f16, half::f16::from_f32),
        DType::Bf16 => floats!(half::bf16, half::bf16::from_f32),
        DType::I64 => integers!(i64),
        DType::I32 => integers!(i32),
        DType::I16 => integers!(i16),
        DType::I8 => integers!(i8),
        DType::U64 => integers!(u64),
        DType::U32 => integers!(u32),
        DType::U16 => integers!(u16),
        DType::U8 => integers!(u8),
        DType::Bool => {
            for x in tensor.as_mut_slice::<u8>() {
                *x = u8::from(rng.random::<bool>());
            }
        }
    }
}
