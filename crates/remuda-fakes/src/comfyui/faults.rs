//! Faults on demand, and when they happen.
//!
//! Each fault has a probability. Every prompt draws once for each fault, in a fixed order, from a seeded generator: the
//! n-th prompt of two runs with one seed gets the same faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::dice::Dice;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    DropCompletion,
    DropSockets,
    DropAllMessages,
    HalfOpen,
    SlowReader,
    Hang,
    Slow,
    Die,
    Restart,
    Cached,
    EmptyOutputs,
    Nan,
    Duplicate,
    Oom,
    Cuda,
    Disk,
    ExecutorDead,
    LostSubmitAnswer,
    RefuseSubmit,
    ForeignPrompts,
    InterruptedBySomeone,
    HistoryCleared,
    MissingOutput,
    ShortOutput,
    SlowHttp,
    GarbageFrames,
    HugePreview,
}

impl Fault {
    /// Every fault with its name and description.
    pub const ALL: &'static [(Fault, &'static str, &'static str)] = &[
        (
            Fault::DropCompletion,
            "drop-completion",
            "executed, success and the closing message are never sent",
        ),
        (Fault::DropSockets, "drop-sockets", "every socket is cut in the middle of the run"),
        (Fault::DropAllMessages, "drop-all-messages", "no message about this prompt is sent"),
        (Fault::HalfOpen, "half-open", "sockets stay open, and nothing is sent or read on them any more"),
        (
            Fault::SlowReader,
            "slow-reader",
            "no client gets messages for a while, as if one client did not read",
        ),
        (Fault::Hang, "hang", "the prompt runs for ever and hears no interrupt"),
        (Fault::Slow, "slow", "every node takes ten times as long"),
        (Fault::Die, "die", "the server dies in the middle of the run, as by kill -9"),
        (Fault::Restart, "restart", "the server dies in the middle of the run and is back at once"),
        (Fault::Cached, "cached", "the prompt finishes at once, as if every node were cached"),
        (Fault::EmptyOutputs, "empty-outputs", "the prompt succeeds, and history lists no outputs"),
        (Fault::Nan, "nan", "the outputs hold a bare NaN, which is no JSON"),
        (Fault::Duplicate, "duplicate", "a second copy of the prompt is queued under the same id"),
        (Fault::Oom, "oom", "a node runs out of GPU memory"),
        (Fault::Cuda, "cuda", "a node fails with an illegal memory access"),
        (Fault::Disk, "disk", "a node finds no space left on the disk"),
        (Fault::ExecutorDead, "executor-dead", "nothing runs any more, while HTTP goes on answering"),
        (
            Fault::LostSubmitAnswer,
            "lost-submit-answer",
            "accepted, and the connection is cut before the answer",
        ),
        (Fault::RefuseSubmit, "refuse-submit", "answered with 500 and not queued"),
        (Fault::ForeignPrompts, "foreign-prompts", "someone else's prompts run first"),
        (Fault::InterruptedBySomeone, "interrupted-by-someone", "someone else interrupts the run"),
        (Fault::HistoryCleared, "history-cleared", "history is empty once the prompt has ended"),
        (Fault::MissingOutput, "missing-output", "the outputs are listed, and /view does not find them"),
        (Fault::ShortOutput, "short-output", "the output files hold half of their bytes"),
        (Fault::SlowHttp, "slow-http", "every answer takes a while longer during the run"),
        (Fault::GarbageFrames, "garbage-frames", "messages that make no sense come in between"),
        (Fault::HugePreview, "huge-preview", "a preview of 8 MiB comes in between"),
    ];

    /// The name on the command line and in HTTP.
    pub fn name(self) -> &'static str {
        Fault::ALL.iter().find(|(fault, ..)| *fault == self).map_or("", |(_, name, _)| name)
    }

    /// Whether it happens at submission.
    pub(super) fn is_at_submission(self) -> bool {
        matches!(
            self,
            Fault::RefuseSubmit | Fault::LostSubmitAnswer | Fault::Duplicate | Fault::ForeignPrompts
        )
    }

    /// Whether it appears as a node error.
    pub(super) fn is_node_error(self) -> bool {
        matches!(self, Fault::Oom | Fault::Cuda | Fault::Disk)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Fault, UnknownFault> {
        let known = Fault::ALL.iter().find(|(_, name, _)| *name == text);
        known.map(|(fault, ..)| *fault).ok_or_else(|| UnknownFault::Name(text.to_owned()))
    }
}

/// An unknown fault; the message lists the known ones.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UnknownFault {
    #[error("there is no fault \"{0}\"; there are: {list}", list = names())]
    Name(String),
    #[error("\"{0}\" is no probability: write NAME=P with P from 0 to 1")]
    Probability(String),
}

fn names() -> String {
    Fault::ALL.iter().map(|(_, name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// The probability of each fault, per prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults(BTreeMap<Fault, f64>);

impl Faults {
    /// No faults.
    pub fn none() -> Faults {
        Faults::default()
    }

    /// Adds a fault with this probability.
    #[must_use]
    pub fn with(mut self, fault: Fault, probability: f64) -> Faults {
        self.set(fault, probability);
        self
    }

    /// Sets a probability; zero removes the fault.
    pub fn set(&mut self, fault: Fault, probability: f64) {
        if probability > 0.0 {
            self.0.insert(fault, probability.min(1.0));
        } else {
            self.0.remove(&fault);
        }
    }

    /// Sets `NAME=P`; `NAME` alone means always.
    pub fn set_from(&mut self, text: &str) -> Result<(), UnknownFault> {
        let (name, probability) = text.split_once('=').unwrap_or((text, "1"));
        let fault = name.parse()?;
        let valid = probability.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        self.set(fault, valid.ok_or_else(|| UnknownFault::Probability(text.to_owned()))?);
        Ok(())
    }

    /// Every enabled fault with its probability.
    pub fn iter(&self) -> impl Iterator<Item = (Fault, f64)> + '_ {
        self.0.iter().map(|(fault, probability)| (*fault, *probability))
    }
}

/// Draws the faults of the next prompt. One draw per known fault, so that a changed probability of one does not change
/// when the others happen.
pub(super) fn draw(dice: &mut Dice, faults: &Faults) -> BTreeSet<Fault> {
    let mut drawn = BTreeSet::new();
    for (fault, ..) in Fault::ALL {
        let probability = faults.0.get(fault).copied().unwrap_or(0.0);
        if dice.falls(probability) {
            drawn.insert(*fault);
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::{Dice, Fault, Faults, UnknownFault, draw};

    #[test]
    fn one_seed_gives_one_story_and_another_seed_another() {
        let faults = Faults::none().with(Fault::Hang, 0.3).with(Fault::Die, 0.5);
        let story = |seed| {
            let mut dice = Dice::new(seed);
            (0..50).map(|_| draw(&mut dice, &faults)).collect::<Vec<_>>()
        };
        assert_eq!(story(1), story(1));
        assert_ne!(story(1), story(2));
    }

    #[test]
    fn a_fault_happens_about_as_often_as_asked() {
        let faults = Faults::none().with(Fault::Hang, 0.2);
        let mut dice = Dice::new(7);
        let hits = (0..10_000).filter(|_| draw(&mut dice, &faults).contains(&Fault::Hang)).count();
        assert!((1_800..2_200).contains(&hits), "{hits}");
    }

    #[test]
    fn every_name_is_read_back_and_an_unknown_one_is_refused_with_the_list() {
        for (fault, name, _) in Fault::ALL {
            assert_eq!(name.parse(), Ok(*fault));
            assert_eq!(fault.name(), *name);
        }
        let refused = Faults::none().set_from("melt=0.5").unwrap_err();
        assert!(refused.to_string().contains("drop-completion"), "{refused}");
        assert_eq!(Faults::none().set_from("hang=2"), Err(UnknownFault::Probability("hang=2".into())));
    }
}
