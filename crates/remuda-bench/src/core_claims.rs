//! The core alone: claims from queues of different lengths, with no store and no network in the way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use remuda_core::id::{Hash, JobId, Term, WorkerId};
use remuda_core::plane::{JobSubmission, JoinProof, Plane, PlaneAnswer, PlaneEvent};
use remuda_core::record::AcceptedJob;
use remuda_core::record::StoredState;
use remuda_core::settings::Settings;
use remuda_core::settings::quota::TenantQuota;
use remuda_core::time::Timestamp;
use remuda_core::wire::{AttemptOutcome, Beat, FinishedAttempt, JoinReply, JoinRequest};
use serde_json::value::RawValue;

const EACH: Duration = Duration::from_secs(2);
const SLOTS: u32 = 64;

/// Jobs claimed and completed a second while `waiting` others stay in the queue: for each one taken, one comes in.
pub(crate) fn claims_per_second(waiting: u64) -> anyhow::Result<f64> {
    let mut world = World::new()?;
    for _ in 0..waiting {
        world.submit()?;
    }
    world.join()?;
    let started = Instant::now();
    let mut claimed = 0;
    while started.elapsed() < EACH {
        let taken = world.beat()?;
        for _ in 0..taken {
            world.submit()?;
        }
        claimed += taken;
    }
    Ok(claimed as f64 / started.elapsed().as_secs_f64())
}

struct World {
    plane: Plane,
    now: Timestamp,
    workflow: Arc<RawValue>,
    next: u128,
    worker: WorkerId,
    joined: Option<JoinReply>,
    seq: u64,
    held: Vec<FinishedAttempt>,
}

impl World {
    fn new() -> anyhow::Result<Self> {
        let now = Timestamp::from_millis(1);
        // No time passes here, so that every rate would be exceeded.
        let settings = Settings { quota: TenantQuota::unlimited(), ..Settings::default() };
        Ok(World {
            plane: Plane::restore(settings, Term(1), now, StoredState::default()),
            now,
            workflow: Arc::from(RawValue::from_string("{\"n\":1}".to_owned())?),
            next: 1,
            worker: "bench".parse()?,
            joined: None,
            seq: 0,
            held: Vec::new(),
        })
    }

    fn submit(&mut self) -> anyhow::Result<()> {
        let job = AcceptedJob {
            accepted_at: self.now,
            id: JobId::from_u128(self.next),
            tenant: if self.next.is_multiple_of(2) { "a" } else { "b" }.parse()?,
            token: None,
            priority: 0,
            service: "exec".parse()?,
            // Eight kinds of work, as a fleet would have.
            shape: Hash::digest(&[(self.next % 8) as u8]),
            workflow_hash: Hash::digest(&[1]),
            needs: remuda_core::need::Requirements::default(),
            deadline: None,
            attempts_max: None,
            options: remuda_core::options::JobOptions::default(),
            key: None,
            labels: std::collections::BTreeMap::new(),
            metadata: serde_json::Map::new(),
        };
        let submission = JobSubmission {
            job,
            deadline: None,
            known: None,
            workflow: self.workflow.clone(),
            stored_bytes: 0,
        };
        self.next += 1;
        let step = self.plane.step(self.now, PlaneEvent::Submit(Box::new(submission)));
        step.answer.map(drop).map_err(|refusal| anyhow::anyhow!("{refusal}"))
    }

    fn join(&mut self) -> anyhow::Result<()> {
        let join: JoinRequest = serde_json::from_value(
            serde_json::json!({ "worker": "bench", "services": ["exec"], "slots": SLOTS }),
        )?;
        match self
            .plane
            .step(
                self.now,
                PlaneEvent::Join {
                    join: Box::new(join),
                    token_hash: Hash::digest(b"t"),
                    proof: JoinProof::JoinToken,
                },
            )
            .answer
        {
            Ok(PlaneAnswer::Joined(joined)) => self.joined = Some(joined),
            other => bail!("the worker was not let in: {other:?}"),
        }
        Ok(())
    }

    /// Ends what is held, takes what comes; how many came.
    fn beat(&mut self) -> anyhow::Result<u64> {
        let joined = self.joined.as_ref().context("not joined")?;
        self.seq += 1;
        let beat = Beat {
            incarnation: joined.incarnation,
            seq: self.seq,
            term: joined.term,
            held: Vec::new(),
            finished: std::mem::take(&mut self.held),
            unavailable_reason: None,
            slots: None,
            offer: None,
            metrics: serde_json::Map::new(),
            check: None,
            draining: false,
            service_restarts: None,
        };
        let event = PlaneEvent::Beat {
            worker: self.worker.clone(),
            token_hash: Hash::digest(b"t"),
            beat: Box::new(beat),
            long_poll: false,
        };
        match self.plane.step(self.now, event).answer {
            Ok(PlaneAnswer::Reply(reply)) => {
                self.held = reply.start.iter().map(|start| done(start.job, start.attempt)).collect();
                Ok(self.held.len() as u64)
            }
            other => bail!("the beat was answered {other:?}"),
        }
    }
}

fn done(job: JobId, attempt: remuda_core::id::Attempt) -> FinishedAttempt {
    FinishedAttempt {
        job,
        attempt,
        outcome: AttemptOutcome::Completed,
        result: None,
        cause: None,
        fault: None,
        node: None,
        shortage: None,
        recovered: false,
        message: String::new(),
    }
}
