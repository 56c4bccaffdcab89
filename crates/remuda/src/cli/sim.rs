//! `remuda sim`: worlds that go wrong, as many as there is time for, on every core.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use clap::Args;
use remuda_sim::{Violation, WorldSettings, replay, run};
use serde_json::json;

use super::run::INTERRUPTED;
use super::start::stop_signals;
use remuda_net::terminal::print_line;

#[derive(Debug, Args)]
pub(super) struct SimCommand {
    /// How many worlds
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Stop after this many job lives
    #[arg(long, value_name = "LIVES")]
    lives: Option<u64>,
    /// Print one world, a line for each step
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "from", "lives"])]
    replay: Option<u64>,
    /// Threads; by default one for each core
    #[arg(long)]
    threads: Option<usize>,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

/// What all worlds together came to.
#[derive(Debug, Default)]
struct Sum {
    worlds: u64,
    jobs: u64,
    attempts: u64,
    steps: u64,
    /// The same for the same seeds, in whatever order they ran.
    trace_hash: u64,
    failed: Vec<(u64, Vec<Violation>)>,
}

const SHOW_EVERY: Duration = Duration::from_secs(2);
/// Broken worlds after which there is no point in going on.
const FAILED_MAX: usize = 20;

impl SimCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.replay {
            Some(seed) => Ok(tell(seed)),
            None => self.run_all(),
        }
    }

    fn run_all(&self) -> anyhow::Result<ExitCode> {
        let threads =
            self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let started = Instant::now();
        let mut sum = Sum::default();
        let (next, end) = (Arc::new(AtomicU64::new(self.from)), self.from.saturating_add(self.seeds));
        stop_on_signal(Arc::clone(&next), end)?;
        let (sender, outcomes) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                let (sender, next) = (sender.clone(), &*next);
                scope.spawn(move || {
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end || sender.send((seed, run(seed, &WorldSettings::default()))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut shown = Instant::now();
            for (seed, outcome) in outcomes {
                sum.worlds += 1;
                sum.jobs += outcome.jobs;
                sum.attempts += outcome.attempts;
                sum.steps += outcome.steps;
                sum.trace_hash ^= outcome.trace_hash;
                if !outcome.violations.is_empty() {
                    show_broken(seed, &outcome.violations);
                    sum.failed.push((seed, outcome.violations));
                }
                if shown.elapsed() >= SHOW_EVERY && std::io::stderr().is_terminal() {
                    shown = Instant::now();
                    eprint!("\r\x1b[K{} worlds, {} job lives", sum.worlds, sum.jobs);
                }
                if self.lives.is_some_and(|lives| sum.jobs >= lives) || sum.failed.len() >= FAILED_MAX {
                    next.store(end, Ordering::Relaxed);
                }
            }
        });
        Ok(self.conclude(&sum, started.elapsed()))
    }

    fn conclude(&self, sum: &Sum, took: Duration) -> ExitCode {
        let rate = sum.jobs as f64 / took.as_secs_f64();
        if self.json {
            let failed: Vec<_> = sum.failed.iter().map(|(seed, _)| seed).collect();
            let summary = json!({
                "from": self.from, "worlds": sum.worlds, "job_lives": sum.jobs, "attempts": sum.attempts,
                "steps": sum.steps, "seconds": took.as_secs_f64(), "job_lives_per_second": rate,
                "trace_hash": format!("{:016x}", sum.trace_hash), "broken_seeds": failed,
            });
            print_line(&summary.to_string());
        } else {
            print_line(&format!(
                "{} worlds from seed {}: {} job lives, {} attempts, {} steps in {:.0} s ({rate:.0} lives/s), trace {:016x}",
                sum.worlds,
                self.from,
                sum.jobs,
                sum.attempts,
                sum.steps,
                took.as_secs_f64(),
                sum.trace_hash
            ));
            print_line(&match sum.failed.len() {
                0 => "every law held".to_owned(),
                broken => format!("{broken} worlds broke a law"),
            });
        }
        if sum.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The first signal lets the worlds that run come to an end, so that the summary is printed; the second exits.
fn stop_on_signal(next: Arc<AtomicU64>, end: u64) -> anyhow::Result<()> {
    let mut stops = stop_signals()?;
    tokio::spawn(async move {
        stops.recv().await;
        eprintln!("stopping after the worlds that run now; once more to stop at once");
        next.store(end, Ordering::Relaxed);
        stops.recv().await;
        std::process::exit(INTERRUPTED.into());
    });
    Ok(())
}

fn show_broken(seed: u64, violations: &[Violation]) {
    for violation in violations.iter().take(3) {
        eprintln!("seed {seed}: {violation}");
    }
    eprintln!("seed {seed}: tell it again with `remuda sim --replay {seed}`");
}

/// One world, a line a step.
fn tell(seed: u64) -> ExitCode {
    let outcome = replay(seed, &WorldSettings::default(), &mut |line| print_line(line));
    for violation in &outcome.violations {
        print_line(&format!("BROKEN {violation}"));
    }
    print_line(&format!(
        "seed {seed}: {} job lives, {} attempts, {} steps, trace {:016x}: {}",
        outcome.jobs,
        outcome.attempts,
        outcome.steps,
        outcome.trace_hash,
        if outcome.violations.is_empty() { "every law held" } else { "a law was broken" }
    ));
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
