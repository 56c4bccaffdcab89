//! Who is there, who does what, and who waits for it: every decision of the pool, as a value.
//!
//! ```text
//!  something happened      what follows              make it so
//!  event, now ───────────▶ step ───────────────────▶ effects: start, run, stop, kill, answer, …
//!      ▲                   no clock, thread or lock       │
//!      └───────────────── results come back as events ◀───┘
//! ```
//!
//! What is held here holds after every step (`laws` says it as code): memory never exceeds its limit; a part waits in one
//! line or is in flight in one living copy, or its request has ended; only who has proved itself is given work; nobody
//! waits for a model that nobody is going to load.

mod asked;
mod copy;
mod death;
mod ledger;
mod line;
mod outcome;
mod room;
mod said;
mod served;
mod snapshot;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use self::asked::{Asked, Requests};
pub use self::copy::Why;
use self::copy::{Copy, Life, Run};
use self::ledger::Ledger;
use self::line::Item;
use self::served::Served;
pub(crate) use self::served::Terms;
pub use self::snapshot::{CardSnapshot, CopySnapshot, ModelSnapshot, Snapshot};
use crate::failure::{Failure, PoolError};
use crate::request::{Answer, Part, PartAnswer, Piece};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CopyId(pub(crate) u64);

/// A batch given to a copy; numbers only go up, so an answer to an older one is known as such.
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
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) queue_tokens_max: usize,
    pub(crate) queue_bytes_max: usize,
    /// Deaths in a row before a place is given up for now, and its owner told.
    pub(crate) deaths_max: u32,
    /// When it is tried again: by and by, for as long as the pool lives.
    pub(crate) parole: Duration,
    /// How long somebody waits for a model that has no copy and is about to have one.
    pub(crate) patience: Duration,
    pub(crate) maintenance_every: Duration,
    pub(crate) idle_max: Option<Duration>,
}

#[derive(Debug)]
pub(crate) enum Event {
    Serve(Terms),
    Ask {
        request: RequestId,
        model: Arc<str>,
        parts: Vec<Part>,
        deadline: Option<Duration>,
    },
    Cancel(RequestId),
    Loaded(CopyId),
    /// It says something of its answer, and somebody listens.
    Said {
        copy: CopyId,
        run: RunId,
        piece: Piece,
    },
    Done {
        copy: CopyId,
        run: RunId,
        outcome: Result<Vec<PartAnswer>, Failure>,
    },
    Died {
        copy: CopyId,
        why: Why,
    },
    /// Its thread has joined, or its process was reaped.
    Gone(CopyId),
    /// Its beacon was read.
    Looked {
        copy: CopyId,
        steps: u64,
    },
    /// It did not answer a ping.
    Doubted(CopyId),
    Tick,
    Close {
        until: Duration,
    },
}

#[derive(Debug)]
pub(crate) enum Effect {
    Start {
        copy: CopyId,
        model: Arc<str>,
    },
    Run {
        copy: CopyId,
        run: RunId,
        parts: Vec<Arc<Part>>,
    },
    Stop {
        copy: CopyId,
        run: RunId,
    },
    /// End when nothing is left to do.
    Quit(CopyId),
    /// End now, whatever it does.
    Kill(CopyId),
    /// That is new of the answer.
    Say {
        request: RequestId,
        piece: Piece,
    },
    Answer {
        request: RequestId,
        answer: Result<Answer, PoolError>,
    },
    /// It is given no more work.
    Removed {
        copy: CopyId,
        model: Arc<str>,
        why: Why,
    },
    /// The first answer to the known question, for the copies to come.
    Remember {
        model: Arc<str>,
        answer: PartAnswer,
    },
    Escalate {
        model: Arc<str>,
        why: String,
    },
}

#[derive(Debug)]
pub(crate) struct Roster {
    limits: Limits,
    served: BTreeMap<Arc<str>, Served>,
    copies: BTreeMap<CopyId, Copy>,
    requests: Requests,
    ledger: Ledger,
    last_copy: u64,
    last_run: u64,
    maintained_at: Duration,
    closes_at: Option<Duration>,
    /// Answers to what nobody had asked any more.
    stale: u64,
    effects: Vec<Effect>,
}

impl Roster {
    pub(crate) fn new(limits: Limits) -> Self {
        Roster {
            ledger: Ledger::new(limits.memory_bytes),
            limits,
            served: BTreeMap::new(),
            copies: BTreeMap::new(),
            requests: Requests::default(),
            last_copy: 0,
            last_run: 0,
            maintained_at: Duration::ZERO,
            closes_at: None,
            stale: 0,
            effects: Vec::new(),
        }
    }

    pub(crate) fn step(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        match event {
            Event::Serve(terms) => {
                if let Some(bytes) = terms.device_bytes {
                    self.ledger.extend(terms.device, bytes);
                }
                self.served.insert(Arc::clone(&terms.model), Served::new(terms, now));
            }
            Event::Ask { request, model, parts, deadline } => self.ask(now, request, model, parts, deadline),
            Event::Cancel(request) => self.cancel(request),
            Event::Loaded(copy) => self.loaded(now, copy),
            Event::Said { copy, run, piece } => self.said(copy, run, piece),
            Event::Done { copy, run, outcome } => self.done(now, copy, run, outcome),
            Event::Died { copy, why } => self.bury(now, copy, why),
            Event::Gone(copy) => self.gone(now, copy),
            Event::Looked { copy, steps } => self.looked(now, copy, steps),
            Event::Doubted(copy) => self.doubted(now, copy),
            Event::Tick => self.maintain(now),
            Event::Close { until } => self.closes_at = Some(self.closes_at.map_or(until, |at| at.min(until))),
        }
        self.settle(now);
        std::mem::take(&mut self.effects)
    }

    /// What follows from how things are, whatever brought it about.
    fn settle(&mut self, now: Duration) {
        for request in self.requests.late(now) {
            let Some(asked) = self.requests.get(request) else { continue };
            let model = asked.model.to_string();
            self.answer(request, Err(PoolError::Deadline { model }));
        }
        let models: Vec<Arc<str>> = self.served.keys().cloned().collect();
        for model in &models {
            self.deal(now, model);
        }
        if let Some(until) = self.closes_at {
            return self.wind_up(now, until);
        }
        for model in &models {
            self.fill(now, model);
            self.forsake(now, model);
        }
    }

    fn ask(
        &mut self,
        now: Duration,
        request: RequestId,
        model: Arc<str>,
        parts: Vec<Part>,
        deadline: Option<Duration>,
    ) {
        let refusal = self.refusal(&model, &parts);
        let Some(served) = self.served.get_mut(&model) else { return };
        if let Some(refusal) = refusal {
            served.tally.refused += 1;
            return self.effects.push(Effect::Answer { request, answer: Err(refusal) });
        }
        served.used_at = now;
        let tokens: Vec<usize> = parts.iter().map(Part::tokens).collect();
        let mut asked = Asked::new(model, now, deadline, &tokens);
        for (index, part) in parts.into_iter().enumerate() {
            asked.waiting.insert(served.line.push_back(Item::new(request, index, part)));
        }
        if let Some(answer) = asked.whole() {
            return self.effects.push(Effect::Answer { request, answer: Ok(answer) });
        }
        self.requests.insert(request, asked);
    }

    fn refusal(&self, model: &Arc<str>, parts: &[Part]) -> Option<PoolError> {
        if self.closes_at.is_some() {
            return Some(PoolError::Closing);
        }
        let served = self.served.get(model)?;
        let tokens: usize = parts.iter().map(|part| part.tokens().max(1)).sum();
        let bytes: usize = parts.iter().map(Part::bytes).sum();
        let (tokens_max, bytes_max) = (self.limits.queue_tokens_max, self.limits.queue_bytes_max);
        if tokens > tokens_max || bytes > bytes_max {
            let than = format!("{tokens} tokens in {bytes} bytes; {model} takes {tokens_max} in {bytes_max}");
            return Some(PoolError::Input(format!("more than can wait at once: {than}")));
        }
        let is_full = served.line.tokens() + tokens > tokens_max || served.line.bytes() + bytes > bytes_max;
        let copies = served.slots.iter().filter(|slot| slot.copy.is_some()).count();
        let retry_after = served.retry_after(tokens, copies);
        is_full.then(|| PoolError::Full { model: model.to_string(), retry_after })
    }

    /// Gives what waits to those who are ready.
    fn deal(&mut self, now: Duration, model: &Arc<str>) {
        loop {
            let Some(served) = self.served.get_mut(model) else { return };
            let Some(avoid) = served.line.first().map(|item| item.avoid) else { return };
            let ready = served.slots.iter().filter_map(|slot| self.copies.get(&slot.copy?));
            let ready = ready.filter(|copy| copy.is_ready());
            let chosen = ready.min_by_key(|copy| (Some(copy.id) == avoid, copy.idle_since, copy.id));
            let Some(id) = chosen.map(|copy| copy.id) else { return };
            let mut items = Vec::new();
            for (place, item) in served.line.cut(served.terms.batching) {
                if let Some(asked) = self.requests.get_mut(item.request) {
                    asked.waiting.remove(&place);
                }
                items.push(item);
            }
            let run = self.next_run();
            let parts = items.iter().map(|item| Arc::clone(&item.part)).collect();
            let Some(copy) = self.copies.get_mut(&id) else { return };
            copy.begins(now);
            copy.life = Life::Busy(Run { id: run, since: now, items, said_bytes: 0, is_stopped: false });
            self.effects.push(Effect::Run { copy: id, run, parts });
        }
    }

    fn loaded(&mut self, now: Duration, id: CopyId) {
        if self.copies.get(&id).is_some_and(|copy| matches!(copy.life, Life::Loading)) {
            self.prove(now, id);
        }
    }

    /// Has it answer the question whose answer is known. It is given nothing else until it has.
    fn prove(&mut self, now: Duration, id: CopyId) {
        let run = self.next_run();
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let Some(served) = self.served.get(&copy.model) else { return };
        copy.begins(now);
        copy.life = Life::Proving(run);
        let parts = vec![Arc::new(served.terms.golden.clone())];
        self.effects.push(Effect::Run { copy: id, run, parts });
    }

    fn looked(&mut self, now: Duration, id: CopyId, steps: u64) {
        let look_max = self.look_every() * 2;
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let Some(served) = self.served.get(&copy.model) else { return };
        copy.looked(now, steps, look_max);
        let stall_max = match copy.life {
            Life::Loading => served.terms.load_stall_max,
            Life::Proving(_) | Life::Ready | Life::Busy(_) | Life::Draining(_) | Life::Dead(_) => {
                served.terms.stall_max
            }
        };
        if copy.is_watched() && copy.silent > stall_max {
            let why = Why::Hung(copy.silent);
            self.condemn(now, id, why);
        }
    }

    /// A ping that is not answered is no verdict, as a starved machine answers late: it is a reason to ask it something
    /// real, and to give it nothing until it has answered.
    fn doubted(&mut self, now: Duration, id: CopyId) {
        if self.copies.get(&id).is_some_and(Copy::is_ready) {
            self.prove(now, id);
        }
    }

    /// Asks those that have nothing to do what they have to know, and lets those go that nobody has used for long.
    fn maintain(&mut self, now: Duration) {
        if now < self.maintained_at + self.limits.maintenance_every {
            return;
        }
        self.maintained_at = now;
        let is_idle = |copy: &&Copy| copy.is_ready() && self.served[&copy.model].line.is_empty();
        let idle: Vec<CopyId> = self.copies.values().filter(is_idle).map(|copy| copy.id).collect();
        for id in idle {
            let model = Arc::clone(&self.copies[&id].model);
            let others = self.copies.values().filter(|copy| copy.model == model);
            let is_one_at_it = others.clone().any(|copy| matches!(copy.life, Life::Proving(_)));
            let unused = now.saturating_sub(self.served[&model].used_at);
            let is_due = now.saturating_sub(self.copies[&id].proved_at) >= self.limits.maintenance_every
                && !is_one_at_it;
            if self.limits.idle_max.is_some_and(|max| unused >= max) {
                self.drain(now, id);
            } else if is_due {
                self.prove(now, id);
            }
        }
    }

    fn next_run(&mut self) -> RunId {
        self.last_run += 1;
        RunId(self.last_run)
    }
}
