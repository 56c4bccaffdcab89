//! How soon a death is seen, who waits is answered, and the next good answer comes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use remuda_models::{CallOptions, Isolation, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec};
use rustix::process::{Pid, Signal, kill_process};

use super::{child, embed, end, pool, texts, until};
use crate::figures::Figures;

const TIMES: usize = 7;
const QUEUED: usize = 100;

pub(crate) async fn measure(table: &mut Figures, model: &Path, data: &Path) -> anyhow::Result<()> {
    for (isolation, mishap, why) in
        [(Isolation::Thread, "!panic", "panicked"), (Isolation::Process, "!exit", "exited")]
    {
        let seen = seen(&stand_in(data)?, isolation, mishap, why).await?;
        add(table, &format!("a copy that {why}: seen after"), seen, "wanted: ≤ 10");
    }
    let answered = answered(&stand_in(data)?).await?;
    add(table, "last copy killed for good: all who wait answered after", vec![answered], "wanted: ≤ 100");
    let spec = ModelSpec { isolation: Isolation::Process, ..ModelSpec::new("embed", model) };
    let again = again(spec).await?;
    add(table, "only copy killed: next good answer after", again, "a real model; wanted: ≤ 500");
    Ok(())
}

fn add(table: &mut Figures, name: &str, mut took: Vec<Duration>, note: &str) {
    took.sort_unstable();
    let (Some(middle), Some(worst)) = (took.get(took.len() / 2), took.last()) else { return };
    let milliseconds = |took: &Duration| took.as_secs_f64() * 1000.0;
    let note = format!("the worst of {} {:.1}; {note}", took.len(), milliseconds(worst));
    table.add(name, milliseconds(middle), "ms", note);
}

fn stand_in(data: &Path) -> anyhow::Result<PathBuf> {
    let file = data.join("embed.fake");
    std::fs::write(&file, "text_embedding\n").with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn ask(pool: &ModelPool, text: &str) -> anyhow::Result<remuda_models::AnswerHandle> {
    let request = ModelRequest::TextEmbedding { texts: vec![text.to_owned()] };
    Ok(pool.call("embed", request, CallOptions::default())?)
}

fn deaths(pool: &ModelPool, why: &str) -> u64 {
    pool.snapshot().models.iter().filter_map(|model| model.deaths.get(why)).sum()
}

/// From what kills it being asked to its death being counted.
async fn seen(file: &Path, isolation: Isolation, mishap: &str, why: &str) -> anyhow::Result<Vec<Duration>> {
    let pool =
        pool(ModelSpec { isolation, ..ModelSpec::new("embed", file) }, ModelPoolSettings::default()).await?;
    let mut took = Vec::new();
    for _ in 0..TIMES {
        let before = deaths(&pool, why);
        let began = Instant::now();
        let ticket = ask(&pool, mishap)?;
        until(|| deaths(&pool, why) > before).await?;
        took.push(began.elapsed());
        // The request is dropped, so that it kills no other copy.
        drop(ticket);
        until(|| pool.has_alive_workers("embed")).await?;
        ask(&pool, "well")?.answer().await?;
    }
    end(&pool);
    Ok(took)
}

/// From the kill to the last word to those who wait, when there is nothing to load another copy from.
async fn answered(file: &Path) -> anyhow::Result<Duration> {
    let spec = ModelSpec { isolation: Isolation::Process, ..ModelSpec::new("embed", file) };
    let pool = pool(spec, ModelPoolSettings::default()).await?;
    let busy = ask(&pool, "!busy 60000")?;
    let waiting: Vec<_> = (0..QUEUED).map(|_| ask(&pool, "well")).collect::<Result<_, _>>()?;
    std::fs::remove_file(file)?;
    kill(&pool)?;
    let began = Instant::now();
    for ticket in waiting {
        drop(ticket.answer().await);
    }
    drop(busy);
    let took = began.elapsed();
    end(&pool);
    Ok(took)
}

async fn again(spec: ModelSpec) -> anyhow::Result<Vec<Duration>> {
    let pool = pool(spec, ModelPoolSettings::default()).await?;
    let text = [texts::of_length(super::LENGTH, 0)];
    let mut took = Vec::new();
    for _ in 0..TIMES {
        embed::vectors(&pool, &text).await?;
        kill(&pool)?;
        let began = Instant::now();
        while embed::vectors(&pool, &text).await.is_err() {}
        took.push(began.elapsed());
    }
    end(&pool);
    Ok(took)
}

fn kill(pool: &ModelPool) -> anyhow::Result<()> {
    let pid =
        child(pool).and_then(|pid| Pid::from_raw(pid.cast_signed())).context("the copy is no process")?;
    Ok(kill_process(pid, Signal::KILL)?)
}
