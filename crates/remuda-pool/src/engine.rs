//! The engines of this build: what computes, behind [`Backend`](crate::backend::Backend).

#[cfg(feature = "gguf")]
mod chat;
#[cfg(feature = "gguf")]
mod gguf;

use crate::backend::Engines;

/// All that this build has.
pub fn engines() -> Engines {
    let engines = Engines::default();
    #[cfg(feature = "gguf")]
    let engines = engines.with(chat::Chats);
    engines
}
