//! Every decision of the pool, as a pure state machine over copies, queues and requests.
//!
//! ```text
//!  something happened      what follows              make it so
//!  event, now ───────────▶ step ───────────────────▶ effects: start, run, stop, kill, answer, …
//!      ▲                   no clock, thread or lock       │
//!      └───────────────── results come back as events ◀───┘
//! ```
//!
//! Invariants after every step (checked by `tests/laws`): reserved memory never exceeds its limit; a part waits in one
//! queue, or is in flight in one live copy, or its request has ended; only tested copies get work; no request waits for
//! a model that will not be loaded.

mod exit;
mod memory;
mod model_copy;
mod outcome;
mod placement;
mod queue;
mod requests;
mod served_model;
mod snapshot;
mod streamed;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::memory::MemoryBudget;
pub use self::model_copy::ExitReason;
use self::model_copy::{BatchRun, CopyEvent, CopyState, ModelCopy};
use self::queue::QueuedPart;
use self::requests::{PendingRequest, PendingRequests};
use self::served_model::ServedModel;
pub(crate) use self::served_model::ServingConfig;
pub use self::snapshot::{CardSnapshot, CopySnapshot, ModelSnapshot, PoolSnapshot};
use crate::failure::{InferenceError, ModelError};
use crate::request::{AnswerUpdate, ModelAnswer, PartAnswer, RequestPart};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CopyId(pub(crate) u64);

/// A batch sent to a copy. Ids only increase, so answers to older runs are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunId(pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestId(pub(crate) u64);

impl std::fmt::Display for CopyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SupervisorLimits {
    pub(crate) memory_bytes: u64,
    pub(crate) queue_tokens_max: usize,
    pub(crate) queue_bytes_max: usize,
    /// Deaths in a row before a slot is given up for now and an escalation is sent.
    pub(crate) deaths_max: u32,
    /// The pause before a given-up slot is tried again, for as long as the pool runs.
    pub(crate) crash_loop_pause: Duration,
    /// How long a request waits for a model that has no copy but is about to start one.
    pub(crate) copy_wait_max: Duration,
    pub(crate) maintenance_every: Duration,
    pub(crate) idle_max: Option<Duration>,
}

#[derive(Debug)]
pub(crate) enum SupervisorEvent {
    AddModel(ServingConfig),
    Submit {
        request: RequestId,
        model: Arc<str>,
        parts: Vec<RequestPart>,
        deadline: Option<Duration>,
    },
    Cancel(RequestId),
    Loaded(CopyId),
    /// The copy emitted an update and the caller listens.
    Streamed {
        copy: CopyId,
        run: RunId,
        update: AnswerUpdate,
    },
    Finished {
        copy: CopyId,
        run: RunId,
        outcome: Result<Vec<PartAnswer>, InferenceError>,
    },
    Died {
        copy: CopyId,
        why: ExitReason,
    },
    /// The thread has joined or the process was reaped.
    Reaped(CopyId),
    /// The supervisor thread read the copy's beacon.
    BeaconRead {
        copy: CopyId,
        steps: u64,
    },
    /// The copy did not answer a ping.
    PingUnanswered(CopyId),
    Tick,
    Close {
        until: Duration,
    },
}

#[derive(Debug)]
pub(crate) enum SupervisorEffect {
    Start {
        copy: CopyId,
        model: Arc<str>,
    },
    Run {
        copy: CopyId,
        run: RunId,
        parts: Vec<Arc<RequestPart>>,
    },
    Stop {
        copy: CopyId,
        run: RunId,
    },
    /// End once the current work is done.
    Quit(CopyId),
    /// End now.
    Kill(CopyId),
    /// The part of an update the caller has not seen.
    Stream {
        request: RequestId,
        update: AnswerUpdate,
    },
    Answer {
        request: RequestId,
        answer: Result<ModelAnswer, ModelError>,
    },
    /// The copy gets no more work.
    Removed {
        copy: CopyId,
        model: Arc<str>,
        why: ExitReason,
    },
    /// The first answer to the golden request; later copies are compared with it.
    StoreReference {
        model: Arc<str>,
        answer: PartAnswer,
    },
    Escalate {
        model: Arc<str>,
        why: String,
    },
}

#[derive(Debug)]
pub(crate) struct Supervisor {
    limits: SupervisorLimits,
    served: BTreeMap<Arc<str>, ServedModel>,
    copies: BTreeMap<CopyId, ModelCopy>,
    requests: PendingRequests,
    memory: MemoryBudget,
    last_copy: u64,
    last_run: u64,
    maintained_at: Duration,
    closes_at: Option<Duration>,
    /// Answers to runs that were no longer current.
    stale: u64,
    effects: Vec<SupervisorEffect>,
}

impl Supervisor {
    pub(crate) fn new(limits: SupervisorLimits) -> Self {
        Supervisor {
            memory: MemoryBudget::new(limits.memory_bytes),
            limits,
            served: BTreeMap::new(),
            copies: BTreeMap::new(),
            requests: PendingRequests::default(),
            last_copy: 0,
            last_run: 0,
            maintained_at: Duration::ZERO,
            closes_at: None,
            stale: 0,
            effects: Vec::new(),
        }
    }

    pub(crate) fn step(&mut self, now: Duration, event: SupervisorEvent) -> Vec<SupervisorEffect> {
        match event {
            SupervisorEvent::AddModel(terms) => {
                if let Some(bytes) = terms.device_bytes {
                    self.memory.extend(terms.device, bytes);
                }
                self.served.insert(Arc::clone(&terms.model), ServedModel::new(terms, now));
            }
            SupervisorEvent::Submit { request, model, parts, deadline } => {
                self.submit(now, request, model, parts, deadline);
            }
            SupervisorEvent::Cancel(request) => self.cancel(request),
            SupervisorEvent::Loaded(copy) => self.loaded(now, copy),
            SupervisorEvent::Streamed { copy, run, update } => self.streamed(copy, run, update),
            SupervisorEvent::Finished { copy, run, outcome } => self.done(now, copy, run, outcome),
            SupervisorEvent::Died { copy, why } => self.mark_dead(now, copy, why),
            SupervisorEvent::Reaped(copy) => self.reaped(now, copy),
            SupervisorEvent::BeaconRead { copy, steps } => self.beacon_read(now, copy, steps),
            SupervisorEvent::PingUnanswered(copy) => self.ping_unanswered(now, copy),
            SupervisorEvent::Tick => self.maintain(now),
            SupervisorEvent::Close { until } => {
                self.closes_at = Some(self.closes_at.map_or(until, |at| at.min(until)));
            }
        }
        self.reconcile(now);
        std::mem::take(&mut self.effects)
    }

    /// Brings everything in line with the current state, whichever event changed it.
    fn reconcile(&mut self, now: Duration) {
        for request in self.requests.late(now) {
            let Some(pending) = self.requests.get(request) else { continue };
            let model = pending.model.to_string();
            self.answer(request, Err(ModelError::Deadline { model }));
        }
        let models: Vec<Arc<str>> = self.served.keys().cloned().collect();
        for model in &models {
            self.dispatch(now, model);
        }
        if let Some(until) = self.closes_at {
            return self.drain_all(now, until);
        }
        for model in &models {
            self.start_missing_copies(now, model);
            self.fail_unservable(now, model);
        }
    }

    fn submit(
        &mut self,
        now: Duration,
        request: RequestId,
        model: Arc<str>,
        parts: Vec<RequestPart>,
        deadline: Option<Duration>,
    ) {
        let refusal = self.refusal(&model, &parts);
        let Some(served) = self.served.get_mut(&model) else { return };
        if let Some(refusal) = refusal {
            served.counters.refused += 1;
            return self.effects.push(SupervisorEffect::Answer { request, answer: Err(refusal) });
        }
        served.used_at = now;
        let tokens: Vec<usize> = parts.iter().map(RequestPart::tokens).collect();
        let mut pending = PendingRequest::new(model, now, deadline, &tokens);
        for (index, part) in parts.into_iter().enumerate() {
            pending.waiting.insert(served.queue.push_back(QueuedPart::new(request, index, part)));
        }
        if let Some(answer) = pending.whole() {
            return self.effects.push(SupervisorEffect::Answer { request, answer: Ok(answer) });
        }
        self.requests.insert(request, pending);
    }

    fn refusal(&self, model: &Arc<str>, parts: &[RequestPart]) -> Option<ModelError> {
        if self.closes_at.is_some() {
            return Some(ModelError::Closing);
        }
        let served = self.served.get(model)?;
        let tokens: usize = parts.iter().map(|part| part.tokens().max(1)).sum();
        let bytes: usize = parts.iter().map(RequestPart::bytes).sum();
        let (tokens_max, bytes_max) = (self.limits.queue_tokens_max, self.limits.queue_bytes_max);
        if tokens > tokens_max || bytes > bytes_max {
            let limits =
                format!("{tokens} tokens in {bytes} bytes; {model} takes {tokens_max} in {bytes_max}");
            return Some(ModelError::Input(format!("larger than the queue: {limits}")));
        }
        let is_full = served.queue.tokens() + tokens > tokens_max || served.queue.bytes() + bytes > bytes_max;
        let copies = served.slots.iter().filter(|slot| slot.copy.is_some()).count();
        let retry_after = served.retry_after(tokens, copies);
        is_full.then(|| ModelError::Full { model: model.to_string(), retry_after })
    }

    /// Sends queued parts to ready copies.
    fn dispatch(&mut self, now: Duration, model: &Arc<str>) {
        loop {
            let Some(served) = self.served.get_mut(model) else { return };
            let Some(avoid) = served.queue.first().map(|item| item.avoid) else { return };
            let ready = served.slots.iter().filter_map(|slot| self.copies.get(&slot.copy?));
            let ready = ready.filter(|copy| copy.is_ready());
            let chosen = ready.min_by_key(|copy| (Some(copy.id) == avoid, copy.idle_since, copy.id));
            let Some(id) = chosen.map(|copy| copy.id) else { return };
            let mut items = Vec::new();
            for (place, item) in served.queue.cut(served.config.batching) {
                if let Some(pending) = self.requests.get_mut(item.request) {
                    pending.waiting.remove(&place);
                }
                items.push(item);
            }
            let run = self.next_run();
            let parts = items.iter().map(|item| Arc::clone(&item.part)).collect();
            let Some(copy) = self.copies.get_mut(&id) else { return };
            copy.reset_silence(now);
            copy.apply(CopyEvent::Start(BatchRun {
                id: run,
                since: now,
                items,
                streamed_bytes: 0,
                is_stopped: false,
            }));
            self.effects.push(SupervisorEffect::Run { copy: id, run, parts });
        }
    }

    fn loaded(&mut self, now: Duration, id: CopyId) {
        if self.copies.get(&id).is_some_and(|copy| matches!(copy.state(), CopyState::Loading)) {
            self.self_test(now, id);
        }
    }

    /// Sends the golden request; the copy gets no other work until it has answered.
    fn self_test(&mut self, now: Duration, id: CopyId) {
        let run = self.next_run();
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let Some(served) = self.served.get(&copy.model) else { return };
        copy.reset_silence(now);
        copy.apply(CopyEvent::Test(run));
        let parts = vec![Arc::new(served.config.golden.clone())];
        self.effects.push(SupervisorEffect::Run { copy: id, run, parts });
    }

    fn beacon_read(&mut self, now: Duration, id: CopyId, steps: u64) {
        let interval_max = self.beacon_read_interval() * 2;
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let Some(served) = self.served.get(&copy.model) else { return };
        copy.beacon_read(now, steps, interval_max);
        let stall_max = match copy.state() {
            CopyState::Loading => served.config.load_stall_max,
            CopyState::Testing(_)
            | CopyState::Ready
            | CopyState::Busy(_)
            | CopyState::Draining(_)
            | CopyState::Dead(_) => served.config.stall_max,
        };
        if copy.is_watched() && copy.silent > stall_max {
            let why = ExitReason::Hung(copy.silent);
            self.kill_copy(now, id, why);
        }
    }

    /// An unanswered ping is no verdict, because an overloaded machine answers late. The copy is tested with the golden
    /// request and gets no work until it has passed.
    fn ping_unanswered(&mut self, now: Duration, id: CopyId) {
        if self.copies.get(&id).is_some_and(ModelCopy::is_ready) {
            self.self_test(now, id);
        }
    }

    /// Tests idle copies with the golden request, and drains copies unused for too long.
    fn maintain(&mut self, now: Duration) {
        if now < self.maintained_at + self.limits.maintenance_every {
            return;
        }
        self.maintained_at = now;
        let is_idle = |copy: &&ModelCopy| copy.is_ready() && self.served[&copy.model].queue.is_empty();
        let idle: Vec<CopyId> = self.copies.values().filter(is_idle).map(|copy| copy.id).collect();
        for id in idle {
            let model = Arc::clone(&self.copies[&id].model);
            let others = self.copies.values().filter(|copy| copy.model == model);
            let is_one_testing = others.clone().any(|copy| matches!(copy.state(), CopyState::Testing(_)));
            let unused = now.saturating_sub(self.served[&model].used_at);
            let is_due = now.saturating_sub(self.copies[&id].tested_at) >= self.limits.maintenance_every
                && !is_one_testing;
            if self.limits.idle_max.is_some_and(|max| unused >= max) {
                self.drain(now, id);
            } else if is_due {
                self.self_test(now, id);
            }
        }
    }

    fn next_run(&mut self) -> RunId {
        self.last_run += 1;
        RunId(self.last_run)
    }
}
