//! The life of a worker, and its contact with the plane: two matches on (state, event), and the only places that change
//! either after a join.
//!
//! ```text
//!  life:     spawning ──promote──▶ active ──drain──▶ terminating ──terminate──▶ terminated
//!                └────── give up ────┴──▶ error ──beat──▶ active
//!  contact:  online ──late──▶ suspect ──silent──▶ offline         (heard: online again)
//! ```
//!
//! An event that means nothing in a state is refused and changes nothing: a machine that becomes ready does not bring
//! back a worker that was drained meanwhile.

use super::Worker;
use crate::machine::{Presence, WorkerState};
use crate::refusal::Refusal;
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Spawning,
    Active,
    /// `until`: what still runs then is requeued.
    Terminating {
        until: Option<Timestamp>,
    },
    Terminated,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeEvent {
    /// Its machine has passed its start check.
    Promote,
    Drain {
        until: Option<Timestamp>,
    },
    /// It is alive. A rented worker that was given up is not taken back: its machine is being returned.
    Beat {
        is_draining: bool,
        is_rented: bool,
    },
    /// It has left, it holds nothing after a drain, or its machine is gone.
    Terminate,
    GiveUp,
}

impl Life {
    /// As stored, or as its machine is when it joins.
    pub(super) fn restore(state: WorkerState, until: Option<Timestamp>) -> Life {
        match state {
            WorkerState::Spawning => Life::Spawning,
            WorkerState::Active => Life::Active,
            WorkerState::Terminating => Life::Terminating { until },
            WorkerState::Terminated => Life::Terminated,
            WorkerState::Error => Life::Error,
        }
    }

    fn state(self) -> WorkerState {
        match self {
            Life::Spawning => WorkerState::Spawning,
            Life::Active => WorkerState::Active,
            Life::Terminating { .. } => WorkerState::Terminating,
            Life::Terminated => WorkerState::Terminated,
            Life::Error => WorkerState::Error,
        }
    }

    /// The life after the event, or `None` if the event means nothing in this state.
    fn after(self, event: LifeEvent) -> Option<Life> {
        match (self, event) {
            (Life::Spawning, LifeEvent::Promote) => Some(Life::Active),
            (
                Life::Active | Life::Terminating { .. } | Life::Terminated | Life::Error,
                LifeEvent::Promote,
            ) => None,
            (Life::Spawning | Life::Active, LifeEvent::Drain { until }) => Some(Life::Terminating { until }),
            (Life::Terminating { .. } | Life::Terminated | Life::Error, LifeEvent::Drain { .. }) => None,
            (Life::Spawning | Life::Active | Life::Error, LifeEvent::Beat { is_draining: true, .. }) => {
                Some(Life::Terminating { until: None })
            }
            // It was given up because it was silent, and now it beats: no other event would bring it back.
            (Life::Error, LifeEvent::Beat { is_draining: false, is_rented: false }) => Some(Life::Active),
            (
                Life::Spawning | Life::Active | Life::Terminating { .. } | Life::Terminated | Life::Error,
                LifeEvent::Beat { .. },
            ) => None,
            (Life::Terminated, LifeEvent::Terminate | LifeEvent::GiveUp) => None,
            (
                Life::Spawning | Life::Active | Life::Terminating { .. } | Life::Error,
                LifeEvent::Terminate,
            ) => Some(Life::Terminated),
            (Life::Spawning | Life::Active | Life::Terminating { .. }, LifeEvent::GiveUp) => {
                Some(Life::Error)
            }
            (Life::Error, LifeEvent::GiveUp) => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    Online,
    /// Beats are missing: no new work.
    Suspect,
    /// `awaits_proof`: nothing is heard of it, and what it holds stays with it until there is proof that the plane still receives messages.
    Offline {
        awaits_proof: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContactEvent {
    Heard,
    /// Its beat is late.
    Late,
    /// Its lease ran out. `is_proven`: the silence is its own and not the plane's deafness.
    Silent {
        is_proven: bool,
    },
    Left,
    /// The plane has started again and found attempts that it holds.
    FoundHolding,
}

impl Contact {
    /// A stored worker that was merely suspect gets the benefit of the plane's absence.
    pub(super) fn restore(presence: Presence) -> Contact {
        match presence {
            Presence::Online | Presence::Suspect => Contact::Online,
            Presence::Offline => Contact::Offline { awaits_proof: false },
        }
    }

    fn presence(self) -> Presence {
        match self {
            Contact::Online => Presence::Online,
            Contact::Suspect => Presence::Suspect,
            Contact::Offline { .. } => Presence::Offline,
        }
    }

    fn after(self, event: ContactEvent) -> Contact {
        match (self, event) {
            (Contact::Online | Contact::Suspect | Contact::Offline { .. }, ContactEvent::Heard) => {
                Contact::Online
            }
            (Contact::Online | Contact::Suspect, ContactEvent::Late) => Contact::Suspect,
            (
                Contact::Online | Contact::Suspect | Contact::Offline { .. },
                ContactEvent::Silent { is_proven },
            ) => Contact::Offline { awaits_proof: !is_proven },
            (Contact::Online | Contact::Suspect | Contact::Offline { .. }, ContactEvent::Left) => {
                Contact::Offline { awaits_proof: false }
            }
            (Contact::Offline { .. }, ContactEvent::FoundHolding) => Contact::Offline { awaits_proof: true },
            (Contact::Online | Contact::Suspect, ContactEvent::FoundHolding)
            | (Contact::Offline { .. }, ContactEvent::Late) => self,
        }
    }
}

impl Worker {
    pub fn state(&self) -> WorkerState {
        self.life.state()
    }

    pub fn presence(&self) -> Presence {
        self.contact.presence()
    }

    /// When a drain ends.
    pub fn drain_until(&self) -> Option<Timestamp> {
        match self.life {
            Life::Terminating { until } => until,
            Life::Spawning | Life::Active | Life::Terminated | Life::Error => None,
        }
    }

    pub fn awaits_proof(&self) -> bool {
        self.contact == Contact::Offline { awaits_proof: true }
    }

    /// Moves its life on, or refuses an event that means nothing now.
    pub fn apply(&mut self, now: Timestamp, event: LifeEvent, reason: &str) -> Result<(), Refusal> {
        self.life = self.life.after(event).ok_or_else(|| Refusal::Leaving(self.id.clone()))?;
        self.changed_at = now;
        reason.clone_into(&mut self.reason);
        Ok(())
    }

    /// Returns its presence before.
    pub fn contact(&mut self, event: ContactEvent) -> Presence {
        let before = self.presence();
        self.contact = self.contact.after(event);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_machine_does_not_bring_back_a_drained_worker() {
        let drained = Life::Spawning.after(LifeEvent::Drain { until: None }).unwrap();
        assert_eq!(drained.after(LifeEvent::Promote), None);
    }

    #[test]
    fn a_worker_that_is_heard_is_judged_by_nothing_before() {
        let silent = Contact::Suspect.after(ContactEvent::Silent { is_proven: false });
        assert_eq!(silent, Contact::Offline { awaits_proof: true });
        assert_eq!(silent.after(ContactEvent::Late), silent, "late is less than silent");
        assert_eq!(silent.after(ContactEvent::Heard), Contact::Online);
    }
}
