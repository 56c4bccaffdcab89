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
    CreateHangs,
    /// An offer has nothing to give for a while.
    NoCapacity,
    NoCredit,
    // Every call, for a while.
    KeyRefused,
    RateLimit,
    Outage,
    // Lists.
    ListedLate,
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
    /// Another GPU than was fixed for.
    WrongGpu,
    PricierPod,
    NoPrice,
    /// Stops by itself, and is shown so.
    PodExits,
    /// Taken away without a word.
    PodVanishes,
    /// Its host loses power; the provider goes on showing it.
    HostDies,
    /// Does not look as if it ran, for a moment.
    StatusFlickers,
    /// Everything on some hosts is bad.
    BadHosts,
    /// Whatever is to end it by itself does not.
    NoSelfStop,
    // The account, and we.
    /// Others have pods there, another deployment of ours among them.
    ForeignPods,
    /// Our store is put back to a time at which some of the pods were not there yet.
    StoreRolledBack,
    PlaneDies,
    CommitsFail,
    /// People pause, scale and drain.
    Operators,
}

impl Trouble {
    pub const ALL: [Trouble; 36] = [
        Trouble::AnswerLost,
        Trouble::ErrorThoughMade,
        Trouble::ErrorNotMade,
        Trouble::CreateHangs,
        Trouble::NoCapacity,
        Trouble::NoCredit,
        Trouble::KeyRefused,
        Trouble::RateLimit,
        Trouble::Outage,
        Trouble::ListedLate,
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
        Trouble::WrongGpu,
        Trouble::PricierPod,
        Trouble::NoPrice,
        Trouble::PodExits,
        Trouble::PodVanishes,
        Trouble::HostDies,
        Trouble::StatusFlickers,
        Trouble::BadHosts,
        Trouble::NoSelfStop,
        Trouble::ForeignPods,
        Trouble::StoreRolledBack,
        Trouble::PlaneDies,
        Trouble::CommitsFail,
        Trouble::Operators,
    ];

    /// Comes over everything for a while, at a time that is drawn before the world begins.
    pub(crate) fn is_timed(self) -> bool {
        matches!(
            self,
            Trouble::NoCapacity
                | Trouble::NoCredit
                | Trouble::KeyRefused
                | Trouble::RateLimit
                | Trouble::Outage
                | Trouble::StoreRolledBack
                | Trouble::PlaneDies
                | Trouble::CommitsFail
                | Trouble::Operators
        )
    }
}

/// The troubles of a world, in thousandths of the cases that each could apply_fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Troubles(BTreeMap<Trouble, u64>);

/// Kinds of trouble that one world has at most.
const KINDS_MAX: u64 = 8;
/// How much of it there is when nothing else is.
const FIXED_PERMILLE: u64 = 400;

impl Troubles {
    pub(crate) fn draw(random: &mut Random, fixed: Option<&[Trouble]>) -> Troubles {
        if let Some(fixed) = fixed {
            return Troubles(fixed.iter().map(|trouble| (*trouble, FIXED_PERMILLE)).collect());
        }
        let count = random.below(KINDS_MAX + 1);
        let kinds = (0..count).map(|_| (random.pick(&Trouble::ALL), random.between(50, 400)));
        Troubles(kinds.collect())
    }

    pub(crate) fn permille_for(&self, trouble: Trouble) -> u64 {
        self.0.get(&trouble).copied().unwrap_or(0)
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = Trouble> {
        self.0.keys().copied()
    }
}
