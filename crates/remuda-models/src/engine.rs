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

/// All engines of this build. Each recognises only its own files, so their order does not matter.
pub fn engines() -> Engines {
    let engines = Engines::default();
    #[cfg(feature = "rten")]
    let engines = engines.with(bert::Bert).with(onnx::Onnx);
    #[cfg(feature = "gguf")]
    let engines = engines.with(chat::ChatEngine);
    #[cfg(feature = "candle")]
    let engines = engines.with(diffusion::Diffusion);
    engines
}
