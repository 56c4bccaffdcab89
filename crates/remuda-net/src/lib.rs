//! Small building blocks of the crates that perform IO: outgoing HTTP (`http_client`), server-sent events (`sse`), secrets
//! (`secret`), private addresses that may be called (`private_target`), the clock (`clock`), terminal output (`terminal`) and untrusted text made safe to print (`text`).

pub mod clock;
pub mod http_client;
pub mod private_target;
pub mod secret;
pub mod sse;
pub mod terminal;
pub mod text;
