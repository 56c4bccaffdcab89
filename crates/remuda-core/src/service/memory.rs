//! How much memory an attempt asked for when it ran out of it, and whether any card could give that.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the error of an allocation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryShortage {
    /// The one allocation that failed.
    pub requested_bytes: u64,
    /// All memory of the device, free or not; absent if the error does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
}

impl MemoryShortage {
    /// Whether the device could not give it even if it were empty.
    pub fn exceeds(&self, device_bytes: Option<u64>) -> bool {
        self.limit_bytes.or(device_bytes).is_some_and(|limit| self.requested_bytes > limit)
    }
}

/// Whether one card is larger than another. Cards of one model differ by what is reserved on them.
pub fn is_larger(card_bytes: u64, than_bytes: u64) -> bool {
    card_bytes > than_bytes.saturating_add(than_bytes / 100)
}

/// A number of bytes for people.
#[derive(Clone, Copy, Debug)]
pub struct Gib(pub u64);

impl fmt::Display for Gib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.0 / ((1 << 30) / 100);
        write!(f, "{}.{:02} GiB", hundredths / 100, hundredths % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demand_is_compared_with_the_whole_card() {
        let asked =
            |gib: u64, limit: Option<u64>| MemoryShortage { requested_bytes: gib << 30, limit_bytes: limit };
        assert!(asked(300, Some(140 << 30)).exceeds(None));
        assert!(asked(300, None).exceeds(Some(140 << 30)));
        assert!(!asked(60, Some(140 << 30)).exceeds(None), "it would fit on an empty card");
        assert!(!asked(300, None).exceeds(None), "nothing is known about the card");
    }

    #[test]
    fn cards_of_one_model_are_equally_large() {
        let (h200, other_h200) = (150_109_880_320, 150_754_820_096);
        assert!(!is_larger(other_h200, h200));
        assert!(is_larger(h200, 80 << 30));
        assert_eq!(Gib(h200).to_string(), "139.80 GiB");
    }
}
