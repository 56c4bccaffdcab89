//! The state of a service's WebSocket and the messages on it.

use super::Key;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Socket {
    pub(crate) is_open: bool,
    /// Since when it hears nothing.
    pub(crate) mute_since: Option<u64>,
    /// Which one it is: only the newest is ever opened.
    pub(crate) number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SocketMessage {
    Progress(Key, f32),
    /// It is over, one way or another.
    Done(Key),
    /// About something that somebody else handed in.
    Foreign,
}
