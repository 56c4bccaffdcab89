//! The flags of `remuda run` for a job's placement, retries, limits and webhook.

use clap::Args;
use remuda_core::id::WorkerId;
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Placement, retries and limits")]
pub(super) struct JobOptionArgs {
    /// Run only on this worker
    #[arg(long, value_name = "WORKER")]
    pin: Option<WorkerId>,
    /// Prefer this worker while it is free. May be repeated
    #[arg(long, value_name = "WORKER")]
    prefer: Vec<WorkerId>,
    /// Never run on this worker. May be repeated
    #[arg(long, value_name = "WORKER")]
    exclude: Vec<WorkerId>,
    /// How many attempts may fail through the job's own fault
    #[arg(long, value_name = "NUMBER")]
    attempts: Option<u8>,
    /// Fixed delay before every retry, instead of a growing one
    #[arg(long, value_name = "SECONDS")]
    retry_delay: Option<f64>,
    /// Retry elsewhere if the attempt has not started after this time
    #[arg(long, value_name = "SECONDS")]
    start_limit: Option<f64>,
    /// Fail an attempt that makes no progress for this time
    #[arg(long, value_name = "SECONDS")]
    node_limit: Option<f64>,
    /// Return only the outputs of this node. May be repeated
    #[arg(long = "only-output", value_name = "NODE")]
    include_outputs: Vec<String>,
    /// Submit even if no worker has the models and node classes it needs; the job waits for one that has
    #[arg(long)]
    wait_for_capability: bool,
    /// Send the outcome to this URL
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Secret to sign the webhook with
    #[arg(
        long,
        value_name = "SECRET",
        env = "REMUDA_WEBHOOK_SECRET",
        hide_env_values = true,
        requires = "webhook"
    )]
    webhook_secret: Option<String>,
}

impl JobOptionArgs {
    /// The fields of the submission; flags that were not given are left out.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        let mut needs = Map::new();
        if let Some(pin) = &self.pin {
            needs.insert("pin".to_owned(), json!(pin));
        }
        if !self.exclude.is_empty() {
            needs.insert("excluded".to_owned(), json!(self.exclude));
        }
        set("needs", (!needs.is_empty()).then(|| needs.into()));
        set("preferred", (!self.prefer.is_empty()).then(|| json!(self.prefer)));
        set("attempts_max", self.attempts.map(Value::from));
        set("retry_delay_seconds", self.retry_delay.map(Value::from));
        set("start_limit_seconds", self.start_limit.map(Value::from));
        set("node_limit_seconds", self.node_limit.map(Value::from));
        set("include_outputs", (!self.include_outputs.is_empty()).then(|| json!(self.include_outputs)));
        set("wait_for_capability", self.wait_for_capability.then_some(true.into()));
        let secret = self.webhook_secret.as_ref();
        let webhook = self.webhook.as_ref().map(|url| match secret {
            Some(secret) => json!({ "url": url, "secret": secret }),
            None => json!({ "url": url }),
        });
        set("webhook", webhook);
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_given_flags_become_fields() {
        assert!(JobOptionArgs::default().fields().is_empty());
        let options = JobOptionArgs {
            pin: Some("a".parse().unwrap()),
            exclude: vec!["b".parse().unwrap()],
            prefer: vec!["c".parse().unwrap()],
            retry_delay: Some(0.5),
            wait_for_capability: true,
            webhook: Some("http://x".to_owned()),
            ..JobOptionArgs::default()
        };
        let expected = json!({
            "needs": { "pin": "a", "excluded": ["b"] }, "preferred": ["c"], "retry_delay_seconds": 0.5,
            "wait_for_capability": true, "webhook": { "url": "http://x" },
        });
        assert_eq!(Value::from(options.fields()), expected);
    }
}
