//! The smallest prompt there is, to see whether a server does its work: `/prompt` answers long after the thread behind it
//! died. Its colour is drawn by lot, or the server would answer from its cache. Once it ran, its id is an anchor: as long
//! as history knows it, the server has not been restarted.

use std::time::Duration;

use remuda_core::id::WorkerId;
use remuda_core::service::{ProbeResult, ProbeTrigger, ServiceFailure, SubmitOutcome};
use serde_json::json;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{Client, Prompt};

/// The prompt takes milliseconds; loading whatever a server loads first may take seconds.
const LOOK_AFTER: Duration = Duration::from_millis(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why a server did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Sick {
    #[error("ComfyUI cannot run the smallest of prompts: {}", .0.message)]
    Failed(ServiceFailure),
    #[error(
        "ComfyUI takes prompts and did not end the smallest one within {within:?}; at last it said: {last}"
    )]
    Late { within: Duration, last: String },
}

impl Client {
    /// An empty picture, shown: two nodes that every version has, and no file that stays.
    pub fn canary(&self, worker: &WorkerId, client_id: &str) -> Prompt {
        let colour = Uuid::new_v4().as_u128() as u32 & 0xff_ffff;
        let graph = json!({
            "1": { "class_type": "EmptyImage", "inputs": { "width": 16, "height": 16, "batch_size": 1, "color": colour } },
            "2": { "class_type": "PreviewImage", "inputs": { "images": ["1", 0] } },
        });
        Prompt::own(
            &graph,
            &json!({ "worker": worker, "canary": true }),
            &Uuid::new_v4().to_string(),
            client_id,
        )
    }

    /// Hands the canary in and waits for its end. Hands it in again if it got lost on the way: nothing depends on its
    /// running once.
    pub async fn sing(&self, canary: &Prompt, within: Duration) -> Result<(), Sick> {
        let deadline = Instant::now() + within;
        let mut last = String::new();
        let mut seen = ProbeResult::Unknown;
        let mut pause = LOOK_AFTER;
        loop {
            if matches!(seen, ProbeResult::Unknown | ProbeResult::Interrupted) {
                match self.submit(canary).await {
                    SubmitOutcome::Accepted => "accepted".clone_into(&mut last),
                    SubmitOutcome::Refused(failure) => return Err(Sick::Failed(failure)),
                    SubmitOutcome::Unconfirmed(why) => last = why,
                }
            }
            seen = self.look(canary.id(), ProbeTrigger::Submitted).await;
            match &seen {
                ProbeResult::Succeeded { .. } => return Ok(()),
                ProbeResult::Failed(failure) => return Err(Sick::Failed(failure.clone())),
                ProbeResult::NoAnswer(why) | ProbeResult::Gone(why) => last.clone_from(why),
                ProbeResult::Pending { .. } | ProbeResult::Running => seen.as_str().clone_into(&mut last),
                ProbeResult::Interrupted | ProbeResult::Unknown => {}
            }
            if Instant::now() + pause >= deadline {
                return Err(Sick::Late { within, last });
            }
            sleep(pause).await;
            pause = LOOK_EVERY.min(pause * 2);
        }
    }
}
