//! What the acting crates share: outgoing HTTP (`http_client`), secrets (`secret`), time (`clock`) and text that is
//! cut to a length before it is shown (`text`).

pub mod clock;
pub mod http_client;
pub mod secret;
pub mod text;
