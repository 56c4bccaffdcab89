//! The plane as a server: the event loop around `core::Plane`, the effects it runs, the HTTP surfaces, access control,
//! webhooks and the calls to providers. It translates and acts; every decision is made in `remuda-core`.

pub mod audit;
pub mod carry_out;
pub mod drive;
pub mod fleets;
pub mod http;
pub mod intake;
pub mod keyring;
pub mod live;
pub mod previews;
pub mod serve;
pub mod tls;
pub mod webhooks;
