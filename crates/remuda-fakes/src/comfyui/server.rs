//! The state of one server run (`Server`), and the state that survives a crash (`Estate`).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Options;
use super::cache::Cache;
use super::clock::Clock;
use super::executor;
use super::faults::{self, Fault, Faults};
use super::files::Disk;
use super::history::History;
use super::nodes::Catalogue;
use super::process::Order;
use super::queue::Queue;
use super::socket::Sockets;
use super::tally::Tally;
use crate::dice::Dice;

/// State that survives a crash.
#[derive(Debug)]
pub(super) struct Estate {
    pub(super) options: Options,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) disk: Disk,
    pub(super) tally: Tally,
    luck: Mutex<Luck>,
    server: Mutex<Option<Arc<Server>>>,
}

#[derive(Debug)]
struct Luck {
    dice: Dice,
    faults: Faults,
    next: Vec<Fault>,
}

impl Estate {
    pub(super) fn new(options: Options, orders: mpsc::UnboundedSender<Order>) -> Estate {
        let luck = Luck { dice: Dice::new(options.seed), faults: options.faults.clone(), next: Vec::new() };
        Estate {
            options,
            orders,
            disk: Disk::default(),
            tally: Tally::default(),
            luck: Mutex::new(luck),
            server: Mutex::new(None),
        }
    }

    fn luck(&self) -> MutexGuard<'_, Luck> {
        self.luck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn faults(&self) -> Faults {
        self.luck().faults.clone()
    }

    pub(super) fn set_faults(&self, faults: Faults) {
        self.luck().faults = faults;
    }

    pub(super) fn strike_next(&self, fault: Fault) {
        self.luck().next.push(fault);
    }

    /// Draws the faults of the next prompt.
    pub(super) fn draw(&self) -> BTreeSet<Fault> {
        let mut luck = self.luck();
        let Luck { dice, faults, next } = &mut *luck;
        let mut drawn = faults::draw(dice, faults);
        drawn.extend(next.drain(..));
        drawn
    }

    pub(super) fn falls(&self, probability: f64) -> bool {
        self.luck().dice.falls(probability)
    }

    pub(super) fn count_fault(&self, fault: Fault) {
        *self.tally.change().faults.entry(fault.name().to_owned()).or_default() += 1;
    }

    /// The current server run.
    pub(super) fn server(&self) -> Option<Arc<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_server(&self, server: Option<Arc<Server>>) {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }
}

/// One server run.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) estate: Arc<Estate>,
    pub(super) catalogue: Catalogue,
    pub(super) clock: Clock,
    pub(super) queue: Queue,
    pub(super) history: Mutex<History>,
    pub(super) cache: Mutex<Cache>,
    pub(super) sockets: Sockets,
    /// Whose prompt runs, and at which node.
    pub(super) focus: Mutex<Focus>,
    /// Checked between nodes and with each step of progress.
    pub(super) interrupt: AtomicBool,
    pub(super) number: AtomicI64,
    /// Delay of every answer.
    pub(super) http_delay_ms: AtomicU64,
    pub(super) models_loaded: Mutex<BTreeSet<String>>,
}

#[derive(Debug, Default)]
pub(super) struct Focus {
    pub(super) client: Option<String>,
    pub(super) node: Option<String>,
}

impl Server {
    /// Starts a server run: must be called inside its runtime.
    pub(super) fn start(estate: &Arc<Estate>) -> Arc<Server> {
        let (sockets, outbox) = Sockets::new();
        let server = Arc::new(Server {
            estate: Arc::clone(estate),
            catalogue: Catalogue::new(&estate.options.models),
            clock: Clock::new(estate.options.manual_time),
            queue: Queue::default(),
            history: Mutex::default(),
            cache: Mutex::default(),
            sockets,
            focus: Mutex::default(),
            interrupt: AtomicBool::new(false),
            number: AtomicI64::new(0),
            http_delay_ms: AtomicU64::new(0),
            models_loaded: Mutex::default(),
        });
        estate.tally.change().lives += 1;
        estate.set_server(Some(Arc::clone(&server)));
        tokio::spawn(super::socket::publish(Arc::clone(&server), outbox));
        tokio::spawn(executor::run(Arc::clone(&server)));
        server
    }

    pub(super) fn options(&self) -> &Options {
        &self.estate.options
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn focus(&self) -> MutexGuard<'_, Focus> {
        self.focus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn models_loaded(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.models_loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn exec_info(&self) -> Value {
        json!({"exec_info": {"queue_remaining": self.queue.remaining()}})
    }

    /// Sends the queue length to all clients.
    pub(super) fn tell_status(&self) {
        self.sockets.post(None, "status", &json!({"status": self.exec_info()}));
    }

    /// Dies as by `kill -9`, from inside.
    pub(super) fn die(&self) {
        let _ = self.estate.orders.send(Order::Kill(None));
    }

    pub(super) fn set_http_delay(&self, delay: Duration) {
        let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.http_delay_ms.store(millis, Ordering::Relaxed);
    }
}

/// Milliseconds since 1970, as in the messages.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
