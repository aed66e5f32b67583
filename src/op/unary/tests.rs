use super::super::testing::{self, check_split, random, rng, tensor};
use super::super::{Op, OpDef, OpRead, Operand};
use super::{GeluForm, Unary};
use crate::types::{Claim, DType, Dim, Shape, Shard, Tensor, TensorType};

fn f32s(op: Unary, x: &[f32]) -> Vec<f32> {
    let x = Tensor::new(&[x.len()], x).unwrap();
    testing::eval(&op.into(), &[&x])[0].as_slice::<f32>().to_vec()
}

/// Every function, with attributes that are not the defaults.
fn all() -> Vec<Unary> {
    let attrs = |name: &str| -> Vec<(String, super::super::Attr)> {
        let alpha = ("alpha".to_owned(), super::super::Attr::Float(0.75));
        match name {
            "leaky_relu" | "thresholded_relu" | "elu" | "celu" | "swish" => vec![alpha],
            "selu" => vec![alpha, ("gamma".to_owned(), super::super::Attr::Float(1.25))],
            "shrink" => vec![("bias".to_owned(), super::super::Attr::Float(0.5))],
            "hard_sigmoid" => vec![alpha, ("beta".to_owned(), super::super::Attr::Float(0.25))],
            "clip" => vec![
                ("min".to_owned(), super::super::Attr::Float(-1.0)),
                ("max".to_owned(), super::super::Attr::Float(1.0)),
            ],
            "gelu" => vec![("approximate".to_owned(), super::super::Attr::Name("tanh".to_owned()))],
            _ => Vec::new(),
        }
    };
    let read = |name: &&str| {
        let Op::Unary(op) = Op::read(name, attrs(name)).unwrap() else { panic!("{name}") };
        op
    };
    Unary::NAMES.iter().map(read).collect()
}

/// The Gaussian error linear unit, in either form.
fn gelu(form: GeluForm, x: f64) -> f64 {
    let inner = match form {
        GeluForm::Exact => libm::erf(x / 2f64.sqrt()),
        GeluForm::Tanh => {
            ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()
        }
    };
    0.5 * x * (1.0 + inner)
}

/// The functions by their formulas, in `f64`.
fn formula(op: &Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let wide = |a: f32| f64::from(a);
    match *op {
        Unary::Abs => x.abs(),
        Unary::Neg => -x,
        Unary::Sign => f64::from(i8::from(x > 0.0) - i8::from(x < 0.0)),
        Unary::Relu => x.max(0.0),
        Unary::Clip { min, max } => x.max(min.unwrap()).min(max.unwrap()),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Reciprocal => 1.0 / x,
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Erf => libm::erf(x),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => x.asinh(),
        Unary::Acosh => x.acosh(),
        Unary::Atanh => x.atanh(),
        Unary::Sigmoid => sigmoid(x),
        Unary::HardSigmoid { alpha, beta } => (wide(alpha) * x + wide(beta)).clamp(0.0, 1.0),
        Unary::Swish { alpha } => x * sigmoid(wide(alpha) * x),
        Unary::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Unary::Mish => x * x.exp().ln_1p().tanh(),
        Unary::Gelu { approximate } => gelu(approximate, x),
        Unary::Softplus => x.exp().ln_1p(),
        Unary::Softsign => x / (1.0 + x.abs()),
        Unary::LeakyRelu { alpha } => x.max(0.0) + wide(alpha) * x.min(0.0),
        Unary::ThresholdedRelu { alpha } if x > wide(alpha) => x,
        Unary::ThresholdedRelu { .. } => 0.0,
        Unary::Shrink { bias, lambd } => match x {
            _ if x < -wide(lambd) => x + wide(bias),
            _ if x > wide(lambd) => x - wide(bias),
            _ => 0.0,
        },
        Unary::Elu { alpha } => x.max(0.0) + wide(alpha) * x.min(0.0).exp_m1(),
        Unary::Selu { alpha, gamma } => {
            wide(gamma) * (x.max(0.0) + wide(alpha) * x.min(0.0).exp_m1())
        }
        Unary::Celu { alpha } => {
            x.max(0.0) + (wide(alpha) * ((x / wide(alpha)).exp() - 1.0)).min(0.0)
        }
    }
}

/// The formula of some libraries, `ln(2x - 1 / (x + sqrt(x^2 - 1)))`, cancels to something finite
/// below -1.
#[test]
fn acosh_is_defined_from_1_on() {
    let points: Vec<f64> = (1..2000).map(|i| 1.0 - f64::from(i) * 0.37).collect();
    for dtype in [DType::F64, DType::F32] {
        let x = tensor(dtype, &[points.len()], &points);
        let y = testing::eval(&Unary::Acosh.into(), &[&x]).remove(0).to_f64();
        assert!(y.iter().all(|y| y.is_nan()), "{dtype}");
    }
}

#[test]
#[expect(clippy::float_cmp, reason = "infinities are equal or not")]
fn values_follow_the_formulas_in_every_float() {
    let points: Vec<f64> = (-48..=48).map(|i| f64::from(i) / 8.0).collect();
    let mut ops = all();
    ops.push(Unary::Gelu { approximate: GeluForm::Exact });
    for op in ops {
        for (dtype, tolerance) in
            [(DType::F64, 1e-14), (DType::F32, 4e-7), (DType::F16, 1.1e-3), (DType::Bf16, 8.5e-3)]
        {
            let x = tensor(dtype, &[points.len()], &points);
            let y = testing::eval(&op.clone().into(), &[&x]).remove(0).to_f64();
            for (x, y) in points.iter().zip(y) {
                let exact = formula(&op, *x);
                let overflow = dtype == DType::F16 && exact.abs() > 65504.0;
                let close = (y - exact).abs() <= tolerance * exact.abs().max(1.0);
                let same = y == exact || (y.is_nan() && exact.is_nan());
                assert!(close || same || overflow, "{op:?}({x}) in {dtype} is {y}, not {exact}");
            }
        }
    }
}

#[test]
fn special_values() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for op in all() {
        let y = f32s(op.clone(), &[nan])[0];
        let expected = matches!(op, Unary::ThresholdedRelu { .. } | Unary::Shrink { .. });
        assert_eq!(y == 0.0, expected, "{op:?} of a NaN is {y}");
        assert!(expected || y.is_nan(), "{op:?} of a NaN is {y}");
    }
    assert_eq!(f32s(Unary::Relu, &[-inf, inf, -0.0]), [0.0, inf, 0.0]);
    assert_eq!(f32s(Unary::Sigmoid, &[-inf, inf, -100.0, 100.0]), [0.0, 1.0, 3.783e-44, 1.0]);
    assert_eq!(f32s(Unary::Tanh, &[-inf, inf, 1e-30]), [-1.0, 1.0, 1e-30]);
    assert_eq!(f32s(Unary::Softplus, &[-inf, inf, -200.0, 200.0]), [0.0, inf, 0.0, 200.0]);
    assert_eq!(f32s(Unary::Elu { alpha: 2.0 }, &[-inf, inf]), [-2.0, inf]);
    assert_eq!(f32s(Unary::Mish, &[inf, 1000.0, -1000.0]), [inf, 1000.0, -0.0]);
    assert_eq!(f32s(Unary::Reciprocal, &[0.0, -0.0, -inf]), [inf, -inf, -0.0]);
    assert_eq!(f32s(Unary::Log, &[0.0, inf]), [-inf, inf]);
    assert_eq!(
        f32s(Unary::Round, &[0.5, 1.5, 2.5, -0.5, -1.5, 1e10]),
        [0.0, 2.0, 2.0, -0.0, -2.0, 1e10]
    );
    let clip = Unary::Clip { min: Some(2.0), max: Some(1.0) };
    assert_eq!(f32s(clip, &[0.0, 1.5, 3.0]), [1.0, 1.0, 1.0]);
    assert_eq!(f32s(Unary::Clip { min: None, max: Some(6.0) }, &[-inf, 7.0]), [-inf, 6.0]);
    assert!(f32s(Unary::Acosh, &[0.5])[0].is_nan());
}

#[test]
fn integers() {
    let x = Tensor::new(&[4], &[i8::MIN, -3, 0, 5]).unwrap();
    let eval = |op: Unary| testing::eval(&op.into(), &[&x])[0].as_slice::<i8>().to_vec();
    assert_eq!(eval(Unary::Abs), [i8::MIN, 3, 0, 5]);
    assert_eq!(eval(Unary::Neg), [i8::MIN, 3, 0, -5]);
    assert_eq!(eval(Unary::Sign), [-1, -1, 0, 1]);
    assert_eq!(eval(Unary::Relu), [0, 0, 0, 5]);
    assert_eq!(eval(Unary::Clip { min: Some(-4.0), max: Some(1e9) }), [-4, -3, 0, 5]);
    let x = Tensor::new(&[2], &[u64::MAX, 3]).unwrap();
    let clip = Unary::Clip { min: Some(-1.0), max: Some(18_446_744_073_709_551_615.0) };
    assert_eq!(testing::eval(&clip.into(), &[&x])[0].as_slice::<u64>(), [u64::MAX, 3]);
    assert_eq!(testing::eval(&Unary::Sign.into(), &[&x])[0].as_slice::<u64>(), [1, 1]);
}

#[test]
fn types_and_bounds_are_checked() {
    let fails = |op: Unary, dtype: DType| {
        let ty = TensorType::new(dtype, [2]);
        op.infer(&[Operand { ty: &ty, ints: None }]).is_err()
    };
    assert!(fails(Unary::Exp, DType::I32) && fails(Unary::Abs, DType::Bool));
    assert!(fails(Unary::Neg, DType::U8) && fails(Unary::Relu, DType::U64));
    assert!(!fails(Unary::Neg, DType::I16) && !fails(Unary::Relu, DType::I8));
    let clip = |min, max| Unary::Clip { min, max };
    assert!(fails(clip(Some(0.5), None), DType::I32) && !fails(clip(Some(0.5), None), DType::F16));
    assert!(fails(clip(None, Some(-1.0)), DType::U8) && !fails(clip(Some(-1.0), None), DType::U8));
    assert!(
        fails(clip(Some(300.0), None), DType::U8) && fails(clip(Some(f64::NAN), None), DType::F32)
    );
    assert!(fails(Unary::Celu { alpha: 0.0 }, DType::F32));
}

#[test]
fn known_elements_pass() {
    let ty = TensorType::new(DType::I64, [3]);
    let n = Dim::n;
    let ints = [n() * 4, Dim::from(-3), Dim::from(7)];
    let known = |op: Unary, ty: &TensorType| {
        op.infer(&[Operand { ty, ints: Some(&ints) }]).unwrap().remove(0).ints.map(|i| i.to_vec())
    };
    assert_eq!(known(Unary::Neg, &ty), Some(vec![-(n() * 4), 3.into(), (-7).into()]));
    assert_eq!(known(Unary::Abs, &ty), Some(vec![n() * 4, 3.into(), 7.into()]));
    let clip = Unary::Clip { min: Some(1.0), max: Some(5.0) };
    let clipped = (n() * 4).maximum(&Dim::ONE).minimum(&5.into());
    assert_eq!(known(clip, &ty), Some(vec![clipped, Dim::ONE, 5.into()]));
    assert_eq!(known(Unary::Sign, &ty), None);
    let narrow = TensorType::new(DType::I16, [3]);
    assert_eq!(known(Unary::Neg, &narrow), None);
    let minimum = [Dim::from(i64::MIN)];
    let one = TensorType::new(DType::I64, [1]);
    let negated = Unary::Neg.infer(&[Operand { ty: &one, ints: Some(&minimum) }]).unwrap();
    assert_eq!(negated[0].ints, None);
}

#[test]
fn the_batch_passes_on_every_axis() {
    let mut rng = rng(1);
    for op in all() {
        for (n, axis, inner) in [(7, 0, 1), (5, 1, 1), (4, 2, 3), (1, 0, 2)] {
            let mut dims = [3, 2, 4];
            dims[axis] = n * inner;
            let x = random(&mut rng, DType::F32, &dims);
            let claim = Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
            assert_eq!(check_split(&op.clone().into(), &[(&x, claim)], n), Ok(vec![claim]));
        }
    }
    let x = random(&mut rng, DType::I32, &[3]);
    assert_eq!(
        check_split(&Unary::Abs.into(), &[(&x, Claim::Invariant)], 3),
        Ok(vec![Claim::Invariant])
    );
    let scalar = Tensor::scalar(-2.0f32);
    assert_eq!(testing::eval(&Unary::Abs.into(), &[&scalar])[0], Tensor::scalar(2.0f32));
    assert_eq!(
        testing::eval(&Unary::Exp.into(), &[&tensor(DType::F32, &[0, 3], &[])])[0].dims(),
        [0, 3]
    );
    assert_eq!(Shape::from(x.dims()), Shape::from([3]));
}
