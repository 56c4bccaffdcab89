#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| remuda_fuzz::run("workflow", bytes));
