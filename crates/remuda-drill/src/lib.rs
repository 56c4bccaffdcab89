//! `remuda drill`: a real plane, real workers and stand-ins for ComfyUI as processes, under one seeded schedule of real
//! faults, and an account of everything from outside.
//!
//! ```text
//!  clients ──▶ plane ◀── line ── worker ──▶ ComfyUI stand-in        schedule: which fault, when, for how long
//!     │          ▲                                                      │ kills, stops, cuts, fills, delays, lies
//!     └─ ledger ◀┴─ events, resumed after every break                   ▼
//!           └──▶ lost, refused, doubled, run twice without need, false verdicts, time to recover
//! ```
//!
//! The simulator (`remuda-sim`) reaches orders of events that no drill would ever meet; the drill has what the simulator
//! lacks: kernels, sockets, disks, and the code around the core. The parts are the current executable, so this crate does
//! not depend on the `remuda` crate.

mod fleet;
mod follower;
mod hostile;
mod ledger;
mod load;
mod process;
mod proxy;
mod report;
mod schedule;
mod tools;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use remuda_net::terminal::print_line;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::fleet::DrillFleet;
use self::ledger::Ledger;
use self::load::{Drill, ERROR_OF_BAD, LoadOptions};
use self::report::DrillReport;
use self::schedule::{PlannedFault, ScheduleOptions};
use self::tools::Tools;

/// The arguments of `remuda drill`.
#[derive(Debug, Args)]
pub struct DrillCommand {
    /// How long faults happen; the drill then waits until all jobs have ended
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// As --duration, in hours
    #[arg(long, value_name = "N", conflicts_with = "duration", value_parser = clap::value_parser!(u32).range(1..=1000))]
    hours: Option<u32>,
    /// The same seed brings the same faults at the same moments; drawn by default
    #[arg(long)]
    seed: Option<u64>,
    /// Workers, each with a ComfyUI stand-in
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    workers: u16,
    /// Jobs submitted per second, while no more than 200 are open
    #[arg(long, default_value_t = 8.0, value_parser = rate)]
    rate: f64,
    /// Mean time between two faults
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    fault_every: Duration,
    /// Lease of an attempt; the other times of silence keep their ratio to it. 30s is the default of a plane
    #[arg(long, value_name = "TIME", default_value = "6s", value_parser = lease)]
    lease: Duration,
    /// Folder for data and logs; a folder of its own is made inside, and removed after a success
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Write the report to this file as Markdown
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON report at the end and nothing else
    #[arg(long)]
    json: bool,
}

/// Submitting clients.
const CLIENTS: usize = 4;
/// Clients wait while so many jobs are open: faults should hit starts and ends as often as submissions.
const OPEN_MAX: usize = 200;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often progress is shown to a person, and written to a file.
const SHOW_EVERY: Duration = Duration::from_secs(10);
const LOG_EVERY: Duration = Duration::from_secs(300);

impl DrillCommand {
    /// Runs the drill until its end or until `interrupted`, and prints what was found.
    pub async fn run(self, interrupted: impl Future<Output = ()>) -> anyhow::Result<ExitCode> {
        let seed = self.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 % 1_000_000_000);
        let length = self.hours.map_or(self.duration, |hours| Duration::from_secs(u64::from(hours) * 3600));
        let parent = self.data.clone().unwrap_or_else(std::env::temp_dir);
        let folder = parent.join(format!("remuda-drill-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        eprintln!("drill with seed {seed}, data and logs in {}", folder.display());
        let report = self.drill(seed, length, &folder, interrupted).await?;
        if report.is_success() {
            drop(std::fs::remove_dir_all(&folder));
        } else {
            eprintln!("data and logs are kept in {}", folder.display());
        }
        if let Some(path) = &self.report {
            // In one word, as a shell takes it.
            let word = |time| humantime::format_duration(time).to_string().replace(' ', "");
            let command = format!(
                "remuda drill --seed {seed} --duration {} --workers {} --rate {} --fault-every {} --lease {}",
                word(length),
                self.workers,
                self.rate,
                word(self.fault_every),
                word(self.lease)
            );
            std::fs::write(path, report.to_markdown(&command))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        print_line(&if self.json { report.to_json().to_string() } else { report.to_text() });
        Ok(if report.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn drill(
        &self,
        seed: u64,
        length: Duration,
        folder: &Path,
        interrupted: impl Future<Output = ()>,
    ) -> anyhow::Result<DrillReport> {
        let jobs_kept = self.rate * length.min(fleet::RETENTION).as_secs_f64();
        let tools = Tools::find(folder, jobs_kept);
        let kinds = tools.possible();
        let workers = usize::from(self.workers);
        let fault_every = self.fault_every.max(Duration::from_millis(10));
        let lease = self.lease;
        let planned = schedule::draw(&ScheduleOptions { seed, length, workers, fault_every, lease, kinds });
        let (fleet, url) = DrillFleet::start(folder, workers, lease, tools).await?;
        let fleet = Arc::new(fleet);
        let drill = Drill::new(url, lease)?;
        let (stop_load, load_stopped) = watch::channel(false);
        let (stop_following, following_stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let options = LoadOptions { seed, rate: self.rate / CLIENTS as f64, open_max: OPEN_MAX };
            tasks.spawn(load::submit_until(drill.clone(), options, client, load_stopped.clone()));
        }
        let following = tokio::spawn(follower::follow_until(drill.clone(), following_stopped));
        let reviving = Arc::clone(&fleet);
        let mut reviving = tokio::spawn(async move { reviving.revive_all().await });
        let stormed = tokio::select! {
            stormed = storm(&fleet, &drill, planned, seed, length) => stormed,
            () = interrupted => {
                eprintln!("interrupted: waiting for the jobs that are open");
                Ok(())
            }
            failed = &mut reviving => failed.map_err(anyhow::Error::from).flatten(),
            Some(failed) = tasks.join_next() => failed.map_err(anyhow::Error::from).flatten(),
        };
        eprintln!("the faults are over: waiting for {} open jobs", drill.ledger().open_jobs());
        stop_load.send_replace(true);
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        stormed?;
        calm_down(&drill).await;
        stop_following.send_replace(true);
        following.await??;
        reviving.abort();
        let unended = explain_unended(&drill).await;
        fleet.stop().await;
        let ledger = std::mem::take(&mut *drill.ledger());
        let mut faults = BTreeMap::new();
        for fault in ledger.faults() {
            *faults.entry(fault.kind).or_default() += 1;
        }
        let mut findings = Ledger::conclude(ledger, ERROR_OF_BAD);
        findings.complaints.lost.extend(unended);
        Ok(DrillReport {
            seed,
            length: drill.now(),
            workers,
            lease,
            faults,
            not_tried: fleet.tools.not_tried.clone(),
            own_ends: fleet.own_ends.load(Ordering::Relaxed),
            findings,
        })
    }
}

/// Carries out all faults, each at its moment, and returns when the last one is undone.
async fn storm(
    fleet: &Arc<DrillFleet>,
    drill: &Drill,
    planned: Vec<PlannedFault>,
    seed: u64,
    length: Duration,
) -> anyhow::Result<()> {
    let mut under_way = JoinSet::new();
    let mut shown = Duration::ZERO;
    let show_every = if std::io::stderr().is_terminal() { SHOW_EVERY } else { LOG_EVERY };
    let mut planned = planned.into_iter().peekable();
    while drill.now() < length {
        while let Some(fault) = planned.next_if(|fault| fault.at <= drill.now()) {
            let (fleet, drill) = (Arc::clone(fleet), drill.clone());
            under_way.spawn(async move { fleet.cause(&drill, fault, seed).await });
        }
        while let Some(ended) = under_way.try_join_next() {
            ended??;
        }
        if drill.now().saturating_sub(shown) >= show_every {
            shown = drill.now();
            show_progress(drill, length);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    while let Some(ended) = under_way.join_next().await {
        ended??;
    }
    Ok(())
}

fn show_progress(drill: &Drill, length: Duration) {
    let ledger = drill.ledger();
    eprintln!(
        "{:.0} of {:.0} s: {} jobs acknowledged, {} ended, {} faults",
        drill.now().as_secs_f64(),
        length.as_secs_f64(),
        ledger.accepted(),
        ledger.ended(),
        ledger.faults().count()
    );
}

/// Waits until all jobs have ended, but not for ever.
async fn calm_down(drill: &Drill) {
    let until = drill.now() + drill.calm_max;
    while drill.ledger().open_jobs() > 0 && drill.now() < until {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What the plane says about jobs that have not ended.
async fn explain_unended(drill: &Drill) -> Vec<String> {
    const EXPLAINED_MAX: usize = 5;
    let unended = drill.ledger().unended();
    let mut explained = Vec::new();
    for id in unended.iter().take(EXPLAINED_MAX) {
        let why = drill.get(&format!("/remuda/v1/jobs/{id}/why")).await;
        let why = why.map_or_else(|error| format!("{error:#}"), |why| why.to_string());
        explained.push(format!("job {id}: {why}"));
    }
    explained
}

fn lease(text: &str) -> Result<Duration, String> {
    let lease = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let (shortest, longest) = (Duration::from_secs(3), Duration::from_secs(600));
    if (shortest..=longest).contains(&lease) { Ok(lease) } else { Err("from 3s to 10m".to_owned()) }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.1..=1000.0).contains(&rate) => Ok(rate),
        Ok(_) | Err(_) => Err("a number from 0.1 to 1000".to_owned()),
    }
}
