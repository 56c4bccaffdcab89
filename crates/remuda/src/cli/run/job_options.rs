//! How a job should go, as typed: where it may and would rather run, how often it is tried, how long things may take.

use clap::Args;
use remuda_core::id::WorkerId;
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How it should go")]
pub(super) struct JobOptionArgs {
    /// Only this worker will do
    #[arg(long, value_name = "WORKER")]
    pin: Option<WorkerId>,
    /// A worker to choose first while it is free; others take the job otherwise. May be repeated
    #[arg(long, value_name = "WORKER")]
    prefer: Vec<WorkerId>,
    /// A worker that never gets it. May be repeated
    #[arg(long, value_name = "WORKER")]
    exclude: Vec<WorkerId>,
    /// Failures of its own before it has failed
    #[arg(long, value_name = "NUMBER")]
    attempts: Option<u8>,
    /// Wait so long before every retry, instead of longer each time
    #[arg(long, value_name = "SECONDS")]
    retry_delay: Option<f64>,
    /// Try it elsewhere if it is not begun so long after it was handed out
    #[arg(long, value_name = "SECONDS")]
    start_limit: Option<f64>,
    /// Fail an attempt that makes no progress for so long
    #[arg(long, value_name = "SECONDS")]
    node_limit: Option<f64>,
    /// Bring home only what this node gives. May be repeated
    #[arg(long = "only-output", value_name = "NODE")]
    include_outputs: Vec<String>,
    /// Tell this address how it ended
    #[arg(long, value_name = "URL")]
    webhook: Option<String>,
    /// Sign what is told with this
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
    /// The fields of a submission that say so.
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
    fn only_what_was_typed_is_asked_for() {
        assert!(JobOptionArgs::default().fields().is_empty());
        let wishes = JobOptionArgs {
            pin: Some("a".parse().unwrap()),
            exclude: vec!["b".parse().unwrap()],
            prefer: vec!["c".parse().unwrap()],
            retry_delay: Some(0.5),
            webhook: Some("http://x".to_owned()),
            ..JobOptionArgs::default()
        };
        let expected = json!({
            "needs": { "pin": "a", "excluded": ["b"] }, "preferred": ["c"], "retry_delay_seconds": 0.5,
            "webhook": { "url": "http://x" },
        });
        assert_eq!(Value::from(wishes.fields()), expected);
    }
}
