//! The catalog: GPUs, data centres, prices. The prices are of a day in 2026 and only have to be plausible.

use axum::http::StatusCode;
use remuda_core::money::Money;
use serde_json::{Value, json};

use super::answer::Answer;

/// Dollars per GPU and hour; `None` where a cloud does not offer it.
#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) id: &'static str,
    name: &'static str,
    pool: &'static str,
    /// Of one GPU, in GB.
    memory: u32,
    secure: Option<Money>,
    community: Option<Money>,
}

const fn gpu(
    id: &'static str,
    name: &'static str,
    pool: &'static str,
    memory: u32,
    secure_cents: u64,
    community_cents: u64,
) -> Gpu {
    const fn price(cents: u64) -> Option<Money> {
        if cents == 0 { None } else { Some(Money::from_micros(cents * 10_000)) }
    }
    Gpu { id, name, pool, memory, secure: price(secure_cents), community: price(community_cents) }
}

pub(super) const GPUS: &[Gpu] = &[
    gpu("NVIDIA GeForce RTX 3090", "RTX 3090", "AMPERE_24", 24, 46, 22),
    gpu("NVIDIA GeForce RTX 4090", "RTX 4090", "ADA_24", 24, 69, 34),
    gpu("NVIDIA GeForce RTX 5090", "RTX 5090", "ADA_32_PRO", 32, 94, 69),
    gpu("NVIDIA RTX A4000", "RTX A4000", "AMPERE_16", 16, 25, 17),
    gpu("NVIDIA RTX A5000", "RTX A5000", "AMPERE_24", 24, 27, 16),
    gpu("NVIDIA RTX A6000", "RTX A6000", "AMPERE_48", 48, 49, 33),
    gpu("NVIDIA L4", "L4", "AMPERE_24", 24, 44, 0),
    gpu("NVIDIA L40", "L40", "ADA_48_PRO", 48, 99, 69),
    gpu("NVIDIA L40S", "L40S", "ADA_48_PRO", 48, 86, 79),
    gpu("NVIDIA A40", "A40", "AMPERE_48", 48, 40, 0),
    gpu("NVIDIA A100 80GB PCIe", "A100 PCIe", "AMPERE_80", 80, 164, 119),
    gpu("NVIDIA A100-SXM4-80GB", "A100 SXM", "AMPERE_80", 80, 174, 139),
    gpu("NVIDIA H100 80GB HBM3", "H100 SXM", "ADA_80_PRO", 80, 299, 269),
    gpu("NVIDIA H100 PCIe", "H100 PCIe", "ADA_80_PRO", 80, 239, 199),
    gpu("NVIDIA H100 NVL", "H100 NVL", "ADA_80_PRO", 94, 307, 259),
    gpu("NVIDIA H200", "H200 SXM", "HOPPER_141", 141, 399, 359),
    gpu("NVIDIA B200", "B200", "BLACKWELL_180", 180, 599, 0),
    gpu("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", "BLACKWELL_96", 96, 189, 169),
    gpu("AMD Instinct MI300X OAM", "MI300X", "AMD_192", 192, 249, 0),
];

/// Ids with their regions.
pub(super) const CENTRES: &[(&str, &str)] = &[
    ("EU-RO-1", "EUROPE"),
    ("EU-CZ-1", "EUROPE"),
    ("EU-FR-1", "EUROPE"),
    ("EU-NL-1", "EUROPE"),
    ("EU-SE-1", "EUROPE"),
    ("EUR-IS-1", "EUROPE"),
    ("US-CA-2", "NORTH_AMERICA"),
    ("US-GA-2", "NORTH_AMERICA"),
    ("US-IL-1", "NORTH_AMERICA"),
    ("US-KS-2", "NORTH_AMERICA"),
    ("US-TX-3", "NORTH_AMERICA"),
    ("US-WA-1", "NORTH_AMERICA"),
    ("CA-MTL-1", "NORTH_AMERICA"),
    ("AP-JP-1", "ASIA"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cloud {
    Secure,
    Community,
}

impl Cloud {
    pub(super) fn name(self) -> &'static str {
        match self {
            Cloud::Secure => "SECURE",
            Cloud::Community => "COMMUNITY",
        }
    }
}

impl Gpu {
    pub(super) fn find(id: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.id == id)
    }

    pub(super) fn price(&self, cloud: Cloud) -> Option<Money> {
        match cloud {
            Cloud::Secure => self.secure,
            Cloud::Community => self.community,
        }
    }

    /// Another GPU in this cloud: what a careless provider delivers instead.
    pub(super) fn another(&self, cloud: Cloud) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.id != self.id && gpu.price(cloud).is_some())
    }

    fn to_json(&self, with_availability: bool) -> Value {
        let most = |price: Option<Money>| if price.is_some() { 8 } else { 0 };
        let mut gpu = json!({
            "id": self.id, "name": self.name, "pool": self.pool,
            "manufacturer": self.id.split(' ').next().unwrap_or_default(), "memory": self.memory,
            "secure": self.secure.is_some(), "community": self.community.is_some(),
            "price": {
                "secure": dollars(self.secure.unwrap_or_default()),
                "community": dollars(self.community.unwrap_or_default()),
            },
            "maxCount": {"secure": most(self.secure), "community": most(self.community)},
        });
        if with_availability {
            let centre = |(id, _): &(&str, &str)| json!({"id": id, "name": id, "availability": "HIGH"});
            gpu["availability"] = "HIGH".into();
            gpu["dataCenters"] = CENTRES.iter().map(centre).collect();
            gpu["cudaVersions"] = json!([
                {"version": "12.4", "available": true},
                {"version": "12.8", "available": true},
                {"version": "13.0", "available": true},
            ]);
        }
        gpu
    }
}

/// As the provider writes an amount.
pub(super) fn dollars(money: Money) -> f64 {
    money.as_micros() as f64 / 1e6
}

/// `/v2/catalog/…`. Availability is always HIGH, as with the real one, whatever the next creation gets.
pub(super) fn show(path: &[&str], ask: &dyn Fn(&str) -> Option<String>) -> Answer {
    match path {
        ["gpus", rest @ ..] => {
            let (include, product) = (ask("include"), ask("product"));
            if include.is_some() != product.is_some() {
                return Answer::problem(
                    StatusCode::BAD_REQUEST,
                    "include and product must be given together",
                );
            }
            let with_availability = include.is_some_and(|include| include.contains("AVAILABILITY"));
            let is_asked = |gpu: &&Gpu| match ask("cloud").as_deref() {
                Some("SECURE") => gpu.secure.is_some(),
                Some("COMMUNITY") => gpu.community.is_some(),
                _ => true,
            };
            match rest {
                [] => {
                    let gpus = GPUS.iter().filter(is_asked).map(|gpu| gpu.to_json(with_availability));
                    Answer::ok(json!({"gpus": gpus.collect::<Value>()}))
                }
                [id] => Gpu::find(id)
                    .map_or_else(Answer::not_found, |gpu| Answer::ok(gpu.to_json(with_availability))),
                _ => Answer::not_found(),
            }
        }
        ["datacenters"] => {
            let regions = ask("regions");
            let is_asked = |(_, region): &&(&str, &str)| {
                regions.as_ref().is_none_or(|regions| regions.split(',').any(|asked| asked == *region))
            };
            let with_gpus = ask("include").is_some_and(|include| include.contains("GPU_AVAILABILITY"));
            let centres = CENTRES.iter().filter(is_asked).map(|centre| centre_json(centre, with_gpus));
            Answer::ok(json!({"dataCenters": centres.collect::<Value>()}))
        }
        ["datacenters", id] => CENTRES
            .iter()
            .find(|(known, _)| known == id)
            .map_or_else(Answer::not_found, |centre| Answer::ok(centre_json(centre, true))),
        _ => Answer::not_found(),
    }
}

fn centre_json((id, region): &(&str, &str), with_gpus: bool) -> Value {
    let mut centre = json!({
        "id": id, "name": id, "region": region, "globalNetwork": true,
        "networkVolumeTypes": ["STANDARD"], "compliance": [],
    });
    if with_gpus {
        let gpu = |gpu: &Gpu| json!({"id": gpu.id, "name": gpu.name, "availability": "HIGH"});
        centre["gpuAvailability"] = GPUS.iter().map(gpu).collect();
    }
    centre
}
