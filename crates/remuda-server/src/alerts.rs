//! The task around `core::alert`: reads what the rules look at, lets the core decide, stores what it decided, and sends.
//!
//! ```text
//!  every `alerts.check_every`: plane, store, tasks, certificate ──▶ evaluate ──▶ step ──▶ 1. documents stored
//!                                                                               ▲        2. messages sent
//!                                                                               └── accepted, or not ──┘
//! ```
//!
//! A message leaves although its incident could not be stored: an alert that says the store is full would otherwise never
//! arrive. It may then arrive twice, with the same id.

mod send;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_config::AlertConfig;
use remuda_core::alert::{
    AlertChannel, AlertDelivery, AlertEvent, AlertInputs, AlertNotice, AlertStep, Alerts, NoticeKind,
    evaluate,
};
use remuda_core::document::{Collection, Document};
use remuda_core::plane::PlaneEvent;
use remuda_store::{Store, StoreError};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use self::send::AlertSender;
use crate::metrics::AlertStats;
use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::{Supervisor, Ticker};
use crate::tls::Tls;

/// Requests of operators that may wait.
const REQUESTS_MAX: usize = 64;
const PAGE: usize = 500;
/// A task that does not answer by then is down.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Two requests and a command, each with its own limit.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);
/// A store that takes longer is the reason for an alert, not a reason to hold one back.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A request of an operator.
#[derive(Debug)]
enum AlertRequest {
    List(oneshot::Sender<Value>),
    /// Sends a test message; `None` if there is no such alert.
    Test(String, oneshot::Sender<Option<Value>>),
    Configure(Vec<AlertConfig>),
}

/// How other tasks reach the task. Clones share it.
#[derive(Clone, Debug)]
pub struct AlertHandle {
    requests: mpsc::Sender<AlertRequest>,
    pub(crate) stats: Arc<AlertStats>,
}

/// The other end of a handle; the task's successor after a panic goes on with it.
#[derive(Debug)]
pub(crate) struct AlertInbox(mpsc::Receiver<AlertRequest>);

impl AlertHandle {
    pub(crate) fn new() -> (AlertHandle, AlertInbox) {
        let (requests, inbox) = mpsc::channel(REQUESTS_MAX);
        (AlertHandle { requests, stats: Arc::default() }, AlertInbox(inbox))
    }

    /// Every alert with its state; `None` if the task is down.
    pub(crate) async fn list(&self) -> Option<Value> {
        let (answer, reply) = oneshot::channel();
        self.requests.try_send(AlertRequest::List(answer)).ok()?;
        tokio::time::timeout(LIST_TIMEOUT, reply).await.ok()?.ok()
    }

    /// Sends a test message on every channel of an alert; the inner `None` if there is no such alert.
    pub(crate) async fn test(&self, name: String) -> Option<Option<Value>> {
        let (answer, reply) = oneshot::channel();
        self.requests.try_send(AlertRequest::Test(name, answer)).ok()?;
        tokio::time::timeout(TEST_TIMEOUT, reply).await.ok()?.ok()
    }

    pub(crate) async fn configure(&self, alerts: Vec<AlertConfig>) {
        drop(self.requests.send(AlertRequest::Configure(alerts)).await);
    }
}

/// What the task looks at.
#[derive(Clone, Debug)]
pub(crate) struct AlertSources {
    pub(crate) plane: PlaneHandle,
    pub(crate) store: Store,
    pub(crate) tasks: Supervisor,
    pub(crate) tls: Option<Tls>,
}

/// The incident of a message, its channel, and the problem if it was not accepted.
type SendResult = (String, AlertChannel, Result<(), String>);

pub(crate) struct AlertTask {
    sources: AlertSources,
    stats: Arc<AlertStats>,
    configs: BTreeMap<String, Arc<AlertConfig>>,
    alerts: Alerts,
    sender: AlertSender,
    in_flight: JoinSet<SendResult>,
    /// How often the conditions were looked at.
    checks: u64,
}

impl AlertTask {
    pub(crate) fn new(sources: AlertSources, stats: Arc<AlertStats>) -> AlertTask {
        let (configs, alerts, in_flight) = Default::default();
        AlertTask { sources, stats, configs, alerts, sender: AlertSender::default(), in_flight, checks: 0 }
    }

    pub(crate) async fn run(
        mut self,
        configs: Vec<AlertConfig>,
        check_every: Duration,
        inbox: &mut AlertInbox,
        mut stopping: watch::Receiver<bool>,
        ticker: Ticker,
    ) {
        match load_incidents(&self.sources.store).await {
            Ok(documents) => self.alerts = Alerts::restore(&documents),
            Err(error) => warn!(%error, "reading open alerts failed; some may be sent again"),
        }
        self.configure(configs).await;
        let mut checks = tokio::time::interval(check_every);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticker.tick();
            tokio::select! {
                () = stopped(&mut stopping) => return,
                _ = checks.tick() => self.observe().await,
                Some(Ok(result)) = self.in_flight.join_next() => self.settle(result).await,
                Some(request) = inbox.0.recv() => self.handle(request).await,
            }
        }
    }

    async fn configure(&mut self, configs: Vec<AlertConfig>) {
        let rules = configs.iter().map(|config| config.rule.clone()).collect();
        self.configs = configs.into_iter().map(|it| (it.rule.name.clone(), Arc::new(it))).collect();
        self.step(AlertEvent::Configure(rules)).await;
    }

    async fn observe(&mut self) {
        if self.configs.is_empty() {
            return;
        }
        let Some(inputs) = self.inputs().await else { return };
        let readings = evaluate(self.alerts.rules(), &inputs);
        self.step(AlertEvent::Observe(readings)).await;
        self.checks += 1;
    }

    /// What the rules look at now; `None` while the plane does not answer.
    async fn inputs(&self) -> Option<AlertInputs> {
        let AlertSources { plane, store, tasks, tls } = &self.sources;
        let mut inputs = plane.read(|plane, now| plane.alert_inputs(now)).await.ok()?;
        inputs.slowest_commit = plane.stats.slowest_commit();
        let full = "the disk is full: submissions are refused until there is space";
        inputs.store_problem = match store.misplaced() {
            Some(misplaced) => Some(misplaced.to_string()),
            None => (!store.has_reserve()).then(|| full.to_owned()),
        };
        inputs.certificate_ends_at = tls.as_ref().map(Tls::ends_at);
        inputs.tasks_down = tasks.down().into_iter().map(str::to_owned).collect();
        Some(inputs)
    }

    async fn step(&mut self, event: AlertEvent) {
        let step = self.alerts.step(self.sources.plane.clock.now(), event);
        let firing = self.alerts.incidents().filter(|incident| incident.is_firing()).count();
        self.stats.set_open(firing, self.alerts.pending().count());
        let AlertStep { store, delete, send, given_up } = step;
        for document in store {
            self.store(PlaneEvent::PutDocument(document)).await;
        }
        for id in delete {
            self.store(PlaneEvent::DeleteDocument { collection: Collection::Alert, id }).await;
        }
        for lost in given_up {
            error!(alert = lost.notice.alert, channel = lost.channel.as_str(), "alert message given up");
        }
        for delivery in send {
            self.send(delivery);
        }
    }

    async fn store(&self, event: PlaneEvent) {
        let stored = tokio::time::timeout(STORE_TIMEOUT, self.sources.plane.request_queued(event)).await;
        let problem = match stored {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", STORE_TIMEOUT.as_secs()),
        };
        warn!(problem, "alert not stored; its message may be sent again after a restart");
    }

    fn send(&mut self, delivery: AlertDelivery) {
        let AlertDelivery { channel, notice } = delivery;
        let (config, sender) = (self.configs.get(&notice.alert).cloned(), self.sender.clone());
        self.in_flight.spawn(async move {
            let sent = match config {
                Some(config) => sender.send(&config, channel, &notice).await,
                None => Err("this alert is no longer configured".to_owned()),
            };
            (notice.incident, channel, sent)
        });
    }

    async fn settle(&mut self, (incident, channel, sent): SendResult) {
        self.stats.count_message(channel, sent.is_ok());
        if let Err(problem) = &sent {
            warn!(incident, channel = channel.as_str(), problem, "alert message not accepted; will retry");
        }
        self.step(AlertEvent::Sent { incident, channel, is_accepted: sent.is_ok() }).await;
    }

    async fn handle(&mut self, request: AlertRequest) {
        match request {
            AlertRequest::List(answer) => drop(answer.send(self.list())),
            AlertRequest::Test(name, answer) => self.test(&name, answer),
            AlertRequest::Configure(configs) => {
                info!(alerts = configs.len(), "alerts configured again");
                self.configure(configs).await;
            }
        }
    }

    /// Sends in the background: a slow receiver delays neither alerts nor other requests.
    fn test(&self, name: &str, answer: oneshot::Sender<Option<Value>>) {
        let Some(config) = self.configs.get(name).cloned() else { return drop(answer.send(None)) };
        let notice = AlertNotice::test(&config.rule, self.sources.plane.clock.now());
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let mut sent = Vec::new();
            for channel in &config.rule.channels {
                let problem = sender.send(&config, *channel, &notice).await.err();
                sent.push(json!({ "channel": channel, "accepted": problem.is_none(), "problem": problem }));
            }
            drop(answer.send(Some(json!({ "alert": config.rule.name, "sent": sent }))));
        });
    }

    fn list(&self) -> Value {
        let alerts: Vec<_> = self.alerts.rules().map(|rule| self.show(&rule.name)).collect();
        json!({ "alerts": alerts, "checks": self.checks })
    }

    fn show(&self, name: &str) -> Value {
        let Some(rule) = self.alerts.rule(name) else { return Value::Null };
        let incidents: Vec<_> = (self.alerts.incidents().filter(|incident| incident.rule == name))
            .map(|incident| {
                json!({
                    "id": incident.id(),
                    "subject": incident.subject,
                    "text": incident.text,
                    "raised_at": incident.raised_at.to_string(),
                    "recovered_at": incident.recovered_at.map(|at| at.to_string()),
                    "undelivered": incident.undelivered(),
                })
            })
            .collect();
        let pending = self.alerts.pending().filter(|(rule, ..)| *rule == name);
        let pending: Vec<_> = pending
            .map(|(_, subject, since)| json!({ "subject": subject, "since": since.to_string() }))
            .collect();
        let is_firing = self.alerts.incidents().any(|it| it.rule == name && it.is_firing());
        let state = match (is_firing, pending.is_empty()) {
            (true, _) => "firing",
            (false, false) => "pending",
            (false, true) => "ok",
        };
        json!({
            "name": name,
            "when": rule.when.as_str(),
            "state": state,
            "channels": rule.channels,
            "incidents": incidents,
            "pending": pending,
        })
    }
}

/// All stored incidents.
async fn load_incidents(store: &Store) -> Result<Vec<Arc<Document>>, StoreError> {
    let (mut after, mut all) = (String::new(), Vec::new());
    loop {
        let page = store.documents(Collection::Alert, &after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(all) };
        after.clone_from(&last.id);
        all.extend(page);
    }
}

/// Writes a message to the log. It is an error while something is wrong: a person should look.
fn log(notice: &AlertNotice) {
    let AlertNotice { alert, subject, state, .. } = notice;
    let (sentence, state) = (notice.sentence(), state.as_str());
    match notice.state {
        NoticeKind::Raised | NoticeKind::Reminder => error!(alert, subject, state, "{sentence}"),
        NoticeKind::Recovered | NoticeKind::Test => info!(alert, subject, state, "{sentence}"),
    }
}
