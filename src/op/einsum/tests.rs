use rand::Rng;

use super::Einsum;
use crate::op::testing::{assert_close, eval, indices, random, rng, tensor, tolerance};
use crate::types::{DType, Tensor};

fn einsum(equation: &str) -> Einsum {
    Einsum { equation: equation.to_owned() }
}

/// The sum of products, label by label over all indices.
fn formula(op: &Einsum, operands: &[&Tensor]) -> Vec<f64> {
    let ranks: Vec<usize> = operands.iter().map(|x| x.rank()).collect();
    let labels = op.labels(&ranks).unwrap();
    let mut names: Vec<u8> = labels.result.to_vec();
    names.extend(labels.operands.iter().flatten().filter(|l| !labels.result.contains(l)));
    let mut seen = Vec::new();
    names.retain(|l| {
        !seen.contains(l) && {
            seen.push(*l);
            true
        }
    });
    let size = |label: &u8| {
        let all = labels.operands.iter().zip(operands);
        let own = all.flat_map(|(ls, x)| ls.iter().zip(x.dims()).filter(|(l, _)| *l == label));
        own.map(|(_, d)| *d).fold(1, |a, d| if a == 1 { d } else { a })
    };
    let sizes: Vec<usize> = names.iter().map(size).collect();
    let count: usize = sizes[..labels.result.len()].iter().product();
    let inputs: Vec<Vec<f64>> = operands.iter().map(|x| x.to_f64()).collect();
    let mut y = vec![0.0; count];
    for at in indices(&sizes) {
        let index = |label: &u8| at[names.iter().position(|n| n == label).unwrap()];
        let mut product = 1.0;
        for ((own, x), values) in labels.operands.iter().zip(operands).zip(&inputs) {
            let place = own
                .iter()
                .zip(x.dims())
                .fold(0, |p, (l, d)| p * d + if *d == 1 { 0 } else { index(l) });
            product *= values[place];
        }
        let to = at.iter().zip(&sizes).take(labels.result.len()).fold(0, |p, (i, d)| p * d + i);
        y[to] += product;
    }
    y
}

#[test]
fn values_follow_the_formula() {
    let mut rng = rng(1);
    let cases: [(&str, &[&[usize]]); 22] = [
        ("ij->ji", &[&[2, 3]]),
        ("ii->i", &[&[4, 4]]),
        ("ii", &[&[4, 4]]),
        ("i->", &[&[5]]),
        ("...ii->...i", &[&[2, 3, 3]]),
        ("ijj->i", &[&[2, 3, 3]]),
        ("i,i", &[&[4], &[4]]),
        ("i,j->ij", &[&[4], &[3]]),
        ("bij,bjk->bik", &[&[2, 3, 4], &[2, 4, 5]]),
        ("bij, bjk -> bki", &[&[2, 3, 4], &[1, 4, 5]]),
        ("...ij,...jk->...ik", &[&[2, 1, 3, 4], &[3, 4, 2]]),
        ("...ij,jk", &[&[2, 3, 4], &[4, 2]]),
        ("ij,kl->jl", &[&[2, 3], &[4, 5]]),
        ("ij,jk,kl->il", &[&[2, 3], &[3, 4], &[4, 2]]),
        ("i,i,i->i", &[&[3], &[3], &[3]]),
        ("iij,jik->k", &[&[2, 2, 3], &[3, 2, 2]]),
        (",i", &[&[], &[3]]),
        ("bhqd,bhkd->bhqk", &[&[2, 2, 3, 4], &[2, 2, 5, 4]]),
        ("a...,...b->...ba", &[&[2, 3, 4], &[4, 2]]),
        ("ij,j->i", &[&[3, 0], &[0]]),
        ("ij->i", &[&[0, 3]]),
        ("Ab,bA->A", &[&[2, 3], &[3, 2]]),
    ];
    for (equation, shapes) in cases {
        for dtype in [DType::F64, DType::F32, DType::Bf16, DType::I32] {
            let inputs: Vec<Tensor> = shapes.iter().map(|d| random(&mut rng, dtype, d)).collect();
            let operands: Vec<&Tensor> = inputs.iter().collect();
            let op = einsum(equation);
            let got = eval(&op.clone().into(), &operands);
            assert_close(&got[0], &formula(&op, &operands), tolerance(dtype).max(1e-9));
        }
    }
    let x = tensor(DType::U8, &[2], &[200.0, 3.0]);
    assert_eq!(eval(&einsum("i,i").into(), &[&x, &x])[0].to_i64(), Some(vec![(40_000 + 9) % 256]));
}

#[test]
fn random_equations_follow_the_formula() {
    let mut rng = rng(2);
    for _ in 0..150 {
        let sizes: Vec<usize> = (0..5).map(|_| rng.random_range(1..4)).collect();
        let count = rng.random_range(1..4);
        let (mut equation, mut inputs) = (String::new(), Vec::new());
        for i in 0..count {
            let labels: Vec<usize> =
                (0..rng.random_range(0..4)).map(|_| rng.random_range(0..5)).collect();
            equation.push_str(if i == 0 { "" } else { "," });
            equation.extend(labels.iter().map(|l| char::from(b'a' + u8::try_from(*l).unwrap())));
            let dims: Vec<usize> = labels.iter().map(|l| sizes[*l]).collect();
            inputs.push(random(&mut rng, DType::F64, &dims));
        }
        let operands: Vec<&Tensor> = inputs.iter().collect();
        let op = einsum(&equation);
        assert_close(&eval(&op.clone().into(), &operands)[0], &formula(&op, &operands), 1e-12);
    }
}
