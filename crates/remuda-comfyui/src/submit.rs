//! Handing a prompt in, and what the answer means.
//!
//! | answer | means |
//! |---|---|
//! | 200, no node errors | accepted |
//! | 200 with node errors | only half of it would run: taken back, refused |
//! | 400, 413 | refused: a file, model or class missing here, or the graph wrong everywhere |
//! | other 3xx, 4xx | refused by somebody at the door: lost here, the job is not to blame |
//! | 5xx, a timeout, a broken connection | unsure: it answers 500 also to prompts that it then runs |

use std::time::Duration;

use remuda_core::service::{ProbeResult, ProbeTrigger, ServiceFailure, ServiceFault, SubmitOutcome};
use remuda_core::workflow::model_file;
use reqwest::StatusCode;
use serde::Deserialize;
use tokio::time::sleep;

use super::Prompt;
use super::client::{Client, Error, refused};
use super::json::{self, Members, Text};
use remuda_net::text::one_line;

/// Interrupting takes until the node in hand looks up; longer than this nobody should wait to hear of a refusal.
const TAKE_BACK_ROUNDS_MAX: u32 = 10;
const TAKE_BACK_EVERY: Duration = Duration::from_millis(50);

/// More would not be read: the first errors are the cause of the others.
const ERRORS_SHOWN_MAX: usize = 4;

impl Client {
    pub async fn submit(&self, prompt: &Prompt) -> SubmitOutcome {
        match self.post("prompt", prompt.body().to_vec()).await {
            Ok((status, body)) => match judge(status, &body, prompt) {
                Verdict::Plain(submission) => submission,
                Verdict::TakeBack { id, failure } => {
                    // If this fails, half a prompt runs for nothing; its result has no owner.
                    if let Err(error) = self.take_back(&id).await {
                        tracing::info!(prompt = id, %error, "could not take back a prompt that is only half valid");
                    }
                    SubmitOutcome::Refused(failure)
                }
            },
            Err(error) => SubmitOutcome::Unconfirmed(error.to_string()),
        }
    }
}

impl Client {
    /// It may run already, or have ended; whoever asks later must not find half a result and take it for the whole.
    async fn take_back(&self, id: &str) -> Result<(), Error> {
        for _ in 0..TAKE_BACK_ROUNDS_MAX {
            self.cancel(id).await?;
            self.forget(id).await?;
            if matches!(self.look(id, ProbeTrigger::Cancelled).await, ProbeResult::Unknown) {
                return Ok(());
            }
            sleep(TAKE_BACK_EVERY).await;
        }
        Err(Error::Timeout(TAKE_BACK_EVERY * TAKE_BACK_ROUNDS_MAX))
    }
}

#[derive(Debug)]
enum Verdict {
    Plain(SubmitOutcome),
    /// It was taken, and must not run.
    TakeBack {
        id: String,
        failure: ServiceFailure,
    },
}

fn judge(status: StatusCode, body: &[u8], prompt: &Prompt) -> Verdict {
    let plain = Verdict::Plain;
    match status {
        StatusCode::OK => accepted(body, prompt),
        StatusCode::BAD_REQUEST => plain(SubmitOutcome::Refused(match json::read::<Refusal>(body) {
            Ok(refusal) => refusal.failure(),
            Err(_) => ServiceFailure::new(ServiceFault::Graph, refused(status, "prompt", body).to_string()),
        })),
        StatusCode::PAYLOAD_TOO_LARGE => plain(SubmitOutcome::Refused(ServiceFailure::new(
            ServiceFault::Graph,
            format!(
                "the workflow has {} bytes, more than ComfyUI takes: upload files instead of writing them into it",
                prompt.body().len()
            ),
        ))),
        status if status.is_server_error() || status.is_success() || status.is_informational() => {
            plain(SubmitOutcome::Unconfirmed(refused(status, "prompt", body).to_string()))
        }
        status => plain(SubmitOutcome::Refused(ServiceFailure::new(
            ServiceFault::Lost,
            refused(status, "prompt", body).to_string(),
        ))),
    }
}

fn accepted(body: &[u8], prompt: &Prompt) -> Verdict {
    let Ok(answer) = json::read::<Accepted>(body) else {
        return Verdict::Plain(SubmitOutcome::Unconfirmed(
            "ComfyUI answered 200, but not in its own words".to_owned(),
        ));
    };
    if answer.prompt_id != prompt.id() {
        let failure = ServiceFailure::new(
            ServiceFault::Missing,
            "this ComfyUI gives prompts ids of its own, so nobody could ask for the result: 0.3.45 or later is needed",
        );
        return Verdict::TakeBack { id: answer.prompt_id, failure };
    }
    if answer.node_errors.0.is_empty() {
        return Verdict::Plain(SubmitOutcome::Accepted);
    }
    Verdict::TakeBack { id: answer.prompt_id, failure: of_nodes(&answer.node_errors) }
}

#[derive(Deserialize)]
struct Accepted {
    prompt_id: String,
    #[serde(default)]
    node_errors: Members<NodeErrors>,
}

#[derive(Deserialize)]
struct Refusal {
    error: Whole,
    #[serde(default)]
    node_errors: Members<NodeErrors>,
}

/// What is wrong with the prompt as a whole.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Whole {
    #[serde(rename = "type")]
    kind: Text,
    message: Text,
    details: Text,
}

#[derive(Deserialize)]
struct NodeErrors {
    #[serde(default)]
    class_type: Text,
    #[serde(default)]
    errors: Vec<NodeError>,
}

#[derive(Deserialize)]
struct NodeError {
    #[serde(default, rename = "type")]
    kind: Text,
    #[serde(default)]
    message: Text,
    #[serde(default)]
    details: Text,
    #[serde(default)]
    extra_info: Extra,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Extra {
    input_name: Text,
    received_value: Text,
}

impl Refusal {
    fn failure(&self) -> ServiceFailure {
        if !self.node_errors.0.is_empty() {
            return of_nodes(&self.node_errors);
        }
        let message = text(&self.error.message);
        // Unknown classes are `invalid_prompt` like other things; only the words tell, or, on newer servers, the type.
        let is_class = message.contains("does not exist") || text(&self.error.kind).contains("missing_node");
        let fault = if is_class { ServiceFault::Missing } else { ServiceFault::Graph };
        let said = [message, text(&self.error.details)].map(|part| one_line(part, 300));
        let said: Vec<&str> = said.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        ServiceFailure::new(fault, format!("ComfyUI refuses the workflow: {}", said.join(" ")))
    }
}

/// If all that is wrong is missing on this server, another may have it; otherwise the graph is wrong everywhere.
fn of_nodes(nodes: &Members<NodeErrors>) -> ServiceFailure {
    let errors =
        || nodes.0.iter().flat_map(|(id, node)| node.errors.iter().map(move |error| (id, node, error)));
    let fault = if errors().next().is_some() && errors().all(|(_, _, error)| error.is_missing()) {
        ServiceFault::Missing
    } else {
        ServiceFault::Graph
    };
    let told: Vec<String> =
        errors().take(ERRORS_SHOWN_MAX).map(|(id, node, error)| error.told(id, node)).collect();
    let more = errors().count().saturating_sub(ERRORS_SHOWN_MAX);
    let mut message = if told.is_empty() {
        let ids: Vec<String> =
            nodes.0.iter().take(ERRORS_SHOWN_MAX).map(|(id, _)| one_line(id, 40)).collect();
        format!("ComfyUI refuses the nodes {}", ids.join(", "))
    } else {
        told.join("; ")
    };
    if more > 0 {
        message.push_str(&format!("; and {more} more"));
    }
    ServiceFailure::new(fault, message)
}

impl NodeError {
    fn is_missing(&self) -> bool {
        match text(&self.kind) {
            "value_not_in_list" => is_file(text(&self.extra_info.received_value)),
            // A loader whose file is not in the input folder says so in its own words.
            "custom_validation_failed" => {
                let details = text(&self.details).to_lowercase();
                details.contains("file") && (details.contains("invalid") || details.contains("not "))
            }
            _ => false,
        }
    }

    fn told(&self, id: &str, node: &NodeErrors) -> String {
        let class = match text(&node.class_type) {
            "" => String::new(),
            class => format!(" ({})", one_line(class, 80)),
        };
        let input = match text(&self.extra_info.input_name) {
            "" => String::new(),
            input => format!(", input {}", one_line(input, 80)),
        };
        let details = match text(&self.details) {
            "" => String::new(),
            details => format!(": {}", one_line(details, 200)),
        };
        format!("node {}{class}{input}: {}{details}", one_line(id, 40), one_line(text(&self.message), 120))
    }
}

fn text(text: &Text) -> &str {
    text.0.as_deref().unwrap_or_default()
}

/// A model, or anything else with the ending of a file; the names of samplers and modes have none.
fn is_file(value: &str) -> bool {
    let ending = value.rsplit_once('.').map(|(_, ending)| ending).unwrap_or_default();
    model_file(value).is_some()
        || (2..=5).contains(&ending.len())
            && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && ending.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Whether nothing was sent, so that nothing can have been taken.
impl Error {
    pub fn is_unsent(&self) -> bool {
        matches!(self, Error::Gone(_) | Error::Unreachable(_) | Error::Target(_))
    }
}

#[cfg(test)]
mod tests;
