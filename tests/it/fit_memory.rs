//! Memory of a step of training: what gradients compute again, and what stays the same.

use std::collections::BTreeMap;

use fanwise::backend::{CPU, Cpu};
use fanwise::ir::Model;
use fanwise::ir::{Builder, verify};
use fanwise::lower::lower;
use fanwise::op::{BatchNorm, Binary, Conv, Dropout, Flatten, MatMul, Softmax, Unary};
use fanwise::pass::{self, Recompute, Repair, Replicate};
use fanwise::train::data::Feed;
use fanwise::train::{Distribution, Trainer, TrainerOptions};
use fanwise::types::{DType, Device, Tensor};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::fit::{feed, rows, training};

const LAYERS: usize = 9;

fn random(rng: &mut ChaCha8Rng, dims: &[usize]) -> Tensor {
    let values: Vec<f32> =
        (0..dims.iter().product()).map(|_| rng.random_range(-0.5..0.5)).collect();
    Tensor::new(dims, &values).unwrap()
}

/// A stack of convolutions with batch normalisation and an activation; every third has a way around
/// it.
fn deep() -> Model {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut b = Builder::new("deep");
    let mut h = b.input("x", rows(DType::F32, &[4, 6, 6]));
    for i in 0..LAYERS {
        let before = h;
        let name = |what: &str| format!("{what}{i}");
        let w = b.param(&name("w"), random(&mut rng, &[4, 4, 3, 3]));
        let same = Conv { pads: vec![1; 4], ..Conv::default() };
        h = b.op(&name("conv"), same, &[h, w]).unwrap();
        let [scale, shift, mean] =
            ["scale", "shift", "mean"].map(|what| b.param(&name(what), random(&mut rng, &[4])));
        let var = b.param(&name("var"), Tensor::new(&[4], &[1.0f32; 4]).unwrap());
        let norm = BatchNorm { epsilon: 1e-3, ..BatchNorm::default() };
        h = b.op(&name("norm"), norm, &[h, scale, shift, mean, var]).unwrap();
        h = b.op(&name("act"), Unary::Softplus, &[h]).unwrap();
        if i % 3 == 2 {
            h = b.op(&name("sum"), Binary::Add, &[h, before]).unwrap();
        }
    }
    let h = b.op("flat", Flatten { axis: 1 }, &[h]).unwrap();
    let h = b.op("drop", Dropout { mask: false, rate: 0.25 }, &[h]).unwrap();
    let w = b.param("w", random(&mut rng, &[144, 3]));
    let h = b.op("logits", MatMul {}, &[h, w]).unwrap();
    let p = b.op("p", Softmax::Softmax { axis: -1 }, &[h]).unwrap();
    b.output("p", p);
    let (graph, weights) = b.finish();
    Model::new(graph, weights)
}

fn images(n: usize) -> Feed {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let mut y = vec![0.0f32; n * 3];
    (0..n).for_each(|row| y[row * 3 + row % 3] = 1.0);
    let y = Tensor::new(&[n, 3], &y).unwrap();
    feed(random(&mut rng, &[n, 4, 6, 6]), y, None, "p")
}

#[test]
fn what_is_computed_again_takes_less_memory_and_changes_no_bit() {
    let cpu = Cpu::new(2).unwrap();
    let mut bytes = Vec::new();
    let mut results: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for again in ["nothing", "cheap", "segments"] {
        let mut training = training("categorical_crossentropy", "adam", "p", false);
        training.recompute = again.parse().unwrap();
        assert_eq!(training.recompute.to_string(), again);
        let model = deep();
        let graph = pass::training(&model.graph, &model.weights, &training).unwrap().graph;
        let program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        let bound = program.bind(64).unwrap();
        bytes.push(bound.devices.iter().map(|d| d.planned).max().unwrap());
        for devices in [0, 3] {
            let over = Replicate::over((0..devices).map(Device::gpu).collect());
            let replicate = Replicate { repair: Repair::Comm, ..over };
            let replicate = (devices > 0).then_some(replicate);
            let place = Distribution { replicate, ..Distribution::default() };
            let options = TrainerOptions { training: training.clone(), distribution: place };
            let mut trainer = Trainer::new(deep(), &options, &cpu).unwrap();
            let losses = [7, 4].map(|n| trainer.train_on_batch(&images(n), 0.01).unwrap().loss);
            let found = (losses.map(f64::to_bits), trainer.weights().unwrap());
            results.entry(devices).or_default().push(found);
        }
    }
    for (devices, found) in results {
        assert!(found.iter().all(|one| *one == found[0]), "{devices} devices");
    }
    let [plain, cheap, segments] = bytes[..] else { panic!("three graphs") };
    assert!(cheap * 10 < plain * 8, "{cheap} of {plain} bytes");
    assert!(segments * 10 < plain * 6, "{segments} of {plain} bytes");
    assert!("all".parse::<Recompute>().is_err());
}
