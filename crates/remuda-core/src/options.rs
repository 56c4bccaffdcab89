//! The options of a job beyond its workflow and requirements: retries, preferred workers, limits, output filter, webhook.
//!
//! Requirements (`need.rs`) decide which workers *can* run a job; options decide how it is run. Durations are written in
//! seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::id::{JobId, WorkerId};
use crate::need::Requirements;

/// The size limit of everything submitted beside the workflow, as JSON: it stays in memory until the job has ended.
pub const OPTIONS_BYTES_MAX: usize = 16 << 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobOptions {
    /// Waits this long before every retry, instead of a growing backoff.
    #[serde(with = "seconds", rename = "retry_delay_seconds", skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<Duration>,
    /// Chosen first while they are free: a preference, not a pin.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub preferred: BTreeSet<WorkerId>,
    /// How long an attempt may take from its assignment until its service has started it.
    #[serde(with = "seconds", rename = "start_limit_seconds", skip_serializing_if = "Option::is_none")]
    pub start_limit: Option<Duration>,
    /// How long a started attempt may go without progress.
    #[serde(with = "seconds", rename = "node_limit_seconds", skip_serializing_if = "Option::is_none")]
    pub node_limit: Option<Duration>,
    /// Nodes whose outputs are fetched; empty means all.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub include_outputs: BTreeSet<String>,
    /// Called when the job has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// Accepted even if no worker has its models and node classes, and no fleet could bring them: it waits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub wait_for_capability: bool,
    /// The ended job that this one runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<JobId>,
}

impl JobOptions {
    pub fn is_empty(&self) -> bool {
        *self == JobOptions::default()
    }
}

/// Everything that was submitted beside the workflow, for the size check.
#[derive(Clone, Copy, Debug)]
pub struct RequestedOptions<'a> {
    pub needs: &'a Requirements,
    pub options: &'a JobOptions,
    pub labels: &'a BTreeMap<String, String>,
    pub metadata: &'a Map<String, Value>,
}

/// The submission exceeds `OPTIONS_BYTES_MAX`; the size of each part in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionsTooLarge {
    needs: usize,
    options: usize,
    labels: usize,
    metadata: usize,
}

impl RequestedOptions<'_> {
    pub fn check(&self) -> Result<(), OptionsTooLarge> {
        let sizes = OptionsTooLarge {
            needs: json_bytes(self.needs),
            options: json_bytes(self.options),
            labels: json_bytes(self.labels),
            metadata: json_bytes(self.metadata),
        };
        if sizes.bytes() > OPTIONS_BYTES_MAX { Err(sizes) } else { Ok(()) }
    }
}

fn json_bytes(it: &impl Serialize) -> usize {
    serde_json::to_string(it).map_or(0, |text| text.len())
}

impl OptionsTooLarge {
    fn bytes(&self) -> usize {
        self.needs + self.options + self.labels + self.metadata
    }
}

impl fmt::Display for OptionsTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OptionsTooLarge { needs, options, labels, metadata } = self;
        write!(
            f,
            "fields beside the workflow take {} bytes (needs {needs}, options with the webhook {options}, \
             labels {labels}, metadata {metadata}); the limit is {OPTIONS_BYTES_MAX}",
            self.bytes()
        )
    }
}

/// The URL that is called when a job has ended, and the secret that signs the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<WebhookSecret>,
}

/// A secret that is stored and never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WebhookSecret(String);

impl WebhookSecret {
    pub fn new(secret: String) -> Self {
        WebhookSecret(secret)
    }

    /// For signing only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde requires this signature")]
    pub(super) fn serialize<S: Serializer>(it: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        it.map(|it| it.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds: Option<f64> = Option::deserialize(deserializer)?;
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_round_trip_as_seconds_and_hide_the_secret() {
        let text =
            r#"{"retry_delay_seconds":1.5,"preferred":["a"],"webhook":{"url":"http://x","secret":"hush"}}"#;
        let options: JobOptions = serde_json::from_str(text).unwrap();
        assert_eq!(options.retry_delay, Some(Duration::from_millis(1500)));
        assert_eq!(serde_json::to_string(&options).unwrap(), text, "stored as it is");
        assert!(!format!("{options:?}").contains("hush"), "{options:?}");
        assert!(serde_json::from_str::<JobOptions>(r#"{"node_limit_seconds":-1}"#).is_err());
        assert!(serde_json::from_str::<JobOptions>("{}").unwrap().is_empty());
    }

    /// Faults: B1.
    #[test]
    fn oversized_options_are_refused_with_the_size_of_each_part() {
        let long = || "x".repeat(OPTIONS_BYTES_MAX);
        let (needs, options) = (Requirements::default(), JobOptions::default());
        let (labels, metadata) = (BTreeMap::new(), Map::new());
        let asked =
            RequestedOptions { needs: &needs, options: &options, labels: &labels, metadata: &metadata };
        assert_eq!(asked.check(), Ok(()));
        let secret = Some(WebhookSecret::new(long()));
        let webhook = Some(Webhook { url: String::new(), secret });
        let checked = [
            RequestedOptions {
                needs: &Requirements { models: [long()].into(), ..Requirements::default() },
                ..asked
            }
            .check(),
            RequestedOptions {
                needs: &Requirements { classes: [long()].into(), ..Requirements::default() },
                ..asked
            }
            .check(),
            RequestedOptions { options: &JobOptions { webhook, ..JobOptions::default() }, ..asked }.check(),
            RequestedOptions {
                options: &JobOptions { include_outputs: [long()].into(), ..JobOptions::default() },
                ..asked
            }
            .check(),
            RequestedOptions { labels: &[("a".to_owned(), long())].into(), ..asked }.check(),
        ];
        assert!(checked.iter().all(Result::is_err), "{checked:?}");
        let error = checked[4].unwrap_err().to_string();
        assert!(error.contains("labels 16392") && error.contains("limit is 16384"), "{error}");
        let half = || "x".repeat(OPTIONS_BYTES_MAX / 2);
        let needs = Requirements { models: [half()].into(), ..Requirements::default() };
        assert_eq!(RequestedOptions { needs: &needs, ..asked }.check(), Ok(()));
        let labels = [("a".to_owned(), half())].into();
        assert!(
            RequestedOptions { needs: &needs, labels: &labels, ..asked }.check().is_err(),
            "it is the sum"
        );
    }
}
