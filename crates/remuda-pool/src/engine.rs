//! What can load models: the engines of this build, each behind its feature.

#[cfg(feature = "rten")]
pub mod bert;
#[cfg(feature = "candle")]
pub mod diffusion;

use crate::backend::Engines;

/// All that this build has. Each takes only what is its own, so their order decides nothing.
pub fn engines() -> Engines {
    let engines = Engines::default();
    #[cfg(feature = "rten")]
    let engines = engines.with(bert::Bert);
    #[cfg(feature = "candle")]
    let engines = engines.with(diffusion::Diffusion);
    engines
}
