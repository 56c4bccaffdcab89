//! The pool: models by name, each with one queue that its copies take from.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::backend::{Backend, Engines, Found, Prepare};
use crate::beacon::Beacon;
use crate::failure::{Failure, LoadError, PoolError};
use crate::request::{Answer, Part, PartAnswer, Piece, Request};
use crate::spec::ModelSpec;

#[derive(Clone, Debug)]
pub struct PoolSettings {
    /// What all copies together may take.
    pub memory_bytes: u64,
    /// How much may wait for one model.
    pub queue_tokens_max: usize,
    pub queue_bytes_max: usize,
    /// How many tokens a copy takes at once.
    pub batch_tokens_max: usize,
}

impl Default for PoolSettings {
    fn default() -> Self {
        PoolSettings {
            memory_bytes: 8 << 30,
            queue_tokens_max: 1 << 20,
            queue_bytes_max: 256 << 20,
            batch_tokens_max: 512,
        }
    }
}

/// On which terms something is asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    /// Past it nobody waits for the answer any more.
    pub deadline: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: PoolSettings,
    engines: Engines,
    models: Mutex<BTreeMap<String, Arc<Served>>>,
}

/// A model that is served.
struct Served {
    spec: ModelSpec,
    found: Found,
    prepare: Arc<dyn Prepare>,
    state: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Item>,
    copies: usize,
    why: String,
}

struct Item {
    part: Part,
    index: usize,
    asked: Arc<Asked>,
}

/// A request under way.
struct Asked {
    answers: Mutex<(Vec<Option<PartAnswer>>, Option<oneshot::Sender<Result<Answer, PoolError>>>)>,
    prompt_tokens: u64,
    pieces: mpsc::UnboundedSender<Piece>,
}

/// A request somebody waits for. Whoever drops it wants no answer any more.
#[derive(Debug)]
pub struct Ticket {
    model: String,
    answer: oneshot::Receiver<Result<Answer, PoolError>>,
    pieces: mpsc::UnboundedReceiver<Piece>,
}

impl Ticket {
    /// The next thing that is said of the answer while it is made; nothing once it is made.
    pub async fn piece(&mut self) -> Option<Piece> {
        self.pieces.recv().await
    }

    pub async fn answer(self) -> Result<Answer, PoolError> {
        let Ticket { model, answer, .. } = self;
        answer.await.unwrap_or_else(|_| Err(PoolError::NoWorkers { model, why: "it was dropped".to_owned() }))
    }

    /// For whoever has no runtime.
    pub fn wait(self) -> Result<Answer, PoolError> {
        let Ticket { model, answer, .. } = self;
        let gone = |_| Err(PoolError::NoWorkers { model, why: "it was dropped".to_owned() });
        answer.blocking_recv().unwrap_or_else(gone)
    }
}

impl Pool {
    pub fn start(settings: PoolSettings, engines: Engines) -> Self {
        Pool(Arc::new(Inner { settings, engines, models: Mutex::default() }))
    }

    /// Looks at the model, and has its copies loaded; they are not waited for.
    pub fn add(&self, spec: ModelSpec) -> Result<Found, LoadError> {
        let (backend, found) = self.0.engines.find(&spec)?;
        let prepare = backend.prepare(&spec)?;
        let served = Arc::new(Served {
            state: Mutex::default(),
            came: Condvar::new(),
            found: found.clone(),
            prepare,
            spec,
        });
        lock(&self.0.models).insert(served.spec.name.clone(), Arc::clone(&served));
        for number in 0..served.spec.copies {
            lock(&served.state).copies += 1;
            let (served, backend) = (Arc::clone(&served), Arc::clone(&backend));
            let batch = self.0.settings.batch_tokens_max;
            thread::spawn(move || served.run(number, backend.as_ref(), batch));
        }
        Ok(found)
    }

    /// What is served, by name.
    pub fn models(&self) -> Vec<(ModelSpec, Found)> {
        lock(&self.0.models).values().map(|served| (served.spec.clone(), served.found.clone())).collect()
    }

    /// Asks a model something. Prepares it on this thread, and waits for nobody.
    pub fn call(&self, model: &str, request: Request, _terms: Call) -> Result<Ticket, PoolError> {
        let served = self.served(model)?;
        let (can, asked) = (served.found.capability, request.capability());
        if can != asked {
            return Err(PoolError::WrongCapability { model: model.to_owned(), can, asked });
        }
        let parts = served.prepare.prepare(request)?;
        let (answer, answered) = oneshot::channel();
        let (said, pieces) = mpsc::unbounded_channel();
        let asked = Arc::new(Asked {
            answers: Mutex::new((vec![None; parts.len()], Some(answer))),
            prompt_tokens: parts.iter().map(|part| part.tokens() as u64).sum(),
            pieces: said,
        });
        let mut state = lock(&served.state);
        if state.copies == 0 {
            return Err(PoolError::NoWorkers { model: model.to_owned(), why: state.why.clone() });
        }
        let waiting: usize = state.queue.iter().map(|item| item.part.tokens()).sum();
        if waiting > self.0.settings.queue_tokens_max {
            return Err(PoolError::Full { model: model.to_owned(), retry_after: Duration::from_secs(1) });
        }
        let items = parts.into_iter().enumerate();
        state.queue.extend(items.map(|(index, part)| Item { part, index, asked: Arc::clone(&asked) }));
        drop(state);
        served.came.notify_all();
        Ok(Ticket { model: model.to_owned(), answer: answered, pieces })
    }

    fn served(&self, model: &str) -> Result<Arc<Served>, PoolError> {
        let models = lock(&self.0.models);
        models.get(model).cloned().ok_or_else(|| PoolError::UnknownModel {
            model: model.to_owned(),
            known: models.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}

impl Served {
    fn run(&self, number: u32, backend: &dyn Backend, batch_tokens_max: usize) {
        let beacon = Beacon::default();
        let why = match backend.load(&self.spec, &beacon) {
            Err(error) => error.to_string(),
            Ok(mut model) => {
                info!(model = self.spec.name, copy = number, "ready");
                loop {
                    let batch = self.take(batch_tokens_max);
                    let parts: Vec<Part> = batch.iter().map(|item| item.part.clone()).collect();
                    let asked = batch.first().map(|item| Arc::clone(&item.asked));
                    let mut say = |piece| {
                        if let Some(asked) = &asked {
                            drop(asked.pieces.send(piece));
                        }
                    };
                    match model.answer(&parts, &beacon, &mut say) {
                        Ok(answers) => {
                            for (item, answer) in batch.iter().zip(answers) {
                                item.asked.answered(item.index, answer);
                            }
                        }
                        Err(failure) => {
                            for item in &batch {
                                item.asked.failed(&self.spec.name, &failure);
                            }
                        }
                    }
                }
            }
        };
        warn!(model = self.spec.name, copy = number, why, "a copy has ended");
        let mut state = lock(&self.state);
        state.copies -= 1;
        state.why.clone_from(&why);
        if state.copies == 0 {
            for item in state.queue.drain(..) {
                let gone = PoolError::NoWorkers { model: self.spec.name.clone(), why: why.clone() };
                item.asked.ended(Err(gone));
            }
        }
    }

    /// Waits for something to do, and takes as much of it as is done at once.
    fn take(&self, batch_tokens_max: usize) -> Vec<Item> {
        let mut state = lock(&self.state);
        while state.queue.is_empty() {
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut batch, mut tokens) = (Vec::new(), 0);
        while let Some(item) = state.queue.front() {
            let fits =
                matches!(item.part, Part::Tokens(_)) && tokens + item.part.tokens() <= batch_tokens_max;
            if !batch.is_empty() && !fits {
                break;
            }
            tokens += item.part.tokens();
            batch.extend(state.queue.pop_front());
        }
        batch
    }
}

impl Asked {
    fn answered(&self, index: usize, answer: PartAnswer) {
        let mut answers = lock(&self.answers);
        if let Some(slot) = answers.0.get_mut(index) {
            *slot = Some(answer);
        }
        if answers.0.iter().all(Option::is_some) {
            let parts = answers.0.drain(..).flatten().collect();
            drop(answers);
            self.ended(Ok(Answer { parts, prompt_tokens: self.prompt_tokens }));
        }
    }

    fn failed(&self, model: &str, failure: &Failure) {
        self.ended(Err(PoolError::Failed { model: model.to_owned(), failure: failure.clone() }));
    }

    fn ended(&self, answer: Result<Answer, PoolError>) {
        if let Some(waiting) = lock(&self.answers).1.take() {
            drop(waiting.send(answer));
        }
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("spec", &self.spec).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
