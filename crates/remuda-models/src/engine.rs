//! The engines of this build, each behind its feature.

#[cfg(feature = "rten")]
pub mod bert;
#[cfg(feature = "candle")]
mod candle_device;
#[cfg(feature = "gguf")]
mod chat;
#[cfg(feature = "candle")]
pub mod diffusion;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(feature = "rten")]
mod image_model;
#[cfg(feature = "rten")]
mod ocr;
#[cfg(feature = "rten")]
pub mod onnx;

use crate::backend::Engines;
use crate::child_command::ChildCommand;

/// All engines of this build. Each recognises only its own files, so their order does not matter. The program has to call
/// [`child::run`](crate::child::run) when it is started with `pool-copy`.
pub fn engines() -> Engines {
    engines_of(ChildCommand::default())
}

/// All engines of this build, with another program that calls [`child::run`](crate::child::run).
#[cfg_attr(not(feature = "gguf"), expect(unused_variables, reason = "only chat templates need a program"))]
pub fn engines_of(child: ChildCommand) -> Engines {
    let engines = Engines::default();
    #[cfg(feature = "rten")]
    let engines = engines.with(bert::Bert).with(onnx::Onnx);
    #[cfg(feature = "gguf")]
    let engines = engines.with(chat::ChatEngine { child });
    #[cfg(feature = "candle")]
    let engines = engines.with(diffusion::Diffusion);
    engines
}
