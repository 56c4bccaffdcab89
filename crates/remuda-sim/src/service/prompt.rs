//! A prompt at a service, ours or foreign, and how it ends.

use remuda_core::service::ServiceFault;

use super::Key;

#[derive(Debug)]
pub(crate) struct Prompt {
    /// `None` for a foreign prompt.
    pub(crate) key: Option<Key>,
    pub(crate) mark: u64,
    pub(crate) duration: u64,
    pub(crate) started_at: u64,
    pub(crate) progress_every: u64,
    pub(crate) reported_at: u64,
    pub(crate) end: PromptEnd,
    /// Ignores stop requests before this time.
    pub(crate) uninterruptible_until: u64,
    /// All results were cached: it ends at once and sends no message.
    pub(crate) is_cached: bool,
    /// The second of two prompts with one id.
    pub(crate) is_copy: bool,
    /// Its agent wants it to stop: it is asked about until it does, and its messages do not matter any more.
    pub(crate) is_cancelled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptEnd {
    Succeeds,
    Fails(ServiceFault),
    Interrupted,
    KillsAgent,
    /// Never ends, even when interrupted.
    Hangs,
}

/// How a prompt ended, and when the history shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FinishedPrompt {
    pub(crate) end: PromptEnd,
    pub(crate) at: u64,
    pub(crate) written_at: u64,
    /// The agent knows of the failure, or has fetched the outputs.
    pub(crate) is_noticed: bool,
}

/// The message of a failed run.
pub(crate) const FAILED: &str = "the run failed";

impl Prompt {
    pub(crate) fn new(key: Option<Key>, mark: u64, duration: u64, progress_every: u64) -> Self {
        Prompt {
            key,
            mark,
            duration,
            started_at: 0,
            progress_every,
            reported_at: 0,
            end: PromptEnd::Succeeds,
            uninterruptible_until: 0,
            is_cached: false,
            is_copy: false,
            is_cancelled: false,
        }
    }

    pub(crate) fn ends_at(&self) -> u64 {
        if self.end == PromptEnd::Hangs { u64::MAX } else { self.started_at + self.duration }
    }

    pub(crate) fn progress(&self, now: u64) -> f32 {
        (now - self.started_at) as f32 / self.duration.max(1) as f32
    }
}
