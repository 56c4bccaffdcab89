//! A job's requirements, a worker's capabilities, and whether they match.
//!
//! A worker that lists no model files or node classes is assumed to have all that its service supports: a list constrains,
//! a missing list does not.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{Service, WorkerId};

/// Requirements beyond the service itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirements {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub models: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub classes: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vram_bytes: u64,
    /// Only this worker may run the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<WorkerId>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a worker reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capabilities {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_bytes: Option<u64>,
}

impl Capabilities {
    /// How many names it lists.
    pub fn count(&self) -> usize {
        let of = |names: &Option<BTreeSet<String>>| names.as_ref().map_or(0, BTreeSet::len);
        self.labels.len() + of(&self.models) + of(&self.classes)
    }

    /// Bytes of its longest name.
    pub fn longest_name(&self) -> usize {
        let labels = self.labels.iter().flat_map(|(name, value)| [name, value]);
        let listed = [&self.models, &self.classes].into_iter().flatten().flatten();
        labels.chain(listed).map(String::len).max().unwrap_or(0)
    }
}

/// Why a worker can never run a job in its present configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mismatch {
    NoService(Service),
    NoLabel { name: String, value: String },
    NoModel(String),
    NoClass(String),
    TooLittleVram { has: u64, needs: u64 },
    PinnedElsewhere(WorkerId),
    Excluded,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mismatch::NoService(service) => write!(f, "does not offer service {service}"),
            Mismatch::NoLabel { name, value } => write!(f, "lacks label {name}={value}"),
            Mismatch::NoModel(model) => write!(f, "does not have model {model}"),
            Mismatch::NoClass(class) => write!(f, "does not have node class {class}"),
            Mismatch::TooLittleVram { has, needs } => {
                write!(f, "has {} MiB of VRAM, {} MiB are needed", has >> 20, needs >> 20)
            }
            Mismatch::PinnedElsewhere(worker) => write!(f, "the job is pinned to {worker}"),
            Mismatch::Excluded => f.write_str("is excluded by the job"),
        }
    }
}

impl Requirements {
    pub fn is_empty(&self) -> bool {
        *self == Requirements::default()
    }

    /// The first thing that `worker` lacks.
    pub fn mismatch(
        &self,
        service: &Service,
        worker: &WorkerId,
        services: &BTreeSet<Service>,
        offer: &Capabilities,
    ) -> Option<Mismatch> {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        if !services.contains(service) {
            return Some(Mismatch::NoService(service.clone()));
        }
        if let Some(pin) = self.pin.as_ref().filter(|pin| *pin != worker) {
            return Some(Mismatch::PinnedElsewhere(pin.clone()));
        }
        if self.excluded.contains(worker) {
            return Some(Mismatch::Excluded);
        }
        let label = self.labels.iter().find(|(name, value)| offer.labels.get(*name) != Some(value));
        if let Some((name, value)) = label {
            return Some(Mismatch::NoLabel { name: name.clone(), value: value.clone() });
        }
        if let Some(lacking) = self.lacking(offer) {
            return Some(lacking);
        }
        match offer.vram_bytes {
            Some(has) if has < self.vram_bytes => {
                Some(Mismatch::TooLittleVram { has, needs: self.vram_bytes })
            }
            Some(_) | None => None,
        }
    }

    /// The first model file or node class that these capabilities lack.
    pub fn lacking(&self, offer: &Capabilities) -> Option<Mismatch> {
        let model = missing(&self.models, offer.models.as_ref()).map(Mismatch::NoModel);
        model.or_else(|| missing(&self.classes, offer.classes.as_ref()).map(Mismatch::NoClass))
    }
}

fn missing(needed: &BTreeSet<String>, listed: Option<&BTreeSet<String>>) -> Option<String> {
    needed.difference(listed?).next().cloned()
}

#[cfg(test)]
thread_local! {
    /// How often requirements were compared with a worker on this thread: the unit in which tests count work.
    pub(crate) static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(needs: &Requirements, offer: &Capabilities, expected: Option<&str>) {
        let services = BTreeSet::from(["comfyui".parse().unwrap()]);
        let mismatch = needs.mismatch(&"comfyui".parse().unwrap(), &"a".parse().unwrap(), &services, offer);
        assert_eq!(mismatch.map(|mismatch| mismatch.to_string()).as_deref(), expected);
    }

    #[test]
    fn list_constrains_and_missing_list_does_not() {
        let needs =
            Requirements { models: ["sdxl.safetensors".to_owned()].into(), ..Requirements::default() };
        check(&needs, &Capabilities::default(), None);
        let offer =
            Capabilities { models: Some(["flux.safetensors".to_owned()].into()), ..Capabilities::default() };
        check(&needs, &offer, Some("does not have model sdxl.safetensors"));
    }

    #[test]
    fn mismatch_names_the_missing_capability() {
        let offer = Capabilities { vram_bytes: Some(8 << 30), ..Capabilities::default() };
        let vram = Requirements { vram_bytes: 24 << 30, ..Requirements::default() };
        check(&vram, &offer, Some("has 8192 MiB of VRAM, 24576 MiB are needed"));
        let labels =
            Requirements { labels: [("zone".to_owned(), "eu".to_owned())].into(), ..Requirements::default() };
        check(&labels, &offer, Some("lacks label zone=eu"));
        let pin = Requirements { pin: Some("b".parse().unwrap()), ..Requirements::default() };
        check(&pin, &offer, Some("the job is pinned to b"));
    }
}
