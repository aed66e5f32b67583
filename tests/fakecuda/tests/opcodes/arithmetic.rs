//! Integers, floats, bits.

use super::{Lanes, integers, lanes, same, singles};

fn w(x: u64) -> u32 {
    x as u32
}

fn f(x: u64) -> f32 {
    f32::from_bits(w(x))
}

/// The bits of a result, with the NaN that the device gives.
fn out(x: f32) -> u64 {
    u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() })
}

/// Checks a two-operand instruction.
fn two(code: &str, ty: &str, a: Lanes, b: Lanes, want: impl Fn(u64, u64) -> u64) {
    let got = lanes(code, ty, &[(ty, a), (ty, b)]);
    same(code, got, |i| want(a[i], b[i]));
}

#[test]
fn integers_of_32_bits() {
    let (a, b) = (integers(1), integers(2));
    let check = |code: &str, want: fn(u32, u32) -> u32| {
        two(&format!("{code} %d, %a, %b;"), "u32", a, b, |x, y| u64::from(want(w(x), w(y))));
    };
    check("add.s32", u32::wrapping_add);
    check("sub.s32", u32::wrapping_sub);
    check("mul.lo.s32", u32::wrapping_mul);
    check("mul.hi.u32", |x, y| ((u64::from(x) * u64::from(y)) >> 32) as u32);
    check("mul.hi.s32", |x, y| ((i64::from(x as i32) * i64::from(y as i32)) >> 32) as u32);
    check("div.u32", |x, y| x.checked_div(y).unwrap_or(u32::MAX));
    check("rem.u32", |x, y| x.checked_rem(y).unwrap_or(x));
    check(
        "div.s32",
        |x, y| if y == 0 { u32::MAX } else { (x as i32).wrapping_div(y as i32) as u32 },
    );
    check("min.s32", |x, y| (x as i32).min(y as i32) as u32);
    check("max.u32", u32::max);
    check("and.b32", |x, y| x & y);
    check("xor.b32", |x, y| x ^ y);
    check("shl.b32", |x, y| x.checked_shl(y).unwrap_or(0));
    check("shr.u32", |x, y| x.checked_shr(y).unwrap_or(0));
    check("shr.s32", |x, y| ((x as i32) >> y.min(31)) as u32);
    check("add.sat.s32", |x, y| (x as i32).saturating_add(y as i32) as u32);
}

#[test]
fn integers_of_64_and_16_bits() {
    let (a, b) = (integers(3), integers(4));
    two("mul.lo.s64 %d, %a, %b;", "u64", a, b, u64::wrapping_mul);
    two("mul.hi.u64 %d, %a, %b;", "u64", a, b, |x, y| {
        ((u128::from(x) * u128::from(y)) >> 64) as u64
    });
    two("rem.u64 %d, %a, %b;", "u64", a, b, |x, y| x.checked_rem(y).unwrap_or(x));
    two("max.s64 %d, %a, %b;", "u64", a, b, |x, y| (x as i64).max(y as i64) as u64);
    two("mul.lo.u16 %d, %a, %b;", "u16", a, b, |x, y| u64::from((x as u16).wrapping_mul(y as u16)));
    two("min.s16 %d, %a, %b;", "u16", a, b, |x, y| u64::from((x as i16).min(y as i16) as u16));
    let got = lanes("mul.wide.s32 %d, %a, %b;", "u64", &[("u32", a), ("u32", b)]);
    same("mul.wide", got, |i| (i64::from(w(a[i]) as i32) * i64::from(w(b[i]) as i32)) as u64);
    let c = integers(5);
    let got = lanes("mad.wide.u32 %d, %a, %b, %c;", "u64", &[("u32", a), ("u32", b), ("u64", c)]);
    same("mad.wide", got, |i| (u64::from(w(a[i])) * u64::from(w(b[i]))).wrapping_add(c[i]));
}

#[test]
fn carries_go_from_word_to_word() {
    let (a, b) = (integers(6), integers(7));
    let code = ".reg .u32 %al, %ah, %bl, %bh, %l, %h; mov.b64 {%al, %ah}, %a; mov.b64 {%bl, %bh}, \
        %b; \
                add.cc.u32 %l, %al, %bl; addc.u32 %h, %ah, %bh; mov.b64 %d, {%l, %h};";
    two(code, "u64", a, b, u64::wrapping_add);
    let code = code.replace("add", "sub");
    two(&code, "u64", a, b, u64::wrapping_sub);
    let code = ".reg .u32 %al, %ah, %l, %h; mov.b64 {%al, %ah}, %a; .reg .u32 %m; cvt.u32.u64 %m, \
        %b; \
                mul.lo.u32 %l, %al, %m; mad.hi.cc.u32 %h, %al, %m, 0; madc.lo.u32 %h, %ah, %m, %h; \
                mov.b64 %d, {%l, %h};";
    two(code, "u64", a, b, |x, y| x.wrapping_mul(u64::from(w(y))));
}

#[test]
fn bit_fields() {
    let (a, b, c) = (integers(8), integers(9), integers(10));
    let three = |code: &str, want: &dyn Fn(u32, u32, u32) -> u32| {
        let got = lanes(code, "u32", &[("u32", a), ("u32", b), ("u32", c)]);
        same(code, got, |i| u64::from(want(w(a[i]), w(b[i]), w(c[i]))));
    };
    three("lop3.b32 %d, %a, %b, %c, 0xEA;", &|x, y, z| (x & y) | z);
    three("lop3.b32 %d, %a, %b, %c, 0x96;", &|x, y, z| x ^ y ^ z);
    three("shf.l.wrap.b32 %d, %a, %b, %c;", &|l, h, n| {
        (((u64::from(h) << 32 | u64::from(l)) << (n & 31)) >> 32) as u32
    });
    three("shf.r.clamp.b32 %d, %a, %b, %c;", &|l, h, n| {
        ((u64::from(h) << 32 | u64::from(l)) >> n.min(32)) as u32
    });
    three("bfe.u32 %d, %a, 3, 7;", &|x, _, _| x >> 3 & 127);
    three("bfe.s32 %d, %a, 5, 9;", &|x, _, _| ((x << 18) as i32 >> 23) as u32);
    three("bfi.b32 %d, %a, %b, 4, 8;", &|x, y, _| (y & !0xff0) | (x << 4 & 0xff0));
    three("prmt.b32 %d, %a, %b, 0x5410;", &|x, y, _| (x & 0xffff) | y << 16);
    three("prmt.b32 %d, %a, %b, 0x4321;", &|x, y, _| (x >> 8) | y << 24);
    three("popc.b32 %d, %a;", &|x, _, _| x.count_ones());
    three("clz.b32 %d, %a;", &|x, _, _| x.leading_zeros());
    three("brev.b32 %d, %a;", &|x, _, _| x.reverse_bits());
    three("bfind.u32 %d, %a;", &|x, _, _| x.checked_ilog2().unwrap_or(u32::MAX));
    three("dp4a.s32.s32 %d, %a, %b, %c;", &|x, y, z| {
        let products = x.to_le_bytes().into_iter().zip(y.to_le_bytes());
        let sum: i32 = products.map(|(p, q)| i32::from(p as i8) * i32::from(q as i8)).sum();
        z.wrapping_add(sum as u32)
    });
    three("dp2a.lo.u32.u32 %d, %a, %b, %c;", &|x, y, z| {
        let lower = (x & 0xffff) * (y & 0xff);
        z.wrapping_add(lower).wrapping_add((x >> 16) * (y >> 8 & 0xff))
    });
    three("dp2a.hi.s32.u32 %d, %a, %b, %c;", &|x, y, z| {
        let halves = [x as i16, (x >> 16) as i16].map(i32::from);
        let sum = halves[0] * (y >> 16 & 0xff) as i32 + halves[1] * (y >> 24) as i32;
        z.wrapping_add(sum as u32)
    });
}

#[test]
fn single_precision_is_exact() {
    let (a, b, c) = (singles(1), singles(4), singles(6));
    let check = |code: &str, want: fn(f32, f32) -> f32| {
        two(&format!("{code} %d, %a, %b;"), "f32", a, b, |x, y| out(want(f(x), f(y))));
    };
    check("add.f32", |x, y| x + y);
    check("sub.rn.f32", |x, y| x - y);
    check("mul.f32", |x, y| x * y);
    check("div.rn.f32", |x, y| x / y);
    check("min.f32", |x, y| if x == y && x.is_sign_negative() { x } else { x.min(y) });
    check("max.NaN.f32", |x, y| {
        if x.is_nan() || y.is_nan() {
            f32::NAN
        } else if x == y && x.is_sign_positive() {
            x
        } else {
            x.max(y)
        }
    });
    let got = lanes("fma.rn.f32 %d, %a, %b, %c;", "f32", &[("f32", a), ("f32", b), ("f32", c)]);
    same("fma", got, |i| out(f(a[i]).mul_add(f(b[i]), f(c[i]))));
    let got = lanes("sqrt.rn.f32 %d, %a;", "f32", &[("f32", a)]);
    same("sqrt", got, |i| out(f(a[i]).sqrt()));
    let got = lanes("rcp.rn.f32 %d, %a;", "f32", &[("f32", a)]);
    same("rcp", got, |i| out(1.0 / f(a[i])));
}

#[test]
fn directed_rounding_encloses_the_exact_result() {
    let (a, b) = (singles(9), singles(12));
    for op in ["add", "mul", "sub", "div"] {
        let run = |mode: &str| {
            lanes(&format!("{op}.{mode}.f32 %d, %a, %b;"), "f32", &[("f32", a), ("f32", b)])
        };
        let (near, down, up, zero) = (run("rn"), run("rm"), run("rp"), run("rz"));
        for i in 0..32 {
            let (n, d, u, z) = (f(near[i]), f(down[i]), f(up[i]), f(zero[i]));
            if n.is_nan() {
                assert!(d.is_nan() && u.is_nan() && z.is_nan(), "{op} {i}");
                continue;
            }
            assert!(d <= n && n <= u, "{op} {i}: {d} {n} {u}");
            assert!(d == u || d.next_up() == u || u.is_infinite() || d.is_infinite(), "{op} {i}");
            assert_eq!(z, if n < 0.0 { u } else { d }, "{op} {i}");
        }
    }
}

#[test]
fn flushing_and_saturation() {
    let (a, b) = (singles(1), singles(2));
    let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
    two("mul.ftz.f32 %d, %a, %b;", "f32", a, b, |x, y| out(flush(flush(f(x)) * flush(f(y)))));
    two("add.sat.f32 %d, %a, %b;", "f32", a, b, |x, y| {
        let sum = f(x) + f(y);
        out(if sum > 0.0 { sum.min(1.0) } else { 0.0 })
    });
}

#[test]
fn approximations_are_near() {
    let a: Lanes = std::array::from_fn(|i| u64::from((i as f32 / 3.0 + 0.1).to_bits()));
    let check = |code: &str, want: fn(f64) -> f64| {
        let got = lanes(&format!("{code} %d, %a;"), "f32", &[("f32", a)]);
        for i in 0..32 {
            let (got, want) = (f64::from(f(got[i])), want(f64::from(f(a[i]))));
            assert!((got - want).abs() <= 1e-6 * want.abs().max(1e-3), "{code} {i} {got} {want}");
        }
    };
    check("ex2.approx.ftz.f32", f64::exp2);
    check("lg2.approx.f32", f64::log2);
    check("sin.approx.f32", f64::sin);
    check("cos.approx.f32", f64::cos);
    check("tanh.approx.f32", f64::tanh);
    check("rsqrt.approx.f32", |x| 1.0 / x.sqrt());
    check("rcp.approx.ftz.f32", |x| 1.0 / x);
    check("sqrt.approx.f32", f64::sqrt);
}

#[test]
fn double_precision() {
    let value = |x: u64| (f64::from(f(x))) * 1.000_000_1;
    let a = singles(3).map(|x| value(x).to_bits());
    let b = singles(5).map(|x| value(x).to_bits());
    let fix = |x: f64| if x.is_nan() { 0x7fff_ffff_ffff_ffff } else { x.to_bits() };
    let of = f64::from_bits;
    two("add.f64 %d, %a, %b;", "f64", a, b, |x, y| fix(of(x) + of(y)));
    two("mul.rn.f64 %d, %a, %b;", "f64", a, b, |x, y| fix(of(x) * of(y)));
    two("div.rn.f64 %d, %a, %b;", "f64", a, b, |x, y| fix(of(x) / of(y)));
    two("fma.rn.f64 %d, %a, %b, %a;", "f64", a, b, |x, y| fix(of(x).mul_add(of(y), of(x))));
}

#[test]
fn half_precision_rounds_once() {
    let (a, b) = (integers(11), integers(12));
    let of = |x: u64| half::f16::from_bits(x as u16);
    let fix = |x: half::f16| u64::from(if x.is_nan() { 0x7fff } else { x.to_bits() });
    two("add.f16 %d, %a, %b;", "b16", a, b, |x, y| {
        fix(half::f16::from_f32(of(x).to_f32() + of(y).to_f32()))
    });
    two("mul.rn.f16 %d, %a, %b;", "b16", a, b, |x, y| {
        fix(half::f16::from_f32(of(x).to_f32() * of(y).to_f32()))
    });
    let brain = |x: u64| half::bf16::from_bits(x as u16);
    let fix = |x: half::bf16| u64::from(if x.is_nan() { 0x7fff } else { x.to_bits() });
    two("fma.rn.bf16 %d, %a, %b, %b;", "b16", a, b, |x, y| {
        let exact = brain(x).to_f64() * brain(y).to_f64();
        // Sums that lose nothing in double precision are the only ones compared.
        let sum = exact + brain(y).to_f64();
        if sum - exact == brain(y).to_f64() && sum - brain(y).to_f64() == exact || sum.is_nan() {
            fix(half::bf16::from_f32(sum as f32))
        } else {
            lanes("fma.rn.bf16 %d, %a, %b, %b;", "b16", &[("b16", [x; 32]), ("b16", [y; 32])])[0]
        }
    });
    let got = lanes("mul.f16x2 %d, %a, %b;", "b32", &[("b32", a), ("b32", b)]);
    same("mul.f16x2", got, |i| {
        let part = |s: u32| {
            let (x, y) = (of(a[i] >> s).to_f32(), of(b[i] >> s).to_f32());
            let product = half::f16::from_f32(x * y);
            u64::from(if product.is_nan() { 0x7fff } else { product.to_bits() })
        };
        part(0) | part(16) << 16
    });
}

#[test]
fn comparisons_with_nan() {
    let (a, b) = (singles(1), singles(5));
    let check = |order: &str, want: fn(f32, f32) -> bool| {
        let code = format!("setp.{order}.f32 %x, %a, %b; selp.b32 %d, 7, 9, %x;");
        let got = lanes(&code, "u32", &[("f32", a), ("f32", b)]);
        same(order, got, |i| if want(f(a[i]), f(b[i])) { 7 } else { 9 });
    };
    check("eq", |x, y| x == y);
    check("ne", |x, y| x != y && !x.is_nan() && !y.is_nan());
    check("lt", |x, y| x < y);
    check("equ", |x, y| x == y || x.is_nan() || y.is_nan());
    check("neu", |x, y| x != y);
    check("ltu", |x, y| x < y || x.is_nan() || y.is_nan());
    check("geu", |x, y| x >= y || x.is_nan() || y.is_nan());
    check("num", |x, y| !x.is_nan() && !y.is_nan());
    check("nan", |x, y| x.is_nan() || y.is_nan());
}

#[test]
fn comparisons_are_combined() {
    let (a, b) = (integers(13), integers(14));
    let code = "setp.lt.s32 %x, %a, %b; setp.hi.and.u32 %x|%y, %a, 5, %x; selp.u32 %d, 1, 0, %x; \
                @!%y bra L; add.u32 %d, %d, 2; L:";
    let got = lanes(code, "u32", &[("u32", a), ("u32", b)]);
    same("setp.and", got, |i| {
        let first = (w(a[i]) as i32) < (w(b[i]) as i32);
        u64::from(first && w(a[i]) > 5) + 2 * u64::from(first && w(a[i]) <= 5)
    });
}
