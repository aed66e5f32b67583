//! Exchanges between lanes, atomics, matrices.

use fakecuda::decode::{Globals, kernels};
use fakecuda::ptx::parse;

use super::{HEAD, Lanes, bits, integers, lanes, launch, same};

#[test]
fn shuffles() {
    let a = integers(40);
    let low = |i: usize| a[i] & 0xffff_ffff;
    let run = |code: &str| lanes(code, "b32", &[("b32", a)]);
    same("bfly", run("shfl.sync.bfly.b32 %d, %a, 5, 31, -1;"), |i| low(i ^ 5));
    same("down", run("shfl.sync.down.b32 %d, %a, 3, 31, -1;"), |i| {
        low(if i + 3 < 32 { i + 3 } else { i })
    });
    same("up", run("shfl.sync.up.b32 %d, %a, 4, 0, -1;"), |i| low(if i >= 4 { i - 4 } else { i }));
    same("idx", run("shfl.sync.idx.b32 %d|%x, %a, 7, 31, -1;"), |_| low(7));
    // Segments of eight lanes.
    same("idx 8", run("shfl.sync.idx.b32 %d, %a, 2, 0x181f, -1;"), |i| low(i / 8 * 8 + 2));
}

#[test]
fn votes_and_matches() {
    let a: Lanes = std::array::from_fn(|i| (i % 5) as u64);
    let run = |code: &str| lanes(code, "b32", &[("b32", a)]);
    let ones = (0..32).filter(|i| i % 5 == 1).fold(0u64, |m, i| m | 1 << i);
    same("ballot", run("setp.eq.u32 %x, %a, 1; vote.sync.ballot.b32 %d, %x, -1;"), |_| ones);
    let code = "setp.lt.u32 %x, %a, 4; vote.sync.all.pred %y, %x, -1; selp.b32 %d, 1, 0, %y;";
    same("all", run(code), |_| 0);
    same("match", run("match.any.sync.b32 %d, %a, -1;"), |i| {
        (0..32).filter(|j| j % 5 == i % 5).fold(0, |m, j| m | 1 << j)
    });
    same("redux", run("redux.sync.add.s32 %d, %a, -1;"), |_| a.iter().sum());
    same("activemask", run("activemask.b32 %d;"), |_| 0xffff_ffff);
    same("lanemask", run("mov.u32 %d, %lanemask_lt;"), |i| (1 << i) - 1);
}

/// All threads of two blocks add to one word, each gets another old value.
#[test]
fn atomics_count() {
    let text = ".visible .entry k(.param .u64 p, .param .u64 q) {
        .reg .u64 %p0, %q0, %t; .reg .u32 %o, %i, %b; .reg .f32 %f;
        ld.param.u64 %p0, [p]; ld.param.u64 %q0, [q];
        atom.global.add.u32 %o, [%p0], 1;
        mov.u32 %i, %tid.x; mov.u32 %b, %ctaid.x; mad.lo.u32 %i, %b, 64, %i;
        mul.wide.u32 %t, %i, 4; add.u64 %q0, %q0, %t;
        st.global.u32 [%q0], %o;
        red.global.max.s32 [%p0+4], %i;
        atom.global.cas.b32 %o, [%p0+8], 0, %i;
        ret; }";
    let mut buffers = [vec![0; 16], vec![0; 512]];
    launch(text, 2, 64, &mut buffers).expect("the kernel runs");
    let word =
        |b: &[u8], at: usize| u32::from_le_bytes(b[4 * at..4 * at + 4].try_into().expect("4"));
    assert_eq!(word(&buffers[0], 0), 128);
    assert_eq!(word(&buffers[0], 1), 127);
    assert_eq!(word(&buffers[0], 2), 1);
    let mut seen: Vec<u32> = (0..128).map(|i| word(&buffers[1], i)).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..128).collect::<Vec<_>>());
}

/// The order of atomics is nobody's, and of floats it changes the sum: no kernel may have them.
#[test]
fn sums_of_floats_by_atomics_are_refused() {
    for of in ["f16", "f16x2", "bf16", "bf16x2", "f32", "f64"] {
        let ty = if of.ends_with("x2") { "b32" } else { of };
        let noftz = if of.contains("16") { ".noftz" } else { "" };
        let width = bits(ty);
        for (name, result) in [("atom", "%o, "), ("red", "")] {
            let code = format!("{name}.global.add{noftz}.{of}");
            let text = format!(
                "{HEAD}.visible .entry k(.param .u64 p) {{ .reg .u64 %p0; .reg .b{width} %o, %i;
                ld.param.u64 %p0, [p]; mov.b{width} %i, 0; {code} {result}[%p0], %i; ret; }}"
            );
            let module = parse(&text).expect("the text parses");
            let error = kernels(&module, &Globals::new()).map(|_| ()).expect_err(&code);
            assert!(error.contains(&code) && error.contains("not supported"), "{error}");
        }
    }
}

/// `mma` in TF32 and in bytes against products by hand.
#[test]
fn matrices() {
    // A holds row + column at TF32 layout positions, B the identity on its columns.
    let code = ".reg .u32 %g, %u, %r; .reg .f32 %f0, %f1, %f2, %f3, %e0, %e1, %z, %k; \
        mov.u32 %r, %laneid; shr.u32 %g, %r, 2; and.b32 %u, %r, 3; mov.f32 %z, 0f00000000; \
        mad.lo.u32 %r, %g, 16, %u; cvt.rn.f32.u32 %f0, %r; add.f32 %f1, %f0, 0f43000000; \
        add.f32 %f2, %f0, 0f40800000; add.f32 %f3, %f1, 0f40800000; \
        setp.eq.u32 %x, %g, %u; selp.f32 %e0, 0f3F800000, %z, %x; \
        add.u32 %u, %u, 4; setp.eq.u32 %x, %g, %u; selp.f32 %e1, 0f3F800000, %z, %x; \
        .reg .f32 %d0, %d1, %d2, %d3; \
        mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3}, \
        {%f0, %f1, %f2, %f3}, {%e0, %e1}, {%z, %z, %z, %z}; \
        mul.f32 %d0, %d0, 0f44800000; add.f32 %d0, %d0, %d3; cvt.rzi.u32.f32 %d, %d0;";
    let got = lanes(code, "b32", &[]);
    same("tf32", got, |i| {
        let (g, t) = (i as u64 / 4, i as u64 % 4);
        let at = |row: u64, column: u64| row * 16 + column;
        at(g, 2 * t) * 1024 + at(g + 8, 2 * t + 1)
    });
    let code = ".reg .u32 %o, %d1, %d2, %d3, %z; mov.u32 %o, 0x02020202; mov.u32 %z, 0; \
        mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%d, %d1, %d2, %d3}, {%o, %o, %o, %o}, \
        {%o, %o}, {%z, %z, %z, %z};";
    same("s8", lanes(code, "b32", &[]), |_| 128);
}
