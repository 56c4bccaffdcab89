//! The state of a service's WebSocket and the messages on it.

use super::Key;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Socket {
    pub(crate) is_open: bool,
    /// Since when it delivers nothing.
    pub(crate) mute_since: Option<u64>,
    /// Only the newest socket is ever opened.
    pub(crate) number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketMessage {
    Progress(Key, f32),
    /// It ended, with or without success.
    Done(Key),
    /// About a foreign prompt.
    Foreign,
}
