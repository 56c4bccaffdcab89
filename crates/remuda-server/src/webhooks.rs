//! Telling whoever asked how a job ended. What is to be told lies on a shelf of the store, written together with the end;
//! here it is brought to its address until it was taken. The core says when to try again and when to give up.
//!
//! ```text
//!  job ends ──records──▶ shelf ──▶ POST ──2xx──▶ taken: off the shelf
//!                          ▲        └─anything else─▶ wait, longer each time ──▶ a day: given up
//!                          └── a plane that starts reads all that is left here
//! ```
//!
//! A receiver that answered just before the plane died is told again: at least once, always under the same id.

mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::document::Collection;
use remuda_core::id::JobId;
use remuda_core::plane::PlaneEvent;
use remuda_core::time::Timestamp;
use remuda_core::webhook::{DeliveryResult, WebhookDelivery, WebhookTargets};
use remuda_store::{Store, StoreError};
use reqwest::{Client, StatusCode, header};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

pub use self::target::Policy;

use self::target::Guard;
use crate::plane_handle::PlaneHandle;
use crate::shutdown::stopped;
use crate::tasks::Ticker;
use remuda_net::http_client as dial;

/// Whoever takes longer to say yes has said nothing.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Deliveries under way at the same time: one slow receiver must not keep the others waiting.
const UNDER_WAY_MAX: usize = 16;
/// News held in memory; what is beyond that stays on its shelf until there is room.
const HELD_MAX: usize = 10_000;
const PAGE: usize = 500;
/// Why something is given up that may never have been tried.
const OLD: &str = "its receiver did not listen for a day";
/// The shelf is read at most so often, however many jobs end; and not for more than a tenth of the time, however much is
/// left on it.
const READ_EVERY: Duration = Duration::from_millis(200);
const READ_SHARE: u32 = 10;

#[derive(Debug)]
pub(crate) struct WebhookSender {
    plane: PlaneHandle,
    store: Store,
    /// Something new is on the shelf.
    outbox: Arc<Notify>,
    http: Client,
    policy: Policy,
    held: BTreeMap<JobId, Held>,
    targets: WebhookTargets,
    /// The shelf has something that may be taken up.
    is_behind: bool,
    /// The shelf has more than can be held.
    has_more: bool,
    /// Not to be read again before.
    read_next: Instant,
}

#[derive(Clone, Debug)]
struct Held {
    news: Arc<WebhookDelivery>,
    /// Whom it goes to, as far as the address tells.
    target: String,
    failures: u32,
    /// When to try next; nothing while it is being tried.
    due: Option<Timestamp>,
}

/// How a delivery went: the job, and what was wrong.
type Outcome = (JobId, Result<(), String>);

impl WebhookSender {
    pub(crate) fn new(
        plane: PlaneHandle,
        store: Store,
        outbox: Arc<Notify>,
        policy: Policy,
    ) -> anyhow::Result<WebhookSender> {
        let http = dial::client_builder().dns_resolver(Guard(policy)).timeout(ANSWER_MAX);
        let http = http.build().context("cannot set up HTTP for webhooks")?;
        Ok(WebhookSender {
            plane,
            store,
            outbox,
            http,
            policy,
            held: BTreeMap::new(),
            targets: WebhookTargets::default(),
            is_behind: true,
            has_more: false,
            read_next: Instant::now(),
        })
    }

    pub(crate) async fn run(mut self, mut stopping: watch::Receiver<bool>, ticker: Ticker) {
        let mut under_way = JoinSet::new();
        loop {
            ticker.tick();
            self.give_up_old().await;
            self.send_due(&mut under_way);
            let wake = self.held.values().filter_map(|held| self.may_go_at(held)).min();
            let wake = wake.map(|at| Instant::from_std(self.plane.clock.instant(at)));
            let is_full = under_way.len() >= UNDER_WAY_MAX;
            tokio::select! {
                () = stopped(&mut stopping) => return,
                Some(Ok(outcome)) = under_way.join_next() => self.settle(outcome).await,
                () = self.outbox.notified() => self.is_behind = true,
                () = tokio::time::sleep_until(self.read_next), if self.is_behind => self.read_shelf().await,
                () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)),
                    if wake.is_some() && !is_full => {}
            }
            if self.has_more && self.held.len() < HELD_MAX / 2 {
                (self.has_more, self.is_behind) = (false, true);
            }
        }
    }

    /// Takes up what is on the shelf and not held yet.
    async fn read_shelf(&mut self) {
        let begun = Instant::now();
        (self.is_behind, self.has_more) = (false, false);
        if let Err(error) = self.take_up().await {
            self.is_behind = true;
            warn!(%error, "the webhooks that are due cannot be read; trying again");
        }
        self.read_next = Instant::now() + READ_EVERY.max(begun.elapsed() * READ_SHARE);
    }

    async fn take_up(&mut self) -> Result<(), StoreError> {
        let (mut after, now) = (String::new(), self.plane.clock.now());
        loop {
            let page = self.store.documents(Collection::Webhook, &after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after.clone_from(&last.id);
            let mut old = Vec::new();
            for document in &page {
                let Ok(news) = serde_json::from_str::<WebhookDelivery>(document.body.get()) else {
                    warn!(id = document.id, "a webhook that cannot be read is left to expire");
                    continue;
                };
                if self.held.contains_key(&news.job) {
                    continue;
                }
                if news.is_expired(now) {
                    old.push(news.result(0, Some(OLD.to_owned())));
                    continue;
                }
                if self.held.len() >= HELD_MAX {
                    self.has_more = true;
                    return Ok(());
                }
                let target = target_of(&news.url);
                if self.targets.load(&target) {
                    let held = Held { news: Arc::new(news), target, failures: 0, due: Some(now) };
                    self.held.insert(held.news.job, held);
                }
            }
            self.give_up(old).await;
        }
    }

    /// What waited for its turn until nobody would miss it.
    async fn give_up_old(&mut self) {
        let now = self.plane.clock.now();
        let is_old = |held: &&Held| held.due.is_some() && held.news.is_expired(now);
        let old = self.held.values().filter(is_old);
        let old = old.map(|held| held.news.result(held.failures, Some(OLD.to_owned()))).collect();
        self.give_up(old).await;
    }

    /// All at once, so that they are stored together; what is not stays on its shelf and is met there again.
    async fn give_up(&mut self, old: Vec<DeliveryResult>) {
        let mut asked = JoinSet::new();
        for told in old {
            warn!(job = %told.job, tries = told.tries, "a webhook is given up: {OLD}");
            self.let_go(told.job);
            let plane = self.plane.clone();
            asked
                .spawn(async move { plane.request_queued(PlaneEvent::WebhookSettled(Box::new(told))).await });
        }
        while let Some(answer) = asked.join_next().await {
            if let Ok(Err(error)) = answer {
                warn!(%error, "that a webhook is given up could not be stored");
            }
        }
    }

    fn let_go(&mut self, job: JobId) {
        if let Some(held) = self.held.remove(&job) {
            self.is_behind |= self.targets.unload(&held.target);
        }
    }

    /// When it is due and its receiver would listen; nothing while either cannot be said.
    fn may_go_at(&self, held: &Held) -> Option<Timestamp> {
        Some(held.due?.max(self.targets.free_at(&held.target)?))
    }

    fn send_due(&mut self, under_way: &mut JoinSet<Outcome>) {
        let now = self.plane.clock.now();
        let due: Vec<_> = self
            .held
            .iter()
            .filter(|(_, held)| self.may_go_at(held).is_some_and(|at| at <= now))
            .map(|(job, _)| *job)
            .collect();
        for job in due {
            let Some(held) = self.held.get_mut(&job) else { continue };
            // Whoever went before it may have taken the last place.
            let has_place = self.targets.free_at(&held.target).is_some() && under_way.len() < UNDER_WAY_MAX;
            if !has_place {
                continue;
            }
            self.targets.sent(&held.target);
            held.due = None;
            let (http, policy, news) = (self.http.clone(), self.policy, held.news.clone());
            under_way.spawn(async move { (news.job, deliver(&http, policy, &news, now).await) });
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
                    return info!(%job, problem, tries = held.failures, next = %at, "a webhook was not taken");
                }
                warn!(%job, problem, "a webhook is given up");
                (held.failures, Some(problem))
            }
        };
        let told = held.news.result(tries, problem);
        match self.plane.request_queued(PlaneEvent::WebhookSettled(Box::new(told))).await {
            Ok(_) => self.let_go(job),
            // It is still on its shelf: told once more rather than never.
            Err(error) => {
                warn!(%job, %error, "that a webhook was taken could not be stored; it will be sent again");
                if let Some(held) = self.held.get_mut(&job) {
                    held.due = Some(now.plus(ANSWER_MAX));
                }
            }
        }
    }
}

/// The host and the port: what is behind them goes down together.
fn target_of(url: &str) -> String {
    let known = url.parse::<reqwest::Url>();
    known.map_or_else(|_| url.to_owned(), |url| url.origin().ascii_serialization())
}

async fn deliver(
    http: &Client,
    policy: Policy,
    news: &WebhookDelivery,
    now: Timestamp,
) -> Result<(), String> {
    let url = policy.check(&news.url)?;
    let mut request = http
        .post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("remuda/", env!("CARGO_PKG_VERSION")))
        .header("Remuda-Webhook-Id", news.job.to_string())
        .body(news.body.get().to_owned());
    if let Some(signature) = news.signature(now) {
        request = request.header("Remuda-Signature", signature);
    }
    let answer = request.send().await.map_err(|error| said(&error))?;
    match answer.status() {
        status if status.is_success() => Ok(()),
        status if status.is_redirection() => {
            Err(format!("it answered {status}: redirects are not followed, give the final address"))
        }
        StatusCode::GONE => Err("it answered 410 Gone".to_owned()),
        status => Err(format!("it answered {status}")),
    }
}

/// The innermost cause: what is around it only repeats the address.
fn said(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
