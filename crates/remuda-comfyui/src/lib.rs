//! Client for one ComfyUI server. It translates between ComfyUI's protocol and the core's types; the core decides what
//! follows from an answer.
//!
//! ```text
//!  workflow ──prompt──▶ body ──submit──▶ POST /prompt          accepted, refused with a reason, or unknown
//!                                probe ─▶ /queue, /history     the state of an attempt
//!                               socket ─▶ /ws ──progress──▶    hints: fraction, phase, previews
//!                   download, upload ─▶ /view, /upload/image   output and input files
//! ```
//!
//! The server's behaviour was observed, because its documentation is incomplete: answers may contain bare `NaN`, history is
//! empty while a prompt runs, a malformed node kills the server's worker thread. Each module names the cases it handles.

mod client;
mod error;
pub mod fault;
mod history;
mod inventory;
pub mod json;
pub mod message;
pub mod outputs;
pub mod progress;
pub mod prompt;
mod prompt_node;
mod queue;
pub mod restore;
mod self_test;
mod shortage;
pub mod socket;
mod stats;
mod submit;
mod tag;
mod target;
mod transfer;

pub use self::client::ComfyuiClient;
pub use self::error::ComfyuiError;
pub use self::inventory::Inventory;
pub use self::message::ComfyuiMessage;
pub use self::outputs::OutputFile;
pub use self::progress::{ProgressState, ProgressStep, ProgressTracker};
pub use self::prompt::{AssetRef, PreparedPrompt, PromptDraft};
pub use self::prompt_node::PromptNode;
pub use self::restore::PromptRestorer;
pub use self::self_test::SelfTestError;
pub use self::socket::{ComfyuiSocket, ReceivedMessage, SocketClosed};
pub use self::stats::{ComfyuiDevice, SystemStats};
pub use self::tag::{PromptPhase, PromptTag, TaggedPrompt};
pub use self::target::ComfyuiTarget;
pub use self::transfer::Download;

#[cfg(test)]
mod tests;
