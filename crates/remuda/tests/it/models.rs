//! Models: fetched by name, checked, served.

mod both;
mod chat;
mod copy_kills;
mod embed;
mod flags;
pub(crate) mod fleet;
mod get;
pub(crate) mod host;
mod hostile_template;
mod images;
mod openai;
#[path = "../../../remuda-models/src/engine/gguf/sample.rs"]
#[allow(dead_code, reason = "the tests of the models use more of it")]
mod sample;
mod streamed;
