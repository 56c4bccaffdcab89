//! The self-test: a minimal prompt that shows whether a server executes prompts. `/prompt` still answers after the server's
//! worker thread has died, so an answer alone proves nothing. The colour is random, or the server would answer from its
//! cache. After a run the prompt's id is an anchor: while history contains it, the server has not been restarted.

use std::time::Duration;

use remuda_core::id::WorkerId;
use remuda_core::service::{ProbeResult, ProbeTrigger, ServiceFailure, SubmitOutcome};
use remuda_core::supervise::Backoff;
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{ComfyuiClient, PreparedPrompt};

/// The prompt takes milliseconds; what a server loads before its first prompt may take seconds.
const PROBE_PAUSE: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200));

/// Why a server failed its self-test.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    #[error("ComfyUI cannot run the minimal prompt: {}", .0.message)]
    Failed(ServiceFailure),
    #[error(
        "ComfyUI accepts prompts but did not finish the minimal one within {timeout:?}; its last state: {last}"
    )]
    TimedOut { timeout: Duration, last: String },
    #[error("the minimal prompt was still queued behind other work after {timeout:?}")]
    Queued { timeout: Duration },
}

impl ComfyuiClient {
    /// An empty image with a preview: two nodes that every version has, and no permanent file.
    pub fn self_test_prompt(&self, worker: &WorkerId, client_id: &str) -> PreparedPrompt {
        let colour = Uuid::new_v4().as_u128() as u32 & 0xff_ffff;
        let graph = json!({
            "1": { "class_type": "EmptyImage", "inputs": { "width": 16, "height": 16, "batch_size": 1, "color": colour } },
            "2": { "class_type": "PreviewImage", "inputs": { "images": ["1", 0] } },
        });
        PreparedPrompt::from_trusted(
            &graph,
            &json!({ "worker": worker, "canary": true }),
            &Uuid::new_v4().to_string(),
            client_id,
        )
    }

    /// Submits the prompt and waits for its end. Submits it again if it was lost: running it twice does no harm.
    pub async fn run_self_test(
        &self,
        prompt: &PreparedPrompt,
        timeout: Duration,
    ) -> Result<(), SelfTestError> {
        let deadline = Instant::now() + timeout;
        let mut last = String::new();
        let mut seen = ProbeResult::Unknown;
        for probes in 0.. {
            if matches!(seen, ProbeResult::Unknown | ProbeResult::Interrupted) {
                match self.submit(prompt).await {
                    SubmitOutcome::Accepted => "accepted".clone_into(&mut last),
                    SubmitOutcome::Refused(failure) => return Err(SelfTestError::Failed(failure)),
                    SubmitOutcome::Unconfirmed(why) => last = why,
                }
            }
            seen = self.probe(prompt.id(), ProbeTrigger::Submitted).await;
            match &seen {
                ProbeResult::Succeeded { .. } => return Ok(()),
                ProbeResult::Failed(failure) => return Err(SelfTestError::Failed(failure.clone())),
                ProbeResult::NoAnswer(why) | ProbeResult::Gone(why) => last.clone_from(why),
                ProbeResult::Pending { .. } | ProbeResult::Running => {
                    seen.state().as_str().clone_into(&mut last);
                }
                ProbeResult::Interrupted | ProbeResult::Unknown => {}
            }
            let pause = PROBE_PAUSE.delay(probes);
            if Instant::now() + pause >= deadline {
                break;
            }
            sleep(pause).await;
        }
        Err(match seen {
            ProbeResult::Pending { ahead: Some(_) } => SelfTestError::Queued { timeout },
            _ => SelfTestError::TimedOut { timeout, last },
        })
    }
}
