//! What a provider gets wrong, each kind by itself, so that a world can be given one of them or many. All of it heals
//! with the calm; what was made badly before stays so.

use std::collections::BTreeMap;

use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    // Creations.
    /// A pod is made, and nobody hears of it.
    AnswerLost,
    /// A pod is made, and an error is answered.
    ErrorThoughMade,
    /// An error is answered, and it is one.
    ErrorNotMade,
    /// No pod is made, and nobody hears that either.
    Hangs,
    /// An offer has nothing to give for a while.
    NoCapacity,
    NoCredit,
    // Every call, for a while.
    KeyRefused,
    RateLimit,
    Outage,
    // Lists.
    SlowToShow,
    ListFails,
    ListEmpty,
    ListCut,
    ListOmits,
    // Returns.
    /// Said to be gone, and lives on.
    ReturnIgnored,
    ErrorThoughReturned,
    ReturnFails,
    // Pods.
    NeverRuns,
    NoAgent,
    LateAgent,
    /// The start check of its worker fails.
    BadGpu,
    /// Its worker is there long before it can work.
    SlowModels,
    /// Another GPU than was asked for.
    OtherKind,
    Dearer,
    NoPrice,
    /// Stops by itself, and is shown so.
    Exits,
    /// Taken away without a word.
    Vanishes,
    /// Its host loses power; the provider goes on showing it.
    Dies,
    /// Does not look as if it ran, for a moment.
    Flickers,
    /// Everything on some hosts is bad.
    BadHosts,
    /// Whatever is to end it by itself does not.
    Outlives,
    // The account, and we.
    /// Others have pods there, another deployment of ours among them.
    Strangers,
    /// Our store is put back to a time at which some of the pods were not there yet.
    OldStore,
    PlaneDies,
    CommitsFail,
    /// People pause, scale and drain.
    People,
}

impl Trouble {
    pub const ALL: [Trouble; 36] = [
        Trouble::AnswerLost,
        Trouble::ErrorThoughMade,
        Trouble::ErrorNotMade,
        Trouble::Hangs,
        Trouble::NoCapacity,
        Trouble::NoCredit,
        Trouble::KeyRefused,
        Trouble::RateLimit,
        Trouble::Outage,
        Trouble::SlowToShow,
        Trouble::ListFails,
        Trouble::ListEmpty,
        Trouble::ListCut,
        Trouble::ListOmits,
        Trouble::ReturnIgnored,
        Trouble::ErrorThoughReturned,
        Trouble::ReturnFails,
        Trouble::NeverRuns,
        Trouble::NoAgent,
        Trouble::LateAgent,
        Trouble::BadGpu,
        Trouble::SlowModels,
        Trouble::OtherKind,
        Trouble::Dearer,
        Trouble::NoPrice,
        Trouble::Exits,
        Trouble::Vanishes,
        Trouble::Dies,
        Trouble::Flickers,
        Trouble::BadHosts,
        Trouble::Outlives,
        Trouble::Strangers,
        Trouble::OldStore,
        Trouble::PlaneDies,
        Trouble::CommitsFail,
        Trouble::People,
    ];

    /// Comes over everything for a while, at a time that is drawn before the world begins.
    pub(crate) fn is_spell(self) -> bool {
        matches!(
            self,
            Trouble::NoCapacity
                | Trouble::NoCredit
                | Trouble::KeyRefused
                | Trouble::RateLimit
                | Trouble::Outage
                | Trouble::OldStore
                | Trouble::PlaneDies
                | Trouble::CommitsFail
                | Trouble::People
        )
    }
}

/// The troubles of a world, in thousandths of the cases that each could befall.
#[derive(Clone, Debug, Default)]
pub(crate) struct Troubles(BTreeMap<Trouble, u64>);

/// Kinds of trouble that one world has at most.
const KINDS_MAX: u64 = 8;
/// How much of it there is when nothing else is.
const ALONE: u64 = 400;

impl Troubles {
    pub(crate) fn draw(random: &mut Random, asked: Option<&[Trouble]>) -> Troubles {
        if let Some(asked) = asked {
            return Troubles(asked.iter().map(|trouble| (*trouble, ALONE)).collect());
        }
        let count = random.below(KINDS_MAX + 1);
        let kinds = (0..count).map(|_| (random.pick(&Trouble::ALL), random.between(50, 400)));
        Troubles(kinds.collect())
    }

    pub(crate) fn chance(&self, trouble: Trouble) -> u64 {
        self.0.get(&trouble).copied().unwrap_or(0)
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = Trouble> {
        self.0.keys().copied()
    }
}
