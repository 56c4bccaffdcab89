//! Four times as much as can be done: how much of it is done, and how soon the rest hears that it is not.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remuda_models::{CallOptions, ModelError, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec};

use super::{BATCH, LENGTH, batch, embed, end, pool};
use crate::figures::Figures;

const EACH: Duration = Duration::from_secs(5);
/// How many ask at a time when as much is asked as can be done.
const ASKERS: usize = 4;
const TIMES_OVER: f64 = 4.0;
const TICK: Duration = Duration::from_millis(2);

pub(crate) async fn measure(table: &mut Figures, model: &Path) -> anyhow::Result<()> {
    let idle = pool(ModelSpec::new("embed", model), ModelPoolSettings::default()).await?;
    let before = capacity(&idle).await?;
    // A second's worth may wait.
    let queue_tokens_max = (before * (BATCH * LENGTH) as f64) as usize;
    let settings = ModelPoolSettings { queue_tokens_max, ..ModelPoolSettings::default() };
    let full = pool(ModelSpec::new("embed", model), settings).await?;
    let (done, mut refusals) = flood(&full, before * TIMES_OVER).await?;
    end(&full);
    // Once more: the machine may be given to others meanwhile.
    let can = f64::midpoint(before, capacity(&idle).await?);
    end(&idle);
    refusals.sort_unstable();
    let note = format!("{done:.1} of {can:.1} requests a second; wanted: about 1");
    table.add("overload at 4×: throughput kept", done / can, "", note);
    let worst = refusals.get(refusals.len() * 99 / 100).copied().unwrap_or_default();
    let note = format!("99 of 100 of {} refusals", refusals.len());
    table.add("overload at 4×: refused within", worst.as_secs_f64() * 1000.0, "ms", note);
    Ok(())
}

/// Requests a second when a few take turns asking.
async fn capacity(pool: &ModelPool) -> anyhow::Result<f64> {
    let began = Instant::now();
    let askers = (0..ASKERS).map(|_| {
        let (pool, texts) = (pool.clone(), batch());
        tokio::spawn(async move {
            let mut done = 0_u64;
            while began.elapsed() < EACH {
                embed::vectors(&pool, &texts).await?;
                done += 1;
            }
            anyhow::Ok(done)
        })
    });
    let mut done = 0;
    for asker in askers.collect::<Vec<_>>() {
        done += asker.await??;
    }
    Ok(done as f64 / began.elapsed().as_secs_f64())
}

/// Asks so often a second whatever happens; what was done a second, and how long each refusal took.
async fn flood(pool: &ModelPool, per_second: f64) -> anyhow::Result<(f64, Vec<Duration>)> {
    let (began, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let (mut asked, mut refusals) = (0.0, Vec::new());
    while began.elapsed() < EACH {
        while asked < began.elapsed().as_secs_f64() * per_second {
            asked += 1.0;
            let request = ModelRequest::TextEmbedding { texts: batch() };
            let at = Instant::now();
            match pool.call("embed", request, CallOptions::default()) {
                Err(ModelError::Full { .. }) => refusals.push(at.elapsed()),
                Err(error) => return Err(error.into()),
                Ok(ticket) => {
                    let done = Arc::clone(&done);
                    tokio::spawn(async move {
                        if ticket.answer().await.is_ok() {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            }
        }
        tokio::time::sleep(TICK).await;
    }
    Ok((done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64(), refusals))
}
