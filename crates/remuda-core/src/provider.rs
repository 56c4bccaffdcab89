//! The vocabulary between the plane and a provider of machines, shared by every provider adapter. A `Pod` is the
//! provider's view of a machine; `rental` is the plane's.
//!
//! An adapter translates and decides nothing: it makes each call once, reports the result, and reports an unknown
//! outcome as `Ambiguous` instead of guessing. Retries belong to `plane/rentals.rs`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::{MachineId, PodId};
use crate::money::Money;

/// A machine as its provider sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    pub id: PodId,
    /// The name it was created with; `PodTag` parses ours.
    pub tag: String,
    pub status: PodStatus,
    /// The GPU type in the provider's words; empty if unknown.
    #[serde(default)]
    pub kind: String,
    /// The data centre; empty if unknown.
    #[serde(default)]
    pub place: String,
    /// The physical host, if the provider reports it.
    #[serde(default)]
    pub host: Option<String>,
    /// The price of an hour. `None` means unknown, never free.
    #[serde(default)]
    pub price: Option<Money>,
    /// Its SSH address, once SSH answers.
    #[serde(default)]
    pub ssh: Option<SshAddress>,
    /// Changes with every restart of the pod: ports and host keys have changed with it.
    #[serde(default)]
    pub started: String,
}

/// Lists in a row that must agree before they count: a single list may be incomplete.
pub(crate) const LISTS_MIN: u32 = 2;
/// The same for what is known from lists alone: an orphan, or a machine whose worker has not joined. Forgotten too early,
/// it would free its place and its budget while it still bills.
pub(crate) const LISTS_UNHEARD_MIN: u32 = 5;

/// In the order in which a pod goes through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodStatus {
    /// The provider is looking for a host.
    Provisioning,
    /// It has a host; the image is being pulled and the container started.
    Starting,
    /// The container runs; the worker inside it may not.
    Running,
    /// It no longer runs, but may still bill for its disk.
    Stopped,
    /// It will never run, but may still bill.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SshAddress {
    pub host: String,
    pub port: u16,
    pub user: String,
}

/// A call to make; each is answered by the `ProviderEvent` of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderCall {
    /// Create one pod named `tag`. The adapter never repeats the call.
    Rent {
        machine: MachineId,
        tag: String,
        offer: String,
    },
    /// List every pod of the account: the complete list or an error.
    List,
    Return {
        pod: PodId,
    },
    /// Query the price of each of the fleet's offers.
    Price,
    /// Start a worker over SSH on a machine whose image does not start one.
    Bootstrap {
        machine: MachineId,
        pod: Box<Pod>,
    },
}

/// The result of a `ProviderCall`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderEvent {
    Rented {
        machine: MachineId,
        result: Result<Pod, ProviderError>,
    },
    Listed {
        result: Result<Vec<Pod>, ProviderError>,
    },
    Returned {
        pod: PodId,
        result: Result<(), ProviderError>,
    },
    /// An offer that is missing here has no known price.
    Priced {
        result: Result<BTreeMap<String, Money>, ProviderError>,
    },
    Bootstrapped {
        machine: MachineId,
        result: Result<(), BootstrapError>,
    },
}

/// Why the SSH bootstrap failed, and at which stage: `port`, `host key`, `login`, `marker`, `mount`, `gpu`,
/// `dependencies`, `upload`, `start`, `started`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapError {
    pub stage: &'static str,
    pub message: String,
    /// The machine did not answer yet: a retry may help.
    pub is_retryable: bool,
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderError {
    pub class: ProviderErrorClass,
    pub message: String,
    /// How long the provider asks the client to wait (`Retry-After`).
    pub wait: Option<Duration>,
}

impl ProviderError {
    pub fn new(class: ProviderErrorClass, message: impl Into<String>) -> ProviderError {
        ProviderError { class, message: message.into(), wait: None }
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}

/// Failures, sorted by what the plane does about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProviderErrorClass {
    /// No machine of this offer is free: try the next offer.
    Capacity,
    /// This account may not rent this offer: try the next one.
    Denied,
    /// No credit left: nothing is created until a person pays.
    Billing,
    /// The API key is refused: nothing works until a person replaces it.
    Auth,
    RateLimited,
    /// Fails the same way every time: a person must change the settings.
    Invalid,
    NotFound,
    /// Not possible in the pod's present state: list again.
    Conflict,
    /// The outcome is unknown (timeout after sending): list before doing anything else.
    Ambiguous,
    /// Not done; may be retried.
    Transient,
}

impl ProviderErrorClass {
    pub fn as_str(self) -> &'static str {
        match self {
            ProviderErrorClass::Capacity => "no capacity",
            ProviderErrorClass::Denied => "denied",
            ProviderErrorClass::Billing => "no credit",
            ProviderErrorClass::Auth => "key refused",
            ProviderErrorClass::RateLimited => "rate limit",
            ProviderErrorClass::Invalid => "bad request",
            ProviderErrorClass::NotFound => "not found",
            ProviderErrorClass::Conflict => "conflict",
            ProviderErrorClass::Ambiguous => "unknown outcome",
            ProviderErrorClass::Transient => "transient error",
        }
    }
}

impl fmt::Display for ProviderErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The owner of a pod, encoded in its name: `remuda-DEPLOYMENT-FLEET-NUMBER`. Pods with any other name belong to
/// another user of the account and are never touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTag<'a> {
    pub deployment: &'a str,
    pub fleet: &'a str,
    pub number: &'a str,
}

impl<'a> PodTag<'a> {
    pub fn parse(text: &'a str) -> Option<PodTag<'a>> {
        let (deployment, rest) = text.strip_prefix("remuda-")?.split_once('-')?;
        let (fleet, number) = rest.rsplit_once('-')?;
        let is_whole = !deployment.is_empty() && !fleet.is_empty() && !number.is_empty();
        is_whole.then_some(PodTag { deployment, fleet, number })
    }
}

impl fmt::Display for PodTag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "remuda-{}-{}-{}", self.deployment, self.fleet, self.number)
    }
}

/// The GPU an offer is for: `NVIDIA L4` for `NVIDIA L4@EU-RO-1/SECURE`; empty if the offer names none.
pub(crate) fn offered_kind(offer: &str) -> &str {
    let kind = offer.split(['@', '/']).next().unwrap_or(offer);
    if kind == ANY { "" } else { kind }
}

/// The offer of providers that have only one kind of machine.
const ANY: &str = "any";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_tag_identifies_our_pods_and_no_others() {
        let tag = PodTag { deployment: "0a1b2c3d", fleet: "big-gpus", number: "mi2x4k1" };
        assert_eq!(PodTag::parse(&tag.to_string()), Some(tag));
        for foreign in ["", "remuda", "remuda-x", "remuda--a-1", "my-pod", "remuda-x-y", "Remuda-a-b-c"] {
            assert_eq!(PodTag::parse(foreign), None, "{foreign}");
        }
    }
}
