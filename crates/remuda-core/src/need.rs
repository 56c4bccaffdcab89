//! What a job needs and what a worker offers, and whether the one fits the other.
//!
//! A worker that does not list its model files or node classes is taken at its word that it can do what its service
//! does: a list constrains, its absence does not.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{Service, WorkerId};

/// Requirements beyond the service itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub models: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub classes: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vram_bytes: u64,
    /// Only this worker will do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<WorkerId>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<WorkerId>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a worker says it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_bytes: Option<u64>,
}

/// Why a worker cannot run a job, whatever else is going on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unfit {
    NoService(Service),
    NoLabel { name: String, value: String },
    NoModel(String),
    NoClass(String),
    TooLittleVram { has: u64, needs: u64 },
    PinnedElsewhere(WorkerId),
    Excluded,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfit::NoService(service) => write!(f, "does not offer service {service}"),
            Unfit::NoLabel { name, value } => write!(f, "lacks label {name}={value}"),
            Unfit::NoModel(model) => write!(f, "does not have model {model}"),
            Unfit::NoClass(class) => write!(f, "does not have node class {class}"),
            Unfit::TooLittleVram { has, needs } => {
                write!(f, "has {} MiB of VRAM, {} MiB are needed", has >> 20, needs >> 20)
            }
            Unfit::PinnedElsewhere(worker) => write!(f, "the job is pinned to {worker}"),
            Unfit::Excluded => f.write_str("is excluded by the job"),
        }
    }
}

impl Needs {
    pub fn is_empty(&self) -> bool {
        *self == Needs::default()
    }

    /// The first thing that `worker` lacks.
    pub fn unfit(
        &self,
        service: &Service,
        worker: &WorkerId,
        services: &BTreeSet<Service>,
        offer: &Offer,
    ) -> Option<Unfit> {
        if !services.contains(service) {
            return Some(Unfit::NoService(service.clone()));
        }
        if let Some(pin) = self.pin.as_ref().filter(|pin| *pin != worker) {
            return Some(Unfit::PinnedElsewhere(pin.clone()));
        }
        if self.excluded.contains(worker) {
            return Some(Unfit::Excluded);
        }
        let label = self.labels.iter().find(|(name, value)| offer.labels.get(*name) != Some(value));
        if let Some((name, value)) = label {
            return Some(Unfit::NoLabel { name: name.clone(), value: value.clone() });
        }
        if let Some(model) = missing(&self.models, offer.models.as_ref()) {
            return Some(Unfit::NoModel(model));
        }
        if let Some(class) = missing(&self.classes, offer.classes.as_ref()) {
            return Some(Unfit::NoClass(class));
        }
        match offer.vram_bytes {
            Some(has) if has < self.vram_bytes => Some(Unfit::TooLittleVram { has, needs: self.vram_bytes }),
            Some(_) | None => None,
        }
    }
}

fn missing(needed: &BTreeSet<String>, listed: Option<&BTreeSet<String>>) -> Option<String> {
    needed.difference(listed?).next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(needs: &Needs, offer: &Offer, expected: Option<&str>) {
        let services = BTreeSet::from(["comfyui".parse().unwrap()]);
        let unfit = needs.unfit(&"comfyui".parse().unwrap(), &"a".parse().unwrap(), &services, offer);
        assert_eq!(unfit.map(|unfit| unfit.to_string()).as_deref(), expected);
    }

    #[test]
    fn a_list_constrains_and_its_absence_does_not() {
        let needs = Needs { models: ["sdxl.safetensors".to_owned()].into(), ..Needs::default() };
        check(&needs, &Offer::default(), None);
        let offer = Offer { models: Some(["flux.safetensors".to_owned()].into()), ..Offer::default() };
        check(&needs, &offer, Some("does not have model sdxl.safetensors"));
    }

    #[test]
    fn memory_labels_and_pins_are_told_apart() {
        let offer = Offer { vram_bytes: Some(8 << 30), ..Offer::default() };
        let vram = Needs { vram_bytes: 24 << 30, ..Needs::default() };
        check(&vram, &offer, Some("has 8192 MiB of VRAM, 24576 MiB are needed"));
        let labels = Needs { labels: [("zone".to_owned(), "eu".to_owned())].into(), ..Needs::default() };
        check(&labels, &offer, Some("lacks label zone=eu"));
        let pin = Needs { pin: Some("b".parse().unwrap()), ..Needs::default() };
        check(&pin, &offer, Some("the job is pinned to b"));
    }
}
