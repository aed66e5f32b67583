#![no_main]

#[allow(dead_code, reason = "each target calls one of its functions")]
#[path = "../../it/fuzzed.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::data(data));
