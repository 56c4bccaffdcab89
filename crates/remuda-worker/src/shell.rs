//! The shell around `core::Agent`: one loop that turns messages into agent events, and agent effects into requests to the
//! plane and calls of the service.
//!
//! ```text
//!  service, plane link, metrics ──events──▶ Shell ──▶ Agent::step ──effects──▶ plane link, service
//! ```

use std::time::Duration;

use anyhow::bail;
use futures_util::future::BoxFuture;
use remuda_core::agent::{Agent, AgentEffect, AgentEvent, AgentExit, CallError};
use remuda_core::service::{ServiceEvent, ServiceExit};
use remuda_core::time::Timestamp;
use remuda_net::clock::Clock;
use remuda_net::secret::Secret;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{info, warn};

use crate::attempt::Events;
use crate::live_sinks::LiveSinks;
use crate::metrics;
use crate::options::WorkerOptions;
use crate::plane_link::{PlaneLink, random_u64};
use crate::service::{self, ServiceRunner};
use crate::startup::{self, ReadyWorker};

/// The worker stopped for good: its machine was retired, or the plane was unreachable for longer than allowed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WorkerDismissed(String);

/// The plane also notices a worker that ends without saying goodbye, so a slow plane does not delay the end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// A beat that was overtaken is ended after this long: the plane answers it as soon as it has the newer one.
const SUPERSEDED_MAX: Duration = Duration::from_secs(2);
const EVENTS_MAX: usize = 4096;

/// Runs until the worker is stopped (one message: finish held attempts; two: stop now), replaced by another worker of
/// the same name, or dismissed.
///
/// Boxed here, because a future is compiled in the crate that polls it.
pub fn run(options: WorkerOptions, stops: mpsc::Receiver<()>) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_worker(options, stops))
}

async fn run_worker(options: WorkerOptions, mut stops: mpsc::Receiver<()>) -> anyhow::Result<()> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let (clock, live) = (Clock::not_before(Timestamp::ZERO), LiveSinks::default());
    let mut senders = JoinSet::new();
    senders.spawn(live.previews.clone().run(live.reports.clone()));
    senders.spawn(live.reports.clone().run());
    metrics::spawn_reader(options.data.clone(), events.clone());
    let mut shell = Shell::new(&options, clock, events.clone(), live.clone());
    let mut starting = Box::pin(startup::start_service(options.clone(), events, live));
    let mut exit = None;
    while exit.is_none() {
        let wake = tokio::time::Instant::from_std(clock.instant(shell.agent.wake_at()));
        let event = async {
            tokio::select! {
                Some(event) = inbox.recv() => event,
                Some(()) = stops.recv() => AgentEvent::Stop,
                () = tokio::time::sleep_until(wake) => AgentEvent::Tick,
            }
        };
        exit = tokio::select! {
            // The service is taken over before its next event is read: `complete` drops service events before that.
            biased;
            ready = &mut starting, if shell.service.is_none() => shell.adopt_service(ready?).await,
            event = event => shell.step(event).await,
        };
    }
    drop(starting);
    senders.shutdown().await;
    let exit = exit.unwrap_or(AgentExit::Stopped);
    let is_replaced = matches!(exit, AgentExit::Replaced(_));
    match shell.service {
        Some(service) => service.end(is_replaced).await,
        None if !is_replaced => service::abandon(&options).await,
        None => {}
    }
    match exit {
        AgentExit::Stopped => Ok(()),
        AgentExit::Replaced(problem) => bail!(problem),
        AgentExit::Dismissed(reason) => Err(WorkerDismissed(reason).into()),
    }
}

struct Shell {
    agent: Agent,
    clock: Clock,
    link: PlaneLink,
    /// Drawn once, so that the plane can put the joins of this process in order.
    process: String,
    /// None until the service is ready for work.
    service: Option<ServiceRunner>,
    /// The last metrics of the machine, without those of the service.
    machine_metrics: Map<String, Value>,
    live: LiveSinks,
    events: Events,
    beat: Option<AbortHandle>,
    is_plane_reachable: bool,
}

impl Shell {
    fn new(options: &WorkerOptions, clock: Clock, events: Events, live: LiveSinks) -> Self {
        let options = options.clone();
        let (worker, credentials) = (options.worker.clone(), options.credentials);
        let link = PlaneLink::new(&options.url, worker, credentials, &options.data);
        let settings = remuda_core::agent::AgentSettings {
            worker: options.worker,
            machine: options.machine,
            fleet: options.fleet,
            services: options.services,
            slots: options.slots,
            offer: options.offer,
            inactivity: options.inactivity,
            timeouts: options.timeouts,
            deadlines: options.deadlines,
        };
        Shell {
            agent: Agent::new(settings, clock.now()),
            clock,
            link,
            process: format!("{:016x}", random_u64()),
            service: None,
            machine_metrics: Map::new(),
            live,
            events,
            beat: None,
            is_plane_reachable: true,
        }
    }

    /// The service became ready: from now on the agent accepts attempts.
    async fn adopt_service(&mut self, ready: ReadyWorker) -> Option<AgentExit> {
        let ReadyWorker { service, offer, found, life, check } = ready;
        service.set_token(self.link.token());
        let exited = service.exit_reason().await;
        self.service = Some(service);
        // So that the very first beat carries the service's metrics.
        let metrics = self.complete(AgentEvent::Metrics(self.machine_metrics.clone()));
        let offer = offer.map(|offer| AgentEvent::CapabilitiesChanged(Box::new(offer)));
        let exited =
            exited.map(|why| AgentEvent::Service(ServiceEvent::Exited { why, how: ServiceExit::Unknown }));
        let began = [AgentEvent::StartChecked(check), AgentEvent::Started { found, incarnation: life }];
        for event in metrics.into_iter().chain(offer).chain(began).chain(exited) {
            let exit = self.step_agent(event).await;
            if exit.is_some() {
                return exit;
            }
        }
        // Not earlier: before `Started` the agent does not hold the attempts that the service has found.
        self.forget_ended();
        None
    }

    /// Adds the service's metrics to those of the machine, and drops events that no longer or do not yet apply.
    fn complete(&mut self, event: AgentEvent) -> Option<AgentEvent> {
        match event {
            AgentEvent::Metrics(mut metrics) => {
                self.machine_metrics.clone_from(&metrics);
                metrics.extend(self.service.as_ref().map(ServiceRunner::metrics).unwrap_or_default());
                let service = self.agent.closed_reason().unwrap_or("well");
                metrics.insert("service".to_owned(), service.into());
                Some(AgentEvent::Metrics(metrics))
            }
            // The startup supervises the service until it is ready.
            AgentEvent::Service(_) if self.service.is_none() => None,
            // Sent while the service was starting, received after it was ready.
            AgentEvent::Preparing { .. } | AgentEvent::StartChecked(_) if self.service.is_some() => None,
            event => Some(event),
        }
    }

    async fn step(&mut self, event: AgentEvent) -> Option<AgentExit> {
        let event = self.complete(event)?;
        self.apply(event).await
    }

    /// Steps the agent and runs its effects; returns how the worker ends, once it does.
    async fn apply(&mut self, event: AgentEvent) -> Option<AgentExit> {
        let exit = self.step_agent(event).await;
        self.forget_ended();
        exit
    }

    async fn step_agent(&mut self, event: AgentEvent) -> Option<AgentExit> {
        self.observe(&event);
        for effect in self.agent.step(self.clock.now(), event) {
            if let AgentEffect::Exit(exit) = effect {
                return Some(exit);
            }
            self.run_effect(effect).await;
        }
        None
    }

    /// Drops what is kept about attempts that the agent no longer holds.
    fn forget_ended(&mut self) {
        let held = self.agent.held().collect();
        if let Some(service) = &mut self.service {
            service.retain(&held);
        }
        self.live.reports.retain(&held);
    }

    /// What the shell itself remembers or logs about an event.
    fn observe(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Joined(joined) => {
                self.link.set_token(Secret::new(joined.token.clone()));
                if let Some(service) = &self.service {
                    service.set_token(self.link.token());
                }
                self.live.set_link(&self.link);
                self.is_plane_reachable = true;
                info!(worker = %joined.worker, incarnation = %joined.incarnation, "joined the plane");
            }
            AgentEvent::Ended { job, attempt, .. } => {
                self.live.previews.remove(*job, *attempt);
            }
            AgentEvent::CallFailed { why: CallError::Unreachable(why), .. } if self.is_plane_reachable => {
                self.is_plane_reachable = false;
                warn!(%why, "plane unreachable; retrying");
            }
            AgentEvent::Reply { .. } if !self.is_plane_reachable => {
                self.is_plane_reachable = true;
                info!("plane reachable again");
            }
            _ => {}
        }
    }

    async fn run_effect(&mut self, effect: AgentEffect) {
        match effect {
            AgentEffect::Join(mut join) => {
                join.nonce = Some(format!("{:016x}", random_u64()));
                join.process = Some(self.process.clone());
                let (link, events) = (self.link.clone(), self.events.clone());
                tokio::spawn(async move { drop(events.send(link.join(&join).await).await) });
            }
            AgentEffect::Beat { beat, wait } => {
                if let Some(superseded) = self.beat.take() {
                    // The plane answers it when the new beat arrives. Ended at once, it would look like the end of this
                    // worker if the network failed just then.
                    tokio::spawn(async move {
                        tokio::time::sleep(SUPERSEDED_MAX).await;
                        superseded.abort();
                    });
                }
                let (link, events) = (self.link.clone(), self.events.clone());
                let task = tokio::spawn(async move { drop(events.send(link.beat(&beat, wait).await).await) });
                self.beat = Some(task.abort_handle());
            }
            AgentEffect::Leave { reason } => {
                if tokio::time::timeout(LEAVE_TIMEOUT, self.link.leave(&reason)).await.is_err() {
                    warn!(timeout = ?LEAVE_TIMEOUT, "plane did not acknowledge that this worker left");
                }
            }
            AgentEffect::Exit(_) => {}
            effect => {
                if let Some(service) = &mut self.service {
                    service.run_effect(effect);
                }
            }
        }
    }
}
