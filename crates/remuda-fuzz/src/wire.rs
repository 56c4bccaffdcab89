//! Messages of one worker, a line each: joins, beats and live reports, sent to a plane that also serves an honest worker
//! with a running job. Besides not panicking:
//!
//! - every index of the plane agrees with what it indexes after every message;
//! - the honest worker keeps its incarnation and its job, and its next beat is accepted;
//! - no worker holds more attempts than the slots of its join.

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_core::id::{Hash, JobId, Term, WorkerId};
use remuda_core::job::{Job, JobState};
use remuda_core::need::Requirements;
use remuda_core::options::JobOptions;
use remuda_core::plane::{JobSubmission, JoinProof, Plane, PlaneAnswer, PlaneEvent};
use remuda_core::record::{AcceptedJob, StoredState};
use remuda_core::settings::Settings;
use remuda_core::time::Timestamp;
use remuda_core::wire::live::LiveReport;
use remuda_core::wire::{Beat, BeatReply, JoinRequest};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// At 100 ms each far less than a lease: nothing happens because time passed.
const MESSAGES_MAX: usize = 64;
const HONEST: &str = "honest";

pub(crate) fn run(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let mut fleet = Fleet::new();
    for line in text.lines().take(MESSAGES_MAX) {
        fleet.receive(line);
    }
    fleet.check_honest_worker();
    fleet.tested.is_some()
}

/// A plane, an honest worker with a job, and the worker under test.
struct Fleet {
    plane: Plane,
    now: Timestamp,
    tested: Option<WorkerId>,
    /// The most slots that any join of a name agreed on.
    slots: BTreeMap<WorkerId, u32>,
    beat: Beat,
    job: JobId,
}

impl Fleet {
    fn new() -> Self {
        let now = Timestamp::from_millis(1000);
        let plane = Plane::restore(Settings::default(), Term(1), now, StoredState::default());
        let beat = parse("{\"incarnation\":1,\"seq\":0,\"term\":1}");
        let job = JobId::from_u128(1);
        let mut fleet = Fleet { plane, now, tested: None, slots: BTreeMap::new(), beat, job };
        fleet.step(join(parse(&format!("{{\"worker\":\"{HONEST}\",\"services\":[\"exec\"]}}"))));
        fleet.submit(1);
        let reply = fleet.honest_beat();
        assert_eq!(reply.start.len(), 1, "the honest worker gets its job");
        fleet.beat.held =
            vec![parse(&format!("{{\"job\":\"{job}\",\"attempt\":{}}}", reply.start[0].attempt.0))];
        fleet.honest_beat();
        // These wait: the worker under test gets them if it joins.
        (2..=9).for_each(|job| fleet.submit(job));
        fleet
    }

    fn receive(&mut self, line: &str) {
        self.now = self.now.plus(Duration::from_millis(100));
        if let Ok(message) = serde_json::from_str::<JoinRequest>(line) {
            if message.worker.as_str() == HONEST {
                return;
            }
            let (worker, slots) = (message.worker.clone(), message.slots_max());
            if let Some(PlaneAnswer::Joined(_)) = self.step(join(message)) {
                let agreed = self.slots.entry(worker.clone()).or_default();
                *agreed = slots.max(*agreed);
                self.tested = Some(worker);
            }
        } else if let Ok(beat) = serde_json::from_str::<Beat>(line) {
            let Some(worker) = self.tested.clone() else { return };
            self.step(beat_of(worker, beat));
        } else if let Ok(report) = serde_json::from_str::<LiveReport>(line) {
            serde_json::to_string(&report).expect("what was read can be written");
        }
        self.check_slots();
    }

    fn step(&mut self, event: PlaneEvent) -> Option<PlaneAnswer> {
        let step = self.plane.step(self.now, event);
        self.plane.step(self.now, PlaneEvent::Flush).answer.expect("a flush is never refused");
        self.plane.check_indexes().expect("every index agrees with what it indexes");
        step.answer.ok()
    }

    fn submit(&mut self, number: u128) {
        let submission = JobSubmission {
            job: AcceptedJob {
                id: JobId::from_u128(number),
                accepted_at: Timestamp::ZERO,
                tenant: "default".parse().expect("a valid name"),
                priority: 0,
                service: "exec".parse().expect("a valid name"),
                shape: Hash::digest(b"shape"),
                workflow_hash: Hash::digest(&number.to_be_bytes()),
                needs: Requirements::default(),
                deadline: None,
                attempts_max: None,
                options: JobOptions::default(),
                key: None,
                labels: BTreeMap::new(),
                metadata: serde_json::Map::new(),
            },
            deadline: None,
            known: None,
            workflow: RawValue::NULL.to_owned().into(),
        };
        self.step(PlaneEvent::Submit(Box::new(submission))).expect("the job is accepted");
    }

    fn honest_beat(&mut self) -> BeatReply {
        self.beat.seq += 1;
        let beat = beat_of(worker(HONEST), self.beat.clone());
        match self.step(beat) {
            Some(PlaneAnswer::Reply(reply)) => reply,
            other => panic!("the honest worker's beat was answered with {other:?}"),
        }
    }

    fn check_honest_worker(&mut self) {
        let reply = self.honest_beat();
        assert!(reply.cancel.is_empty(), "the honest worker's job was taken away: {reply:?}");
        let state = self.plane.job(self.job).map(|job| job.state().clone());
        assert!(
            matches!(&state, Some(JobState::Running { worker, .. }) if worker.as_str() == HONEST),
            "the honest worker's job is {state:?}"
        );
    }

    fn check_slots(&self) {
        for (worker, slots) in &self.slots {
            let runs =
                |job: &&Job| matches!(job.state(), JobState::Running { worker: on, .. } if on == worker);
            let running = self.plane.jobs().filter(runs).count();
            assert!(
                running <= *slots as usize,
                "{running} jobs run on {worker}, which joined with {slots} slots"
            );
        }
    }
}

fn join(join: JoinRequest) -> PlaneEvent {
    let token_hash = Hash::digest(join.worker.as_str().as_bytes());
    PlaneEvent::Join { join: Box::new(join), token_hash, proof: JoinProof::JoinToken }
}

fn beat_of(worker: WorkerId, beat: Beat) -> PlaneEvent {
    let token_hash = Hash::digest(worker.as_str().as_bytes());
    PlaneEvent::Beat { worker, token_hash, beat: Box::new(beat), long_poll: false }
}

fn worker(name: &str) -> WorkerId {
    name.parse().expect("a valid name")
}

fn parse<T: DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).expect("a valid message")
}
