//! What Remuda talks to: stores, where it keeps what it decided. An adapter translates and decides nothing.

pub mod store;
