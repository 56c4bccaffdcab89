//! Which incarnation of a service took an attempt. A service that does not report when it started still forgets its
//! history when it restarts: as long as its history has our last ended attempt (the *anchor*), it is the same one.
//!
//! ```text
//!  certain ──connection broke──▶ suspect ──anchor known──▶ certain, same incarnation
//!     ▲                             ├─────anchor unknown──▶ certain, next incarnation
//!     └──── we restarted it: next ──┴─────no anchor───────▶ certain, same incarnation
//! ```
//!
//! Its weakness: without an anchor two incarnations look alike. That costs a second probe and no attempt, because the
//! agent asks twice about an attempt that its service does not know.

use super::ServiceIncarnation;

#[derive(Clone, Debug, Default)]
pub struct IncarnationTracker {
    incarnation: u64,
    anchor: Option<String>,
    /// The connection broke since the anchor was last seen, so the service may have restarted.
    is_suspect: bool,
}

/// What has to be known before the incarnation is certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncarnationCheck {
    Certain(ServiceIncarnation),
    /// Ask the service whether its history has this id, and pass the answer to `anchor_checked`.
    AskFor(String),
}

impl IncarnationTracker {
    pub fn current(&self) -> ServiceIncarnation {
        ServiceIncarnation(self.incarnation)
    }

    /// The service knows this id. Ignored while a restart is suspected: the service may have known it before.
    pub fn set_anchor(&mut self, id: &str) {
        if !self.is_suspect {
            self.anchor = Some(id.to_owned());
        }
    }

    /// The service may have restarted.
    pub fn suspect_restart(&mut self) {
        self.is_suspect = true;
    }

    /// The service was started or restarted.
    pub fn advance(&mut self) {
        *self = IncarnationTracker { incarnation: self.incarnation + 1, anchor: None, is_suspect: false };
    }

    pub fn check(&mut self) -> IncarnationCheck {
        match self.anchor.clone().filter(|_| self.is_suspect) {
            Some(anchor) => IncarnationCheck::AskFor(anchor),
            None => {
                self.is_suspect = false;
                IncarnationCheck::Certain(self.current())
            }
        }
    }

    /// The service answered. An answer about an older anchor changes nothing: another check was faster.
    pub fn anchor_checked(&mut self, anchor: &str, is_known: bool) -> ServiceIncarnation {
        if self.is_suspect && self.anchor.as_deref() == Some(anchor) {
            match is_known {
                true => self.is_suspect = false,
                false => self.advance(),
            }
        }
        self.current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_connection_is_a_restart_only_if_the_anchor_is_gone() {
        let mut tracker = IncarnationTracker::default();
        tracker.advance();
        tracker.set_anchor("p1");
        assert_eq!(tracker.check(), IncarnationCheck::Certain(ServiceIncarnation(1)));
        tracker.suspect_restart();
        tracker.set_anchor("p2");
        assert_eq!(tracker.check(), IncarnationCheck::AskFor("p1".to_owned()), "p2 may be from before");
        assert_eq!(tracker.anchor_checked("p1", true), ServiceIncarnation(1));
        tracker.suspect_restart();
        assert_eq!(
            tracker.anchor_checked("p0", false),
            ServiceIncarnation(1),
            "an answer to an older question"
        );
        assert_eq!(tracker.anchor_checked("p1", false), ServiceIncarnation(2));
        tracker.suspect_restart();
        assert_eq!(tracker.check(), IncarnationCheck::Certain(ServiceIncarnation(2)), "no anchor, no proof");
    }
}
