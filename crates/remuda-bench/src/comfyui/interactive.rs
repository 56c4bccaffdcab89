//! How it feels to a person at a screen: the time until a success, an error, a preview and the end of a cancelled run
//! arrive on the client's socket. A client of ComfyUI does the same to a server and to Remuda in front of another server,
//! in turns, so that both meet the same machine.
//!
//! ```text
//!  success, error   POST /prompt ────▶ the run's last message, the error
//!  preview          POST /prompt ────▶ the third preview: a preview that is held back for a later one counts
//!  cancel           POST /interrupt ─▶ execution_interrupted
//! ```

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use remuda_comfyui::{ComfyuiMessage, ComfyuiSocket, ComfyuiTarget};
use remuda_fakes::comfyui::{Fake, Faults};
use serde_json::{Value, json};

use super::{USUAL_INACTIVITY, WAIT_MAX, fake};
use crate::figures::Figures;
use crate::http_connection::HttpConnection;
use crate::load::percentile;
use crate::plane_process::{PlaneProcess, Workers};

/// A step of the slow node. ComfyUI notices an interruption between two of them.
const STEP: Duration = Duration::from_millis(10);
/// Far longer than a cancellation takes.
const CANCELLED_STEPS: u32 = 3000;
/// Two more than are waited for: the end of the run must not hurry the previews before it.
const PREVIEW_STEPS: u32 = 5;
const PREVIEWS: usize = 3;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A person does not submit in the very moment in which the last run has ended.
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MeasuredEnd {
    Success,
    Error,
    Cancel,
    Preview,
}

impl MeasuredEnd {
    const ALL: [MeasuredEnd; 4] =
        [MeasuredEnd::Success, MeasuredEnd::Error, MeasuredEnd::Cancel, MeasuredEnd::Preview];

    /// A graph that is different each time, so that it is not answered from the cache.
    fn graph(self, seed: usize) -> Value {
        let slow = |steps: u32, preview: bool| {
            let seconds = STEP.as_secs_f64() * f64::from(steps);
            json!({ "class_type": "RemudaSleep", "inputs": {
                "image": ["1", 0], "seconds": seconds, "steps": steps, "preview": preview,
            } })
        };
        let middle = match self {
            MeasuredEnd::Success => json!({ "class_type": "ImageInvert", "inputs": { "image": ["1", 0] } }),
            MeasuredEnd::Error => {
                json!({ "class_type": "RemudaFail", "inputs": { "image": ["1", 0], "kind": "error" } })
            }
            MeasuredEnd::Cancel => slow(CANCELLED_STEPS, false),
            MeasuredEnd::Preview => slow(PREVIEW_STEPS, true),
        };
        json!({
            "1": { "class_type": "EmptyImage", "inputs": {
                "width": 64, "height": 64, "batch_size": 1, "color": seed,
            } },
            "2": middle,
            "3": { "class_type": "SaveImage", "inputs": { "images": ["2", 0], "filename_prefix": "bench" } },
        })
    }
}

impl fmt::Display for MeasuredEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MeasuredEnd::Success => "success",
            MeasuredEnd::Error => "error",
            MeasuredEnd::Cancel => "cancel",
            MeasuredEnd::Preview => "preview",
        })
    }
}

/// Adds what a client waits at a server and at Remuda, and the difference.
pub(super) async fn measure(rows: &mut Figures, rounds: usize, data: &Path) -> anyhow::Result<()> {
    let bare = Fake::start(fake(Faults::none(), 1.0)).await?;
    let behind = Fake::start(fake(Faults::none(), 1.0)).await?;
    let plane = PlaneProcess::start(&data.join("plane")).await?;
    let workers = Workers::start(&plane, &[behind.url()], &data.join("workers"), USUAL_INACTIVITY).await?;
    let mut server = Client::open(&bare.url()).await?;
    let mut remuda = Client::open(&format!("http://{}", plane.address)).await?;
    let mut waits = MeasuredEnd::ALL.map(|end| (end, Vec::new(), Vec::new()));
    for round in 0..rounds {
        for (end, at_server, at_remuda) in &mut waits {
            for (client, waits) in [(&mut server, at_server), (&mut remuda, at_remuda)] {
                let waited = client.run(*end, round).await;
                waits.push(waited.with_context(|| format!("{end} at {}, round {round}", client.url))?);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    for (end, mut at_server, mut at_remuda) in waits {
        at_server.sort_unstable();
        at_remuda.sort_unstable();
        for percent in [50, 95] {
            let millis = |waits: &[Duration]| percentile(waits, percent).as_secs_f64() * 1e3;
            let (server, remuda) = (millis(&at_server), millis(&at_remuda));
            let mut add = |what: &str, value: f64| {
                rows.add(&format!("{end}, {what}, p{percent}"), value, "ms", String::new());
            };
            add("ComfyUI", server);
            add("through Remuda", remuda);
            add("added", remuda - server);
        }
    }
    workers.kill().await?;
    plane.kill().await?;
    bare.stop().await;
    behind.stop().await;
    Ok(())
}

/// A client of ComfyUI's API: a socket, and a connection for requests.
struct Client {
    url: String,
    id: String,
    requests: HttpConnection,
    socket: ComfyuiSocket,
}

impl Client {
    async fn open(url: &str) -> anyhow::Result<Client> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let address = url.strip_prefix("http://").context("not an HTTP address")?;
        Ok(Client {
            requests: HttpConnection::open(address).await?,
            socket: ComfyuiSocket::connect(&ComfyuiTarget::new(url), &id, CONNECT_TIMEOUT).await?,
            url: url.to_owned(),
            id,
        })
    }

    /// Runs one prompt to its end; returns how long its measured end took.
    async fn run(&mut self, end: MeasuredEnd, round: usize) -> anyhow::Result<Duration> {
        let mut asked = Instant::now();
        let prompt = self.submit(&end.graph(round)).await?;
        if end == MeasuredEnd::Cancel {
            let is_running = |message: &ComfyuiMessage| matches!(message, ComfyuiMessage::Progress { .. });
            self.wait_for(&prompt, is_running).await?;
            // At any time between two steps: otherwise a message would say when the next one begins.
            tokio::time::sleep(STEP.mul_f64((round * 7 % 10) as f64 / 10.0)).await;
            asked = Instant::now();
            self.post("/interrupt", &json!({ "prompt_id": prompt })).await?;
        }
        let mut previews = 0;
        let at = self.wait_for(&prompt, |message| match end {
            MeasuredEnd::Success => message.is_end_of(&prompt),
            MeasuredEnd::Error => matches!(message, ComfyuiMessage::Error { .. }),
            MeasuredEnd::Cancel => matches!(message, ComfyuiMessage::Interrupted { .. }),
            MeasuredEnd::Preview => {
                previews += usize::from(matches!(message, ComfyuiMessage::Preview { .. }));
                previews == PREVIEWS
            }
        });
        let waited = at.await?.duration_since(asked);
        if end != MeasuredEnd::Success {
            self.wait_for(&prompt, |message| message.is_end_of(&prompt)).await?;
        }
        Ok(waited)
    }

    async fn submit(&mut self, graph: &Value) -> anyhow::Result<String> {
        let answer = self.post("/prompt", &json!({ "prompt": graph, "client_id": self.id })).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        Ok(answer["prompt_id"].as_str().context("the answer has no prompt_id")?.to_owned())
    }

    async fn post(&mut self, path: &str, body: &Value) -> anyhow::Result<Vec<u8>> {
        let (status, answer) = self.requests.post(path, "", body.to_string().as_bytes()).await?;
        ensure!(status == 200, "{path} was answered {status}: {}", String::from_utf8_lossy(&answer));
        Ok(answer)
    }

    /// When a message about this prompt arrived that fulfils `is_it`.
    async fn wait_for(
        &mut self,
        prompt: &str,
        mut is_it: impl FnMut(&ComfyuiMessage) -> bool,
    ) -> anyhow::Result<Instant> {
        let search = async {
            loop {
                let message = self.socket.recv_message().await?;
                if message.prompt() != Some(prompt) {
                    continue;
                }
                if is_it(&message) {
                    return Ok(Instant::now());
                }
                ensure!(!message.is_end_of(prompt), "the run ended without it");
            }
        };
        tokio::time::timeout(WAIT_MAX, search)
            .await
            .with_context(|| format!("it did not come within {WAIT_MAX:?}"))?
    }
}
