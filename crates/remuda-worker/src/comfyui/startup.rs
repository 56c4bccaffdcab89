//! Before an agent joins: the server answers, says what it has, and really computes; and what a former agent of this
//! name left with it is found.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use remuda_comfyui::{Client, Error, Inventory, Place, Sick, Stats};
use remuda_core::agent::{AgentEvent, FoundAttempt};
use remuda_core::id::WorkerId;
use remuda_core::need::Capabilities;
use remuda_core::service::ServiceIncarnation;
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::early;
use super::life::Lives;
use super::process::Process;
use super::{Comfyui, ComfyuiOptions, Run, Shared, marker};
use crate::Options;
use crate::Shows;
use crate::blobs::BlobLink;
use crate::check::Says;
use crate::hands::Events;

/// How often a server that does not answer yet is asked, and how often that is said.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const SAY_EVERY: u32 = 50;
/// A server that answers and does not work is checked again after this long.
const CHECK_AGAIN: Duration = Duration::from_secs(10);
/// A server that fails so often in a row is not merely slow to begin.
const UNFIT_MAX: u32 = 3;
/// A server that we started answers by then, or something is wrong with it.
const START_MAX: Duration = Duration::from_secs(600);
const STATS_EVERY: Duration = Duration::from_secs(30);
/// A megabyte or two, to a plane that is there.
const LEND_MAX: Duration = Duration::from_secs(10);
/// Reading what a server has keeps it from answering others for a moment: done rarely, and only when it is idle.
const INVENTORY_EVERY: Duration = Duration::from_secs(300);

/// An agent may begin.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) comfyui: Comfyui,
    pub(crate) offer: Capabilities,
    pub(crate) found: Vec<FoundAttempt>,
    pub(crate) life: ServiceIncarnation,
}

/// Why a server is not fit for work.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    #[error(transparent)]
    Silent(#[from] Error),
    #[error(transparent)]
    Sick(#[from] Sick),
}

impl Comfyui {
    /// Waits until the server is fit for work, however long that takes.
    pub(crate) async fn begin(
        comfyui: ComfyuiOptions,
        options: &Options,
        events: Events,
        Shows { previews, reports }: Shows,
        says: &Says,
    ) -> anyhow::Result<Ready> {
        let ComfyuiOptions { target, command, timeout, self_test_timeout } = comfyui;
        let client = Client::new(&target, timeout)?;
        let scratch = options.data.join("scratch").join(options.worker.as_str());
        std::fs::create_dir_all(&scratch)
            .with_context(|| format!("cannot make {} for files on their way", scratch.display()))?;
        let marker = marker(options);
        let process = match command {
            Some(_) if !Process::is_marked(&marker) && client.stats().await.is_ok() => {
                warn!(
                    url = target.url,
                    "a ComfyUI runs there that no worker of this name started: it is used, and never restarted or stopped"
                );
                None
            }
            Some(command) => Some(Process::begin(command, marker, events.clone()).await?),
            None => None,
        };
        let (early, put_out) = early::channel();
        let shared = Arc::new(Shared {
            client,
            target,
            client_id: client_id(&options.worker, &options.url),
            worker: options.worker.clone(),
            blobs: BlobLink::with(&options.url, &options.credentials),
            events,
            previews,
            reports,
            early,
            lives: Lives::default(),
            process,
            reopen: Notify::new(),
            runs: Default::default(),
            placed: Default::default(),
            metrics: Default::default(),
            info: Default::default(),
            scratch,
            self_test_timeout,
        });
        shared.lives.began();
        let (offer, found) = shared.fit_for_work(options.slots as usize, says).await;
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().listen());
        tasks.spawn(shared.clone().bring_early(put_out));
        tasks.spawn(shared.clone().keep_looking());
        let life = shared.lives.current();
        Ok(Ready { comfyui: Comfyui { shared, tasks }, offer, found, life })
    }
}

impl Shared {
    async fn fit_for_work(&self, slots: usize, says: &Says) -> (Capabilities, Vec<FoundAttempt>) {
        self.wait_until_there(says).await;
        let mut failures = 0;
        loop {
            says.waits_for("ComfyUI answers: it does something small for real").await;
            // First what a former agent left: the check would wait behind it.
            let found = self.find(slots).await;
            let checked = match found {
                Ok(found) if found.is_empty() => self.check().await.map(|offer| (offer, found)),
                Ok(found) => self.offer().await.map(|offer| (offer, found)).map_err(Unfit::from),
                Err(error) => Err(error.into()),
            };
            match checked {
                Ok(ready) => return ready,
                Err(problem) => {
                    warn!(%problem, url = %self.target.url, "ComfyUI is not fit for work; checking again in a while");
                    failures += 1;
                    let told = format!("ComfyUI is not fit for work: {problem}");
                    if failures >= UNFIT_MAX {
                        says.failed(&told).await;
                    } else {
                        says.waits_for(told).await;
                    }
                    tokio::time::sleep(CHECK_AGAIN).await;
                }
            }
        }
    }

    async fn wait_until_there(&self, says: &Says) {
        let (mut looks, mut ends) = (0, 0);
        while let Err(error) = self.client.stats().await {
            if looks % SAY_EVERY == 0 {
                info!(url = %self.target.url, %error, "waiting for ComfyUI");
                says.waits_for(format!("waits for ComfyUI to answer: {error}")).await;
            }
            looks += 1;
            tokio::time::sleep(LOOK_EVERY).await;
            if let Some(process) = &self.process
                && let Some(why) = process.ended().await
            {
                ends += 1;
                self.start_again(process, &why, ends, says).await;
            }
        }
    }

    /// It ended before it ever answered: perhaps the next one does not.
    async fn start_again(&self, process: &Process, why: &str, ends: u32, says: &Says) {
        let told = format!("ComfyUI ended before it answered: {why}");
        warn!(%why, "ComfyUI ended before it answered; starting it again in a while");
        if ends >= UNFIT_MAX {
            says.failed(&told).await;
        } else {
            says.waits_for(told).await;
        }
        tokio::time::sleep(CHECK_AGAIN).await;
        if let Err(problem) = process.restart().await {
            warn!(%problem, "ComfyUI cannot be started again");
        }
        self.lives.began();
    }

    pub(super) async fn wait_until_it_answers(&self, process: &Process) -> Result<(), String> {
        let there = async {
            while let Err(error) = self.client.stats().await {
                if let Some(ended) = process.ended().await {
                    return Err(format!("it ended right after it was started: {ended}"));
                }
                tracing::debug!(%error, "not there yet");
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok(())
        };
        let late = |_| Err(format!("it did not answer within {START_MAX:?} after it was started"));
        tokio::time::timeout(START_MAX, there).await.unwrap_or_else(late)
    }

    /// What a former agent handed in and nobody may have heard the end of: all that runs or waits, and of what has ended
    /// as much as an agent holds at a time.
    async fn find(&self, slots: usize) -> Result<Vec<FoundAttempt>, Error> {
        let mut ours = self.client.ours(&self.worker).await?;
        let ended = ours.iter().filter(|it| it.place == Place::Ended).count();
        let mut passed_over = ended.saturating_sub(slots);
        // The oldest come first.
        ours.retain(|it| {
            let is_old = it.place == Place::Ended && passed_over > 0;
            passed_over -= usize::from(is_old);
            !is_old
        });
        for tagged in &ours {
            info!(job = %tagged.job, attempt = %tagged.attempt, place = ?tagged.place, "found with ComfyUI");
            self.with_run(&tagged.id, |runs, id| runs.insert(id, Run::new(tagged.job, tagged.attempt)));
        }
        Ok(ours.into_iter().map(|tagged| FoundAttempt { job: tagged.job, attempt: tagged.attempt }).collect())
    }

    /// Has it do something small for real, and sees what it has.
    pub(super) async fn check(&self) -> Result<Capabilities, Unfit> {
        let canary = self.client.canary(&self.worker, &self.client_id);
        if let Err(sick) = self.client.sing(&canary, self.self_test_timeout).await {
            // It must not wait there until somebody mends the server.
            self.client.cancel(canary.id()).await.ok();
            return Err(sick.into());
        }
        self.lives.anchor(canary.id());
        Ok(self.offer().await?)
    }

    async fn offer(&self) -> Result<Capabilities, Error> {
        let stats = self.client.stats().await?;
        let (Inventory { classes, models }, info) = self.client.inventory_in_full().await?;
        self.lend_info(&info).await;
        let vram_bytes = stats.devices.first().map(|device| device.vram_total_bytes);
        info!(
            version = stats.version,
            classes = classes.len(),
            models = models.len(),
            "ComfyUI is fit for work"
        );
        self.remember(&stats);
        Ok(Capabilities {
            models: Some(models),
            classes: Some(classes),
            vram_bytes,
            ..Capabilities::default()
        })
    }

    /// Has the plane keep what the server says of its classes, for clients who ask there. Nothing depends on it.
    async fn lend_info(&self, info: &RawValue) {
        let store = self.blobs.store_bytes(Bytes::copy_from_slice(info.get().as_bytes()));
        match tokio::time::timeout(LEND_MAX, store).await {
            Ok(Ok((hash, _))) => {
                *self.info.lock().unwrap_or_else(PoisonError::into_inner) = Some(hash.to_string());
            }
            Ok(Err(error)) => {
                warn!(%error, "the plane does not keep what ComfyUI can do; offered again later");
            }
            Err(_) => warn!("the plane takes too long to keep what ComfyUI can do; offered again later"),
        }
    }

    fn remember(&self, stats: &Stats) {
        let mut metrics = Map::new();
        metrics.insert("comfyui_version".to_owned(), stats.version.clone().into());
        if let Some(device) = stats.devices.first() {
            metrics.insert("device".to_owned(), device.name.clone().into());
            metrics.insert("vram_total_bytes".to_owned(), device.vram_total_bytes.into());
            metrics.insert("vram_free_bytes".to_owned(), Value::from(device.vram_free_bytes));
            let used = device.vram_total_bytes.saturating_sub(device.vram_free_bytes);
            metrics.insert("vram_used_bytes".to_owned(), used.into());
        }
        *self.metrics.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }

    /// Sees from time to time what the server has; never more than a question in ten seconds.
    async fn keep_looking(self: Arc<Self>) {
        let mut looked = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(STATS_EVERY).await;
            if let Ok(stats) = self.client.stats().await {
                self.remember(&stats);
            }
            let is_idle = self.runs.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            if is_idle
                && looked.elapsed() >= INVENTORY_EVERY
                && let Ok(offer) = self.offer().await
            {
                looked = tokio::time::Instant::now();
                self.tell(AgentEvent::Offer(Box::new(offer))).await;
            }
        }
    }
}

/// The same for every agent of this name under this plane: who adopts a prompt also hears what is said of it.
fn client_id(worker: &WorkerId, plane: &str) -> String {
    let plane = BlobHash::of(plane.as_bytes()).hex();
    format!("remuda-{worker}-{}", &plane[..8])
}
