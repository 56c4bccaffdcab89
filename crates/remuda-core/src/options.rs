//! What a submission may ask for beyond its workflow and its needs: how it is retried, where it would rather run, how
//! long things may take, what of it is wanted, whom to tell.
//!
//! Needs (`need.rs`) say who *can* run a job; options say how it should go. Durations are written as seconds, as people
//! give them.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::WorkerId;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Waits this long before every retry, instead of a wait that grows.
    #[serde(with = "seconds", rename = "retry_delay_seconds", skip_serializing_if = "Option::is_none")]
    pub retry_delay: Option<Duration>,
    /// Chosen first while they are free; a preference and not a pin.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub preferred: BTreeSet<WorkerId>,
    /// How long an attempt may take from the moment it is handed out until its service has begun it.
    #[serde(with = "seconds", rename = "start_limit_seconds", skip_serializing_if = "Option::is_none")]
    pub start_limit: Option<Duration>,
    /// How long an attempt that was begun may go without progress.
    #[serde(with = "seconds", rename = "node_limit_seconds", skip_serializing_if = "Option::is_none")]
    pub node_limit: Option<Duration>,
    /// Nodes whose outputs are wanted; all of them if none is named.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub include_outputs: BTreeSet<String>,
    /// Whom to tell how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

impl Options {
    pub fn is_empty(&self) -> bool {
        *self == Options::default()
    }
}

/// Where to send the news of a job's end, and what to sign it with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
}

/// Something that is stored and never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(secret: String) -> Self {
        Secret(secret)
    }

    /// For whoever signs with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

mod seconds {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[expect(clippy::ref_option, reason = "serde asks for it")]
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
    fn options_are_written_as_people_give_them_and_secrets_are_not_shown() {
        let text =
            r#"{"retry_delay_seconds":1.5,"preferred":["a"],"webhook":{"url":"http://x","secret":"hush"}}"#;
        let options: Options = serde_json::from_str(text).unwrap();
        assert_eq!(options.retry_delay, Some(Duration::from_millis(1500)));
        assert_eq!(serde_json::to_string(&options).unwrap(), text, "stored as it is");
        assert!(!format!("{options:?}").contains("hush"), "{options:?}");
        assert!(serde_json::from_str::<Options>(r#"{"node_limit_seconds":-1}"#).is_err());
        assert!(serde_json::from_str::<Options>("{}").unwrap().is_empty());
    }
}
