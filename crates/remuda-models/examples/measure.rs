//! Measures how fast deaths are noticed and repaired, and the cost of child processes.
//!
//! `cargo run --release -p remuda-models --example measure`
#![expect(clippy::print_stdout, reason = "a measuring tool prints its results")]

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use remuda_models::fake::FakeEngine;
use remuda_models::{
    AnswerHandle, CallOptions, Engines, ModelPool, ModelPoolSettings, ModelRequest, ModelSnapshot, ModelSpec,
};
use rustix::process::{Pid, Signal, kill_process};

const ROUNDS: usize = 30;

fn main() -> io::Result<()> {
    if std::env::args().nth(1).as_deref() == Some("pool-copy") {
        return remuda_models::child::run(&Engines::default().with(FakeEngine));
    }
    std::panic::set_hook(Box::new(|_| {}));
    let folder = std::env::temp_dir().join(format!("measure-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    say("death by panic seen, thread", rounds(|| panic_seen(&folder))?);
    say("death by kill -9 seen, process", rounds(|| kill_seen(&folder))?);
    for kind in ["thread", "process"] {
        let what = format!("100 queued requests answered when the last copy is given up, {kind}");
        say(&what, rounds(|| last_dies(&folder, kind))?);
    }
    say("next good answer after kill -9 of the only copy", rounds(|| next_answer(&folder))?);
    let (thread, process) = (round_trip(&folder, "thread")?, round_trip(&folder, "process")?);
    println!("8 texts of 384 numbers: thread {thread:?}, process {process:?}");
    println!("  the boundary costs {:?} a batch", process.saturating_sub(thread));
    std::fs::remove_dir_all(&folder)
}

fn rounds(mut once: impl FnMut() -> io::Result<Duration>) -> io::Result<Vec<Duration>> {
    (0..ROUNDS).map(|_| once()).collect()
}

fn say(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what}: median {median:.1?}, worst {worst:.1?}");
}

/// A pool with this many copies of a fake model, each of which has answered once.
fn pool(folder: &Path, kind: &str, copies: u32, settings: ModelPoolSettings) -> io::Result<ModelPool> {
    let path = folder.join(kind).with_extension("fake");
    std::fs::write(&path, format!("text_embedding\nisolation = {kind}\ndimensions = 384"))?;
    let pool = ModelPool::start(settings, Engines::default().with(FakeEngine));
    pool.add(ModelSpec { copies, ..ModelSpec::new("m", path) }).map_err(io::Error::other)?;
    let is_ready = |model: &ModelSnapshot| {
        model.copies.iter().filter(|copy| copy.state == "ready").count() == copies as usize
    };
    until(&pool, is_ready);
    for _ in 0..copies {
        drop(ask(&pool, &["text"])?.wait());
    }
    Ok(pool)
}

fn ask(pool: &ModelPool, texts: &[&str]) -> io::Result<AnswerHandle> {
    let texts = texts.iter().map(|text| (*text).to_owned()).collect();
    pool.call("m", ModelRequest::TextEmbedding { texts }, CallOptions::default()).map_err(io::Error::other)
}

/// The time until the condition holds.
fn until(pool: &ModelPool, is_so: impl Fn(&ModelSnapshot) -> bool) -> Duration {
    let began = Instant::now();
    while !is_so(&pool.snapshot().models[0]) {
        std::thread::yield_now();
    }
    began.elapsed()
}

fn kill(pool: &ModelPool) {
    let pid = pool.snapshot().models[0].copies[0].pid.and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        kill_process(pid, Signal::KILL).expect("it is ours, and not reaped yet");
    }
}

fn panic_seen(folder: &Path) -> io::Result<Duration> {
    let pool = pool(folder, "thread", 2, ModelPoolSettings::default())?;
    // Includes the way to the copy, because the moment of its panic is not visible from outside.
    let began = Instant::now();
    let pending = ask(&pool, &["!panic"])?;
    until(&pool, |model| model.deaths.contains_key("panicked"));
    let seen = began.elapsed();
    drop(pending.wait());
    Ok(seen)
}

fn kill_seen(folder: &Path) -> io::Result<Duration> {
    let pool = pool(folder, "process", 2, ModelPoolSettings::default())?;
    kill(&pool);
    Ok(until(&pool, |model| model.deaths.contains_key("exited")))
}

/// From the death to the last answer.
fn last_dies(folder: &Path, kind: &str) -> io::Result<Duration> {
    let pool = pool(folder, kind, 1, ModelPoolSettings { deaths_max: 1, ..ModelPoolSettings::default() })?;
    let running = ask(&pool, &["!busy 20"])?;
    let waiting = ["!broken"].into_iter().chain(std::iter::repeat_n("text", 99));
    let waiting = waiting.map(|text| ask(&pool, &[text])).collect::<io::Result<Vec<_>>>()?;
    drop(running.wait());
    let began = Instant::now();
    for pending in waiting {
        drop(pending.wait());
    }
    Ok(began.elapsed())
}

fn next_answer(folder: &Path) -> io::Result<Duration> {
    let pool = pool(folder, "process", 1, ModelPoolSettings::default())?;
    let began = Instant::now();
    kill(&pool);
    until(&pool, |model| model.deaths.contains_key("exited"));
    ask(&pool, &["text"])?.wait().map_err(io::Error::other)?;
    Ok(began.elapsed())
}

fn round_trip(folder: &Path, kind: &str) -> io::Result<Duration> {
    const CALLS: u32 = 2_000;
    let pool = pool(folder, kind, 1, ModelPoolSettings::default())?;
    let texts = ["a text of some thirty-two letters"; 8];
    let began = Instant::now();
    for _ in 0..CALLS {
        ask(&pool, &texts)?.wait().map_err(io::Error::other)?;
    }
    Ok(began.elapsed() / CALLS)
}
