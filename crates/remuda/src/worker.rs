//! `remuda worker`: the shell around `core::Agent`. It carries messages to and from the plane, runs what it is told to
//! run, and tells the agent what came of it; when to beat, what to take on and what to give up is the agent's business.

mod blobs;
mod exec;
mod link;
mod metrics;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::bail;
use remuda_core::agent::{Agent, AgentEffect, AgentEvent, AgentSettings, Unanswered};
use remuda_core::id::{Attempt, JobId, MachineId, Service, WorkerId};
use remuda_core::need::Offer;
use remuda_core::service::{Seen, ServiceLife, Submission};
use remuda_core::time::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::clock::Clock;

pub use self::blobs::{BlobLink, LinkError};
pub use self::exec::Exec;
pub use self::link::Link;

/// What a worker is started with.
#[derive(Clone, Debug)]
pub struct Options {
    pub url: String,
    pub worker: WorkerId,
    pub machine: Option<MachineId>,
    pub services: BTreeSet<Service>,
    pub slots: u32,
    pub offer: Offer,
    pub exec: Exec,
    pub inactivity: Duration,
}

/// How often the machine is looked at.
const METRICS_EVERY: Duration = Duration::from_secs(10);
/// A goodbye that takes longer is left unsaid: the plane will notice.
const GOODBYE_MAX: Duration = Duration::from_secs(5);
/// How long commands that were told to stop may take when the worker itself leaves; then they are killed.
const LAST_GRACE: Duration = Duration::from_secs(1);
const EVENTS_MAX: usize = 4096;

/// Runs until it is stopped (once: finish what is held; twice: now) or replaced by another of its name.
pub async fn run(options: Options, mut stops: mpsc::Receiver<()>) -> anyhow::Result<()> {
    let (events, mut inbox) = mpsc::channel(EVENTS_MAX);
    let clock = Clock::after(Timestamp::ZERO);
    let mut shell = Shell::new(options, clock, events);
    let mut metrics = tokio::time::interval(METRICS_EVERY);
    let mut problem = shell.step(AgentEvent::Began { found: Vec::new(), life: ServiceLife(1) }).await;
    while problem.is_none() {
        let wake = tokio::time::Instant::from_std(clock.instant(shell.agent.wake_at()));
        let event = tokio::select! {
            Some(event) = inbox.recv() => event,
            Some(()) = stops.recv() => AgentEvent::Stop,
            _ = metrics.tick() => AgentEvent::Metrics(metrics::read()),
            () = tokio::time::sleep_until(wake) => AgentEvent::Tick,
        };
        problem = shell.step(event).await;
    }
    shell.end_commands().await;
    match problem.flatten() {
        Some(problem) => bail!(problem),
        None => Ok(()),
    }
}

struct Shell {
    agent: Agent,
    clock: Clock,
    link: Link,
    exec: Exec,
    events: mpsc::Sender<AgentEvent>,
    running: BTreeMap<(JobId, Attempt), oneshot::Sender<String>>,
    commands: JoinSet<()>,
    beat: Option<tokio::task::AbortHandle>,
    is_reachable: bool,
}

impl Shell {
    fn new(options: Options, clock: Clock, events: mpsc::Sender<AgentEvent>) -> Self {
        let settings = AgentSettings {
            worker: options.worker.clone(),
            machine: options.machine,
            fleet: None,
            services: options.services,
            slots: options.slots,
            offer: options.offer,
            inactivity: options.inactivity,
        };
        Shell {
            agent: Agent::new(settings, clock.now()),
            clock,
            link: Link::new(&options.url, options.worker),
            exec: options.exec,
            events,
            running: BTreeMap::new(),
            commands: JoinSet::new(),
            beat: None,
            is_reachable: true,
        }
    }

    /// Steps the agent and does as it says; the outer `Some` means that it is over.
    async fn step(&mut self, event: AgentEvent) -> Option<Option<String>> {
        self.note(&event);
        for effect in self.agent.step(self.clock.now(), event) {
            if let AgentEffect::Exit { problem } = effect {
                return Some(problem);
            }
            self.carry_out(effect).await;
        }
        None
    }

    /// Nothing that was started here outlives the worker.
    async fn end_commands(&mut self) {
        let ended = async { while self.commands.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_GRACE, ended).await.is_err() {
            self.commands.shutdown().await;
        }
    }

    /// What the shell itself has to remember or say about an event.
    fn note(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Joined(joined) => {
                self.link.set_token(joined.token.clone());
                self.is_reachable = true;
                info!(worker = %joined.worker, incarnation = %joined.incarnation, "joined");
            }
            AgentEvent::Ended { job, attempt, .. } => drop(self.running.remove(&(*job, *attempt))),
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
            AgentEffect::Run { job, attempt, service_job_id, workflow, .. } => {
                let (cancel, cancelled) = oneshot::channel();
                self.running.insert((job, attempt), cancel);
                let (exec, events) = (self.exec.clone(), self.events.clone());
                while self.commands.try_join_next().is_some() {}
                let (life, answer) = (ServiceLife(1), Submission::Accepted);
                drop(self.events.try_send(AgentEvent::Submitted { job, attempt, life, answer }));
                self.commands.spawn(exec.run(job, attempt, service_job_id, workflow, events, cancelled));
            }
            AgentEffect::Cancel { job, attempt, reason } => {
                if let Some(cancel) = self.running.remove(&(job, attempt)) {
                    info!(%job, %attempt, %reason, "cancelled");
                    drop(cancel.send(reason));
                }
            }
            AgentEffect::Probe { job, attempt, .. } => {
                // A command that ended has said so: as long as we wait for it, it runs.
                let is_known = self.running.get(&(job, attempt)).is_some_and(|cancel| !cancel.is_closed());
                let seen = if is_known { Seen::Running } else { Seen::Unknown };
                drop(self.events.try_send(AgentEvent::Probed { job, attempt, life: ServiceLife(1), seen }));
            }
            // A command has no socket, nothing to collect and nothing to be treated for.
            AgentEffect::Collect { .. }
            | AgentEffect::Reopen
            | AgentEffect::Treat(_)
            | AgentEffect::Check => {}
            AgentEffect::Leave { reason } => {
                if tokio::time::timeout(GOODBYE_MAX, self.link.leave(&reason)).await.is_err() {
                    warn!("the goodbye was not answered in time");
                }
            }
            AgentEffect::Exit { .. } => {}
        }
    }
}
