//! Control flow, memory, and what must be noticed.

use super::{Lanes, integers, lanes, launch, same};

#[test]
fn loops_of_different_lengths_come_together() {
    let a: Lanes = std::array::from_fn(|i| (i * 7 % 13) as u64);
    let code = "mov.u32 %d, 0; .reg .u32 %n; mov.u32 %n, %a;
        LOOP: setp.eq.u32 %x, %n, 0; @%x bra DONE;
        add.u32 %d, %d, %n; sub.u32 %n, %n, 1; bra LOOP;
        DONE: .reg .u32 %s; shfl.sync.bfly.b32 %s, %d, 1, 31, -1; add.u32 %d, %d, %s;";
    let sum = |i: usize| a[i] * (a[i] + 1) / 2;
    same("loop", lanes(code, "b32", &[("b32", a)]), |i| sum(i) + sum(i ^ 1));
}

#[test]
fn nested_branches_and_early_ends() {
    let a = integers(50);
    let code = "mov.u32 %d, 1; and.b32 %a, %a, 7; setp.gt.u32 %x, %a, 3; @%x bra HIGH;
        setp.eq.u32 %y, %a, 2; @%y bra TWO; mov.u32 %d, 10; bra JOIN;
        TWO: mov.u32 %d, 20; bra JOIN;
        HIGH: mov.u32 %d, 30; setp.eq.u32 %y, %a, 7; @%y add.u32 %d, %d, 5;
        JOIN: .reg .u32 %m; activemask.b32 %m; setp.ne.u32 %x, %m, -1; @%x mov.u32 %d, 99;";
    same("branches", lanes(code, "b32", &[("b32", a)]), |i| match a[i] & 7 {
        2 => 20,
        0..=3 => 10,
        7 => 35,
        _ => 30,
    });
}

#[test]
fn branch_tables() {
    let a: Lanes = std::array::from_fn(|i| i as u64 % 3);
    let code = "TS: .branchtargets B0, B1, B2; brx.idx %a, TS;
        B0: mov.u32 %d, 100; bra E; B1: mov.u32 %d, 200; bra E; B2: mov.u32 %d, 300; E:";
    same("brx", lanes(code, "b32", &[("b32", a)]), |i| (i as u64 % 3 + 1) * 100);
}

#[test]
fn functions_are_inlined() {
    let text = ".func (.param .b32 r) twice(.param .b32 x) { .reg .u32 %v; ld.param.u32 %v, [x];
        .reg .pred %p; setp.gt.u32 %p, %v, 10; @%p ret; add.u32 %v, %v, %v; st.param.b32 [r], %v; \
        ret; }
        .visible .entry k(.param .u64 p) { .reg .u64 %p0, %t; .reg .u32 %i, %v;
        ld.param.u64 %p0, [p]; mov.u32 %i, %tid.x; mul.wide.u32 %t, %i, 4; add.u64 %p0, %p0, %t;
        { .param .b32 a0; .param .b32 b0; st.param.b32 [b0], 0; st.param.b32 [a0], %i;
          call.uni (b0), twice, (a0); ld.param.b32 %v, [b0]; }
        st.global.u32 [%p0], %v; ret; }";
    let mut buffers = [vec![0; 128]];
    launch(text, 1, 32, &mut buffers).expect("the kernel runs");
    for (i, word) in buffers[0].chunks_exact(4).enumerate() {
        let want = if i > 10 { 0 } else { 2 * i };
        assert_eq!(u32::from_le_bytes(word.try_into().expect("4")) as usize, want);
    }
}

/// The words of the fault that a kernel on one buffer of 256 bytes ends with.
fn fault(body: &str, threads: u32) -> String {
    let text = format!(
        ".visible .entry k(.param .u64 p) {{ .shared .align 8 .b8 s[256]; .reg .u64 %a, %t; \
         .reg .u32 %i, %v; .reg .pred %x; .local .align 8 .b8 l[16]; ld.param.u64 %a, [p]; \
         mov.u32 %i, %tid.x; mul.wide.u32 %t, %i, 4; add.u64 %t, %t, %a; {body} ret; }}"
    );
    let mut buffers = [vec![0; 256]];
    launch(&text, 1, threads, &mut buffers).expect_err("the fault is noticed").text
}

#[test]
fn faults_are_noticed() {
    let check = |body: &str, threads: u32, words: &str| {
        let text = fault(body, threads);
        assert!(text.contains(words), "{body}: {text}");
    };
    check("st.global.u32 [%t+256], 0;", 1, "out of bounds");
    check("ld.global.u32 %v, [%t+2];", 1, "misaligned");
    check("ld.shared.u32 %v, [s];", 1, "never written");
    check("ld.local.u32 %v, [l+4];", 1, "never written");
    check("st.local.u32 [l+16], %i;", 1, "out of bounds");
    check("st.shared.u32 [s+256], %i;", 1, "out of bounds");
    check("st.shared.u32 [s], %i;", 2, "a race");
    check("st.global.u8 [%a], %i;", 2, "a race");
    check("trap;", 1, "a trap");
    check("setp.lt.u32 %x, %i, 3; @%x bar.sync 0;", 32, "divergent barrier");
    check(
        "setp.lt.u32 %x, %i, 32; @!%x bra L; bar.sync 0; bra M; L: bar.sync 0; M:",
        64,
        "divergent",
    );
    check(
        "setp.lt.u32 %x, %i, 32; @!%x bra L; bar.sync 1; bra M; L: bar.sync 2; M:",
        64,
        "deadlock",
    );
    check(
        "setp.lt.u32 %x, %i, 3; @%x bra L; shfl.sync.idx.b32 %v, %i, 0, 31, -1; L: mov.u32 %v, 0; \
           st.global.u32 [%t], %v;",
        32,
        "member mask",
    );
    check("st.global.u32 [%t], 1; ld.global.u32 %v, [%t+4];", 32, "a race");
}

/// Barriers and warp barriers order accesses; so do named barriers, for their warps.
#[test]
fn synchronised_accesses_are_no_races() {
    let text = ".visible .entry k(.param .u64 p) { .shared .align 8 .b8 s[512]; .reg .u64 %a, %t; \
        .reg .u32 %i, %v, %n, %w; .reg .pred %x; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; \
        mul.wide.u32 %t, %i, 4; add.u64 %t, %t, %a; shl.b32 %n, %i, 2; mov.u32 %w, s; \
        add.u32 %n, %n, %w; st.shared.u32 [%n], %i; bar.warp.sync -1; xor.b32 %w, %n, 4; \
        ld.shared.u32 %v, [%w]; bar.sync 1, 64; xor.b32 %w, %n, 128; ld.shared.u32 %w, [%w]; \
        bar.sync 0; st.shared.u32 [%n], %v; bar.sync 0; xor.b32 %v, %n, 64; ld.shared.u32 %v, \
        [%v]; \
        add.u32 %v, %v, %w; st.global.u32 [%t], %v; ret; }";
    let mut buffers = [vec![0; 256]];
    launch(text, 1, 64, &mut buffers).expect("the kernel runs");
    for (i, word) in buffers[0].chunks_exact(4).enumerate() {
        let want = (i ^ 16 ^ 1) + (i ^ 32);
        assert_eq!(u32::from_le_bytes(word.try_into().expect("4")) as usize, want);
    }
}

#[test]
fn accesses_of_every_width() {
    let text = ".visible .entry k(.param .u64 p) { .reg .u64 %a, %t; .reg .u32 %i, %v; .reg .b16 \
        %h; \
        .reg .s32 %s; ld.param.u64 %a, [p]; mov.u32 %i, %tid.x; cvt.u64.u32 %t, %i; \
        add.u64 %t, %t, %a; ld.global.s8 %s, [%t]; shl.b32 %s, %s, 1; st.global.u8 [%t], %s; \
        mul.wide.u32 %t, %i, 2; add.u64 %t, %t, %a; ld.global.u16 %h, [%t+64]; add.u16 %h, %h, 3; \
        st.global.u16 [%t+64], %h; ret; }";
    let bytes: Vec<u8> = (0..128u8).map(|i| i.wrapping_mul(37)).collect();
    let mut buffers = [bytes.clone()];
    launch(text, 1, 32, &mut buffers).expect("the kernel runs");
    for i in 0..32 {
        assert_eq!(buffers[0][i], bytes[i].wrapping_mul(2));
        let at = 64 + 2 * i;
        let word = |b: &[u8]| u16::from_le_bytes([b[at], b[at + 1]]);
        assert_eq!(word(&buffers[0]), word(&bytes).wrapping_add(3));
    }
}

/// An opcode that is not known is an error of loading.
#[test]
fn unknown_instructions_are_refused() {
    for (code, words) in [
        ("wgmma.fence.sync.aligned;", "wgmma"),
        ("add.rn.satfinite.f32 %f, %f, %f;", "satfinite"),
        ("bar.cluster.arrive;", "cluster"),
        ("tex.2d.v4.f32.s32 {%f, %f, %f, %f}, [x, {%f, %f}];", "tex"),
        ("bra NOWHERE;", "NOWHERE"),
    ] {
        let text = format!("{}.visible .entry k() {{ .reg .f32 %f; {code} ret; }}", super::HEAD);
        let error = fakecuda::ptx::parse(&text)
            .and_then(|m| {
                fakecuda::decode::kernels(&m, &fakecuda::decode::Globals::new()).map(|_| ())
            })
            .expect_err("the instruction is refused");
        assert!(error.contains(words), "{error}");
    }
}
