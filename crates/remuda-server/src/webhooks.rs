//! Delivers webhooks. A delivery is a document in the store, written in the same commit as the job's end; this task sends it
//! until its target accepts it. The core decides when to retry and when to give up.
//!
//! ```text
//!  job ends ──records──▶ store ──▶ POST ──2xx──▶ delivered: deleted
//!                          ▲        └─anything else─▶ backoff ──▶ after a day: abandoned
//!                          └── a plane that starts reads all that is left
//! ```
//!
//! A target that accepted just before the plane died gets it again: delivery is at least once, always with the same id.

mod target;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use remuda_core::clock::signing_time;
use remuda_core::document::Collection;
use remuda_core::id::JobId;
use remuda_core::plane::PlaneEvent;
use remuda_core::time::Timestamp;
use remuda_core::webhook::{DeliveryResult, WebhookDelivery, WebhookTargets};
use remuda_store::{Store, StoreError};
use reqwest::{Client, StatusCode, Url, header};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

pub use self::target::Policy;

use self::target::GuardedResolver;
use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::Ticker;
use remuda_net::clock::machine_time;
use remuda_net::http_client as dial;

/// A target that takes longer has not accepted.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Deliveries under way at the same time: one slow target must not delay the others.
const IN_FLIGHT_MAX: usize = 16;
/// Deliveries held in memory; the rest stays in the store until there is space.
const HELD_MAX: usize = 10_000;
const PAGE: usize = 500;
/// Clients kept, one a port: almost all webhooks go to two ports.
const CLIENTS_MAX: usize = 32;
/// Why a delivery is abandoned that may never have been tried.
const EXPIRED: &str = "the target did not accept it for a day";
/// The store is read at most this often, however many jobs end, and for at most a tenth of the time, however much is left.
const READ_EVERY: Duration = Duration::from_millis(200);
const READ_SHARE: u32 = 10;

#[derive(Debug)]
pub(crate) struct WebhookSender {
    plane: PlaneHandle,
    store: Store,
    /// Notified when a delivery was stored.
    outbox: Arc<Notify>,
    clients: WebhookClients,
    policy: Policy,
    held: BTreeMap<JobId, HeldDelivery>,
    targets: WebhookTargets,
    /// The store may have deliveries that are not held yet.
    is_behind: bool,
    /// The store has more deliveries than can be held.
    has_more: bool,
    /// The store is not read again before this.
    read_next: Instant,
}

#[derive(Clone, Debug)]
struct HeldDelivery {
    news: Arc<WebhookDelivery>,
    /// The origin of its URL.
    target: String,
    failures: u32,
    /// When to try next; `None` while it is being tried.
    due: Option<Timestamp>,
}

/// The job of a delivery, and its failure if it has one.
type Outcome = (JobId, Result<(), String>);

impl WebhookSender {
    pub(crate) fn new(
        plane: PlaneHandle,
        store: Store,
        outbox: Arc<Notify>,
        policy: Policy,
    ) -> WebhookSender {
        WebhookSender {
            plane,
            store,
            outbox,
            clients: WebhookClients { policy: policy.clone(), by_port: HashMap::new() },
            policy,
            held: BTreeMap::new(),
            targets: WebhookTargets::default(),
            is_behind: true,
            has_more: false,
            read_next: Instant::now(),
        }
    }

    pub(crate) async fn run(mut self, mut stopping: watch::Receiver<bool>, ticker: Ticker) {
        let mut in_flight = JoinSet::new();
        loop {
            ticker.tick();
            self.abandon_expired().await;
            self.send_due(&mut in_flight);
            let wake = self.held.values().filter_map(|held| self.may_go_at(held)).min();
            let wake = wake.map(|at| Instant::from_std(self.plane.clock.instant(at)));
            let is_full = in_flight.len() >= IN_FLIGHT_MAX;
            tokio::select! {
                () = stopped(&mut stopping) => return,
                Some(Ok(outcome)) = in_flight.join_next() => self.settle(outcome).await,
                () = self.outbox.notified() => self.is_behind = true,
                () = tokio::time::sleep_until(self.read_next), if self.is_behind => self.read_store().await,
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)),
                    if wake.is_some() && !is_full => {}
            }
            if self.has_more && self.held.len() < HELD_MAX / 2 {
                (self.has_more, self.is_behind) = (false, true);
            }
        }
    }

    /// Loads deliveries that are not held yet.
    async fn read_store(&mut self) {
        let begun = Instant::now();
        (self.is_behind, self.has_more) = (false, false);
        if let Err(error) = self.load_deliveries().await {
            self.is_behind = true;
            warn!(%error, "reading webhooks failed; will retry");
        }
        self.read_next = Instant::now() + READ_EVERY.max(begun.elapsed() * READ_SHARE);
    }

    async fn load_deliveries(&mut self) -> Result<(), StoreError> {
        let (mut after, now) = (String::new(), self.plane.clock.now());
        loop {
            let page = self.store.documents(Collection::Webhook, &after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after.clone_from(&last.id);
            let mut old = Vec::new();
            for document in &page {
                let Ok(news) = serde_json::from_str::<WebhookDelivery>(document.body.get()) else {
                    warn!(id = document.id, "webhook unreadable; left to expire");
                    continue;
                };
                if self.held.contains_key(&news.job) {
                    continue;
                }
                if news.is_expired(now) {
                    old.push(news.result(0, Some(EXPIRED.to_owned())));
                    continue;
                }
                if self.held.len() >= HELD_MAX {
                    self.has_more = true;
                    return Ok(());
                }
                let target = target_of(&news.url);
                if self.targets.load(&target) {
                    let held = HeldDelivery { news: Arc::new(news), target, failures: 0, due: Some(now) };
                    self.held.insert(held.news.job, held);
                }
            }
            self.abandon(old).await;
        }
    }

    /// Abandons deliveries that waited too long for their turn.
    async fn abandon_expired(&mut self) {
        let now = self.plane.clock.now();
        let is_old = |held: &&HeldDelivery| held.due.is_some() && held.news.is_expired(now);
        let old = self.held.values().filter(is_old);
        let old = old.map(|held| held.news.result(held.failures, Some(EXPIRED.to_owned()))).collect();
        self.abandon(old).await;
    }

    /// All at once, so that they are stored together; those that are not stored stay in the store and are read again.
    async fn abandon(&mut self, old: Vec<DeliveryResult>) {
        let mut asked = JoinSet::new();
        for told in old {
            warn!(job = %told.job, tries = told.tries, "webhook abandoned: {EXPIRED}");
            self.release(told.job);
            let plane = self.plane.clone();
            asked
                .spawn(async move { plane.request_queued(PlaneEvent::WebhookSettled(Box::new(told))).await });
        }
        while let Some(answer) = asked.join_next().await {
            if let Ok(Err(error)) = answer {
                warn!(%error, "storing an abandoned webhook failed");
            }
        }
    }

    fn release(&mut self, job: JobId) {
        if let Some(held) = self.held.remove(&job) {
            self.is_behind |= self.targets.unload(&held.target);
        }
    }

    /// When it is due and its target is free; `None` while either is unknown.
    fn may_go_at(&self, held: &HeldDelivery) -> Option<Timestamp> {
        Some(held.due?.max(self.targets.free_at(&held.target)?))
    }

    fn send_due(&mut self, in_flight: &mut JoinSet<Outcome>) {
        let now = self.plane.clock.now();
        let due: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| self.may_go_at(held).is_some_and(|at| at <= now))
            .map(|(job, _)| *job)
            .collect();
        for job in due {
            let Some(held) = self.held.get_mut(&job) else { continue };
            // An earlier delivery of this round may have taken the last permit.
            let has_permit = self.targets.free_at(&held.target).is_some() && in_flight.len() < IN_FLIGHT_MAX;
            if !has_permit {
                continue;
            }
            self.targets.sent(&held.target);
            held.due = None;
            let news = held.news.clone();
            let signed_at = signing_time(now, machine_time());
            let request = self.policy.check(&news.url).and_then(|url| Ok((self.clients.for_url(&url)?, url)));
            in_flight.spawn(async move {
                let outcome = match request {
                    Ok((http, url)) => deliver(&http, url, &news, signed_at).await,
                    Err(problem) => Err(problem),
                };
                (news.job, outcome)
            });
        }
    }

    async fn settle(&mut self, (job, outcome): Outcome) {
        let Some(held) = self.held.get_mut(&job) else { return };
        let now = self.plane.clock.now();
        self.targets.answered(now, &held.target, outcome.is_ok());
        let (tries, problem) = match outcome {
            Ok(()) => (held.failures + 1, None),
            Err(problem) => {
                held.failures += 1;
                if let Some(at) = held.news.retry_at(now, held.failures) {
                    held.due = Some(at);
                    return info!(%job, problem, tries = held.failures, next = %at, "webhook delivery failed; will retry");
                }
                warn!(%job, problem, "webhook abandoned");
                (held.failures, Some(problem))
            }
        };
        let told = held.news.result(tries, problem);
        match self.plane.request_queued(PlaneEvent::WebhookSettled(Box::new(told))).await {
            Ok(_) => self.release(job),
            // It is still in the store: delivered twice rather than never.
            Err(error) => {
                warn!(%job, %error, "storing a webhook delivery failed; it will be sent again");
                if let Some(held) = self.held.get_mut(&job) {
                    held.due = Some(now.plus(ANSWER_TIMEOUT));
                }
            }
        }
    }
}

/// Scheme, host and port: they fail together.
fn target_of(url: &str) -> String {
    let known = url.parse::<Url>();
    known.map_or_else(|_| url.to_owned(), |url| url.origin().ascii_serialization())
}

/// A client for each port, since what a name may resolve to depends on the port.
#[derive(Debug)]
struct WebhookClients {
    policy: Policy,
    by_port: HashMap<u16, Client>,
}

impl WebhookClients {
    fn for_url(&mut self, url: &Url) -> Result<Client, String> {
        let port = url.port_or_known_default().unwrap_or(0);
        if let Some(client) = self.by_port.get(&port) {
            return Ok(client.clone());
        }
        if self.by_port.len() >= CLIENTS_MAX {
            self.by_port.clear();
        }
        let resolver = GuardedResolver { policy: self.policy.clone(), port };
        let client = dial::client_builder().dns_resolver(resolver).timeout(ANSWER_TIMEOUT).build();
        let client = client.map_err(|error| format!("cannot set up HTTP for webhooks: {error}"))?;
        self.by_port.insert(port, client.clone());
        Ok(client)
    }
}

async fn deliver(
    http: &Client,
    url: Url,
    news: &WebhookDelivery,
    signed_at: Timestamp,
) -> Result<(), String> {
    let mut request = http
        .post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("remuda/", env!("CARGO_PKG_VERSION")))
        .header("Remuda-Webhook-Id", news.job.to_string())
        .body(news.body.get().to_owned());
    if let Some(signature) = news.signature(signed_at) {
        request = request.header("Remuda-Signature", signature);
    }
    let answer = request.send().await.map_err(|error| root_cause(&error))?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status if status.is_redirection() => {
            Err(format!("it answered {status}: redirects are not followed, give the final address"))
        }
        StatusCode::GONE => Err("it answered 410 Gone".to_owned()),
        status => Err(format!("it answered {status}")),
    }
}

/// The innermost cause: the outer ones only repeat the URL.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
