//! Planes start, are killed at any instant together with all that is not committed, or are paused while another plane
//! takes the lead.

use std::collections::{BTreeMap, VecDeque};

use remuda_core::agent::CallError;
use remuda_core::clock::ClockStart;
use remuda_core::plane::Plane;
use remuda_core::time::Timestamp;

use crate::driver::Driver;
use crate::event_queue::SimEvent;
use crate::net::{AgentResponse, Caller, PlaneCall, PlaneRequest};
use crate::sabotage::Sabotage;
use crate::world::World;

impl World<'_> {
    pub(in crate::world) fn start_plane(&mut self, jump: i64) {
        let term = self.acquire_term();
        let true_time = Timestamp::from_millis(self.scenario.epoch + self.now);
        let start =
            self.start_clock(Timestamp::from_millis(true_time.as_millis().saturating_add_signed(jump)));
        let stored = self.restore();
        self.wall_jump = 0;
        let now = start.now;
        if jump == 0 {
            self.laws.started_with_right_clock(true_time, now, self.now, &stored);
        }
        let offset = now.as_millis() as i64 - self.now as i64;
        let began_at = if self.is_sabotaged(Sabotage::NoStartGrace) { stored.latest } else { now };
        self.note("plane", term.0, jump as u64);
        let plane = Plane::restore(self.scenario.core.clone(), term, began_at, stored);
        self.laws.restored(now, self.now, &plane, &self.store);
        let driver = Driver {
            number: self.drivers.len(),
            plane,
            term,
            offset,
            paused_until: 0,
            inbox: VecDeque::new(),
            committing: None,
            stepped: None,
            unreleased: Vec::new(),
            parked: BTreeMap::new(),
            step_at: u64::MAX,
        };
        self.drivers.push(Some(Box::new(driver)));
        self.lead = Some(self.drivers.len() - 1);
        for request in [PlaneRequest::ClockStarted(start), PlaneRequest::Deployment] {
            let id = self.next_call();
            self.deliver(self.drivers.len() - 1, PlaneCall { from: Caller::None, id, request });
        }
        self.plan_step(self.drivers.len() - 1, self.now);
    }

    /// As the program does it: the stored times are set back before the plane reads them.
    fn start_clock(&mut self, wall: Timestamp) -> ClockStart {
        let latest = self.store.latest;
        let mut start = ClockStart::new(wall, latest, false);
        if self.is_sabotaged(Sabotage::KeepWrongTime) {
            (start.now, start.set_back) = (wall.max(latest), None);
        }
        if let Some(by) = start.set_back
            && !self.is_sabotaged(Sabotage::KeepWrongRecords)
        {
            self.store.set_back(by);
            self.laws.times_set_back(by);
        }
        start
    }

    /// Kills the plane at any instant: uncommitted batches are lost, and answers to committed ones may be.
    pub(in crate::world) fn kill_plane(&mut self, down_for: u64, jump: i64) {
        let Some(at) = self.lead.take() else { return };
        self.note("kill plane", down_for, jump as u64);
        self.end_driver(at);
        self.at(down_for, SimEvent::PlaneStart { jump });
    }

    fn end_driver(&mut self, at: usize) {
        let Some(mut driver) = self.drivers[at].take() else { return };
        self.drop_provider_calls(at);
        if let Some(batch) = driver.committing.take()
            && self.random.permille(500)
        {
            self.commit(driver.term, batch.records);
        }
        let parked = driver.parked.values().map(|parked| (parked.from, parked.call));
        let queued = driver.inbox.iter().map(|incoming| (incoming.call.from, incoming.call.id));
        let callers: Vec<_> = parked.chain(queued).collect();
        for (from, call) in callers {
            if self.random.permille(700) {
                let gone = CallError::Unreachable("connection reset".to_owned());
                self.send_to_agent(from, call, AgentResponse::Failed(gone));
            }
        }
    }

    pub(in crate::world) fn pause_plane(&mut self, lasts: u64) {
        let Some(at) = self.lead else { return };
        let until = self.now + lasts;
        let Some(driver) = &mut self.drivers[at] else { return };
        driver.paused_until = until;
        self.note("pause plane", lasts, 0);
        self.schedule(until, SimEvent::PlaneResume { driver: at });
    }

    /// Another plane takes the lead while this one is paused.
    pub(in crate::world) fn replace_plane(&mut self, after: u64, resumes: u64, jump: i64) {
        if self.lead.is_none() {
            return;
        }
        self.pause_plane(resumes);
        self.at(after, SimEvent::PlaneStart { jump });
    }

    pub(in crate::world) fn plane_start(&mut self, jump: i64) {
        let is_needed = match self.lead {
            None => true,
            // A second plane starts only while the first is paused.
            Some(at) => self.drivers[at].as_ref().is_some_and(|driver| driver.is_paused(self.now)),
        };
        if is_needed {
            self.start_plane(jump);
        }
    }

    pub(in crate::world) fn resume_plane(&mut self, at: usize) {
        let now = self.now;
        let Some(driver) = self.drivers[at].as_mut().filter(|driver| !driver.is_paused(now)) else { return };
        let unreleased = std::mem::take(&mut driver.unreleased);
        unreleased.into_iter().for_each(|batch| self.release(at, batch));
        self.commit_next(at);
        self.plan_step(at, now);
    }
}
