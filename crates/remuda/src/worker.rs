//! `remuda worker`: the shell around `core::Agent`. It carries messages to and from the plane, runs what it is told to
//! run, and tells the agent what came of it; when to beat, what to take on and what to give up is the agent's business.

mod blobs;
mod comfyui;
mod exec;
mod hands;
mod link;
mod metrics;
mod name;
mod previews;
mod reports;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use remuda_core::agent::{Agent, AgentEffect, AgentEvent, Deadlines, End, Patience, Unanswered};
use remuda_core::id::{MachineId, Service, WorkerId};
use remuda_core::need::Offer;
use remuda_core::service::ServiceLife;
use remuda_core::time::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::config::{AgentSettings, Resolved};
use crate::dial::Credentials;
use crate::secret::Secret;

pub use self::blobs::{BlobLink, LinkError};
pub(crate) use self::comfyui::OBJECT_INFO;
pub use self::comfyui::{ComfyuiOptions, REQUEST_MAX};
pub use self::exec::Exec;
pub use self::link::Link;
pub use self::name::{hostname, name_of};

use self::comfyui::Comfyui;
use self::exec::Commands;
use self::hands::{Events, Hands, Order, Wanted};
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
    pub services: BTreeSet<Service>,
    pub slots: u32,
    pub offer: Offer,
    pub does: Does,
    pub inactivity: Duration,
    pub patience: Patience,
    /// Where the worker may keep what it has to remember.
    pub data: PathBuf,
}

impl Options {
    /// One slot, and everything else as the settings and the machine say.
    pub fn new(
        plane: &str,
        credentials: Credentials,
        worker: WorkerId,
        does: Does,
        resolved: &Resolved,
    ) -> Options {
        let service = match &does {
            Does::Exec(_) => "exec",
            Does::Comfyui(_) => "comfyui",
        };
        let AgentSettings { second_look, stop_max, behind_max, probe_every, inactivity, .. } = resolved.agent;
        Options {
            url: plane.to_owned(),
            credentials,
            worker,
            machine: hostname().parse().ok(),
            services: service.parse().into_iter().collect(),
            slots: 1,
            offer: Offer::default(),
            does,
            inactivity,
            patience: Patience { second_look, stop_max, behind_max, look_every: probe_every },
            data: resolved.serve.data.join("workers"),
        }
    }
}

/// What does the work.
#[derive(Clone, Debug)]
pub enum Does {
    Exec(Exec),
    Comfyui(ComfyuiOptions),
}

/// How often the machine is looked at.
const METRICS_EVERY: Duration = Duration::from_secs(10);
/// A goodbye that takes longer is left unsaid: the plane will notice.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
const EVENTS_MAX: usize = 4096;

/// What is shown of attempts under way.
#[derive(Clone, Debug, Default)]
struct Shows {
    previews: Previews,
    reports: Reports,
}

/// Runs until it is stopped (once: finish what is held; twice: now) or replaced by another of its name.
pub async fn run(mut options: Options, mut stops: mpsc::Receiver<()>) -> anyhow::Result<()> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let shows = Shows::default();
    let began = match &options.does {
        Does::Exec(exec) => {
            let commands = Commands::new(exec.clone(), events.clone());
            Some((Hands::Commands(commands), Vec::new(), ServiceLife(1)))
        }
        Does::Comfyui(comfyui) => tokio::select! {
            ready = Comfyui::begin(comfyui.clone(), &options, events.clone(), shows.clone()) => {
                let ready = ready?;
                options.offer = Offer { labels: options.offer.labels, ..ready.offer };
                Some((Hands::Comfyui(ready.comfyui), ready.found, ready.life))
            }
            _ = stops.recv() => None,
        },
    };
    let Some((hands, found, life)) = began else { return Ok(()) };
    let clock = Clock::after(Timestamp::ZERO);
    let mut sending = JoinSet::new();
    sending.spawn(shows.previews.clone().run());
    sending.spawn(shows.reports.clone().run());
    let mut shell = Shell::new(options, clock, events, hands, shows);
    let mut metrics = tokio::time::interval(METRICS_EVERY);
    let mut end = shell.step(AgentEvent::Began { found, life }).await;
    while end.is_none() {
        let wake = tokio::time::Instant::from_std(clock.instant(shell.agent.wake_at()));
        let event = tokio::select! {
            Some(event) = inbox.recv() => event,
            Some(()) = stops.recv() => AgentEvent::Stop,
            _ = metrics.tick() => shell.metrics(),
            () = tokio::time::sleep_until(wake) => AgentEvent::Tick,
        };
        end = shell.step(event).await;
    }
    sending.shutdown().await;
    let end = end.unwrap_or(End::Stopped);
    shell.hands.end(matches!(end, End::Replaced(_))).await;
    match end {
        End::Stopped => Ok(()),
        End::Replaced(problem) | End::Dismissed(problem) => bail!(problem),
    }
}

struct Shell {
    agent: Agent,
    clock: Clock,
    link: Link,
    hands: Hands,
    shows: Shows,
    events: Events,
    beat: Option<tokio::task::AbortHandle>,
    is_reachable: bool,
}

impl Shell {
    fn new(options: Options, clock: Clock, events: Events, hands: Hands, shows: Shows) -> Self {
        let settings = remuda_core::agent::AgentSettings {
            worker: options.worker.clone(),
            machine: options.machine,
            fleet: None,
            services: options.services,
            slots: options.slots,
            offer: options.offer,
            inactivity: options.inactivity,
            patience: options.patience,
            deadlines: Deadlines::default(),
        };
        Shell {
            agent: Agent::new(settings, clock.now()),
            clock,
            link: Link::new(&options.url, options.worker, options.credentials),
            hands,
            shows,
            events,
            beat: None,
            is_reachable: true,
        }
    }

    /// What the machine and the service say of themselves.
    fn metrics(&self) -> AgentEvent {
        let mut metrics = metrics::read();
        metrics.extend(self.hands.metrics());
        AgentEvent::Metrics(metrics)
    }

    /// Steps the agent and does as it says; the end, if it is over.
    async fn step(&mut self, event: AgentEvent) -> Option<End> {
        self.note(&event);
        for effect in self.agent.step(self.clock.now(), event) {
            if let AgentEffect::Exit(end) = effect {
                return Some(end);
            }
            self.carry_out(effect).await;
        }
        let held = self.agent.held().collect();
        self.hands.keep_only(&held);
        self.shows.reports.keep_only(&held);
        None
    }

    /// What the shell itself has to remember or say about an event.
    fn note(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Joined(joined) => {
                self.hands.joined(&Secret::new(joined.token.clone()));
                self.link.set_token(joined.token.clone());
                self.shows.previews.send_over(self.link.clone());
                self.shows.reports.send_over(self.link.clone());
                self.is_reachable = true;
                info!(worker = %joined.worker, incarnation = %joined.incarnation, "joined");
            }
            AgentEvent::Ended { job, attempt, .. } => {
                self.shows.previews.forget(*job, *attempt);
            }
            AgentEvent::Unanswered { why: Unanswered::Unreachable(why), .. } if self.is_reachable => {
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
            AgentEffect::Run { job, attempt, service_job_id, include_outputs, workflow, .. } => {
                let wanted = Wanted(include_outputs);
                self.hands.run(Order { job, attempt, service_job_id, wanted, workflow });
            }
            AgentEffect::Cancel { job, attempt, reason } => {
                debug!(%job, %attempt, %reason, "told to stop");
                self.hands.cancel(job, attempt, reason);
            }
            AgentEffect::Probe { job, attempt, trigger } => self.hands.probe(job, attempt, trigger),
            AgentEffect::Collect { job, attempt, outputs, include_outputs } => {
                self.hands.collect(job, attempt, outputs, Wanted(include_outputs));
            }
            AgentEffect::Reopen => self.hands.reopen(),
            AgentEffect::Treat(remedy) => {
                warn!(?remedy, "treating the service");
                self.hands.treat(remedy);
            }
            AgentEffect::Check => self.hands.check(),
            AgentEffect::Leave { reason } => {
                if tokio::time::timeout(GOODBYE_MAX, self.link.leave(&reason)).await.is_err() {
                    warn!("the goodbye was not answered in time");
                }
            }
            AgentEffect::Exit(_) => {}
        }
    }
}
