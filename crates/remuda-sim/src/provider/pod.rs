//! One pod at the provider, as it really is; what is listed of it may differ.

use remuda_core::id::{FleetId, MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, PodTag};

use crate::trouble::Trouble;

#[derive(Clone, Debug)]
pub(crate) struct SimPod {
    pub(crate) id: PodId,
    pub(crate) tag: String,
    /// Ours, and of which fleet; nothing for everybody else's.
    pub(crate) fleet: Option<FleetId>,
    pub(crate) offer: String,
    pub(crate) kind: String,
    pub(crate) datacenter: String,
    pub(crate) host: String,
    /// What it costs.
    pub(crate) price: Money,
    /// What it is said to cost.
    pub(crate) quoted_price: Option<Money>,
    pub(crate) created_at: u64,
    pub(crate) listed_from: u64,
    pub(crate) runs_at: Option<u64>,
    /// It does not run any more, by itself or because its agent stopped it.
    pub(crate) stopped_at: Option<u64>,
    pub(crate) gone_at: Option<u64>,
    /// Its host lost power; it is listed all the same.
    pub(crate) is_dead: bool,
    /// What is wrong with it.
    pub(crate) fate: Option<Trouble>,
    /// Where its agent is, once it has one.
    pub(crate) sim_host: Option<usize>,
    /// Made by a plane that was not in charge any more.
    pub(crate) is_created_by_old_plane: bool,
    /// The store was put back to a time before it.
    pub(crate) is_unrecorded: bool,
}

impl SimPod {
    /// Somebody pays for it.
    pub(crate) fn is_alive(&self) -> bool {
        self.gone_at.is_none()
    }

    /// Its machine runs or is about to.
    pub(crate) fn is_up(&self) -> bool {
        self.is_alive() && self.stopped_at.is_none()
    }

    pub(crate) fn is_well(&self) -> bool {
        self.is_up() && !self.is_dead
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.fleet.is_some()
    }

    pub(crate) fn machine(&self) -> Option<MachineId> {
        let PodTag { fleet, number, .. } = PodTag::parse(&self.tag).filter(|_| self.is_ours())?;
        format!("{fleet}-{number}").parse().ok()
    }

    pub(crate) fn listed(&self, now: u64, flickers: bool) -> Pod {
        let status = match (self.stopped_at, self.runs_at) {
            (Some(_), _) => PodStatus::Stopped,
            (None, Some(runs_at)) if now >= runs_at && !flickers => PodStatus::Running,
            (None, Some(_)) => PodStatus::Starting,
            (None, None) => PodStatus::Provisioning,
        };
        Pod {
            id: self.id.clone(),
            tag: self.tag.clone(),
            status,
            kind: self.kind.clone(),
            place: self.datacenter.clone(),
            host: Some(self.host.clone()),
            price: self.quoted_price,
            ssh: None,
            started: self.runs_at.map(|at| at.to_string()).unwrap_or_default(),
        }
    }
}
