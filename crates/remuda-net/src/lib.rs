//! What the crates with side effects share: outgoing HTTP (`http_client`), server-sent events (`sse`), secrets
//! (`secret`), time (`clock`), terminal output (`terminal`) and text that is cut to a length before it is shown (`text`).

pub mod clock;
pub mod http_client;
pub mod secret;
pub mod sse;
pub mod terminal;
pub mod text;
