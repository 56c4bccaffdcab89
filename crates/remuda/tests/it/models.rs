//! Models: fetched by name, checked, served.

mod both;
mod chat;
mod copy_kills;
mod embed;
mod flags;
pub(crate) mod fleet;
mod get;
pub(crate) mod host;
mod images;
mod openai;
mod streamed;
