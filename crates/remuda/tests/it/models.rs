//! Models in the program: fetched by name, examined, served.

mod both;
mod chat;
mod embed;
mod flags;
mod fleet;
mod get;
mod host;
mod killed;
mod openai;
mod sight;
mod streamed;
