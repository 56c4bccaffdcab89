//! Sends one message on one channel, once. An error says what happened without the address, which is a secret.

use std::process::Stdio;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use remuda_config::AlertConfig;
use remuda_core::alert::{AlertChannel, AlertNotice};
use remuda_net::http_client;
use remuda_net::secret::SECRET_VARIABLES;
use reqwest::{Client, header};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// A receiver that takes longer has not accepted.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// A mail program may have to look up a server first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// How much of what a failed command printed is told.
const PRINTED_CHARS_MAX: usize = 200;

/// Clones share the client.
#[derive(Clone, Debug, Default)]
pub(super) struct AlertSender {
    client: Arc<OnceLock<Client>>,
}

impl AlertSender {
    pub(super) async fn send(
        &self,
        config: &AlertConfig,
        channel: AlertChannel,
        notice: &AlertNotice,
    ) -> Result<(), String> {
        match channel {
            AlertChannel::Webhook => self.post(config, channel, &webhook_body(notice)).await,
            AlertChannel::Slack => self.post(config, channel, &json!({ "text": notice.sentence() })).await,
            AlertChannel::Command => run(config, notice).await,
            AlertChannel::Log => {
                super::log(notice);
                Ok(())
            }
        }
    }

    fn client(&self) -> Result<&Client, String> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = http_client::client_builder().timeout(ANSWER_TIMEOUT).build();
        let client = client.map_err(|error| format!("cannot set up HTTP for alerts: {error}"))?;
        Ok(self.client.get_or_init(|| client))
    }

    async fn post(&self, config: &AlertConfig, channel: AlertChannel, body: &Value) -> Result<(), String> {
        let address = config.address(channel).map_err(|error| format!("{error:#}"))?;
        let request = self
            .client()?
            .post(address.reveal())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, concat!("remuda/", env!("CARGO_PKG_VERSION")))
            .body(body.to_string());
        let answer = request.send().await.map_err(|error| root_cause(&error))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status if status.is_redirection() => {
                Err(format!("it answered {status}: redirects are not followed, give the final address"))
            }
            status => Err(format!("it answered {status}")),
        }
    }
}

fn webhook_body(notice: &AlertNotice) -> Value {
    let mut body = json!(notice);
    body["raised_at"] = notice.raised_at.to_string().into();
    body["at"] = notice.at.to_string().into();
    body["sentence"] = notice.sentence().into();
    body
}

async fn run(config: &AlertConfig, notice: &AlertNotice) -> Result<(), String> {
    let command = config.command.as_deref().unwrap_or_default();
    let mut shell = Command::new("sh");
    for name in SECRET_VARIABLES {
        shell.env_remove(name);
    }
    shell
        .arg("-c")
        .arg(command)
        .env("REMUDA_ALERT_NAME", &notice.alert)
        .env("REMUDA_ALERT_STATE", notice.state.as_str())
        .env("REMUDA_ALERT_SUBJECT", &notice.subject)
        .env("REMUDA_ALERT_INCIDENT", &notice.incident)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = shell.spawn().map_err(|error| format!("the command could not be started: {error}"))?;
    let (input, text) = (child.stdin.take(), format!("{}\n", notice.sentence()));
    let ended = async {
        if let Some(mut input) = input {
            // A command need not read the text.
            drop(input.write_all(text.as_bytes()).await);
        }
        child.wait_with_output().await
    };
    match tokio::time::timeout(COMMAND_TIMEOUT, ended).await {
        Err(_) => Err(format!("the command did not end within {} s", COMMAND_TIMEOUT.as_secs())),
        Ok(Err(error)) => Err(format!("the command could not be waited for: {error}")),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let printed = String::from_utf8_lossy(&output.stderr);
            let printed: String = printed.trim().chars().take(PRINTED_CHARS_MAX).collect();
            Err(format!("the command ended with {}: {printed}", output.status))
        }
    }
}

/// The innermost cause: the outer ones repeat the address.
fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        Some(_) if error.is_timeout() => format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()),
        Some(_) => "the request could not be made; is the address right?".to_owned(),
        None => cause.to_string(),
    }
}
