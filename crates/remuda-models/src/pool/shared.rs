//! The roster, shared: a lock around its steps, and the hands that carry out what it decides.
//!
//! Everything quick is done with the lock held, so that it happens in the order in which it was decided: an order is put
//! into a seat, a stop is set, a ticket is answered. Starting somebody and writing files come after it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::broadcast;
use tracing::{error, info, warn};

use super::ping::{Nonce, Pings};
use super::process::Process;
use super::seat::{Order, Seat};
use super::ticket::Waiting;
use super::{Escalation, Serving};
use crate::beacon::Beacon;
use crate::failure::PoolError;
use crate::request::{Answer, Part, PartAnswer, Piece};
use crate::roster::{CopyId, Effect, Event, RequestId, Roster, RunId, Why};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, thread, wait, wait_for};

pub(crate) struct Shared {
    state: Mutex<State>,
    /// The supervisor's, for when something is due earlier than it thinks.
    turn: Condvar,
    /// Whoever waits for a pong.
    pub(super) ponged: Condvar,
    /// Whoever waits for the end.
    pub(super) ended: Condvar,
    since: Instant,
    pub(super) escalations: broadcast::Sender<Escalation>,
}

pub(super) struct State {
    pub(super) roster: Roster,
    pub(super) seats: BTreeMap<CopyId, Seat>,
    pub(super) served: BTreeMap<Arc<str>, Arc<Serving>>,
    pub(super) pings: Pings,
    waiting: BTreeMap<RequestId, Waiting>,
    last_request: u64,
    /// Until when the supervisor sleeps.
    sleeps_until: Duration,
    chores: Vec<Chore>,
}

/// What is done without the lock.
enum Chore {
    Start(CopyId, Arc<Serving>, Beacon),
    Remember(Arc<Serving>, PartAnswer),
}

impl Shared {
    pub(super) fn new(roster: Roster) -> Self {
        Shared {
            state: Mutex::new(State {
                roster,
                seats: BTreeMap::new(),
                served: BTreeMap::new(),
                pings: Pings::default(),
                waiting: BTreeMap::new(),
                last_request: 0,
                sleeps_until: Duration::ZERO,
                chores: Vec::new(),
            }),
            turn: Condvar::new(),
            ponged: Condvar::new(),
            ended: Condvar::new(),
            since: Instant::now(),
            escalations: broadcast::channel(ESCALATIONS_KEPT).0,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// On the roster's clock.
    pub(super) fn at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.since)
    }

    /// Something happened: decide what follows, and do it.
    pub(super) fn apply(self: &Arc<Self>, event: Event) {
        let mut state = self.state();
        self.step(&mut state, event);
        let chores = self.take_chores(&mut state);
        drop(state);
        self.do_chores(chores);
    }

    /// On which moment it was decided.
    fn step(&self, state: &mut State, event: Event) -> Duration {
        let now = self.now();
        for effect in state.roster.step(now, event) {
            self.carry_out(state, effect);
        }
        if state.roster.wake_at(now) < state.sleeps_until || state.roster.is_over() {
            self.turn.notify_all();
        }
        now
    }

    fn carry_out(&self, state: &mut State, effect: Effect) {
        match effect {
            Effect::Start { copy, model } => {
                let Some(serving) = state.served.get(&model) else { return };
                let seat = Seat::default();
                state.chores.push(Chore::Start(copy, Arc::clone(serving), seat.beacon.clone()));
                state.seats.insert(copy, seat);
            }
            Effect::Run { copy, run, parts } => {
                state.order(copy, Order::Run { run, parts, is_stopped: false });
            }
            Effect::Stop { copy, run } => state.stop(copy, run),
            Effect::Quit(copy) => state.quit(copy),
            Effect::Kill(copy) => {
                state.quit(copy);
                let process = state.seats.get(&copy).and_then(|seat| seat.process.as_ref());
                process.inspect(|process| process.kill());
            }
            Effect::Say { request, piece } => {
                if let Some(waiting) = state.waiting.get(&request) {
                    drop(waiting.pieces.send(piece));
                }
            }
            Effect::Answer { request, answer } => {
                if let Some(waiting) = state.waiting.remove(&request) {
                    drop(waiting.answer.send(answer));
                }
            }
            Effect::Removed { copy, model, why: Why::Told } => {
                info!(worker_id = copy.0, model_key = &*model, "a copy has ended as it was told");
            }
            Effect::Removed { copy, model, why } => {
                warn!(worker_id = copy.0, model_key = &*model, %why, "removed a dead copy");
            }
            Effect::Remember { model, answer } => {
                let serving = state.served.get(&model).map(Arc::clone);
                state.chores.extend(serving.map(|serving| Chore::Remember(serving, answer)));
            }
            Effect::Escalate { model, why } => {
                error!(model_key = &*model, why, "a model cannot be kept alive from here");
                drop(self.escalations.send(Escalation { model: model.to_string(), why }));
            }
        }
    }

    fn take_chores(&self, state: &mut State) -> Vec<Chore> {
        std::mem::take(&mut state.chores)
    }

    fn do_chores(self: &Arc<Self>, chores: Vec<Chore>) {
        for chore in chores {
            match chore {
                Chore::Start(copy, serving, beacon) => self.start(copy, serving, beacon),
                Chore::Remember(serving, answer) => serving.remember(&answer),
            }
        }
    }

    fn start(self: &Arc<Self>, copy: CopyId, serving: Arc<Serving>, beacon: Beacon) {
        let shared = Arc::clone(self);
        let name = format!("{}-{copy}", serving.spec.name);
        let body = move || serving.run(&shared, copy, &beacon);
        match thread::Builder::new().name(name).spawn(body) {
            Ok(handle) => {
                if let Some(seat) = self.state().seats.get_mut(&copy) {
                    seat.handle = Some(handle);
                }
                self.turn.notify_all();
            }
            Err(error) => {
                self.apply(Event::Died { copy, why: Why::Exited(format!("no thread: {error}")) });
                self.apply(Event::Gone(copy));
            }
        }
    }

    /// The last word of whoever runs a copy: everything it had is dropped.
    pub(super) fn last_word(self: &Arc<Self>, copy: CopyId, why: Why) {
        self.apply(Event::Died { copy, why });
        if let Some(seat) = self.state().seats.get_mut(&copy) {
            seat.has_ended = true;
        }
        self.turn.notify_all();
    }

    /// Waits for something to do.
    pub(super) fn take(&self, copy: CopyId) -> Order {
        let mut state = self.state();
        loop {
            let Some(seat) = state.seats.get_mut(&copy) else { return Order::Quit };
            if let Some(order) = seat.orders.pop_front() {
                match &order {
                    Order::Run { is_stopped: false, .. } => seat.beacon.resume(),
                    Order::Run { is_stopped: true, .. } | Order::Quit => seat.beacon.stop(),
                    Order::Stop(_) | Order::Ping(_) => {}
                }
                return order;
            }
            let came = Arc::clone(&seat.came);
            state = wait(&came, state);
        }
    }

    /// A piece of an answer, if the copy is still believed and anybody listens: who waits for the whole alone is bound to
    /// none of its words.
    pub(super) fn say(self: &Arc<Self>, copy: CopyId, run: RunId, piece: Piece) {
        let mut state = self.state();
        let request = state.roster.hears(copy, run);
        let waiting = request.and_then(|request| state.waiting.get(&request));
        if waiting.is_none_or(|waiting| waiting.pieces.is_closed()) {
            return;
        }
        self.step(&mut state, Event::Said { copy, run, piece });
        let chores = self.take_chores(&mut state);
        drop(state);
        self.do_chores(chores);
    }

    /// The number of the request, or why it is refused at once.
    pub(super) fn ask(
        self: &Arc<Self>,
        model: Arc<str>,
        parts: Vec<Part>,
        deadline: Option<Duration>,
        pieces: tokio::sync::mpsc::UnboundedSender<Piece>,
    ) -> Result<(RequestId, Answering), PoolError> {
        let (answer, mut answered) = tokio::sync::oneshot::channel();
        let mut state = self.state();
        state.last_request += 1;
        let request = RequestId(state.last_request);
        state.waiting.insert(request, Waiting { answer, pieces });
        self.step(&mut state, Event::Ask { request, model, parts, deadline });
        let chores = self.take_chores(&mut state);
        let is_waiting = state.waiting.contains_key(&request);
        drop(state);
        self.do_chores(chores);
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
            self.apply(Event::Cancel(request));
        }
    }

    /// Reads beacons, buries who has ended, and sleeps until something is due; false when all is over.
    pub(super) fn watch_once(self: &Arc<Self>) -> bool {
        let finished = self.state().finished();
        for (copy, handle) in finished {
            // It has said its last word, and is_finished has seen it off: this does not wait.
            drop(handle.join());
            self.apply(Event::Gone(copy));
            self.state().seats.remove(&copy);
        }
        let mut state = self.state();
        for copy in state.roster.watched().collect::<Vec<_>>() {
            self.look(&mut state, copy);
        }
        // What falls due between this moment and the sleep must not be slept over.
        let now = self.step(&mut state, Event::Tick);
        let chores = self.take_chores(&mut state);
        if !chores.is_empty() {
            drop(state);
            self.do_chores(chores);
            state = self.state();
        }
        if state.is_over() {
            self.ended.notify_all();
            return false;
        }
        let mut until = state.roster.wake_at(now);
        if state.seats.values().any(Seat::is_finished) {
            return true;
        }
        if state.seats.values().any(|seat| seat.has_ended) {
            until = until.min(now + JOIN_EVERY);
        }
        state.sleeps_until = until;
        state = wait_for(&self.turn, state, until.saturating_sub(self.now()));
        state.sleeps_until = Duration::ZERO;
        true
    }

    pub(super) fn look(&self, state: &mut State, copy: CopyId) {
        let Some(seat) = state.seats.get_mut(&copy) else { return };
        let steps = seat.beacon.steps();
        // One question at a time: a child that answers late on a starved machine still tells of its steps.
        let is_open = seat.pinged.is_some_and(|nonce| state.pings.is_open(nonce));
        if seat.process.is_some() && !is_open {
            seat.pinged.inspect(|nonce| state.pings.close(*nonce));
            let nonce = state.pings.ask(copy);
            seat.pinged = Some(nonce);
            state.order(copy, Order::Ping(nonce));
        }
        self.step(state, Event::Looked { copy, steps });
    }

    pub(super) fn seat(&self, copy: CopyId, process: Arc<Process>) {
        if let Some(seat) = self.state().seats.get_mut(&copy) {
            seat.process = Some(process);
        }
    }

    pub(super) fn pong(&self, copy: CopyId, nonce: Nonce, beacon: &Beacon, steps: u64) {
        if self.state().pings.answer(copy, nonce) {
            beacon.heard(steps);
            self.ponged.notify_all();
        }
    }

    /// Its child has ended: who writes to it is done. True if it had been told to end.
    pub(super) fn dismiss(&self, copy: CopyId) -> bool {
        let mut state = self.state();
        let is_told = state.seats.get(&copy).is_some_and(|seat| seat.is_told);
        state.quit(copy);
        is_told
    }
}

type Answering = tokio::sync::oneshot::Receiver<Result<Answer, PoolError>>;

/// More than anybody falls behind with; who does misses the oldest.
const ESCALATIONS_KEPT: usize = 64;
/// How often a thread that has said its last word is looked at until it has joined.
const JOIN_EVERY: Duration = Duration::from_millis(1);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
