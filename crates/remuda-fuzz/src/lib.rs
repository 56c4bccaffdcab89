//! Fuzz targets: what each does with the bytes it gets, and the inputs it starts from.
//!
//! ```text
//!  fuzz/targets/*.rs (libFuzzer, outside the workspace) ──▶ FuzzTarget::run ◀── tests/replay.rs (every test run)
//!                                                               ▲
//!                       seeds, made here, and fuzz/findings ────┘
//! ```
//!
//! A target fails by panicking. Besides "no input causes a panic" each one states what else has to hold; the module of a
//! target says what. Time and memory are bounded by libFuzzer (`-timeout`, `-rss_limit_mb`, `-malloc_limit_mb`).

mod comfyui;
mod config;
mod input_file;
mod model_files;
mod seeds;
mod wire;
mod workflow;

/// One entry for bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    pub name: &'static str,
    /// Panics if something does not hold. Returns whether the input was accepted.
    pub run: fn(&[u8]) -> bool,
    /// Small valid inputs. libFuzzer changes them, and finds the ways in much sooner than from nothing.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// A longer input tells nothing new about a parser, and takes the time of many short ones.
pub const INPUT_BYTES_MAX: usize = 64 << 10;

pub const TARGETS: [FuzzTarget; 8] = [
    FuzzTarget { name: "workflow", run: workflow::run, seeds: seeds::workflows },
    FuzzTarget { name: "wire", run: wire::run, seeds: seeds::wire_messages },
    FuzzTarget { name: "comfyui_text", run: comfyui::run_text, seeds: seeds::comfyui_texts },
    FuzzTarget { name: "comfyui_binary", run: comfyui::run_binary, seeds: seeds::comfyui_frames },
    FuzzTarget { name: "config", run: config::run, seeds: seeds::configurations },
    FuzzTarget { name: "gguf", run: model_files::run_gguf, seeds: seeds::gguf_files },
    FuzzTarget { name: "safetensors", run: model_files::run_safetensors, seeds: seeds::safetensors_files },
    FuzzTarget { name: "onnx", run: model_files::run_onnx, seeds: seeds::onnx_files },
];

/// Runs the target of this name; what libFuzzer calls.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no fuzz target is called {name}")).run)(bytes);
}
