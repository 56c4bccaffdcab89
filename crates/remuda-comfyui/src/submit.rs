//! Submits a prompt and interprets the answer.
//!
//! | answer | means |
//! |---|---|
//! | 200, no node errors | accepted |
//! | 200 with node errors | only a part of it would run: withdrawn, refused |
//! | 400, 413 | refused: a model or class is missing here, an input is missing, or the graph is invalid on every server |
//! | other 3xx, 4xx | refused by a proxy: lost here, not the job's fault |
//! | 5xx, a timeout, a broken connection | unknown: ComfyUI also answers 500 to prompts that it then runs |

use std::time::Duration;

use remuda_core::service::{ProbeResult, ProbeTrigger, ServiceFailure, ServiceFault, SubmitOutcome};
use remuda_core::workflow::model_file;
use reqwest::StatusCode;
use serde::Deserialize;
use tokio::time::sleep;

use super::PreparedPrompt;
use super::client::ComfyuiClient;
use super::error::{ComfyuiError, refused};
use super::json::{self, JsonMembers, Text};
use remuda_net::text::one_line;

/// An interrupt takes effect when the current node checks for it; the refusal must not wait longer than this.
const WITHDRAW_ROUNDS_MAX: u32 = 10;
const WITHDRAW_EVERY: Duration = Duration::from_millis(50);

/// The first errors usually cause the others.
const ERRORS_SHOWN_MAX: usize = 4;

impl ComfyuiClient {
    pub async fn submit(&self, prompt: &PreparedPrompt) -> SubmitOutcome {
        match self.post("prompt", prompt.body().to_vec()).await {
            Ok((status, body)) => match judge(status, &body, prompt) {
                PromptAnswer::Final(submission) => submission,
                PromptAnswer::Withdraw { id, failure } => {
                    // If this fails, part of the prompt runs for nothing; no attempt waits for its result.
                    if let Err(error) = self.withdraw(&id).await {
                        tracing::info!(prompt = id, %error, "withdrawing a partially valid prompt failed");
                    }
                    SubmitOutcome::Refused(failure)
                }
            },
            Err(error) => SubmitOutcome::Unconfirmed(error.to_string()),
        }
    }
}

impl ComfyuiClient {
    /// The prompt may already run or have ended. A later probe must not find the partial result and take it for complete.
    async fn withdraw(&self, id: &str) -> Result<(), ComfyuiError> {
        for _ in 0..WITHDRAW_ROUNDS_MAX {
            self.cancel(id).await?;
            self.delete_from_history(id).await?;
            if matches!(self.probe(id, ProbeTrigger::Cancelled).await, ProbeResult::Unknown) {
                return Ok(());
            }
            sleep(WITHDRAW_EVERY).await;
        }
        Err(ComfyuiError::Timeout(WITHDRAW_EVERY * WITHDRAW_ROUNDS_MAX))
    }
}

#[derive(Debug)]
enum PromptAnswer {
    Final(SubmitOutcome),
    /// Accepted by the server, but must not run.
    Withdraw {
        id: String,
        failure: ServiceFailure,
    },
}

fn judge(status: StatusCode, body: &[u8], prompt: &PreparedPrompt) -> PromptAnswer {
    let verdict = PromptAnswer::Final;
    match status {
        StatusCode::OK => accepted(body, prompt),
        StatusCode::BAD_REQUEST => verdict(SubmitOutcome::Refused(match json::parse::<Refusal>(body) {
            Ok(refusal) => refusal.failure(),
            Err(_) => ServiceFailure::new(ServiceFault::Graph, refused(status, "prompt", body).to_string()),
        })),
        StatusCode::PAYLOAD_TOO_LARGE => verdict(SubmitOutcome::Refused(ServiceFailure::new(
            ServiceFault::Graph,
            format!(
                "the workflow has {} bytes, more than ComfyUI accepts: upload files instead of embedding them",
                prompt.body().len()
            ),
        ))),
        status if status.is_server_error() || status.is_success() || status.is_informational() => {
            verdict(SubmitOutcome::Unconfirmed(refused(status, "prompt", body).to_string()))
        }
        status => verdict(SubmitOutcome::Refused(ServiceFailure::new(
            ServiceFault::Lost,
            refused(status, "prompt", body).to_string(),
        ))),
    }
}

fn accepted(body: &[u8], prompt: &PreparedPrompt) -> PromptAnswer {
    let Ok(answer) = json::parse::<Accepted>(body) else {
        return PromptAnswer::Final(SubmitOutcome::Unconfirmed(
            "ComfyUI answered 200 with an unexpected body".to_owned(),
        ));
    };
    if answer.prompt_id != prompt.id() {
        let failure = ServiceFailure::new(
            ServiceFault::Missing,
            "this ComfyUI ignores our prompt ids, so the result could not be found: version 0.3.45 or later is required",
        );
        return PromptAnswer::Withdraw { id: answer.prompt_id, failure };
    }
    if answer.node_errors.0.is_empty() {
        return PromptAnswer::Final(SubmitOutcome::Accepted);
    }
    PromptAnswer::Withdraw { id: answer.prompt_id, failure: node_failure(&answer.node_errors) }
}

#[derive(Deserialize)]
struct Accepted {
    prompt_id: String,
    #[serde(default)]
    node_errors: JsonMembers<NodeErrors>,
}

#[derive(Deserialize)]
struct Refusal {
    error: PromptError,
    #[serde(default)]
    node_errors: JsonMembers<NodeErrors>,
}

/// An error of the whole prompt.
#[derive(Deserialize, Default)]
#[serde(default)]
struct PromptError {
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
            return node_failure(&self.node_errors);
        }
        let message = text(&self.error.message);
        // An unknown class has the type `invalid_prompt`, like other errors; only the message, or the type on newer
        // servers, distinguishes it.
        let is_class = message.contains("does not exist") || text(&self.error.kind).contains("missing_node");
        let fault = if is_class { ServiceFault::Missing } else { ServiceFault::Graph };
        let parts = [message, text(&self.error.details)].map(|part| one_line(part, 300));
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        ServiceFailure::new(fault, format!("ComfyUI refused the workflow: {}", parts.join(" ")))
    }
}

/// If every error is a missing model, another server may have it. A missing input is the job's fault, and may still be
/// elsewhere. Otherwise the graph is invalid on every server.
fn node_failure(nodes: &JsonMembers<NodeErrors>) -> ServiceFailure {
    let errors =
        || nodes.0.iter().flat_map(|(id, node)| node.errors.iter().map(move |error| (id, node, error)));
    let all =
        |is: fn(&NodeError) -> bool| errors().next().is_some() && errors().all(|(_, _, error)| is(error));
    let fault = if all(NodeError::is_missing) {
        ServiceFault::Missing
    } else if all(|error| error.is_missing() || error.is_missing_input()) {
        ServiceFault::Node
    } else {
        ServiceFault::Graph
    };
    let messages: Vec<String> =
        errors().take(ERRORS_SHOWN_MAX).map(|(id, node, error)| error.describe(id, node)).collect();
    let more = errors().count().saturating_sub(ERRORS_SHOWN_MAX);
    let mut message = if messages.is_empty() {
        let ids: Vec<String> =
            nodes.0.iter().take(ERRORS_SHOWN_MAX).map(|(id, _)| one_line(id, 40)).collect();
        format!("ComfyUI refused the nodes {}", ids.join(", "))
    } else {
        messages.join("; ")
    };
    if more > 0 {
        message.push_str(&format!("; and {more} more"));
    }
    let failure = ServiceFailure::new(fault, message);
    match errors().next() {
        Some((id, node, error)) => {
            failure.at_node(one_line(id, 40), node.class()).with_exception(one_line(text(&error.kind), 80))
        }
        None => failure,
    }
}

impl NodeErrors {
    fn class(&self) -> Option<String> {
        Some(one_line(text(&self.class_type), 80)).filter(|class| !class.is_empty())
    }
}

impl NodeError {
    fn is_missing(&self) -> bool {
        match text(&self.kind) {
            "value_not_in_list" => model_file(text(&self.extra_info.received_value)).is_some(),
            _ => false,
        }
    }

    /// An input that the job names and this server does not have. Another server may have it.
    fn is_missing_input(&self) -> bool {
        match text(&self.kind) {
            "value_not_in_list" => is_file(text(&self.extra_info.received_value)),
            // Loaders report a missing input file in different words.
            "custom_validation_failed" => {
                let details = text(&self.details).to_lowercase();
                details.contains("file") && (details.contains("invalid") || details.contains("not "))
            }
            _ => false,
        }
    }

    fn describe(&self, id: &str, node: &NodeErrors) -> String {
        let class = node.class().map(|class| format!(" ({class})")).unwrap_or_default();
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

/// A model or another file name; names of samplers and modes have no extension.
fn is_file(value: &str) -> bool {
    let ending = value.rsplit_once('.').map(|(_, ending)| ending).unwrap_or_default();
    model_file(value).is_some()
        || (2..=5).contains(&ending.len())
            && ending.bytes().all(|byte| byte.is_ascii_alphanumeric())
            && ending.bytes().any(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests;
