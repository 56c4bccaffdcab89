//! The state of one plane: the real `core::Plane`, its inbox, its batches and the long polls parked on it. `world::plane`
//! drives it.

use std::collections::{BTreeMap, VecDeque};

use remuda_core::id::{FleetId, Term, WorkerId};
use remuda_core::plane::{KnownKey, Plane};
use remuda_core::provider;
use remuda_core::record::Record;
use remuda_core::time::Timestamp;
use remuda_core::wire::BeatReply;

use crate::net::{AgentResponse, Caller, ClientResponse, PlaneCall};

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) number: usize,
    pub(crate) plane: Plane,
    pub(crate) term: Term,
    /// Added to the true time: the time at which the plane started, as `core::clock` decides it.
    pub(crate) offset: i64,
    pub(crate) paused_until: u64,
    pub(crate) inbox: VecDeque<Incoming>,
    pub(crate) committing: Option<Batch>,
    pub(crate) stepped: Option<Batch>,
    /// Batches whose commit finished while this plane was paused.
    pub(crate) unreleased: Vec<Batch>,
    /// Long polls without an order so far.
    pub(crate) parked: BTreeMap<WorkerId, ParkedPoll>,
    pub(crate) step_at: u64,
}

#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) call: PlaneCall,
    pub(crate) known: Option<KnownKey>,
    pub(crate) at: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) records: Vec<Record>,
    pub(crate) releases: Vec<Release>,
    /// Run after every answer of the batch is sent.
    pub(crate) effects: Vec<Release>,
}

impl Driver {
    pub(crate) fn clock(&self, now: u64) -> Timestamp {
        Timestamp::from_millis(now.saturating_add_signed(self.offset))
    }

    pub(crate) fn when(&self, at: Timestamp) -> u64 {
        at.as_millis().saturating_add_signed(-self.offset)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.plane.open_jobs() == 0 && self.inbox.is_empty()
    }

    pub(crate) fn is_paused(&self, now: u64) -> bool {
        now < self.paused_until
    }
}

#[derive(Debug)]
pub(crate) enum Release {
    Host {
        to: Caller,
        call: u64,
        answer: AgentResponse,
    },
    Client {
        client: usize,
        call: u64,
        response: ClientResponse,
    },
    /// No order yet: the poll stays parked.
    Hold {
        worker: WorkerId,
        poll: ParkedPoll,
    },
    Orders {
        worker: WorkerId,
        reply: BeatReply,
    },
    /// A call to a fleet's provider.
    ProviderCall {
        fleet: FleetId,
        call: provider::ProviderCall,
        /// Until when the fleet had to wait when the plane decided this.
        quiet_until: Option<u64>,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ParkedPoll {
    pub(crate) from: Caller,
    pub(crate) call: u64,
    /// The term that an empty reply carries.
    pub(crate) term: Term,
    pub(crate) until: u64,
}
