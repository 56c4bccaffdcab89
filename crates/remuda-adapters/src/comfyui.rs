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
pub use self::target::{Secret, Target};
pub use self::transfer::Download;

#[cfg(test)]
mod tests;

/// A text of the server or of a workflow as people may see it: one line, cut, with nothing that acts on a terminal.
pub(crate) fn shown(text: &str, chars_max: usize) -> String {
    let mut line = String::new();
    for (at, word) in text.split_whitespace().enumerate() {
        if at > 0 {
            line.push(' ');
        }
        line.extend(word.chars().filter(|c| !c.is_control() && !is_invisible(*c)));
        // Enough to cut from: a text of megabytes need not be looked at to its end.
        if line.len() > 4 * chars_max {
            break;
        }
    }
    match line.char_indices().nth(chars_max) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

/// Characters that turn the direction of writing or hide what stands beside them.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
