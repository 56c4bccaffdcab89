//! What can load models: the engines of this build, each behind its feature.

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

/// All that this build has. Each takes only what is its own, so their order decides nothing.
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
