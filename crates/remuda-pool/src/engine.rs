//! The engines this build has.

#[cfg(feature = "candle")]
pub mod diffusion;

use crate::backend::Engines;

/// All of them; the first that finds something at a path has it.
pub fn engines() -> Engines {
    let engines = Engines::default();
    #[cfg(feature = "candle")]
    let engines = engines.with(diffusion::Diffusion);
    engines
}
