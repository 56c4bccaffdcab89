//! `remuda fake runpod`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use remuda_core::money::Money;
use remuda_fakes::runpod::{
    self, Capacity, Exec, FakeRunpodOptions, RunpodFault, RunpodFaults, UnknownRunpodFault, Volume,
};
use serde_json::json;

use super::speed;
use crate::cli::start::stop_signals;
use remuda_net::terminal::print_line;

#[derive(Debug, Args)]
pub(super) struct Runpod {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8289")]
    listen: SocketAddr,
    /// What runs in each pod, by `sh -c`, with the pod's environment; without it pods are mere records
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// A fault and how likely each occasion meets it; may be repeated, and `all=P` means every one
    #[arg(long = "fault", alias = "faults", value_name = "NAME=P", value_parser = fault)]
    faults: Vec<String>,
    /// How many times faster than life: 60 makes a minute of pulling an image a second
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// The same seed and the same requests in the same order meet the same faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Demand this key; by default any will do
    #[arg(long, env = "REMUDA_FAKE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Let `ssh.direct` of every pod point at this port of 127.0.0.1
    #[arg(long, value_name = "PORT")]
    ssh_port: Option<u16>,
    /// How many GPUs there are, such as 'NVIDIA L4@EU-RO-1/SECURE=2' or '*=8'; may be repeated
    #[arg(long, value_name = "GPU@PLACE/CLOUD=N", value_parser = capacity)]
    capacity: Vec<Capacity>,
    /// A network volume and where it lies; may be repeated
    #[arg(long = "volume", value_name = "ID@PLACE", value_parser = volume)]
    volumes: Vec<Volume>,
    /// Pods of another owner that exist from the start
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1000))]
    foreign: u32,
    /// How many seconds an image takes that is on its host
    #[arg(long, value_name = "SECONDS", default_value_t = 28.0)]
    pull: f64,
    /// Past so many dollars an hour nothing is free any more
    #[arg(long, value_name = "DOLLARS")]
    spend_max: Option<Money>,
    /// How often the account may ask; 0 is as often as you like
    #[arg(long, value_name = "N", default_value_t = 180)]
    requests_per_minute: u64,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

/// Only ever started by the stand-in itself.
#[derive(Debug, Args)]
pub(super) struct KeepPod {
    grace_ms: u64,
    command: String,
}

impl KeepPod {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        runpod::keep(&self.command, Duration::from_millis(self.grace_ms)).context("cannot keep a pod")
    }
}

impl Runpod {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut stops = stop_signals()?;
        let options = self.options()?;
        let listen = options.listen;
        let fake =
            runpod::FakeRunpod::start(options).await.with_context(|| format!("cannot listen on {listen}"))?;
        if self.json {
            print_line(&json!({"url": fake.url(), "control": control(&fake)}).to_string());
        } else {
            print_line(&format!("RunPod stand-in ready: {} (behind it: {})", fake.url(), control(&fake)));
        }
        stops.recv().await;
        fake.stop().await;
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self) -> anyhow::Result<FakeRunpodOptions> {
        let mut faults = RunpodFaults::none();
        for fault in &self.faults {
            faults.set_from(fault)?;
        }
        let program = std::env::current_exe().context("this program does not know where it lies")?;
        let keeper = (program, vec!["fake".into(), "keep-pod".into(), "--".into()]);
        Ok(FakeRunpodOptions {
            listen: self.listen,
            speed: self.speed,
            faults,
            seed: self.seed,
            token: self.token.clone(),
            exec: self.exec.clone().map(|command| Exec { command, keeper }),
            ssh_port: self.ssh_port,
            capacity: self.capacity.clone(),
            volumes: self.volumes.clone(),
            foreign: self.foreign,
            pull: Duration::try_from_secs_f64(self.pull).context("--pull")?,
            spend_max: self.spend_max,
            requests_per_minute: Some(self.requests_per_minute).filter(|most| *most > 0),
            manual_time: false,
        })
    }
}

fn control(fake: &runpod::FakeRunpod) -> String {
    format!("http://{}/_remuda", fake.address())
}

/// Kept as it was written: a later one may take an earlier one back.
fn fault(text: &str) -> Result<String, UnknownRunpodFault> {
    RunpodFaults::none().set_from(text).map(|()| text.to_owned())
}

fn capacity(text: &str) -> Result<Capacity, String> {
    Capacity::parse(text).ok_or_else(|| "write it as 'NVIDIA L4@EU-RO-1/SECURE=2', '*' for any".to_owned())
}

fn volume(text: &str) -> Result<Volume, String> {
    let (id, place) = text.split_once('@').ok_or("write it as abc123@EU-RO-1")?;
    Ok(Volume { id: id.to_owned(), data_center: place.to_owned(), size_gb: 100 })
}

pub(super) fn help() -> String {
    let mut text = "RunpodFaults (each is drawn on its own occasion):\n".to_owned();
    for (_, name, meaning) in RunpodFault::all() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<24}{meaning}");
    }
    text.push_str(
        "\nWhile it runs:\n\
         \x20 GET  /_remuda/ledger                         what was made, what it cost, what is left over\n\
         \x20 GET  /_remuda/pods                           every pod, with the process in it\n\
         \x20 GET  /_remuda/faults                         probabilities, what struck, what was asked\n\
         \x20 PUT  /_remuda/faults {\"omit\": 0.1}           other probabilities; {} takes all away\n\
         \x20 PUT  /_remuda/capacity [\"*=2\"]              other numbers of GPUs; [] is without end\n\
         \x20 POST /_remuda/strike {\"fault\": \"omit\"}      the next occasion for it meets this one\n\
         \x20 POST /_remuda/pods/ID/exit, vanish, crash    do this to a pod now\n\
         \n\
         Its pods are processes with their own session; they end when it does, also by kill -9.\n\
         \n\
         Examples:\n\
         \x20 remuda fake runpod --speed 60\n\
         \x20 remuda fake runpod --speed 60 --exec 'remuda worker --exec ./render.sh' --capacity '*=4'\n\
         \x20 remuda fake runpod --listen 127.0.0.1:0 --fault all=0.02 --seed 7 --foreign 2 --json",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::{capacity, fault, volume};

    #[test]
    fn what_people_type_is_read() {
        let rule = capacity("NVIDIA L4@EU-RO-1/SECURE=2").unwrap();
        assert_eq!((rule.gpu.as_deref(), rule.gpus), (Some("NVIDIA L4"), 2));
        assert_eq!(capacity("*=8").unwrap().gpu, None);
        assert!(capacity("NVIDIA L5=2").is_err());
        assert!(capacity("much").is_err());
        assert_eq!(volume("a@EU-RO-1").unwrap().data_center, "EU-RO-1");
        assert!(fault("all=0.1").is_ok());
        assert!(fault("melt=0.5").unwrap_err().to_string().contains("late-list"));
    }
}
