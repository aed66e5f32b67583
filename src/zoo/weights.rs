//! The elements of parameters: a function of the model's and the parameter's names alone.

use rand_chacha::ChaCha8Core;
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::rand_core::block::BlockRngCore;
use rayon::prelude::*;

use crate::types::{DType, Tensor, TensorError};

/// The distribution of a parameter's elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Init {
    /// Uniform in `[-l, l)` with `l = sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio 2010,
    /// equation 16).
    Glorot {
        /// The inputs that one output of the layer sees.
        fan_in: usize,
        /// The outputs that one input of the layer reaches.
        fan_out: usize,
    },
    /// Uniform in `[center - spread, center + spread)`.
    Near {
        /// The middle of the interval.
        center: f32,
        /// Half its length.
        spread: f32,
    },
}

impl Init {
    /// Near the number that Keras starts such a parameter at.
    pub(super) fn near(center: f32) -> Self {
        Self::Near { center, spread: 0.1 }
    }
}

/// The elements drawn with one key; parts with different keys are drawn in parallel.
const PART: usize = 1 << 14;

/// The parameter `name` of the model `model`: 24 bits for each element from ChaCha8, its key the
/// BLAKE3 hash of `zoo:<model>/<name>#<i>` for the elements from `16384 i` on.
pub(super) fn draw(
    model: &str,
    name: &str,
    dims: &[usize],
    init: Init,
) -> Result<Tensor, TensorError> {
    let mut tensor = Tensor::zeros(DType::F32, dims)?;
    let (center, spread) = match init {
        Init::Near { center, spread } => (center, spread),
        Init::Glorot { fan_in, fan_out } => (0.0, (6.0 / (fan_in + fan_out) as f32).sqrt()),
    };
    tensor.as_mut_slice::<f32>().par_chunks_mut(PART).enumerate().for_each(|(i, part)| {
        let key = blake3::hash(format!("zoo:{model}/{name}#{i}").as_bytes());
        let mut random = ChaCha8Core::from_seed(*key.as_bytes());
        // Whole blocks are taken from the cipher: each element is one word of them, by its
        // position.
        let mut block = <ChaCha8Core as BlockRngCore>::Results::default();
        for elements in part.chunks_mut(block.as_ref().len()) {
            random.generate(&mut block);
            for (x, &bits) in elements.iter_mut().zip(block.as_ref()) {
                // 24 bits as a fraction in [-1, 1): exact, so that only the last two operations
                // round.
                *x = center + spread * ((bits >> 8) as f32 / 8_388_608.0 - 1.0);
            }
        }
    });
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::{Init, PART, draw};

    #[test]
    fn elements_follow_from_the_names_alone() {
        let init = Init::Glorot { fan_in: 3, fan_out: 5 };
        let all = draw("m", "w", &[2 * PART + 7], init).unwrap();
        let all = all.as_slice::<f32>();
        let head = draw("m", "w", &[5], init).unwrap();
        assert_eq!(head.as_slice::<f32>(), &all[..5]);
        assert_ne!(all[..PART], all[PART..2 * PART]);
        assert_ne!(draw("m", "v", &[5], init).unwrap(), head);
        let limit = (6.0f32 / 8.0).sqrt();
        assert!(all.iter().all(|x| (-limit..limit).contains(x)));
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        let square = all.iter().map(|x| x * x).sum::<f32>() / all.len() as f32;
        assert!(mean.abs() < 0.01 && (square - limit * limit / 3.0).abs() < 0.01);
    }

    #[test]
    fn weights_stay_what_they_are() {
        let x = draw("mlp", "fc1.kernel", &[3], Init::Near { center: 1.0, spread: 0.5 }).unwrap();
        assert_eq!(x.as_slice::<f32>(), [0.754_321_63, 1.335_543_9, 1.441_542]);
    }
}
