//! Makes the provider calls that the core decides on, for all fleets, and returns their results as events. It decides
//! nothing and stores nothing; a restored plane repeats what it needs, and lists the machines first.
//!
//! ```text
//!                        ┌─ creations, a few at a time, because one may take minutes
//!  Effect::Provider ──▶ fleet ─ preparations, likewise
//!                        └─ lists, returns and prices, one after the other  ──▶ PlaneEvent::Provider
//! ```
//!
//! Requests and answers may contain keys and tokens: neither is logged.

mod client;
mod deployment;
#[cfg_attr(not(feature = "ssh"), path = "fleets/no_ssh.rs")]
mod ssh;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use remuda_core::id::FleetId;
use remuda_core::plane::PlaneEvent;
use remuda_core::provider::{ProviderCall, ProviderErrorClass, ProviderEvent};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, error};

use self::client::{FleetClient, failed_call};
use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::Ticker;
use remuda_config as config;

pub use self::client::FleetContext;

/// Creations of one fleet under way at the same time, and preparations likewise: more would not help a slow provider.
const AT_ONCE_MAX: usize = 4;

/// The client of each fleet, by the newest settings.
type FleetClients = BTreeMap<FleetId, Arc<FleetClient>>;

/// The clients of all fleets; a reload of the settings replaces them. Clones share them.
#[derive(Clone, Debug)]
pub struct Fleets {
    context: Arc<FleetContext>,
    clients: watch::Sender<FleetClients>,
    in_flight: InFlight,
}

/// Clients for settings that are not active yet.
#[derive(Debug)]
pub struct PreparedFleets(FleetClients);

impl Fleets {
    pub fn new(context: FleetContext) -> Fleets {
        Fleets {
            context: Arc::new(context),
            clients: watch::Sender::default(),
            in_flight: InFlight::default(),
        }
    }

    /// Creates the clients of these fleets without activating them, or reports what is missing.
    pub async fn prepare(&self, fleets: &[config::FleetConfig]) -> anyhow::Result<PreparedFleets> {
        if !fleets.is_empty() {
            deployment::ensure_identity(&self.context).await?;
        }
        let mut clients = FleetClients::new();
        for fleet in fleets {
            let client = FleetClient::new(fleet.clone(), self.context.clone())?;
            clients.insert(fleet.settings.id.clone(), Arc::new(client));
        }
        Ok(PreparedFleets(clients))
    }

    /// Uses these clients from now on. A fleet that was removed from the settings keeps its client: it may have machines
    /// to return.
    pub fn activate(&self, PreparedFleets(prepared): PreparedFleets) {
        self.clients.send_modify(|clients| clients.extend(prepared));
    }

    /// Makes calls until the plane stops; calls under way then are aborted, and the next plane finds out what became of
    /// them. After a panic of this task the calls that were under way are answered as ambiguous, because the core repeats
    /// no call before it has an answer.
    pub async fn run(
        self,
        calls: &mut mpsc::UnboundedReceiver<(FleetId, ProviderCall)>,
        mut stopping: watch::Receiver<bool>,
        ticker: Ticker,
    ) {
        for (fleet, call) in self.in_flight.take_all() {
            let event = failed_call(&call, ProviderErrorClass::Ambiguous, "the provider task was restarted");
            report(&self.context.plane, fleet, event).await;
        }
        let mut queues = BTreeMap::<FleetId, CallQueue>::new();
        let mut tasks = JoinSet::new();
        loop {
            ticker.tick();
            let (fleet, call) = tokio::select! {
                call = calls.recv() => match call {
                    Some(call) => call,
                    None => return,
                },
                Some(ended) = tasks.join_next() => {
                    if let Err(panicked) = ended {
                        error!(%panicked, "provider call lost");
                    }
                    continue;
                }
                () = stopped(&mut stopping) => return,
            };
            let call = self.in_flight.insert(fleet.clone(), call);
            let Some(client) = self.clients.borrow().get(&fleet).cloned() else {
                let why = "the fleet is not in the settings: add it again until its machines are returned";
                let event = failed_call(&call.call, ProviderErrorClass::Invalid, why);
                let plane = self.context.plane.clone();
                tasks.spawn(async move {
                    report(&plane, fleet, event).await;
                    call.answered();
                });
                continue;
            };
            let queue =
                queues.entry(fleet).or_insert_with(|| CallQueue::new(self.context.plane.clone(), &mut tasks));
            queue.push(client, call, &mut tasks);
        }
    }
}

/// Calls whose answer has not reached the plane. They outlive the task that makes them.
#[derive(Clone, Debug, Default)]
struct InFlight(Arc<Mutex<(u64, CallsByNumber)>>);

type CallsByNumber = BTreeMap<u64, (FleetId, ProviderCall)>;

/// A call under way, until `answered`.
#[derive(Debug)]
struct InFlightCall {
    call: ProviderCall,
    number: u64,
    in_flight: InFlight,
}

impl InFlight {
    fn insert(&self, fleet: FleetId, call: ProviderCall) -> InFlightCall {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.0 += 1;
        let number = calls.0;
        calls.1.insert(number, (fleet, call.clone()));
        InFlightCall { call, number, in_flight: self.clone() }
    }

    fn take_all(&self) -> Vec<(FleetId, ProviderCall)> {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut calls.1).into_values().collect()
    }
}

impl InFlightCall {
    fn answered(self) {
        let mut calls = self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.1.remove(&self.number);
    }
}

/// Makes the calls of one fleet.
struct CallQueue {
    plane: PlaneHandle,
    creations: Arc<Semaphore>,
    preparations: Arc<Semaphore>,
    /// Lists, returns and prices, one after the other.
    sequential: mpsc::UnboundedSender<(Arc<FleetClient>, InFlightCall)>,
}

impl CallQueue {
    fn new(plane: PlaneHandle, tasks: &mut JoinSet<()>) -> CallQueue {
        let (sequential, mut waiting) = mpsc::unbounded_channel::<(Arc<FleetClient>, InFlightCall)>();
        let reports_to = plane.clone();
        tasks.spawn(async move {
            while let Some((client, call)) = waiting.recv().await {
                call_and_report(&reports_to, &client, call).await;
            }
        });
        let [creations, preparations] = [(); 2].map(|()| Arc::new(Semaphore::new(AT_ONCE_MAX)));
        CallQueue { plane, creations, preparations, sequential }
    }

    fn push(&self, client: Arc<FleetClient>, call: InFlightCall, tasks: &mut JoinSet<()>) {
        debug!(fleet = %client.fleet(), call = name(&call.call), "provider call");
        let permits = match call.call {
            ProviderCall::Rent { .. } => &self.creations,
            ProviderCall::Bootstrap { .. } => &self.preparations,
            ProviderCall::List | ProviderCall::Return { .. } | ProviderCall::Price => {
                // The receiver lives as long as `tasks`.
                drop(self.sequential.send((client, call)));
                return;
            }
        };
        let (permits, plane) = (permits.clone(), self.plane.clone());
        tasks.spawn(async move {
            let _permit = permits.acquire().await;
            call_and_report(&plane, &client, call).await;
        });
    }
}

async fn call_and_report(plane: &PlaneHandle, client: &FleetClient, call: InFlightCall) {
    let event = client.make(call.call.clone()).await;
    report(plane, client.fleet().clone(), event).await;
    call.answered();
}

async fn report(plane: &PlaneHandle, fleet: FleetId, event: ProviderEvent) {
    let news = Box::new(event);
    // An error means that the plane was restored or stops: the next one lists the machines itself.
    drop(plane.request_queued(PlaneEvent::Provider { fleet, news }).await);
}

fn name(call: &ProviderCall) -> &'static str {
    match call {
        ProviderCall::Rent { .. } => "rent",
        ProviderCall::List => "list",
        ProviderCall::Return { .. } => "return",
        ProviderCall::Price => "price",
        ProviderCall::Bootstrap { .. } => "prepare",
    }
}

#[cfg(test)]
mod tests;
