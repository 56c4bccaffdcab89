//! `remuda bench api`: what clients meet. Submissions through Comfy API v2, listeners on running jobs, a large file up
//! and down.

mod listeners;
mod transfer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;

use crate::figures::{self, Figures};
use crate::http_connection::HttpConnection;
use crate::load::percentile;
use crate::plane_process::PlaneProcess;

#[derive(Debug, Args)]
pub(crate) struct ApiOptions {
    /// Folder to measure in; a folder of its own is made inside and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Seconds for each measurement under load
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Listeners of each kind
    #[arg(long, default_value_t = 1000)]
    listeners: usize,
    /// Running jobs that they listen to
    #[arg(long, default_value_t = 100)]
    jobs: usize,
    /// Megabytes of the file that goes up and down
    #[arg(long, default_value_t = 100)]
    megabytes: usize,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(options: ApiOptions) -> anyhow::Result<ExitCode> {
    figures::measure_in_folder(&options.data, options.json, async |data| measure(&options, data).await).await
}

async fn measure(options: &ApiOptions, data: &Path) -> anyhow::Result<Figures> {
    let mut table = Figures::default();
    for clients in [1, 64] {
        submissions(&mut table, options, &data.join(format!("submit-{clients}")), clients).await?;
    }
    listeners::measure(&mut table, options, data).await?;
    transfer::measure(&mut table, options.megabytes, data).await?;
    Ok(table)
}

/// A graph of about a kilobyte, different each time.
fn submission(seed: u64) -> Vec<u8> {
    const TEXT: &str = "a herd of horses on a wide plain under a low sun, dust, film grain, 35 mm, ";
    let text = TEXT.repeat(9);
    format!(
        r#"{{"workflow":{{"1":{{"class_type":"CheckpointLoaderSimple","inputs":{{"ckpt_name":"sd.safetensors"}}}},"2":{{"class_type":"CLIPTextEncode","inputs":{{"text":"{text}","clip":["1",1]}}}},"3":{{"class_type":"KSampler","inputs":{{"seed":{seed},"model":["1",0],"positive":["2",0]}}}}}}}}"#
    )
    .into_bytes()
}

async fn submissions(
    table: &mut Figures,
    options: &ApiOptions,
    data: &Path,
    clients: usize,
) -> anyhow::Result<()> {
    let plane = PlaneProcess::start(data).await?;
    let cpu = plane.cpu_seconds()?;
    let started = Instant::now();
    let until = started + Duration::from_secs(options.seconds);
    let clients_under_way: Vec<_> = (0..clients as u64)
        .map(|n| tokio::spawn(client(plane.address.clone(), n * 1_000_000_000, until)))
        .collect();
    let mut latencies = Vec::new();
    for client in clients_under_way {
        latencies.extend(client.await??);
    }
    let (count, seconds) = (latencies.len() as f64, started.elapsed().as_secs_f64());
    let cpu = (plane.cpu_seconds()? - cpu) * 1e6 / count;
    let name = format!("v2 submissions, {clients} in flight");
    table.add(&name, count / seconds, "jobs/s", format!("{cpu:.0} µs of plane CPU a job"));
    latencies.sort_unstable();
    for percent in [50, 99] {
        let latency = percentile(&latencies, percent).as_secs_f64() * 1e3;
        table.add(&format!("{name}, p{percent}"), latency, "ms", String::new());
    }
    plane.kill().await
}

/// Submits one job after another; how long each took to be stored and answered.
async fn client(address: String, first_seed: u64, until: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut line = HttpConnection::open(&address).await?;
    let mut latencies = Vec::new();
    while Instant::now() < until {
        let asked = Instant::now();
        let body = submission(first_seed + latencies.len() as u64);
        let (status, answer) = line.post("/api/v2/jobs", "", &body).await?;
        ensure!(status == 201, "a submission was answered {status}: {}", String::from_utf8_lossy(&answer));
        latencies.push(asked.elapsed());
    }
    Ok(latencies)
}
