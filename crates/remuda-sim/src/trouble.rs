//! What a provider can get wrong. Each kind can be enabled alone or with others. Everything ends with the storm, but
//! pods that were created badly stay so.

use std::collections::BTreeMap;

use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    // Creations.
    /// The pod is created, and the answer is lost.
    AnswerLost,
    /// The pod is created, and the answer is an error.
    ErrorThoughMade,
    /// The answer is an error, and no pod is created.
    ErrorNotMade,
    /// No pod is created, and no answer comes.
    CreateHangs,
    /// An offer has no capacity for a while.
    NoCapacity,
    NoCredit,
    /// One call is refused with 401 or 403, and the next one is not.
    KeyHiccup,
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
    /// Confirmed, but the pod stays.
    ReturnIgnored,
    ErrorThoughReturned,
    ReturnFails,
    // Pods.
    NeverRuns,
    NoAgent,
    LateAgent,
    /// The worker's start check fails.
    BadGpu,
    /// The worker joins long before it is ready.
    SlowModels,
    /// Another GPU than ordered.
    WrongGpu,
    PricierPod,
    NoPrice,
    /// Stops by itself; lists show it as stopped.
    PodExits,
    /// Disappears from lists.
    PodVanishes,
    /// The physical host loses power; lists still show the pod.
    HostDies,
    /// Looks as if it were still starting, in one list.
    StatusFlickers,
    /// Every pod on some physical hosts is bad.
    BadHosts,
    /// The machine does not stop itself when it should.
    NoSelfStop,
    // The account, and our own side.
    /// The account has pods of others, and of another deployment of ours.
    ForeignPods,
    /// Our store is restored to a time before some of the pods.
    StoreRolledBack,
    PlaneDies,
    CommitsFail,
    /// Operators pause, scale and drain.
    Operators,
    /// Operators lower the maximum of a fleet while its machines are busy.
    LimitsLowered,
}

impl Trouble {
    pub const ALL: [Trouble; 38] = [
        Trouble::AnswerLost,
        Trouble::ErrorThoughMade,
        Trouble::ErrorNotMade,
        Trouble::CreateHangs,
        Trouble::NoCapacity,
        Trouble::NoCredit,
        Trouble::KeyHiccup,
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
        Trouble::LimitsLowered,
    ];

    /// Whether it lasts for a while, starting at a time drawn before the world starts.
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
                | Trouble::LimitsLowered
        )
    }
}

/// The troubles of a world, with their rate in permille.
#[derive(Clone, Debug, Default)]
pub(crate) struct Troubles(BTreeMap<Trouble, u64>);

/// How many kinds of trouble one world has at most.
const KINDS_MAX: u64 = 8;
/// The rate of troubles that the settings name.
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
