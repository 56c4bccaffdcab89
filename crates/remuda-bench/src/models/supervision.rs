//! What it costs to keep copies alive, and how soon one that died is noticed and replaced.
//!
//! What supervision does is measured on stand-ins, which need no time to compute; what users wait for, on a real model.

mod deaths;
mod overload;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use remuda_models::fake::FakeEngine;
use remuda_models::{Isolation, ModelPool, ModelPoolSettings, ModelSpec, engines};

use super::cpu_time::{self, median};
use super::{embed, texts};
use crate::figures::Figures;

const ROUNDS: usize = 7;
/// A request as services send them.
const BATCH: usize = 8;
const LENGTH: usize = 32;
/// Until a model is loaded and has proved itself.
const READY_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_micros(100);

pub(crate) async fn measure(
    table: &mut Figures,
    model: &Path,
    data: &Path,
    seconds: f64,
) -> anyhow::Result<()> {
    deaths::measure(table, model, data).await?;
    boundary(table, model, seconds).await?;
    checks(table, model, seconds).await?;
    overload::measure(table, model).await
}

fn batch() -> Vec<String> {
    (0..BATCH).map(|number| texts::of_length(LENGTH, number)).collect()
}

async fn pool(spec: ModelSpec, settings: ModelPoolSettings) -> anyhow::Result<ModelPool> {
    let name = spec.name.clone();
    let pool = ModelPool::start(settings, engines().with(FakeEngine));
    pool.add(spec)?;
    until(|| pool.has_alive_workers(&name)).await.context("the model did not get ready")?;
    Ok(pool)
}

/// Looks again and again: what is measured must not be told by what is measured.
async fn until(is_so: impl Fn() -> bool) -> anyhow::Result<Duration> {
    let began = std::time::Instant::now();
    while !is_so() {
        ensure!(began.elapsed() < READY_MAX, "nothing happened for {} s", READY_MAX.as_secs());
        tokio::time::sleep(LOOK).await;
    }
    Ok(began.elapsed())
}

pub(crate) fn end(pool: &ModelPool) {
    pool.close(Duration::ZERO);
}

/// The process of its first copy that has one.
fn child(pool: &ModelPool) -> Option<u32> {
    pool.snapshot().models.iter().flat_map(|model| &model.copies).find_map(|copy| copy.pid)
}

/// Processor time of a pool: this process's and its child's.
pub(crate) struct Used(Duration);

impl Used {
    pub(crate) fn by(pool: &ModelPool) -> anyhow::Result<Self> {
        let child = child(pool).map_or(Ok(Duration::ZERO), |pid| cpu_time::of(&pid.to_string()))?;
        Ok(Used(cpu_time::own()? + child))
    }

    pub(crate) fn since(&self, pool: &ModelPool) -> anyhow::Result<Duration> {
        Ok(Used::by(pool)?.0.saturating_sub(self.0))
    }
}

/// Processor time of a request.
async fn cost(pool: &ModelPool, texts: &[String], seconds: f64) -> anyhow::Result<f64> {
    let (used, mut count) = (Used::by(pool)?, 0);
    loop {
        embed::vectors(pool, texts).await?;
        count += 1;
        let so_far = used.since(pool)?.as_secs_f64();
        if so_far >= seconds {
            return Ok(so_far / f64::from(count));
        }
    }
}

/// What one costs more than the other, in hundredths, taking turns.
async fn dearer(one: &ModelPool, other: &ModelPool, seconds: f64) -> anyhow::Result<(f64, f64)> {
    let texts = batch();
    let (mut ratios, mut costs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let plain = cost(one, &texts, seconds).await?;
        ratios.push((cost(other, &texts, seconds).await? / plain - 1.0) * 100.0);
        costs.push(plain);
    }
    Ok((median(ratios), median(costs) * 1000.0))
}

async fn boundary(table: &mut Figures, model: &Path, seconds: f64) -> anyhow::Result<()> {
    let spec = |isolation| ModelSpec { isolation, ..ModelSpec::new("embed", model) };
    let thread = pool(spec(Isolation::Thread), ModelPoolSettings::default()).await?;
    let process = pool(spec(Isolation::Process), ModelPoolSettings::default()).await?;
    let (percent, cost) = dearer(&thread, &process, seconds).await?;
    let note =
        format!("more CPU than in a thread, at {cost:.1} ms for {BATCH} × {LENGTH} tokens; wanted: < 1");
    table.add("a copy in a process of its own", percent, "%", note);
    [thread, process].iter().for_each(end);
    Ok(())
}

async fn checks(table: &mut Figures, model: &Path, seconds: f64) -> anyhow::Result<()> {
    let spec = || ModelSpec { isolation: Isolation::Process, ..ModelSpec::new("embed", model) };
    let every = |maintenance_every| ModelPoolSettings { maintenance_every, ..ModelPoolSettings::default() };
    let never = pool(spec(), every(Duration::from_secs(3600))).await?;
    let often = pool(spec(), every(Duration::from_secs(1))).await?;
    let (percent, _) = dearer(&never, &often, seconds).await?;
    let note = "more CPU at work, asked every second instead of every minute; wanted: < 1".to_owned();
    table.add("health checks of a busy copy", percent, "%", note);
    end(&never);
    let (idle, used) = (Duration::from_secs(5), Used::by(&often)?);
    tokio::time::sleep(idle).await;
    let percent = used.since(&often)?.as_secs_f64() / idle.as_secs_f64() * 100.0;
    let note = "of a core without requests, measured every second; wanted: < 1".to_owned();
    table.add("health checks of an idle copy", percent, "%", note);
    end(&often);
    Ok(())
}
