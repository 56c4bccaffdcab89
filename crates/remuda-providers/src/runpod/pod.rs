//! A pod as RunPod shows it. Only the fields that matter are read, and never the environment.

use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::{Pod, PodStatus, SshAddress};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use tracing::warn;

use remuda_net::text::one_line;

/// Missing required fields are an error: a pod without a name could be one of ours.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodView {
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

/// `proxy` is ignored: it prints errors and exits with 0, so it proves nothing.
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

impl PodView {
    /// `None` for a pod that is gone and is only a name in the list.
    pub(super) fn into_pod(self) -> Result<Option<Pod>, String> {
        let id: PodId = self.id.parse().map_err(|_| "with a pod whose id is none".to_owned())?;
        let status = match self.status.as_str() {
            "PROVISIONING" => PodStatus::Provisioning,
            "STARTING" => PodStatus::Starting,
            // It is scheduled and billed, but its container exists only once there is a runtime.
            "RUNNING" if self.runtime.is_some() => PodStatus::Running,
            "RUNNING" => PodStatus::Starting,
            "EXITED" => PodStatus::Stopped,
            "ERROR" => PodStatus::Failed,
            "TERMINATED" => return Ok(None),
            other => {
                // Unknown status: the pod exists and does not run. If that stays so, it times out.
                warn!(pod = %id, status = one_line(other, 40), "RunPod reported an unknown status");
                PodStatus::Starting
            }
        };
        // Addresses remain after the end.
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

/// An oddity in an optional field of a foreign pod must not hide all others.
fn if_readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// A higher price per hour is not plausible.
const DOLLARS_MAX: f64 = 1e6;

/// A price as the API writes it. 0 means not offered or not priced yet, never free.
pub(super) fn price(dollars: f64) -> Option<Money> {
    let micros = |dollars: f64| (dollars * 1e6).round() as u64;
    (dollars > 0.0 && dollars <= DOLLARS_MAX).then(|| Money::from_micros(micros(dollars)))
}
