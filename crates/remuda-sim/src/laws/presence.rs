//! Laws about false alarms: who is called silent, what is held back, and what the plane's own absence costs. The truth is
//! what reached the plane, and which hosts no fault has ever touched.

use std::time::Duration;

use remuda_core::event_kind::EventKind;
use remuda_core::id::WorkerId;
use remuda_core::machine::{Presence, WorkerState};
use remuda_core::plane::{Plane, Step};
use remuda_core::record::Record;
use remuda_core::time::Timestamp;
use remuda_core::worker::Worker;

use super::{HOLD_MAX, Laws, MARGIN};
use crate::host::Host;
use crate::law::Law;

/// After a pause of the plane no verdict falls within this time.
const WAKING: Duration = Duration::from_secs(5);
/// A witness has been up for this many milliseconds: its beats are regular.
const WITNESS_SINCE: u64 = 60_000;
/// Verdicts are checked every second, and paced.
const NOTICE: Duration = Duration::from_secs(5);

impl Laws {
    /// S16 and L10: a worker that is called silent was silent, and not because the plane was away.
    pub(super) fn check_suspicions(&mut self, now: Timestamp, at: u64, plane: &Plane, step: &Step) {
        for record in &step.records {
            let Record::Event(event) = record else { continue };
            if event.kind == EventKind::ClientState
                && let Some(worker) = event.worker.as_ref().and_then(|worker| plane.worker(worker))
            {
                let is_new = self.suspects.insert(worker.id.clone());
                if worker.presence() == Presence::Online {
                    self.suspects.remove(&worker.id);
                } else if is_new && worker.state() != WorkerState::Terminated {
                    self.check_suspicion(now, at, worker);
                }
            }
        }
    }

    fn check_suspicion(&mut self, now: Timestamp, at: u64, worker: &Worker) {
        let silence = self.silence(now, &worker.id);
        let interval =
            if worker.assignments.is_empty() { self.rules.beat_idle } else { self.rules.beat_busy };
        if silence + MARGIN < interval {
            let what = format!("{} is {} and was heard {silence:?} ago", worker.id, worker.presence());
            self.violated(Law::S16, at, what);
        }
        self.check_waking(now, at, &worker.id, silence);
    }

    /// L10: a plane that was away calls no one silent when it wakes, unless that was due before.
    fn check_waking(&mut self, now: Timestamp, at: u64, worker: &WorkerId, silence: Duration) {
        let awake = now.since(self.listens_since);
        if awake < WAKING && silence + MARGIN < self.rules.suspect_after {
            let what =
                format!("{worker} was judged {awake:?} after the plane was away, and {silence:?} of silence");
            self.violated(Law::L10, at, what);
        }
    }

    /// L10: the time in which the plane was away is no one's silence.
    pub(super) fn check_absence(&mut self, at: u64, worker: &WorkerId, silence: Duration) {
        let was_away = self.heard_at(worker) <= self.listens_since && self.listens_since > Timestamp::ZERO;
        if was_away && silence + MARGIN < self.rules.lease {
            let what = format!("{worker} was given up after {silence:?}, besides the plane's own absence");
            self.violated(Law::L10, at, what);
        }
    }

    /// S6 (row J3): a living worker is given up only if the plane could hear: another worker was heard after this one
    /// was late, or its connection was really closed.
    pub(super) fn check_proof(&mut self, now: Timestamp, at: u64, worker: &WorkerId, hosts: &[Host]) {
        let its_last = self.heard_at(worker);
        let others = self.last_heard.iter().filter(|(other, _)| *other != worker).map(|(_, then)| *then);
        let is_heard =
            others.max().is_some_and(|then| then.since(its_last) + MARGIN >= self.rules.suspect_after);
        let mut its_hosts = hosts.iter().filter(|host| host.name() == worker);
        let is_alive = its_hosts.any(|host| host.agent.is_some() && host.pod.is_none());
        if is_alive && !is_heard && !self.closed.contains(worker) && !self.is_held_out(now, its_last) {
            let what = format!("{worker} was given up, and no other worker was heard since it is silent");
            self.violated(Law::S6, at, what);
        }
    }

    /// Whether the longest hold of the brake is over for a worker last heard then.
    pub(super) fn is_held_out(&self, now: Timestamp, its_last: Timestamp) -> bool {
        now.since(its_last) + MARGIN >= self.rules.lease + HOLD_MAX
    }

    /// A worker's end closed its connection.
    pub(crate) fn connection_closed(&mut self, worker: &WorkerId) {
        self.closed.insert(worker.clone());
    }

    /// S16: a worker that is heard in time is online, and the brake holds no verdict on it. L8: what the brake holds back is
    /// declared, and ends.
    pub(super) fn check_presence(&mut self, now: Timestamp, at: u64, plane: &Plane) {
        let listens_for = now.since(self.listens_since);
        let brake = plane.mass_loss();
        let mut found = None;
        for worker in plane.workers().filter(|worker| worker.state() != WorkerState::Terminated) {
            let (silence, is_busy) = (self.silence(now, &worker.id), !worker.assignments.is_empty());
            // The shorter interval: a worker that became suspect while it was busy stays so until it is heard.
            let is_heard =
                self.last_heard.contains_key(&worker.id) && silence + MARGIN < self.rules.beat_busy;
            if is_heard && worker.presence() != Presence::Online {
                let what = format!("{} is {} and was heard {silence:?} ago", worker.id, worker.presence());
                found = Some((Law::S16, what));
            }
            if brake.holds(&worker.id) && silence + MARGIN < self.rules.lease {
                found = Some((Law::S16, format!("the brake holds {}, heard {silence:?} ago", worker.id)));
            }
            let held_for = silence.saturating_sub(self.rules.lease).min(listens_for);
            if !brake.holds(&worker.id) || !is_busy {
                continue;
            }
            if held_for > self.rules.lease * 2 && (!brake.is_on() || brake.ends_at().is_none()) {
                let what = format!("the brake holds {} for {held_for:?} and is not declared", worker.id);
                found = Some((Law::L8, what));
            }
            if held_for > HOLD_MAX + NOTICE {
                found = Some((Law::L8, format!("the brake holds {} for {held_for:?}", worker.id)));
            }
        }
        if let Some((law, what)) = found {
            self.violated_once(law, at, what);
        }
    }

    /// L8 and L9: with a worker that is heard all the time, the brake lets go and the dead lose their attempts.
    pub(super) fn check_losses(&mut self, now: Timestamp, at: u64, plane: &Plane, hosts: &[Host]) {
        let two_leases = self.rules.lease * 2 + NOTICE;
        let is_listening = now.since(self.stepped_at) < self.rules.plane_stall_max;
        let listens_for = now.since(self.listens_since);
        if !is_listening || listens_for < two_leases || !has_witness(at, plane, hosts) {
            return;
        }
        if self.braked_since.is_some_and(|since| now.since(since) > two_leases) {
            self.violated_once(Law::L8, at, "the brake is on, and a healthy worker is heard".to_owned());
        }
        for worker in plane.workers().filter(|worker| !worker.assignments.is_empty()) {
            let given_at = worker.assignments.values().map(|hold| hold.assigned_at).max().unwrap_or(now);
            let Some(dead_for) = super::plane_state::dead_for(at, &worker.id, hosts) else { continue };
            let dead_for = Duration::from_millis(dead_for).min(now.since(given_at)).min(listens_for);
            if plane.mass_loss().holds(&worker.id) && dead_for > two_leases {
                self.violated_once(
                    Law::L8,
                    at,
                    format!("{} is dead for {dead_for:?} and not judged", worker.id),
                );
            }
            if dead_for > self.rules.lease + Duration::from_secs(15) + NOTICE {
                let what = format!("{} is dead for {dead_for:?} and still has its attempts", worker.id);
                self.violated_once(Law::L9, at, what);
            }
        }
    }
}

/// Whether a host that no fault has touched beats regularly.
pub(super) fn has_witness(at: u64, plane: &Plane, hosts: &[Host]) -> bool {
    let mut steady = hosts.iter().filter(|host| {
        host.is_pristine && host.agent.is_some() && host.has_joined && at - host.started_at > WITNESS_SINCE
    });
    steady.any(|host| plane.worker(host.name()).is_some_and(|worker| worker.presence() == Presence::Online))
}
