//! Instructions against the same arithmetic in Rust, small kernels against what they must do.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::float_cmp,
    clippy::many_single_char_names,
    reason = "the tests compare bits"
)]

mod arithmetic;
mod conversion;
mod flow;
mod warp;

use fakecuda::decode::{Globals, kernels};
use fakecuda::exec::block::{Launch, run};
use fakecuda::exec::fault::Fault;
use fakecuda::exec::memory::Memory;
use fakecuda::exec::shadow::Tag;
use fakecuda::ptx::parse;
use std::fmt::Write as _;

/// One value for each lane.
type Lanes = [u64; 32];

/// The head of a module.
const HEAD: &str = ".version 9.0\n.target sm_80\n.address_size 64\n";

/// Runs the only kernel of a module with buffers as its parameters, which it may change.
fn launch(text: &str, grid: u32, block: u32, buffers: &mut [Vec<u8>]) -> Result<(), Fault> {
    let module = parse(&format!("{HEAD}{text}")).expect("the text parses");
    let kernel = kernels(&module, &Globals::new()).expect("the kernel decodes").remove(0);
    let mut memory = Memory::new(1);
    let mut params = Vec::new();
    let mut starts = Vec::new();
    for buffer in buffers.iter() {
        let start = memory.allocate(0, buffer.len(), "by the test".to_owned(), 0);
        memory.initialise(start, buffer, 1);
        params.extend_from_slice(&start.to_le_bytes());
        starts.push(start);
    }
    let launch =
        Launch { grid: [grid, 1, 1], block: [block, 1, 1], dynamic_shared: 0, params, device: 0 };
    let result = run(&kernel, &launch, &mut memory, Tag::new(2, Vec::new()));
    for (buffer, start) in buffers.iter_mut().zip(starts) {
        let len = buffer.len();
        buffer.copy_from_slice(memory.bytes(start, len));
    }
    result.map(|_| ())
}

/// The width of a type in bits.
fn bits(ty: &str) -> u32 {
    let digits: String = ty.chars().filter(char::is_ascii_digit).collect();
    if ty.ends_with("x2") { 32 } else { digits.parse().expect("a width") }
}

/// Executes `code`, in which `%d` is the result and `%a`, `%b`, `%c` are the operands, with one
/// thread for each lane.
fn lanes(code: &str, result: &str, operands: &[(&str, Lanes)]) -> Lanes {
    let width = bits(result);
    let mut text = String::from(".visible .entry k(.param .u64 p, .param .u64 q)\n{\n");
    text += ".reg .u64 %p0, %q0, %t; .reg .u32 %i; .reg .pred %x, %y;\n";
    writeln!(text, ".reg .b{width} %d;").expect("text");
    text += "ld.param.u64 %p0, [p]; ld.param.u64 %q0, [q]; mov.u32 %i, %tid.x;\n";
    text += "mul.wide.u32 %t, %i, 8; add.u64 %p0, %p0, %t; add.u64 %q0, %q0, %t;\n";
    for (at, (ty, _)) in operands.iter().enumerate() {
        let (name, width) = (["a", "b", "c"][at], bits(ty));
        write!(text, ".reg .b{width} %{name};\nld.global.b{width} %{name}, [%p0+{}];\n", at * 256)
            .expect("text");
    }
    write!(text, "{code}\nst.global.b{width} [%q0], %d;\nret;\n}}\n").expect("text");
    let input = operands.iter().flat_map(|o| o.1).flat_map(u64::to_le_bytes).collect();
    let mut buffers = [input, vec![0; 256]];
    launch(&text, 1, 32, &mut buffers).expect("the kernel runs");
    let words = buffers[1].chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8")));
    words.collect::<Vec<_>>().try_into().expect("32 lanes")
}

/// Values with many bit patterns: small, large, of both signs.
fn integers(seed: u64) -> Lanes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::array::from_fn(|i| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        match i {
            0 => 0,
            1 => 1,
            2 => u64::MAX,
            3 => 0x8000_0000_8000_8000,
            4 => 0x7fff_ffff_7fff_7fff,
            _ => state >> (state % 40),
        }
    })
}

/// Single-precision values with special ones among them.
fn singles(seed: u64) -> Lanes {
    let random = integers(seed);
    std::array::from_fn(|i| {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, -3.5e-42, 1.0];
        let bits = random[i].to_le_bytes();
        let any = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]).reverse_bits();
        let value = match i {
            0..8 => special[(i + usize::try_from(seed % 8).expect("small")) % 8],
            8..20 => f32::from_bits((any & 0x83ff_ffff) | 0x3c00_0000),
            _ => f32::from_bits(any),
        };
        u64::from(value.to_bits())
    })
}

/// Asserts equal lanes, and says which operands differ.
fn same(what: &str, got: Lanes, want: impl Fn(usize) -> u64) {
    for (i, &got) in got.iter().enumerate() {
        let want = want(i);
        assert_eq!(got, want, "{what} in lane {i}: {got:#x} instead of {want:#x}");
    }
}
