//! Conversions between all kinds of numbers.

use super::{integers, lanes, same, singles};

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

#[test]
fn floats_to_integers_clamp() {
    let a = singles(2);
    let check = |code: &str, to: &str, want: fn(f32) -> u64| {
        let got = lanes(&format!("cvt.{code}.f32 %d, %a;"), to, &[("f32", a)]);
        same(code, got, |i| want(f(a[i])));
    };
    check("rzi.s32", "b32", |x| u64::from(x as i32 as u32));
    check("rzi.u32", "b32", |x| u64::from(x as u32));
    check("rni.s32", "b32", |x| u64::from(x.round_ties_even() as i32 as u32));
    check("rmi.s64", "b64", |x| x.floor() as i64 as u64);
    check("rpi.u64", "b64", |x| x.ceil() as u64);
    check("rzi.s16", "b16", |x| u64::from(x as i16 as u16));
}

#[test]
fn integers_to_floats_round_in_every_direction() {
    let a = integers(20);
    let run = |code: &str, ty: &str| lanes(&format!("cvt.{code} %d, %a;"), "f32", &[(ty, a)]);
    same("s32", run("rn.f32.s32", "b32"), |i| u64::from((a[i] as i32 as f32).to_bits()));
    same("u64", run("rn.f32.u64", "b64"), |i| u64::from((a[i] as f32).to_bits()));
    let (down, up) = (run("rm.f32.s64", "b64"), run("rp.f32.s64", "b64"));
    for i in 0..32 {
        let exact = i128::from(a[i] as i64);
        assert!(f(down[i]) as i128 <= exact && exact <= f(up[i]) as i128, "{i}");
        assert!(down[i] == up[i] || f(down[i]).next_up() == f(up[i]), "{i}");
    }
    let got = lanes("cvt.rn.f64.u64 %d, %a;", "b64", &[("b64", a)]);
    same("f64.u64", got, |i| (a[i] as f64).to_bits());
}

#[test]
fn integers_are_cut_and_extended() {
    let a = integers(21);
    let check = |code: &str, to: &str, from: &str, want: fn(u64) -> u64| {
        let got = lanes(&format!("cvt.{code} %d, %a;"), to, &[(from, a)]);
        same(code, got, |i| want(a[i]));
    };
    check("s64.s32", "b64", "b32", |x| i64::from(x as u32 as i32) as u64);
    check("u64.u32", "b64", "b32", |x| x & 0xffff_ffff);
    check("u32.u64", "b32", "b64", |x| x & 0xffff_ffff);
    check("s32.s16", "b32", "b16", |x| u64::from(i32::from(x as u16 as i16) as u32));
    check("s32.s8", "b32", "b32", |x| u64::from(i32::from(x as u8 as i8) as u32));
    check("u16.u32", "b16", "b32", |x| x & 0xffff);
    check("sat.u8.s32", "b32", "b32", |x| (x as u32 as i32).clamp(0, 255) as u64);
    check("sat.s16.s32", "b16", "b32", |x| {
        u64::from((x as u32 as i32).clamp(-32768, 32767) as i16 as u16)
    });
}

#[test]
fn narrow_floats() {
    let a = singles(7);
    let half =
        |x: f32| u64::from(if x.is_nan() { 0x7fff } else { half::f16::from_f32(x).to_bits() });
    let brain =
        |x: f32| u64::from(if x.is_nan() { 0x7fff } else { half::bf16::from_f32(x).to_bits() });
    same("f16", lanes("cvt.rn.f16.f32 %d, %a;", "b16", &[("f32", a)]), |i| half(f(a[i])));
    same("bf16", lanes("cvt.rn.bf16.f32 %d, %a;", "b16", &[("f32", a)]), |i| brain(f(a[i])));
    let got = lanes("cvt.rn.bf16x2.f32 %d, %a, %a;", "b32", &[("f32", a)]);
    same("bf16x2", got, |i| brain(f(a[i])) << 16 | brain(f(a[i])));
    let got = lanes("cvt.rn.relu.f16x2.f32 %d, %a, %a;", "b32", &[("f32", a)]);
    same("f16x2 relu", got, |i| {
        let v = half(if f(a[i]) < 0.0 { 0.0 } else { f(a[i]) });
        v << 16 | v
    });
    let got = lanes("cvt.rna.tf32.f32 %d, %a;", "b32", &[("f32", a)]);
    same("tf32", got, |i| {
        let bits = a[i] as u32;
        let rounded = if f(a[i]).is_finite() { bits.wrapping_add(0x1000) & !0x1fff } else { bits };
        u64::from(if f(a[i]).is_nan() { 0x7fff_e000 } else { rounded })
    });
    let h = integers(30);
    let got = lanes("cvt.f32.f16 %d, %a;", "f32", &[("b16", h)]);
    same("f32.f16", got, |i| {
        let v = half::f16::from_bits(h[i] as u16).to_f32();
        u64::from(if v.is_nan() { 0x7fff_ffff } else { v.to_bits() })
    });
    let d = singles(8).map(|x| (f64::from(f(x)) * 1.000_000_3).to_bits());
    let got = lanes("cvt.rn.f32.f64 %d, %a;", "f32", &[("f64", d)]);
    same("f32.f64", got, |i| {
        let v = f64::from_bits(d[i]) as f32;
        u64::from(if v.is_nan() { 0x7fff_ffff } else { v.to_bits() })
    });
}

#[test]
fn rounding_in_place() {
    let a = singles(11);
    let run = |mode: &str| lanes(&format!("cvt.{mode}.f32.f32 %d, %a;"), "f32", &[("f32", a)]);
    let fix = |x: f32| u64::from(if x.is_nan() { 0x7fff_ffff } else { x.to_bits() });
    same("rni", run("rni"), |i| fix(f(a[i]).round_ties_even()));
    same("rmi", run("rmi"), |i| fix(f(a[i]).floor()));
    same("rpi", run("rpi"), |i| fix(f(a[i]).ceil()));
    same("rzi", run("rzi"), |i| fix(f(a[i]).trunc()));
    same("sat", run("sat"), |i| fix(if f(a[i]) > 0.0 { f(a[i]).min(1.0) } else { 0.0 }));
}
