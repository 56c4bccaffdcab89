//! Speaks to the providers of all fleets: makes the calls that the core asks for and brings back what came of them. It
//! decides nothing and remembers nothing; a plane that was restored asks anew, and looks first.
//!
//! ```text
//!                        ┌─ creations, a few at a time, because one may take minutes
//!  Effect::Provider ──▶ fleet ─ preparations, likewise
//!                        └─ lists, returns and prices, one after the other  ──▶ Event::Provider
//! ```
//!
//! What goes to a provider and what it answers may hold keys and tokens: neither is logged.

mod client;
mod deployment;
#[cfg_attr(not(feature = "ssh"), path = "fleets/no_ssh.rs")]
mod ssh;

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::id::FleetId;
use remuda_core::plane::PlaneEvent;
use remuda_core::provider::{ProviderCall, ProviderErrorClass, ProviderEvent};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, error};

use self::client::{FleetClient, unanswered};
use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use remuda_config as config;

pub use self::client::FleetContext;

/// Creations of a fleet under way at the same time, and preparations: a provider that is slow is not helped by more.
const AT_ONCE_MAX: usize = 4;

/// How each fleet's calls are made, by the newest settings.
type FleetClients = BTreeMap<FleetId, Arc<FleetClient>>;

/// Where new settings are put.
#[derive(Clone, Debug)]
pub struct Fleets {
    context: Arc<FleetContext>,
    makers: watch::Sender<FleetClients>,
}

/// Fleets whose providers can be spoken to, by settings that are not in force yet.
#[derive(Debug)]
pub struct Ready(FleetClients);

impl Fleets {
    pub fn new(context: FleetContext) -> Fleets {
        Fleets { context: Arc::new(context), makers: watch::Sender::default() }
    }

    /// Makes everything ready for these fleets, and changes nothing yet; or says what is missing.
    pub async fn ready(&self, fleets: &[config::Fleet]) -> anyhow::Result<Ready> {
        if !fleets.is_empty() {
            deployment::settle(&self.context).await?;
        }
        let mut makers = FleetClients::new();
        for fleet in fleets {
            let maker = FleetClient::new(fleet.clone(), self.context.clone())?;
            makers.insert(fleet.settings.id.clone(), Arc::new(maker));
        }
        Ok(Ready(makers))
    }

    /// From now on calls are made as these say. A fleet that is in the settings no longer is still spoken to: it may have
    /// machines to give back.
    pub fn activate(&self, Ready(ready): Ready) {
        self.makers.send_modify(|makers| makers.extend(ready));
    }

    /// Makes calls until it is told to stop. What is under way then is cut short, and looked for by the next plane.
    pub async fn run(
        self,
        mut calls: mpsc::UnboundedReceiver<(FleetId, ProviderCall)>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let mut queues = BTreeMap::<FleetId, CallQueue>::new();
        let mut tasks = JoinSet::new();
        loop {
            let (fleet, call) = tokio::select! {
                call = calls.recv() => match call {
                    Some(call) => call,
                    None => return,
                },
                Some(ended) = tasks.join_next() => {
                    if let Err(panicked) = ended {
                        error!(%panicked, "a call to a provider was lost");
                    }
                    continue;
                }
                () = stopped(&mut stopping) => return,
            };
            let Some(maker) = self.makers.borrow().get(&fleet).cloned() else {
                let why = "it is in the settings no longer: put it back until its machines are returned";
                let news = unanswered(&call, ProviderErrorClass::Invalid, why);
                let plane = self.context.plane.clone();
                tasks.spawn(async move { tell(&plane, fleet, news).await });
                continue;
            };
            let queue =
                queues.entry(fleet).or_insert_with(|| CallQueue::new(self.context.plane.clone(), &mut tasks));
            queue.take(maker, call, &mut tasks);
        }
    }
}

/// Where the calls of one fleet are made.
struct CallQueue {
    plane: PlaneHandle,
    creations: Arc<Semaphore>,
    preparations: Arc<Semaphore>,
    rest: mpsc::UnboundedSender<(Arc<FleetClient>, ProviderCall)>,
}

impl CallQueue {
    fn new(plane: PlaneHandle, tasks: &mut JoinSet<()>) -> CallQueue {
        let (rest, mut waiting) = mpsc::unbounded_channel::<(Arc<FleetClient>, ProviderCall)>();
        let teller = plane.clone();
        tasks.spawn(async move {
            while let Some((maker, call)) = waiting.recv().await {
                answer(&teller, &maker, call).await;
            }
        });
        let [creations, preparations] = [(); 2].map(|()| Arc::new(Semaphore::new(AT_ONCE_MAX)));
        CallQueue { plane, creations, preparations, rest }
    }

    fn take(&self, maker: Arc<FleetClient>, call: ProviderCall, tasks: &mut JoinSet<()>) {
        debug!(fleet = %maker.fleet(), call = name(&call), "a call to a provider");
        let places = match call {
            ProviderCall::Rent { .. } => &self.creations,
            ProviderCall::Bootstrap { .. } => &self.preparations,
            ProviderCall::List | ProviderCall::Return { .. } | ProviderCall::Price => {
                // It ends only with whoever holds this.
                drop(self.rest.send((maker, call)));
                return;
            }
        };
        let (places, plane) = (places.clone(), self.plane.clone());
        tasks.spawn(async move {
            let _place = places.acquire().await;
            answer(&plane, &maker, call).await;
        });
    }
}

async fn answer(plane: &PlaneHandle, maker: &FleetClient, call: ProviderCall) {
    let news = maker.make(call).await;
    tell(plane, maker.fleet().clone(), news).await;
}

async fn tell(plane: &PlaneHandle, fleet: FleetId, news: ProviderEvent) {
    let news = Box::new(news);
    // If it is not heard, the plane has been restored, or ends: whoever comes next looks for itself.
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
