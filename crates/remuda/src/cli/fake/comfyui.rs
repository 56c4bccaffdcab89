//! `remuda fake comfyui`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use futures_util::future::select_all;
use remuda_fakes::comfyui::{self, Fault, Faults, Options, Version};
use serde_json::json;

use super::speed;
use crate::cli::start::stop_signals;
use remuda_net::terminal::print_line;

#[derive(Debug, Args)]
pub(super) struct Comfyui {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8188")]
    listen: SocketAddr,
    /// How many servers, on ports one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    servers: u16,
    /// A fault and how likely each prompt meets it; may be repeated
    #[arg(long = "fault", value_name = "NAME=P", value_parser = fault)]
    faults: Vec<(Fault, f64)>,
    /// How fast the imagined GPU is; `inf` takes no time at all
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = speed)]
    speed: f64,
    /// Which ComfyUI to look like: 0.3.75, 0.7.0 or 0.30.0
    #[arg(long, value_name = "V", default_value = Version::default().name())]
    comfyui_version: Version,
    /// Memory of the imagined GPU
    #[arg(long, value_name = "SIZE", default_value = "24GiB", value_parser = size)]
    vram: u64,
    /// Checkpoint file it claims to have; may be repeated
    #[arg(long = "model", value_name = "FILE")]
    models: Vec<String>,
    /// The same seed and the same prompts in the same order meet the same faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A dead server comes back so many seconds later; by default 5 with several servers, and with one the program ends
    #[arg(long, value_name = "SECONDS")]
    revive: Option<f64>,
    /// What stands before every path
    #[arg(long, value_name = "PATH", default_value = "")]
    base_path: String,
    /// Demand this bearer token
    #[arg(long, env = "REMUDA_FAKE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

/// Long enough for a client to notice, short enough to watch.
const REVIVE: Duration = Duration::from_secs(5);

impl Comfyui {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut stops = stop_signals()?;
        let revive = match self.revive {
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).context("--revive")?),
            None => (self.servers > 1).then_some(REVIVE),
        };
        let mut servers = Vec::new();
        for index in 0..self.servers {
            let options = self.options(index, revive)?;
            let listen = options.listen;
            let server =
                comfyui::Fake::start(options).await.with_context(|| format!("cannot listen on {listen}"))?;
            servers.push(server);
        }
        self.tell(&servers);
        let has_died = tokio::select! {
            _ = select_all(servers.iter().map(|server| Box::pin(server.died()))), if revive.is_none() => true,
            _ = stops.recv() => false,
        };
        for server in servers {
            server.stop().await;
        }
        if has_died {
            eprintln!("remuda: the stand-in died, as it was told to");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self, index: u16, revive: Option<Duration>) -> anyhow::Result<Options> {
        let mut listen = self.listen;
        if listen.port() != 0 {
            listen.set_port(listen.port().checked_add(index).context("there are not so many ports")?);
        }
        let mut options = Options {
            listen,
            version: self.comfyui_version,
            speed: self.speed,
            vram_bytes: self.vram,
            faults: self.faults.iter().fold(Faults::none(), |faults, (fault, p)| faults.with(*fault, *p)),
            seed: self.seed.wrapping_add(index.into()),
            base_path: self.base_path.trim_end_matches('/').to_owned(),
            token: self.token.clone(),
            name: format!("Imagined GPU {index}"),
            revive,
            ..Options::default()
        };
        if !self.models.is_empty() {
            options.models.clone_from(&self.models);
        }
        Ok(options)
    }

    fn tell(&self, servers: &[comfyui::Fake]) {
        let urls: Vec<String> = servers.iter().map(comfyui::Fake::url).collect();
        if self.json {
            print_line(&json!({"version": self.comfyui_version.name(), "urls": urls}).to_string());
        } else {
            print_line(&format!(
                "ComfyUI {} stand-in ready: {}",
                self.comfyui_version.name(),
                urls.join(" ")
            ));
        }
    }
}

fn fault(text: &str) -> Result<(Fault, f64), String> {
    let mut faults = Faults::none();
    faults.set_from(text).map_err(|error| error.to_string())?;
    let first = faults.iter().next();
    let name = text.split('=').next().unwrap_or_default();
    first.map_or_else(|| name.parse().map(|fault| (fault, 0.0)).map_err(|_| text.to_owned()), Ok)
}

/// `24GiB`, `800MiB` or a number of bytes.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "kib" | "k" => 10,
        "mib" | "m" => 20,
        "gib" | "g" => 30,
        "tib" | "t" => 40,
        _ => return Err("write it as 24GiB or 800MiB".to_owned()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "write it as 24GiB or 800MiB".to_owned())
}

pub(super) fn help() -> String {
    let mut text =
        "Faults (each is drawn for every prompt; `RemudaFault` nodes in a graph ask for one by name):\n"
            .to_owned();
    for (_, name, meaning) in Fault::ALL {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<24}{meaning}");
    }
    text.push_str(
        "\nWhile it runs, on any of its addresses:\n\
         \x20 GET  /fake                               what it was asked and what it did\n\
         \x20 POST /fake/faults {\"hang\": 0.1}          other probabilities; {} takes all away\n\
         \x20 POST /fake/strike {\"fault\": \"oom\"}       the next prompt meets this one\n\
         \x20 POST /fake/kill, restart, drop-sockets, half-open, hold-messages, release-messages, clear-history,\n\
         \x20      clear-queue, interrupt, delete-outputs, slow-http {\"seconds\": 5}\n\
         \n\
         Examples:\n\
         \x20 remuda fake comfyui\n\
         \x20 remuda fake comfyui --servers 4 --speed 20 --fault die=0.02 --fault drop-completion=0.05 --seed 7\n\
         \x20 remuda fake comfyui --listen 127.0.0.1:0 --comfyui-version 0.7.0 --vram 8GiB --model sdxl.safetensors --json",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::{fault, size};

    #[test]
    fn what_people_type_is_read() {
        assert_eq!(size("24GiB"), Ok(24 << 30));
        assert_eq!(size("1000"), Ok(1000));
        assert!(size("much").is_err());
        assert_eq!(fault("hang=0.5").map(|(fault, p)| (fault.name(), p)), Ok(("hang", 0.5)));
        assert_eq!(fault("hang=0").map(|(fault, p)| (fault.name(), p)), Ok(("hang", 0.0)));
        assert!(fault("melt=0.5").unwrap_err().contains("drop-completion"));
    }
}
