//! What providers of machines are asked and what they can say, in one vocabulary for all of them. A `Pod` is the
//! provider's side of a machine; `rental` is ours.
//!
//! Whoever speaks to a provider translates and decides nothing: it makes each call once, says what came back, and in
//! doubt says that it is in doubt.

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
    /// The name it was given at its creation; ours say whose it is.
    pub tag: String,
    pub status: PodStatus,
    /// What it is, in the provider's words: the GPU. Empty if it was not said.
    #[serde(default)]
    pub kind: String,
    /// Where it is: the data centre. Empty if it was not said.
    #[serde(default)]
    pub place: String,
    /// The physical host under it, if the provider tells.
    #[serde(default)]
    pub host: Option<String>,
    /// What an hour costs; nothing if it was not said, which never means that it is free.
    #[serde(default)]
    pub price: Option<Money>,
    /// Where its SSH answers, once it does.
    #[serde(default)]
    pub ssh: Option<SshAddress>,
    /// A new value means that it was started anew: ports and host keys have changed.
    #[serde(default)]
    pub started: String,
}

/// The order is that of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PodStatus {
    /// A place is being looked for.
    Provisioning,
    /// It has a place; its image is pulled, its container started.
    Starting,
    /// Its container runs; that says nothing about what is in it.
    Running,
    /// It does not run any more, and may bill for its disk.
    Stopped,
    /// It will never run, and may bill.
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
    /// One creation, never repeated by whoever makes it. `tag` is the pod's name.
    Rent {
        machine: MachineId,
        tag: String,
        offer: String,
    },
    /// Every pod of the account, complete or not at all.
    List,
    Return {
        pod: PodId,
    },
    /// What each of the fleet's offers costs.
    Price,
    /// Bring up a worker on a machine whose image does not start one.
    Prepare {
        machine: MachineId,
        pod: Box<Pod>,
    },
}

/// What came back.
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
    /// Offers that are not in here have no price that is known.
    Priced {
        result: Result<BTreeMap<String, Money>, ProviderError>,
    },
    Prepared {
        machine: MachineId,
        result: Result<(), BootstrapError>,
    },
}

/// Why no worker could be brought up, and how far it came: `port`, `host key`, `login`, `marker`, `mount`, `gpu`,
/// `dependencies`, `upload`, `start`, `started`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapError {
    pub stage: &'static str,
    pub message: String,
    /// Trying again may help: nobody answered yet.
    pub is_early: bool,
}

/// A call that did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderError {
    pub class: ProviderErrorClass,
    pub message: String,
    /// How long the provider asks us to wait.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProviderErrorClass {
    /// None of this kind is free there: the next offer.
    Capacity,
    /// This account does not get this offer: the next one.
    Denied,
    /// No money left: nothing is created until somebody pays.
    Billing,
    /// The key is not accepted: nothing works until somebody mends it.
    Auth,
    RateLimited,
    /// The same on every try: a person must change the settings.
    Invalid,
    NotFound,
    /// Not possible in its present state: look again.
    Conflict,
    /// Done or not done, nobody knows: look before doing anything else.
    Ambiguous,
    /// Not done; may be tried again.
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
            ProviderErrorClass::Transient => "passing fault",
        }
    }
}

impl fmt::Display for ProviderErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whose a pod is, told by its name: `remuda-DEPLOYMENT-FLEET-NUMBER`. Whatever is called otherwise is nobody's
/// business of ours.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_says_whose_a_pod_is_and_nothing_else_does() {
        let tag = PodTag { deployment: "0a1b2c3d", fleet: "big-gpus", number: "mi2x4k1" };
        assert_eq!(PodTag::parse(&tag.to_string()), Some(tag));
        for foreign in ["", "remuda", "remuda-x", "remuda--a-1", "my-pod", "remuda-x-y", "Remuda-a-b-c"] {
            assert_eq!(PodTag::parse(foreign), None, "{foreign}");
        }
    }
}
