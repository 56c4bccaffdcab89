//! `remuda worker`: the shell around `core::Agent`. It carries messages to and from the plane, runs what it is told to
//! run, and tells the agent what came of it; when to beat, what to take on and what to give up is the agent's business.

mod blobs;
mod check;
mod comfyui;
mod exec;
mod gpu;
mod hands;
mod link;
mod metrics;
mod models;
mod name;
mod prepare;
mod previews;
mod reports;
mod ticket;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use remuda_core::agent::{
    Agent, AgentDeadlines, AgentEffect, AgentEvent, AgentExit, AgentTimeouts, CallError,
};
use remuda_core::id::{FleetId, MachineId, Service, WorkerId};
use remuda_core::need::Capabilities;
use remuda_core::service::ServiceEvent;
use remuda_core::time::Timestamp;
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{info, warn};

use remuda_config::{AgentSettings, Resolved};
use remuda_net::clock::Clock;
use remuda_net::http_client::Credentials;
use remuda_net::secret::Secret;

pub use self::blobs::{BlobLink, LinkError};
pub use self::check::Check;
pub use self::comfyui::{ComfyuiOptions, REQUEST_MAX};
pub use self::exec::Exec;
pub use self::link::Link;
pub use self::models::ModelsOptions;
pub use self::models::{inspect as inspect_models, serve_copy as serve_model_copy, start as start_models};
pub use self::name::{hostname, name_of};

use self::hands::{Events, Hands};
use self::prepare::Ready;
use self::previews::Previews;
use self::reports::Reports;

/// What a worker is started with.
#[derive(Clone, Debug)]
pub struct Options {
    pub url: String,
    /// How it says who it is when it joins, and sends and fetches blobs.
    pub credentials: Credentials,
    pub worker: WorkerId,
    pub machine: Option<MachineId>,
    pub fleet: Option<FleetId>,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    pub offer: Capabilities,
    pub does: Does,
    pub inactivity: Duration,
    pub patience: AgentTimeouts,
    pub deadlines: AgentDeadlines,
    pub check: Check,
    /// Where the worker may keep what it has to remember.
    pub data: PathBuf,
}

impl Options {
    /// As many slots as what it does has use for, and everything else as the settings and the machine say.
    pub fn new(
        plane: &str,
        credentials: Credentials,
        worker: WorkerId,
        does: Does,
        resolved: &Resolved,
    ) -> Options {
        let services = match &does {
            Does::Exec(_) => "exec".parse().into_iter().collect(),
            Does::Comfyui(_) => "comfyui".parse().into_iter().collect(),
            Does::Models(models) => models.services(),
        };
        let slots = match &does {
            Does::Exec(_) | Does::Comfyui(_) => 1,
            Does::Models(models) => models.slots(),
        };
        let AgentSettings {
            unknown_recheck, cancel_timeout, queue_stall_max, probe_every, inactivity, ..
        } = resolved.agent;
        Options {
            url: plane.to_owned(),
            credentials,
            worker,
            machine: hostname().parse().ok(),
            fleet: None,
            services,
            slots,
            offer: Capabilities::default(),
            does,
            inactivity,
            patience: AgentTimeouts {
                unknown_recheck,
                cancel_timeout,
                queue_stall_max,
                look_every: probe_every,
            },
            deadlines: AgentDeadlines::default(),
            check: Check::default(),
            data: resolved.serve.data.join("workers"),
        }
    }
}

/// What does the work.
#[derive(Clone, Debug)]
pub enum Does {
    Exec(Exec),
    Comfyui(ComfyuiOptions),
    Models(ModelsOptions),
}

/// Nobody wants this worker's machine any more, or nobody is left who could.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Dismissed(String);

/// A goodbye that takes longer is left unsaid: the plane will notice.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
const EVENTS_MAX: usize = 4096;

/// What is shown of attempts under way.
#[derive(Clone, Debug, Default)]
struct Shows {
    previews: Previews,
    reports: Reports,
}

/// Runs until it is stopped (once: finish what is held; twice: now), replaced by another of its name, or dismissed.
pub async fn run(options: Options, mut stops: mpsc::Receiver<()>) -> anyhow::Result<()> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let (clock, shows) = (Clock::after(Timestamp::ZERO), Shows::default());
    let mut sending = JoinSet::new();
    sending.spawn(shows.previews.clone().run());
    sending.spawn(shows.reports.clone().run());
    metrics::keep_reading(options.data.clone(), events.clone());
    let mut shell = Shell::new(&options, clock, events.clone(), shows.clone());
    let mut preparing = Box::pin(prepare::ready(options.clone(), events, shows));
    let mut end = None;
    while end.is_none() {
        let wake = tokio::time::Instant::from_std(clock.instant(shell.agent.wake_at()));
        let event = async {
            tokio::select! {
                Some(event) = inbox.recv() => event,
                Some(()) = stops.recv() => AgentEvent::Stop,
                () = tokio::time::sleep_until(wake) => AgentEvent::Tick,
            }
        };
        end = tokio::select! {
            // First: whatever the service says from here on has somebody to be told to.
            biased;
            ready = &mut preparing, if shell.hands.is_none() => shell.take_up(ready?).await,
            event = event => shell.step(event).await,
        };
    }
    drop(preparing);
    sending.shutdown().await;
    let end = end.unwrap_or(AgentExit::Stopped);
    let is_replaced = matches!(end, AgentExit::Replaced(_));
    match shell.hands {
        Some(hands) => hands.end(is_replaced).await,
        None if !is_replaced => hands::abandon(&options).await,
        None => {}
    }
    match end {
        AgentExit::Stopped => Ok(()),
        AgentExit::Replaced(problem) => bail!(problem),
        AgentExit::Dismissed(why) => Err(Dismissed(why).into()),
    }
}

struct Shell {
    agent: Agent,
    clock: Clock,
    link: Link,
    /// Nothing as long as there is nothing to work with.
    hands: Option<Hands>,
    /// What was last read of the machine.
    machine: Map<String, Value>,
    shows: Shows,
    events: Events,
    beat: Option<tokio::task::AbortHandle>,
    is_reachable: bool,
}

impl Shell {
    fn new(options: &Options, clock: Clock, events: Events, shows: Shows) -> Self {
        let options = options.clone();
        let (worker, credentials) = (options.worker.clone(), options.credentials);
        let link = Link::new(&options.url, worker, credentials, &options.data);
        let settings = remuda_core::agent::AgentSettings {
            worker: options.worker,
            machine: options.machine,
            fleet: options.fleet,
            services: options.services,
            slots: options.slots,
            offer: options.offer,
            inactivity: options.inactivity,
            patience: options.patience,
            deadlines: options.deadlines,
        };
        Shell {
            agent: Agent::new(settings, clock.now()),
            clock,
            link,
            hands: None,
            machine: Map::new(),
            shows,
            events,
            beat: None,
            is_reachable: true,
        }
    }

    /// There is something to work with.
    async fn take_up(&mut self, ready: Ready) -> Option<AgentExit> {
        let Ready { hands, offer, found, life, check } = ready;
        hands.joined(self.link.token());
        let ended = hands.ended().await;
        self.hands = Some(hands);
        // With what the service says of itself, from the first beat on.
        self.step(AgentEvent::Metrics(self.machine.clone())).await;
        let offer = offer.map(|offer| AgentEvent::Offer(Box::new(offer)));
        let ended = ended.map(|why| AgentEvent::Service(ServiceEvent::Exited { why }));
        let began = [AgentEvent::StartChecked(check), AgentEvent::Began { found, life }];
        for event in offer.into_iter().chain(began).chain(ended) {
            let end = self.apply(event).await;
            if end.is_some() {
                return end;
            }
        }
        None
    }

    /// What only the service knows is added to what is read of the machine.
    fn completed(&mut self, event: AgentEvent) -> Option<AgentEvent> {
        match event {
            AgentEvent::Metrics(mut metrics) => {
                self.machine.clone_from(&metrics);
                metrics.extend(self.hands.as_ref().map(Hands::metrics).unwrap_or_default());
                let service = self.agent.closed().unwrap_or("well");
                metrics.insert("service".to_owned(), service.into());
                Some(AgentEvent::Metrics(metrics))
            }
            // It is still being brought up, by somebody who sees to it that it does not end.
            AgentEvent::Service(_) if self.hands.is_none() => None,
            // Said before it was ready, and read after.
            AgentEvent::Preparing { .. } | AgentEvent::StartChecked(_) if self.hands.is_some() => None,
            event => Some(event),
        }
    }

    /// Steps the agent and does as it says; the end, if it is over.
    async fn step(&mut self, event: AgentEvent) -> Option<AgentExit> {
        let event = self.completed(event)?;
        self.apply(event).await
    }

    async fn apply(&mut self, event: AgentEvent) -> Option<AgentExit> {
        self.note(&event);
        for effect in self.agent.step(self.clock.now(), event) {
            if let AgentEffect::Exit(end) = effect {
                return Some(end);
            }
            self.carry_out(effect).await;
        }
        let held = self.agent.held().collect();
        if let Some(hands) = &mut self.hands {
            hands.keep_only(&held);
        }
        self.shows.reports.keep_only(&held);
        None
    }

    /// What the shell itself has to remember or say about an event.
    fn note(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Joined(joined) => {
                self.link.joined(Secret::new(joined.token.clone()));
                if let Some(hands) = &self.hands {
                    hands.joined(self.link.token());
                }
                self.shows.previews.send_over(self.link.clone());
                self.shows.reports.send_over(self.link.clone());
                self.is_reachable = true;
                info!(worker = %joined.worker, incarnation = %joined.incarnation, "joined");
            }
            AgentEvent::Ended { job, attempt, .. } => {
                self.shows.previews.forget(*job, *attempt);
            }
            AgentEvent::Unanswered { why: CallError::Unreachable(why), .. } if self.is_reachable => {
                self.is_reachable = false;
                warn!(%why, "cannot reach the plane; trying on");
            }
            AgentEvent::Reply { .. } if !self.is_reachable => {
                self.is_reachable = true;
                info!("the plane answers again");
            }
            _ => {}
        }
    }

    async fn carry_out(&mut self, effect: AgentEffect) {
        match effect {
            AgentEffect::Join(join) => {
                let (link, events) = (self.link.clone(), self.events.clone());
                tokio::spawn(async move { drop(events.send(link.join(&join).await).await) });
            }
            AgentEffect::Beat { beat, wait } => {
                if let Some(overtaken) = self.beat.take() {
                    overtaken.abort();
                }
                let (link, events) = (self.link.clone(), self.events.clone());
                let task = tokio::spawn(async move { drop(events.send(link.beat(&beat, wait).await).await) });
                self.beat = Some(task.abort_handle());
            }
            AgentEffect::Leave { reason } => {
                if tokio::time::timeout(GOODBYE_MAX, self.link.leave(&reason)).await.is_err() {
                    warn!("the goodbye was not answered in time");
                }
            }
            AgentEffect::Exit(_) => {}
            effect => {
                if let Some(hands) = &mut self.hands {
                    hands.carry_out(effect);
                }
            }
        }
    }
}
