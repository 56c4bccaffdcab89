//! The workers of a story: they say what they hold, do as they are told, and report how it went.

use std::collections::BTreeMap;

use serde_json::Map;

use super::{PlaneAnswer, PlaneEvent, Story, id, json};
use crate::cause::Cause;
use crate::id::{Attempt, Hash, Incarnation, JobId, Term};
use crate::refusal::Refusal;
use crate::wire::{AttemptOutcome, Beat, BeatReply, FinishedAttempt, HeldAttempt, StartOrder};

/// What a worker of twenty lines remembers.
#[derive(Clone)]
pub(super) struct Hand {
    pub(super) incarnation: Incarnation,
    pub(super) term: Term,
    pub(super) seq: u64,
    pub(super) held: BTreeMap<JobId, HeldAttempt>,
    pub(super) token: &'static str,
    /// What the plane says does not arrive.
    pub(super) is_deaf: bool,
    /// What it says does not arrive.
    pub(super) is_mute: bool,
    /// It took something on and has not said so yet.
    pub(super) has_news: bool,
}

impl Hand {
    pub(super) fn new(incarnation: Incarnation, term: Term, token: &'static str) -> Self {
        Hand {
            incarnation,
            term,
            seq: 0,
            held: BTreeMap::new(),
            token,
            is_deaf: false,
            is_mute: false,
            has_news: false,
        }
    }
}

impl Story {
    pub(super) fn hand(&mut self, name: &str) -> &mut Hand {
        self.hands.get_mut(name).expect("it has joined")
    }

    /// The worker says what it holds and stays on the line for orders.
    pub(crate) fn poll(&mut self, name: &str) {
        let beat = self.beat_of(name);
        let _ = self.send(name, beat, true);
    }

    /// The worker says what it holds, and does as the reply says.
    pub(crate) fn beat(&mut self, name: &str) -> Result<BeatReply, Refusal> {
        let beat = self.beat_of(name);
        self.send(name, beat, false)
    }

    /// The next beat of this worker.
    pub(crate) fn beat_of(&mut self, name: &str) -> Beat {
        let hand = self.hand(name);
        hand.seq += 1;
        Beat {
            incarnation: hand.incarnation,
            seq: hand.seq,
            term: hand.term,
            held: hand.held.values().cloned().collect(),
            finished: Vec::new(),
            unavailable_reason: None,
            slots: None,
            offer: None,
            metrics: Map::new(),
            check: None,
            draining: false,
            service_restarts: None,
            probes: Default::default(),
        }
    }

    /// Sends a beat; one that was not taken for news is sent again under the new term, as the wire asks.
    pub(crate) fn send(&mut self, name: &str, mut beat: Beat, long_poll: bool) -> Result<BeatReply, Refusal> {
        if self.hand(name).is_mute {
            return Ok(BeatReply::default());
        }
        let token_hash = Hash::digest(self.hand(name).token.as_bytes());
        loop {
            let event =
                PlaneEvent::Beat { worker: id(name), token_hash, beat: Box::new(beat.clone()), long_poll };
            let reply = match self.step(event)? {
                PlaneAnswer::Reply(reply) => reply,
                PlaneAnswer::Pending => return Ok(BeatReply::default()),
                other => panic!("a beat is answered or held, not {other:?}"),
            };
            self.obey(name, &reply);
            if !reply.beat_again {
                self.speak();
                return Ok(reply);
            }
            let hand = self.hand(name);
            (hand.seq, hand.term) = (hand.seq + 1, reply.term);
            (beat.seq, beat.term) = (hand.seq, hand.term);
        }
    }

    pub(super) fn obey(&mut self, name: &str, reply: &BeatReply) {
        let hand = self.hand(name);
        if hand.is_deaf {
            return;
        }
        for cancel in &reply.cancel {
            hand.held.retain(|job, held| (*job, held.attempt) != (cancel.job, cancel.attempt));
        }
        for start in &reply.start {
            let StartOrder { job, attempt, .. } = *start;
            let held =
                HeldAttempt { job, attempt, progress: 0.0, step: 0, phase: String::new(), service: None };
            hand.held.insert(job, held);
            hand.has_news = true;
        }
    }

    pub(crate) fn complete(&mut self, name: &str, job: JobId) -> String {
        self.report(name, job, AttemptOutcome::Completed, None)
    }

    pub(crate) fn fail(&mut self, name: &str, job: JobId, cause: Cause) -> String {
        self.report(name, job, AttemptOutcome::Failed, Some(cause))
    }

    /// The worker says that what it held has ended; what the plane says to that.
    pub(super) fn report(
        &mut self,
        name: &str,
        job: JobId,
        outcome: AttemptOutcome,
        cause: Option<Cause>,
    ) -> String {
        let held = self.hand(name).held.remove(&job).expect("it holds the job");
        self.report_attempt(name, job, held.attempt, outcome, cause)
    }

    pub(super) fn report_attempt(
        &mut self,
        name: &str,
        job: JobId,
        attempt: Attempt,
        outcome: AttemptOutcome,
        cause: Option<Cause>,
    ) -> String {
        let mut beat = self.beat_of(name);
        beat.finished = vec![finished(job, attempt, outcome, cause)];
        let reply = self.send(name, beat, false).expect("a member may report");
        let [settled] = &reply.settled[..] else { panic!("every report is settled: {reply:?}") };
        // As agents do once the news is delivered.
        self.poll(name);
        settled.refused.clone().unwrap_or_else(|| "recorded".to_owned())
    }

    /// Workers confirm new attempts at once, as agents do.
    pub(super) fn speak(&mut self) {
        let news: Vec<_> =
            self.hands.iter().filter(|(_, hand)| hand.has_news).map(|(name, _)| name.clone()).collect();
        for name in news {
            self.hand(&name).has_news = false;
            self.poll(&name);
        }
    }
}

pub(super) fn finished(
    job: JobId,
    attempt: Attempt,
    outcome: AttemptOutcome,
    cause: Option<Cause>,
) -> FinishedAttempt {
    FinishedAttempt {
        job,
        attempt,
        outcome,
        result: Some(json("7")),
        cause,
        fault: None,
        node: None,
        shortage: None,
        recovered: false,
        message: "boom".to_owned(),
    }
}
