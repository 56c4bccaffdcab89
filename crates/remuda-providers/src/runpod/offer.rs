//! An offer as text: `GPU ID[@DATA CENTRE][/SECURE|COMMUNITY]`.

use std::fmt;
use std::str::FromStr;

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPodOffer {
    pub gpu: String,
    /// `None`: any data centre.
    pub data_centre: Option<String>,
    pub cloud: Cloud,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Cloud {
    /// Data centres; every machine has a public address.
    #[default]
    Secure,
    /// Computers of third parties: cheaper, and not always reachable.
    Community,
}

impl FromStr for Cloud {
    type Err = ProviderError;

    fn from_str(text: &str) -> Result<Cloud, ProviderError> {
        match text.to_ascii_uppercase().as_str() {
            "SECURE" => Ok(Cloud::Secure),
            "COMMUNITY" => Ok(Cloud::Community),
            _ => Err(ProviderError::new(
                ProviderErrorClass::Invalid,
                format!("{text:?} is no cloud: SECURE or COMMUNITY"),
            )),
        }
    }
}

impl fmt::Display for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cloud::Secure => "SECURE",
            Cloud::Community => "COMMUNITY",
        })
    }
}

impl FromStr for RunPodOffer {
    type Err = ProviderError;

    fn from_str(text: &str) -> Result<RunPodOffer, ProviderError> {
        let (rest, cloud) = match text.split_once('/') {
            Some((rest, cloud)) => (rest, cloud.parse()?),
            None => (text, Cloud::default()),
        };
        let (gpu, data_centre) = match rest.split_once('@') {
            Some((gpu, data_centre)) => (gpu, Some(data_centre)),
            None => (rest, None),
        };
        let is_name = |name: &str| !name.trim().is_empty() && !name.contains('@');
        if !is_name(gpu) || !data_centre.is_none_or(is_name) {
            let why = format!("{text:?} is no offer: write GPU ID[@DATA CENTRE][/SECURE|COMMUNITY]");
            return Err(ProviderError::new(ProviderErrorClass::Invalid, why));
        }
        Ok(RunPodOffer { gpu: gpu.to_owned(), data_centre: data_centre.map(str::to_owned), cloud })
    }
}

impl fmt::Display for RunPodOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.gpu)?;
        if let Some(data_centre) = &self.data_centre {
            write!(f, "@{data_centre}")?;
        }
        write!(f, "/{}", self.cloud)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offer_round_trips_through_text() {
        for (text, written) in [
            ("NVIDIA L4", "NVIDIA L4/SECURE"),
            ("NVIDIA L4@EU-RO-1", "NVIDIA L4@EU-RO-1/SECURE"),
            ("NVIDIA A100-SXM4-80GB/community", "NVIDIA A100-SXM4-80GB/COMMUNITY"),
            ("NVIDIA L4@EU-RO-1/COMMUNITY", "NVIDIA L4@EU-RO-1/COMMUNITY"),
        ] {
            let offer: RunPodOffer = text.parse().unwrap();
            assert_eq!(offer.to_string(), written);
            assert_eq!(written.parse(), Ok(offer));
        }
        for bad in ["", "@EU-RO-1", "L4@", "L4/", "L4/ALL", "L4@a@b", "L4/SECURE/x"] {
            assert_eq!(bad.parse::<RunPodOffer>().unwrap_err().class, ProviderErrorClass::Invalid, "{bad}");
        }
    }
}
