//! A pod as RunPod shows it. Of its many fields only those that say something are read; above all not its environment.

use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, SshAddress};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use tracing::warn;

use remuda_net::text::one_line;

/// What must be there is required: a pod without a name could be one of ours.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    id: String,
    name: String,
    status: String,
    #[serde(default, deserialize_with = "if_readable")]
    gpu: Option<Gpu>,
    #[serde(default, deserialize_with = "if_readable")]
    data_center_id: Option<String>,
    #[serde(default, deserialize_with = "if_readable")]
    cost: Option<f64>,
    #[serde(default, deserialize_with = "if_readable")]
    ssh: Option<Ssh>,
    #[serde(default)]
    runtime: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "if_readable")]
    started_at: Option<String>,
}

#[derive(Deserialize)]
struct Gpu {
    #[serde(default)]
    id: Option<String>,
}

/// `proxy` is left out: it prints errors and exits with 0, so nothing can be told from it.
#[derive(Deserialize)]
struct Ssh {
    #[serde(default, deserialize_with = "if_readable")]
    direct: Option<Direct>,
}

#[derive(Deserialize)]
struct Direct {
    host: String,
    port: u16,
    username: String,
}

impl Listed {
    /// Nothing if it is gone and only its name is left.
    pub(super) fn into_pod(self) -> Result<Option<Pod>, String> {
        let id: PodId = self.id.parse().map_err(|_| "with a pod whose id is none".to_owned())?;
        let status = match self.status.as_str() {
            "PROVISIONING" => PodStatus::Provisioning,
            "STARTING" => PodStatus::Starting,
            // It has a place and is billed; its container is there only once there is a runtime.
            "RUNNING" if self.runtime.is_some() => PodStatus::Running,
            "RUNNING" => PodStatus::Starting,
            "EXITED" => PodStatus::Stopped,
            "ERROR" => PodStatus::Failed,
            "TERMINATED" => return Ok(None),
            other => {
                // Until we know better: there, and not running. If it stays so, its time runs out.
                warn!(pod = %id, status = one_line(other, 40), "RunPod has a status that is new to us");
                PodStatus::Starting
            }
        };
        // Addresses linger after the end.
        let direct = self.ssh.and_then(|ssh| ssh.direct).filter(|_| self.status == "RUNNING");
        Ok(Some(Pod {
            id,
            tag: self.name,
            status,
            kind: self.gpu.and_then(|gpu| gpu.id).unwrap_or_default(),
            place: self.data_center_id.unwrap_or_default(),
            host: None,
            price: self.cost.and_then(price),
            ssh: direct.map(|it| SshAddress { host: it.host, port: it.port, user: it.username }),
            started: self.started_at.unwrap_or_default(),
        }))
    }
}

/// A pod of somebody else's that is odd in what does not matter must not hide all others.
fn if_readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// More than this an hour is no price.
const DOLLARS_MAX: f64 = 1e6;

/// A price as the API writes it. Nothing is free: 0 is said of what is not offered, and of what nobody has priced yet.
pub(super) fn price(dollars: f64) -> Option<Money> {
    let micros = |dollars: f64| (dollars * 1e6).round() as u64;
    (dollars > 0.0 && dollars <= DOLLARS_MAX).then(|| Money::from_micros(micros(dollars)))
}
