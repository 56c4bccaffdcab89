//! One pod at the provider, as it really is. `listed` gives what the provider shows of it.

use remuda_core::id::{FleetId, MachineId, PodId};
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, PodTag};

use crate::trouble::Trouble;

#[derive(Clone, Debug)]
pub(crate) struct SimPod {
    pub(crate) id: PodId,
    pub(crate) tag: String,
    /// The fleet it belongs to; `None` for a foreign pod.
    pub(crate) fleet: Option<FleetId>,
    pub(crate) offer: String,
    pub(crate) kind: String,
    pub(crate) datacenter: String,
    pub(crate) host: String,
    /// The price that is billed.
    pub(crate) price: Money,
    /// The price that the provider states.
    pub(crate) quoted_price: Option<Money>,
    pub(crate) created_at: u64,
    pub(crate) listed_from: u64,
    pub(crate) runs_at: Option<u64>,
    /// When it stopped running, by itself or because its agent stopped it.
    pub(crate) stopped_at: Option<u64>,
    pub(crate) gone_at: Option<u64>,
    /// Its physical host lost power; lists still show it as running.
    pub(crate) is_dead: bool,
    /// What is wrong with it.
    pub(crate) fate: Option<Trouble>,
    /// Index of the host with its agent, once there is one.
    pub(crate) sim_host: Option<usize>,
    /// Created by a plane that had already been replaced.
    pub(crate) is_created_by_old_plane: bool,
    /// The store was restored to a time before this pod was created.
    pub(crate) is_unrecorded: bool,
}

impl SimPod {
    /// It is billed.
    pub(crate) fn is_alive(&self) -> bool {
        self.gone_at.is_none()
    }

    /// Its machine runs or will run.
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
