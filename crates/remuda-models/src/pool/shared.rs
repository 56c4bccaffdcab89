//! The supervisor's state behind a lock, and the execution of its effects.
//!
//! Quick effects run under the lock, so that they happen in the order they were decided: queueing an order, setting a
//! stop flag, answering a caller. Starting copies and writing files happen after the lock is released.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::broadcast;
use tracing::{error, info, warn};

use super::answer_handle::AnswerSender;
use super::copy_handle::{CopyHandle, CopyOrder};
use super::ping::{Nonce, PingTable};
use super::process::Process;
use super::{Escalation, ModelRuntime};
use crate::beacon::Beacon;
use crate::failure::ModelError;
use crate::request::{AnswerUpdate, ModelAnswer, PartAnswer, RequestPart};
use crate::supervisor::{
    CopyId, ExitReason, RequestId, RunId, Supervisor, SupervisorEffect, SupervisorEvent,
};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, thread, wait, wait_for};

pub(crate) struct PoolShared {
    state: Mutex<State>,
    /// Wakes the supervisor thread when something is due earlier than it planned.
    supervisor_wake: Condvar,
    /// Notified on every pong.
    pub(super) ponged: Condvar,
    /// Notified when the pool is closed.
    pub(super) ended: Condvar,
    since: Instant,
    pub(super) escalations: broadcast::Sender<Escalation>,
}

pub(super) struct State {
    pub(super) supervisor: Supervisor,
    pub(super) copies: BTreeMap<CopyId, CopyHandle>,
    pub(super) served: BTreeMap<Arc<str>, Arc<ModelRuntime>>,
    pub(super) pings: PingTable,
    waiting: BTreeMap<RequestId, AnswerSender>,
    last_request: u64,
    /// When the supervisor thread will wake up.
    sleeps_until: Duration,
    deferred: Vec<DeferredEffect>,
}

/// Effects that run without the lock.
enum DeferredEffect {
    Start(CopyId, Arc<ModelRuntime>, Beacon),
    Remember(Arc<ModelRuntime>, PartAnswer),
}

impl PoolShared {
    pub(super) fn new(supervisor: Supervisor) -> Self {
        PoolShared {
            state: Mutex::new(State {
                supervisor,
                copies: BTreeMap::new(),
                served: BTreeMap::new(),
                pings: PingTable::default(),
                waiting: BTreeMap::new(),
                last_request: 0,
                sleeps_until: Duration::ZERO,
                deferred: Vec::new(),
            }),
            supervisor_wake: Condvar::new(),
            ponged: Condvar::new(),
            ended: Condvar::new(),
            since: Instant::now(),
            escalations: broadcast::channel(ESCALATIONS_MAX).0,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// Converts to the supervisor's clock.
    pub(super) fn at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.since)
    }

    /// Feeds an event to the supervisor and runs the effects.
    pub(super) fn apply(self: &Arc<Self>, event: SupervisorEvent) {
        let mut state = self.state();
        self.step(&mut state, event);
        let deferred = self.take_deferred(&mut state);
        drop(state);
        self.run_deferred(deferred);
    }

    /// Returns the time of the step.
    fn step(&self, state: &mut State, event: SupervisorEvent) -> Duration {
        let now = self.now();
        for effect in state.supervisor.step(now, event) {
            self.run_effect(state, effect);
        }
        if state.supervisor.wake_at(now) < state.sleeps_until || state.supervisor.is_closed() {
            self.supervisor_wake.notify_all();
        }
        now
    }

    fn run_effect(&self, state: &mut State, effect: SupervisorEffect) {
        match effect {
            SupervisorEffect::Start { copy, model } => {
                let Some(runtime) = state.served.get(&model) else { return };
                let handle = CopyHandle::default();
                state.deferred.push(DeferredEffect::Start(copy, Arc::clone(runtime), handle.beacon.clone()));
                state.copies.insert(copy, handle);
            }
            SupervisorEffect::Run { copy, run, parts } => {
                state.order(copy, CopyOrder::Run { run, parts, is_stopped: false });
            }
            SupervisorEffect::Stop { copy, run } => state.stop(copy, run),
            SupervisorEffect::Quit(copy) => state.quit(copy),
            SupervisorEffect::Kill(copy) => {
                state.quit(copy);
                let process = state.copies.get(&copy).and_then(|handle| handle.process.as_ref());
                process.inspect(|process| process.kill());
            }
            SupervisorEffect::Stream { request, update } => {
                if let Some(waiting) = state.waiting.get(&request) {
                    drop(waiting.updates.send(update));
                }
            }
            SupervisorEffect::Answer { request, answer } => {
                if let Some(waiting) = state.waiting.remove(&request) {
                    drop(waiting.answer.send(answer));
                }
            }
            SupervisorEffect::Removed { copy, model, why: ExitReason::Requested } => {
                info!(worker_id = copy.0, model_key = &*model, "copy ended on request");
            }
            SupervisorEffect::Removed { copy, model, why } => {
                warn!(worker_id = copy.0, model_key = &*model, %why, "removed a dead copy");
            }
            SupervisorEffect::StoreReference { model, answer } => {
                let runtime = state.served.get(&model).map(Arc::clone);
                state.deferred.extend(runtime.map(|runtime| DeferredEffect::Remember(runtime, answer)));
            }
            SupervisorEffect::Escalate { model, why } => {
                error!(model_key = &*model, why, "model cannot be kept alive; its owner has to act");
                drop(self.escalations.send(Escalation { model: model.to_string(), why }));
            }
        }
    }

    fn take_deferred(&self, state: &mut State) -> Vec<DeferredEffect> {
        std::mem::take(&mut state.deferred)
    }

    fn run_deferred(self: &Arc<Self>, deferred: Vec<DeferredEffect>) {
        for effect in deferred {
            match effect {
                DeferredEffect::Start(copy, runtime, beacon) => self.start(copy, runtime, beacon),
                DeferredEffect::Remember(runtime, answer) => runtime.store_reference(&answer),
            }
        }
    }

    fn start(self: &Arc<Self>, copy: CopyId, runtime: Arc<ModelRuntime>, beacon: Beacon) {
        let shared = Arc::clone(self);
        let name = format!("{}-{copy}", runtime.spec.name);
        let body = move || runtime.run(&shared, copy, &beacon);
        match thread::Builder::new().name(name).spawn(body) {
            Ok(thread) => {
                if let Some(handle) = self.state().copies.get_mut(&copy) {
                    handle.thread = Some(thread);
                }
                self.supervisor_wake.notify_all();
            }
            Err(error) => {
                self.apply(SupervisorEvent::Died {
                    copy,
                    why: ExitReason::Exited(format!("thread could not be started: {error}")),
                });
                self.apply(SupervisorEvent::Reaped(copy));
            }
        }
    }

    /// Reports the exit of a copy after everything it owned was dropped.
    pub(super) fn copy_ended(self: &Arc<Self>, copy: CopyId, why: ExitReason) {
        self.apply(SupervisorEvent::Died { copy, why });
        if let Some(handle) = self.state().copies.get_mut(&copy) {
            handle.has_ended = true;
        }
        self.supervisor_wake.notify_all();
    }

    /// Blocks until there is an order.
    pub(super) fn next_order(&self, copy: CopyId) -> CopyOrder {
        let mut state = self.state();
        loop {
            let Some(handle) = state.copies.get_mut(&copy) else { return CopyOrder::Quit };
            if let Some(order) = handle.orders.pop_front() {
                match &order {
                    CopyOrder::Run { is_stopped: false, .. } => handle.beacon.resume(),
                    CopyOrder::Run { is_stopped: true, .. } | CopyOrder::Quit => handle.beacon.stop(),
                    CopyOrder::Stop(_) | CopyOrder::Ping(_) => {}
                }
                return order;
            }
            let came = Arc::clone(&handle.order_added);
            state = wait(&came, state);
        }
    }

    /// Forwards an update if the run is current and the caller listens. A caller that waits only for the complete
    /// answer is not bound to the text of a dead copy.
    pub(super) fn stream(self: &Arc<Self>, copy: CopyId, run: RunId, update: AnswerUpdate) {
        let mut state = self.state();
        let request = state.supervisor.streaming_request(copy, run);
        let waiting = request.and_then(|request| state.waiting.get(&request));
        if waiting.is_none_or(|waiting| waiting.updates.is_closed()) {
            return;
        }
        self.step(&mut state, SupervisorEvent::Streamed { copy, run, update });
        let deferred = self.take_deferred(&mut state);
        drop(state);
        self.run_deferred(deferred);
    }

    /// Submits a request; an immediate refusal is returned as the error.
    pub(super) fn submit(
        self: &Arc<Self>,
        model: Arc<str>,
        parts: Vec<RequestPart>,
        deadline: Option<Duration>,
        updates: tokio::sync::mpsc::UnboundedSender<AnswerUpdate>,
    ) -> Result<(RequestId, AnswerReceiver), ModelError> {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        let mut state = self.state();
        state.last_request += 1;
        let request = RequestId(state.last_request);
        state.waiting.insert(request, AnswerSender { answer, updates });
        self.step(&mut state, SupervisorEvent::Submit { request, model, parts, deadline });
        let deferred = self.take_deferred(&mut state);
        let is_waiting = state.waiting.contains_key(&request);
        drop(state);
        self.run_deferred(deferred);
        if !is_waiting {
            let (again, receiver) = tokio::sync::oneshot::channel();
            match answered.try_recv() {
                Ok(Err(refusal)) => return Err(refusal),
                Ok(answer) => drop(again.send(answer)),
                Err(_) => {}
            }
            answered = receiver;
        }
        Ok((request, answered))
    }

    pub(super) fn cancel(self: &Arc<Self>, request: RequestId) {
        let is_waited_for = self.state().waiting.remove(&request).is_some();
        if is_waited_for {
            self.apply(SupervisorEvent::Cancel(request));
        }
    }

    /// Reads beacons, reaps ended copies and sleeps until something is due. False when the pool is closed.
    pub(super) fn supervise_once(self: &Arc<Self>) -> bool {
        let finished = self.state().finished();
        for (copy, handle) in finished {
            // The copy has reported its exit and the thread is finished, so this does not block.
            drop(handle.join());
            self.apply(SupervisorEvent::Reaped(copy));
            self.state().copies.remove(&copy);
        }
        let mut state = self.state();
        for copy in state.supervisor.watched().collect::<Vec<_>>() {
            self.read_beacon(&mut state, copy);
        }
        // Something may become due between this step and the sleep, so the wake-up time is computed from this step's
        // clock.
        let now = self.step(&mut state, SupervisorEvent::Tick);
        let deferred = self.take_deferred(&mut state);
        if !deferred.is_empty() {
            drop(state);
            self.run_deferred(deferred);
            state = self.state();
        }
        if state.is_closed() {
            self.ended.notify_all();
            return false;
        }
        let mut until = state.supervisor.wake_at(now);
        if state.copies.values().any(CopyHandle::is_finished) {
            return true;
        }
        if state.copies.values().any(|handle| handle.has_ended) {
            until = until.min(now + JOIN_EVERY);
        }
        state.sleeps_until = until;
        state = wait_for(&self.supervisor_wake, state, until.saturating_sub(self.now()));
        state.sleeps_until = Duration::ZERO;
        true
    }

    pub(super) fn read_beacon(&self, state: &mut State, copy: CopyId) {
        let Some(handle) = state.copies.get_mut(&copy) else { return };
        let steps = handle.beacon.steps();
        // One ping at a time, so that a child answering late on an overloaded machine still reports its steps.
        let is_open = handle.pinged.is_some_and(|nonce| state.pings.is_open(nonce));
        if handle.process.is_some() && !is_open {
            handle.pinged.inspect(|nonce| state.pings.close(*nonce));
            let nonce = state.pings.open(copy);
            handle.pinged = Some(nonce);
            state.order(copy, CopyOrder::Ping(nonce));
        }
        self.step(state, SupervisorEvent::BeaconRead { copy, steps });
    }

    pub(super) fn attach_process(&self, copy: CopyId, process: Arc<Process>) {
        if let Some(handle) = self.state().copies.get_mut(&copy) {
            handle.process = Some(process);
        }
    }

    pub(super) fn pong(&self, copy: CopyId, nonce: Nonce, beacon: &Beacon, steps: u64) {
        if self.state().pings.answer(copy, nonce) {
            beacon.store_steps(steps);
            self.ponged.notify_all();
        }
    }

    /// The child has ended, so the writing thread quits. True if the pool had asked it to quit.
    pub(super) fn child_ended(&self, copy: CopyId) -> bool {
        let mut state = self.state();
        let quit_requested = state.copies.get(&copy).is_some_and(|handle| handle.quit_requested);
        state.quit(copy);
        quit_requested
    }
}

type AnswerReceiver = tokio::sync::oneshot::Receiver<Result<ModelAnswer, ModelError>>;

/// Larger than any expected lag; a receiver that lags more loses the oldest escalations.
const ESCALATIONS_MAX: usize = 64;
/// How often a thread that has reported its exit is polled until it can be joined.
const JOIN_EVERY: Duration = Duration::from_millis(1);

impl fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolShared").finish_non_exhaustive()
    }
}
