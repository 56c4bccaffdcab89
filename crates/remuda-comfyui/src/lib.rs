//! How Remuda talks to one ComfyUI server. This translates; what follows from an answer is decided in the core.
//!
//! ```text
//!  workflow ──prompt──▶ body ──submit──▶ POST /prompt          accepted, refused with a reason, or unsure
//!                                 look ─▶ /queue, /history     the truth about an attempt
//!                               socket ─▶ /ws ──progress──▶    hints: a fraction, a phase, previews
//!                       view, upload ─▶ /view, /upload/image   files out and in
//! ```
//!
//! What the server really does was observed, not read in its manual: answers may hold bare `NaN`, history is empty while
//! a prompt runs, a prompt with an odd node kills the server's worker. Each module says which of these it deals with.

mod canary;
mod client;
pub mod fault;
mod history;
mod inventory;
pub mod json;
pub mod message;
pub mod outputs;
pub mod progress;
pub mod prompt;
mod queue;
pub mod socket;
mod stats;
mod submit;
mod tag;
mod target;
mod transfer;

pub use self::canary::Sick;
pub use self::client::{Client, Error};
pub use self::inventory::Inventory;
pub use self::message::Message;
pub use self::outputs::File;
pub use self::progress::{Progress, Standing, Step};
pub use self::prompt::{Asset, Prompt, assets};
pub use self::socket::{Closed, Heard, Socket};
pub use self::stats::{Device, Stats};
pub use self::tag::{Place, Tag, Tagged};
pub use self::target::Target;
pub use self::transfer::Download;

#[cfg(test)]
mod tests;
