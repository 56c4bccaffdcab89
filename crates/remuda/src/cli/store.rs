//! `remuda store`: checks that a store holds everything that was acknowledged, and continues without what is lost.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use remuda_config::StoreUrl;
use remuda_store::{CommitMark, Generation, Recovery, StoreLoss, StoreReport, check_store, recover_store};
use serde_json::{Value, json};

use super::{DataSettings, UsageError};
use remuda_net::terminal::{escape_control, print_line};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda store check --data /var/lib/remuda            (also while the plane runs; exit code 1 if something is missing)
  remuda store check --data /var/lib/remuda --json
  remuda store recover --data /var/lib/remuda --accept-loss   (after a restored backup, or if nothing brings the data back)
  remuda store check --set store=sqlite:/mnt/jobs.sqlite      (a store outside the data folder)";

#[derive(Debug, Args)]
pub(super) struct StoreCommand {
    #[command(subcommand)]
    command: StoreAction,
}

#[derive(Debug, Subcommand)]
enum StoreAction {
    /// Compare the store with the proof of what was acknowledged, and read every page of it; changes nothing
    ///
    /// Exit code 0 if everything is there, 1 otherwise.
    /// Examples: remuda store check; remuda store check --data /var/lib/remuda --json
    Check(Target),
    /// Continue with what is left of a store that lost acknowledged data
    ///
    /// The plane must not run. The write-ahead log is copied aside first. Readers of events get a gap mark, and event
    /// numbers are not used twice.
    /// Example: remuda store recover --data /var/lib/remuda --accept-loss
    Recover {
        #[command(flatten)]
        target: Target,
        /// Confirm that what is missing is gone for good; without it, only what would be lost is shown
        #[arg(long)]
        accept_loss: bool,
    },
}

#[derive(Debug, Args)]
struct Target {
    #[command(flatten)]
    settings: DataSettings,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

impl Target {
    fn path(&self) -> anyhow::Result<PathBuf> {
        match self.settings.load()?.serve.store {
            StoreUrl::Sqlite(path) => Ok(path),
            StoreUrl::Memory => Err(UsageError("a store in memory has no files to check".to_owned()).into()),
        }
    }
}

impl StoreCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        // Reading every page of a large store takes minutes.
        tokio::task::spawn_blocking(move || match self.command {
            StoreAction::Check(target) => check(&target),
            StoreAction::Recover { target, accept_loss } => recover(&target, accept_loss),
        })
        .await
        .context("the check ended unexpectedly")?
    }
}

fn check(target: &Target) -> anyhow::Result<ExitCode> {
    let report = check_store(&target.path()?)?;
    if target.json {
        print_line(&report_json(&report).to_string());
    } else {
        describe(&report).iter().for_each(|line| print_line(&escape_control(line)));
    }
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn recover(target: &Target, accept_loss: bool) -> anyhow::Result<ExitCode> {
    let path = target.path()?;
    if !accept_loss {
        let report = check_store(&path)?;
        let Some(loss) = report.loss else {
            print_line("nothing is missing; there is nothing to recover");
            return Ok(ExitCode::SUCCESS);
        };
        bail!("{}: {loss}. Confirm with --accept-loss that this is gone for good", path.display());
    }
    let recovery = recover_store(&path)?;
    if target.json {
        print_line(&recovery.as_ref().map_or(Value::Null, recovery_json).to_string());
        return Ok(ExitCode::SUCCESS);
    }
    let Some(Recovery { loss, generation, kept_log }) = recovery else {
        print_line("nothing is missing; there is nothing to recover");
        return Ok(ExitCode::SUCCESS);
    };
    print_line(&escape_control(&format!("accepted: {loss}")));
    print_line(&describe_generation(&generation));
    if let Some(log) = kept_log {
        print_line(&escape_control(&format!("the write-ahead log as it was: {}", log.display())));
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(report: &StoreReport) -> Vec<String> {
    let in_use = if report.is_in_use { " (in use)" } else { "" };
    let mut lines = vec![format!("store       {}{in_use}", report.path.display())];
    if let Some(stored) = &report.stored {
        let CommitMark { commit, sequence, latest, .. } = stored;
        lines.push(format!("stored      commit {commit}, event {sequence}, up to {latest}"));
    }
    lines.extend(report.generations.iter().map(describe_generation));
    lines.push(match &report.loss {
        None => "proof       everything that was acknowledged is there".to_owned(),
        Some(loss) => format!("MISSING     {loss}"),
    });
    match report.damages.is_empty() {
        true if report.stored.is_some() => lines.push("pages       no damage".to_owned()),
        true => {}
        false => lines.extend(report.damages.iter().map(|line| format!("DAMAGED     {line}"))),
    }
    lines
}

fn describe_generation(generation: &Generation) -> String {
    let Generation { number, cause, kept_sequence, first_sequence, kept_until, began_at } = generation;
    format!(
        "generation  {number} since {began_at} ({}): events {} to {} and everything after {kept_until} are lost",
        cause.replace('_', " "),
        kept_sequence.0 + 1,
        first_sequence.0.saturating_sub(1)
    )
}

fn report_json(report: &StoreReport) -> Value {
    json!({
        "ok": report.is_whole(),
        "path": report.path,
        "in_use": report.is_in_use,
        "stored": report.stored.as_ref().map(mark_json),
        "loss": report.loss.as_ref().map(loss_json),
        "damages": report.damages,
        "generations": report.generations.iter().map(generation_json).collect::<Vec<_>>(),
    })
}

fn recovery_json(recovery: &Recovery) -> Value {
    json!({
        "loss": loss_json(&recovery.loss),
        "generation": generation_json(&recovery.generation),
        "kept_log": recovery.kept_log,
    })
}

fn loss_json(loss: &StoreLoss) -> Value {
    let (kind, stored, proved) = match loss {
        StoreLoss::Behind { stored, proved } => ("behind", Some(stored), Some(proved)),
        StoreLoss::Emptied { proved } => ("emptied", None, Some(proved)),
        StoreLoss::ForeignProof { stored, proved } => ("foreign_proof", Some(stored), Some(proved)),
        StoreLoss::LogRemoved => ("log_removed", None, None),
        StoreLoss::ProofRemoved { stored } => ("proof_removed", Some(stored), None),
        StoreLoss::ProofDamaged { stored } => ("proof_damaged", stored.as_ref(), None),
    };
    json!({
        "kind": kind, "message": loss.to_string(), "stored": stored.map(mark_json), "acknowledged": proved.map(mark_json),
    })
}

fn mark_json(mark: &CommitMark) -> Value {
    let CommitMark { commit, sequence, term, latest, .. } = mark;
    json!({ "commit": commit, "event": sequence, "term": term, "at": latest.to_string() })
}

fn generation_json(generation: &Generation) -> Value {
    let Generation { number, cause, kept_sequence, first_sequence, kept_until, began_at } = generation;
    json!({
        "generation": number, "cause": cause, "kept_event": kept_sequence, "first_event": first_sequence,
        "kept_until": kept_until.to_string(), "began_at": began_at.to_string(),
    })
}
