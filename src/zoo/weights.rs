//! The elements of parameters: a function of the model's and the parameter's names alone.

use rand_chacha::ChaCha8Core;
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::rand_core::block::BlockRngCore;
use rayon::prelude::*;

use crate::ir::Source;
use crate::types::{DType, Elements, Tensor, TensorError};

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

/// The elements that are drawn at once where they are not kept: few enough for a processor's cache.
const BLOCK: usize = 4 * PART;

/// The elements of a parameter: 24 bits for each from ChaCha8, its key the BLAKE3 hash of
/// `zoo:<model>/<name>#<i>` for the elements from `16384 i` on.
struct Drawn {
    source: Source,
    center: f32,
    spread: f32,
}

impl Drawn {
    /// Draws the `i`-th part, or the beginning of it.
    fn part(&self, i: usize, part: &mut [f32]) {
        let Source { file, key } = &self.source;
        let key = blake3::hash(format!("{file}/{key}#{i}").as_bytes());
        let mut random = ChaCha8Core::from_seed(*key.as_bytes());
        // Whole blocks are taken from the cipher: each element is one word of them, by its
        // position.
        let mut block = <ChaCha8Core as BlockRngCore>::Results::default();
        for elements in part.chunks_mut(block.as_ref().len()) {
            random.generate(&mut block);
            for (x, &bits) in elements.iter_mut().zip(block.as_ref()) {
                // 24 bits as a fraction in [-1, 1): exact, so that only the last two operations
                // round.
                *x = self.center + self.spread * ((bits >> 8) as f32 / 8_388_608.0 - 1.0);
            }
        }
    }
}

impl Elements for Drawn {
    fn write(&self, to: &mut [u8]) {
        let elements: &mut [f32] = bytemuck::cast_slice_mut(to);
        let draw = |(i, part): (_, &mut [f32])| self.part(i, part);
        // A thread of a pool that waited for others would take up other work meanwhile.
        if rayon::current_thread_index().is_some() {
            elements.chunks_mut(PART).enumerate().for_each(draw);
        } else {
            elements.par_chunks_mut(PART).enumerate().for_each(draw);
        }
    }

    fn blocks(&self, bytes: usize, each: &mut dyn FnMut(&[u8])) {
        let elements = bytes / size_of::<f32>();
        let mut buffer = vec![0.0; BLOCK.min(elements)];
        let mut drawn = 0;
        while drawn < elements {
            let block = &mut buffer[..BLOCK.min(elements - drawn)];
            for (i, part) in (drawn / PART..).zip(block.chunks_mut(PART)) {
                self.part(i, part);
            }
            each(bytemuck::cast_slice(block));
            drawn += block.len();
        }
    }
}

/// The parameter that has this source, drawn when it is first read.
pub(super) fn draw(source: &Source, dims: &[usize], init: Init) -> Result<Tensor, TensorError> {
    let (center, spread) = match init {
        Init::Near { center, spread } => (center, spread),
        Init::Glorot { fan_in, fan_out } => (0.0, (6.0 / (fan_in + fan_out) as f32).sqrt()),
    };
    Tensor::deferred(DType::F32, dims, Drawn { source: source.clone(), center, spread })
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Init, PART, draw};
    use crate::ir::{ContentHash, Source};
    use crate::types::Tensor;

    fn of(model: &str, name: &str) -> Source {
        Source { file: format!("zoo:{model}").into(), key: name.into() }
    }

    #[test]
    fn elements_follow_from_the_names_alone() {
        let init = Init::Glorot { fan_in: 3, fan_out: 5 };
        let all = draw(&of("m", "w"), &[2 * PART + 7], init).unwrap();
        let all = all.as_slice::<f32>();
        let head = draw(&of("m", "w"), &[5], init).unwrap();
        assert_eq!(head.as_slice::<f32>(), &all[..5]);
        assert_ne!(all[..PART], all[PART..2 * PART]);
        assert_ne!(draw(&of("m", "v"), &[5], init).unwrap(), head);
        let limit = (6.0f32 / 8.0).sqrt();
        assert!(all.iter().all(|x| (-limit..limit).contains(x)));
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        let square = all.iter().map(|x| x * x).sum::<f32>() / all.len() as f32;
        assert!(mean.abs() < 0.01 && (square - limit * limit / 3.0).abs() < 0.01);
    }

    #[test]
    fn elements_that_are_not_kept_are_those_that_are() {
        for elements in [0, 1, PART - 1, PART, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + PART + 3] {
            let tensor = draw(&of("m", "w"), &[elements], Init::near(0.0)).unwrap();
            let hash = ContentHash::of(&tensor);
            assert!(tensor.unread().is_some());
            let kept = Tensor::new(&[elements], tensor.as_slice::<f32>()).unwrap();
            assert!(tensor.unread().is_none());
            assert_eq!([ContentHash::of(&tensor), ContentHash::of(&kept)], [hash; 2]);
        }
    }

    #[test]
    fn threads_of_a_pool_draw_the_same() {
        let drawn = || draw(&of("m", "w"), &[2 * PART + 7], Init::near(0.0)).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let inside = pool.install(|| {
            let tensor = drawn();
            assert!(!tensor.bytes().is_empty());
            tensor
        });
        assert_eq!(inside, drawn());
    }

    #[test]
    fn weights_stay_what_they_are() {
        let init = Init::Near { center: 1.0, spread: 0.5 };
        let x = draw(&of("mlp", "fc1.kernel"), &[3], init).unwrap();
        assert_eq!(x.as_slice::<f32>(), [0.754_321_63, 1.335_543_9, 1.441_542]);
    }
}
