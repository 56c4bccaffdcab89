//! Faults on demand, by occasion, and when they happen.
//!
//! Each occasion has its own generator: the number of lists does not change the faults of creations, so the n-th
//! creation of two runs with one seed gets the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::dice::Dice;

/// When a fault is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Occasion {
    /// Any request with a key.
    Request,
    /// A creation: the faults of the request, and of the pod for as long as it exists.
    Create,
    /// A page of the list.
    List,
    /// A pod that is shown, in a list or alone.
    Show,
    /// A deletion or termination.
    Delete,
}

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunpodFault {
    Unauthorized,
    RateLimited,
    Html502,
    Html403,
    Refuse500,
    RefuseReset,
    RefuseHang,
    NoCredit,
    Denied,
    NoCapacity,
    Create500,
    CreateReset,
    CreateHang,
    Double,
    Foreign,
    LateList,
    LateGet,
    Stepwise,
    ColdPull,
    NeverReady,
    NeverStarts,
    PullError,
    LateSsh,
    StalePort,
    NoSsh,
    CrashLoop,
    Preempted,
    Vanish,
    CostZero,
    CostExited,
    WrongGpu,
    Dearer,
    Omit,
    Duplicate,
    BadCursor,
    EmptyList,
    CutList,
    NoArray,
    Flicker,
    DeleteLate,
    DeleteIgnored,
    Delete500Done,
    Delete500,
    Delete404,
}

type Row = (RunpodFault, Occasion, &'static str, &'static str);

impl RunpodFault {
    /// Every fault with its occasion, name and description.
    const TABLE: &'static [Row] = &[
        (RunpodFault::Unauthorized, Occasion::Request, "unauthorized", "401: the key is not accepted"),
        (RunpodFault::RateLimited, Occasion::Request, "rate-limited", "429 with Retry-After"),
        (RunpodFault::Html502, Occasion::Request, "html-502", "a proxy in front answers 502, in HTML"),
        (RunpodFault::Html403, Occasion::Request, "html-403", "a proxy in front answers 403, in HTML"),
        (RunpodFault::Refuse500, Occasion::Create, "refuse-500", "creation: 500, and no pod was made"),
        (
            RunpodFault::RefuseReset,
            Occasion::Create,
            "refuse-reset",
            "creation: connection cut, and no pod was made",
        ),
        (
            RunpodFault::RefuseHang,
            Occasion::Create,
            "refuse-hang",
            "creation: 30 s of silence, cut, and no pod",
        ),
        (RunpodFault::NoCredit, Occasion::Create, "no-credit", "creation: 402"),
        (
            RunpodFault::Denied,
            Occasion::Create,
            "denied",
            "creation: 403, and for this GPU and cloud ever after",
        ),
        (
            RunpodFault::NoCapacity,
            Occasion::Create,
            "no-capacity",
            "creation: 400, none free there for 5 min",
        ),
        (RunpodFault::Create500, Occasion::Create, "create-500", "creation: 500, and the pod was made"),
        (
            RunpodFault::CreateReset,
            Occasion::Create,
            "create-reset",
            "creation: connection cut, and the pod was made",
        ),
        (
            RunpodFault::CreateHang,
            Occasion::Create,
            "create-hang",
            "creation: 30 s of silence, cut, and a pod",
        ),
        (RunpodFault::Double, Occasion::Create, "double", "a second pod with the same name is made"),
        (RunpodFault::Foreign, Occasion::Create, "foreign", "another owner makes a pod in the account too"),
        (RunpodFault::LateList, Occasion::Create, "late-list", "the pod is in no list for up to 20 s"),
        (RunpodFault::LateGet, Occasion::Create, "late-get", "the pod is 404 for up to 20 s"),
        (RunpodFault::Stepwise, Occasion::Create, "stepwise", "PROVISIONING, STARTING, then RUNNING"),
        (RunpodFault::ColdPull, Occasion::Create, "cold-pull", "the image takes 2 to 13 min"),
        (RunpodFault::NeverReady, Occasion::Create, "never-ready", "RUNNING without runtime for ever"),
        (RunpodFault::NeverStarts, Occasion::Create, "never-starts", "STARTING for ever"),
        (RunpodFault::PullError, Occasion::Create, "pull-error", "the image cannot be had: ERROR"),
        (RunpodFault::LateSsh, Occasion::Create, "late-ssh", "ssh.direct comes up to 90 s after runtime"),
        (
            RunpodFault::StalePort,
            Occasion::Create,
            "stale-port",
            "the first port that is shown is a wrong one",
        ),
        (RunpodFault::NoSsh, Occasion::Create, "no-ssh", "there is never an ssh.direct"),
        (RunpodFault::CrashLoop, Occasion::Create, "crash-loop", "the container dies every few seconds"),
        (
            RunpodFault::Preempted,
            Occasion::Create,
            "preempted",
            "EXITED by itself within 10 min; start is refused",
        ),
        (RunpodFault::Vanish, Occasion::Create, "vanish", "gone by itself within 10 min"),
        (RunpodFault::CostZero, Occasion::Create, "cost-zero", "cost is 0.0 while it runs"),
        (RunpodFault::CostExited, Occasion::Create, "cost-exited", "cost stays after EXITED"),
        (RunpodFault::WrongGpu, Occasion::Create, "wrong-gpu", "another GPU than the ordered one"),
        (RunpodFault::Dearer, Occasion::Create, "dearer", "half as much again as the catalog says"),
        (RunpodFault::Omit, Occasion::List, "omit", "one live pod is not in the list, this once"),
        (
            RunpodFault::Duplicate,
            Occasion::List,
            "duplicate",
            "the next page begins with the last of this one",
        ),
        (
            RunpodFault::BadCursor,
            Occasion::List,
            "bad-cursor",
            "there is more, and the cursor leads nowhere new",
        ),
        (RunpodFault::EmptyList, Occasion::List, "empty-list", "no pods, with 200"),
        (RunpodFault::CutList, Occasion::List, "cut-list", "half of the pods, said to be all"),
        (RunpodFault::NoArray, Occasion::List, "no-array", "200 without `pods`"),
        (RunpodFault::Flicker, Occasion::Show, "flicker", "runtime and ssh.direct are null, this once"),
        (
            RunpodFault::DeleteLate,
            Occasion::Delete,
            "delete-late",
            "204, and the pod lives on for up to 2 min",
        ),
        (RunpodFault::DeleteIgnored, Occasion::Delete, "delete-ignored", "204, and nothing happens"),
        (RunpodFault::Delete500Done, Occasion::Delete, "delete-500-done", "500, and the pod is gone"),
        (RunpodFault::Delete500, Occasion::Delete, "delete-500", "500, and nothing happens"),
        (RunpodFault::Delete404, Occasion::Delete, "delete-404", "404, and the pod lives on"),
    ];

    /// Every fault with its name and description.
    pub fn all() -> impl Iterator<Item = (RunpodFault, &'static str, &'static str)> {
        RunpodFault::TABLE.iter().map(|(fault, _, name, meaning)| (*fault, *name, *meaning))
    }

    /// The name on the command line and in HTTP.
    pub fn name(self) -> &'static str {
        RunpodFault::TABLE.iter().find(|(fault, ..)| *fault == self).map_or("", |(_, _, name, _)| name)
    }

    fn occasion(self) -> Occasion {
        let row = RunpodFault::TABLE.iter().find(|(fault, ..)| *fault == self);
        row.map_or(Occasion::Request, |(_, occasion, ..)| *occasion)
    }
}

impl fmt::Display for RunpodFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for RunpodFault {
    type Err = UnknownRunpodFault;

    fn from_str(text: &str) -> Result<RunpodFault, UnknownRunpodFault> {
        let known = RunpodFault::all().find(|(_, name, _)| *name == text);
        known.map(|(fault, ..)| fault).ok_or_else(|| UnknownRunpodFault::Name(text.to_owned()))
    }
}

/// An unknown fault; the message lists the known ones.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UnknownRunpodFault {
    #[error("there is no fault \"{0}\"; there are: all, {list}", list = names())]
    Name(String),
    #[error("\"{0}\" is no probability: write NAME=P with P from 0 to 1")]
    Probability(String),
}

fn names() -> String {
    RunpodFault::all().map(|(_, name, _)| name).collect::<Vec<_>>().join(", ")
}

/// The probability of each fault, per occasion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunpodFaults(BTreeMap<RunpodFault, f64>);

impl RunpodFaults {
    pub fn none() -> RunpodFaults {
        RunpodFaults::default()
    }

    /// Adds a fault with this probability.
    #[must_use]
    pub fn with(mut self, fault: RunpodFault, probability: f64) -> RunpodFaults {
        self.set(fault, probability);
        self
    }

    /// Sets a probability; zero removes the fault.
    pub fn set(&mut self, fault: RunpodFault, probability: f64) {
        if probability > 0.0 {
            self.0.insert(fault, probability.min(1.0));
        } else {
            self.0.remove(&fault);
        }
    }

    /// Sets `NAME=P`; `NAME` alone means always, and the name `all` means every fault.
    pub fn set_from(&mut self, text: &str) -> Result<(), UnknownRunpodFault> {
        let (name, probability) = text.split_once('=').unwrap_or((text, "1"));
        let valid = probability.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        let valid = || valid.ok_or_else(|| UnknownRunpodFault::Probability(text.to_owned()));
        if name == "all" {
            let probability = valid()?;
            RunpodFault::all().for_each(|(fault, ..)| self.set(fault, probability));
        } else {
            self.set(name.parse()?, valid()?);
        }
        Ok(())
    }

    /// Every enabled fault with its probability.
    pub fn iter(&self) -> impl Iterator<Item = (RunpodFault, f64)> + '_ {
        self.0.iter().map(|(fault, probability)| (*fault, *probability))
    }
}

/// Draws faults and counts those that happened.
#[derive(Debug)]
pub(super) struct Luck {
    seed: u64,
    dice: BTreeMap<Occasion, Dice>,
    pub(super) faults: RunpodFaults,
    next: Vec<RunpodFault>,
    struck: BTreeMap<RunpodFault, u64>,
}

impl Luck {
    pub(super) fn new(seed: u64, faults: RunpodFaults) -> Luck {
        Luck { seed, dice: BTreeMap::new(), faults, next: Vec::new(), struck: BTreeMap::new() }
    }

    /// The next occasion for this fault gets it.
    pub(super) fn strike_next(&mut self, fault: RunpodFault) {
        self.next.push(fault);
    }

    /// Draws the faults of an occasion. One draw per fault of its kind, so that a changed probability of one does not
    /// change when the others happen.
    pub(super) fn draw(&mut self, occasion: Occasion) -> BTreeSet<RunpodFault> {
        let seed = self.seed.wrapping_add((occasion as u64) << 32);
        let dice = self.dice.entry(occasion).or_insert_with(|| Dice::new(seed));
        let mut drawn = BTreeSet::new();
        for (fault, ..) in RunpodFault::TABLE.iter().filter(|(_, at, ..)| *at == occasion) {
            let probability = self.faults.0.get(fault).copied().unwrap_or(0.0);
            if dice.falls(probability) {
                drawn.insert(*fault);
            }
        }
        drawn.extend(self.next.extract_if(.., |fault| fault.occasion() == occasion));
        drawn
    }

    /// A generator for the n-th item of this run.
    pub(super) fn dice(&self, number: u64) -> Dice {
        Dice::new(Dice::new(self.seed ^ number.wrapping_mul(0xd134_2543_de82_ef95)).number())
    }

    pub(super) fn count(&mut self, fault: RunpodFault) {
        *self.struck.entry(fault).or_default() += 1;
    }

    /// Whether this fault was drawn; if so, it is counted.
    pub(super) fn strikes(&mut self, drawn: &BTreeSet<RunpodFault>, fault: RunpodFault) -> bool {
        let is_drawn = drawn.contains(&fault);
        if is_drawn {
            self.count(fault);
        }
        is_drawn
    }

    /// Faults that happened, by name.
    pub(super) fn struck(&self) -> BTreeMap<String, u64> {
        self.struck.iter().map(|(fault, times)| (fault.name().to_owned(), *times)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Luck, Occasion, RunpodFault, RunpodFaults, UnknownRunpodFault};

    #[test]
    fn one_seed_gives_one_story_however_often_others_ask() {
        let faults = RunpodFaults::none().with(RunpodFault::Double, 0.3).with(RunpodFault::Omit, 0.5);
        let story = |seed, lists: usize| {
            let mut luck = Luck::new(seed, faults.clone());
            let creation = |luck: &mut Luck| {
                (0..lists).for_each(|_| drop(luck.draw(Occasion::List)));
                luck.draw(Occasion::Create)
            };
            (0..50).map(|_| creation(&mut luck)).collect::<Vec<_>>()
        };
        assert_eq!(story(1, 0), story(1, 3));
        assert_ne!(story(1, 0), story(2, 0));
    }

    #[test]
    fn every_name_is_read_back_and_an_unknown_one_is_refused_with_the_list() {
        for (fault, name, _) in RunpodFault::all() {
            assert_eq!(name.parse(), Ok(fault));
            assert_eq!(fault.name(), name);
        }
        let refused = RunpodFaults::none().set_from("melt=0.5").unwrap_err();
        assert!(refused.to_string().contains("late-list"), "{refused}");
        assert_eq!(
            RunpodFaults::none().set_from("omit=2"),
            Err(UnknownRunpodFault::Probability("omit=2".into()))
        );
        let mut all = RunpodFaults::none();
        all.set_from("all=0.1").unwrap();
        assert_eq!(all.iter().count(), RunpodFault::all().count());
    }

    #[test]
    fn a_fault_that_is_asked_for_waits_for_its_occasion() {
        let mut luck = Luck::new(0, RunpodFaults::none());
        luck.strike_next(RunpodFault::Omit);
        assert!(luck.draw(Occasion::Create).is_empty());
        assert!(luck.draw(Occasion::List).contains(&RunpodFault::Omit));
        assert!(luck.draw(Occasion::List).is_empty());
    }
}
