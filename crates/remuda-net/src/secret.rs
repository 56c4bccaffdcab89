//! A text that opens something. It is sent where it has to be, and shown nowhere: not in logs, errors or settings.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use remuda_core::id::Hash;

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for whoever has to send it or show it this once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn hash(&self) -> Hash {
        Hash::digest(self.0.as_bytes())
    }
}

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Secret, Self::Err> {
        Ok(Secret::new(text.trim()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Where the environment may hold secrets of ours. What we start for others does not get them.
pub const VARIABLES: [&str; 3] = ["REMUDA_TOKEN", "REMUDA_ADMIN_TOKEN", "REMUDA_COMFYUI_HEADER"];

/// Whether two hashes are one, in a time that does not tell how much of them is alike.
pub fn is_same(one: &Hash, other: &Hash) -> bool {
    let pairs = one.as_bytes().iter().zip(other.as_bytes());
    black_box(pairs.fold(0, |unlike, (a, b)| black_box(unlike | (a ^ b)))) == 0
}

/// As many random bytes as asked for, in hexadecimal, from the system's own source.
pub fn draw(bytes: usize) -> Result<String, NoLuck> {
    let mut drawn = vec![0; bytes];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut drawn).map_err(|_| NoLuck)?;
    Ok(drawn.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the system gives no random numbers: nothing secret can be made")]
pub struct NoLuck;

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X10.
    #[test]
    fn a_secret_is_not_shown_whichever_way_one_looks() {
        let secret = Secret::new("canary");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(secret.reveal(), "canary");
    }

    /// Faults: X9.
    #[test]
    fn hashes_are_the_same_only_to_the_last_bit() {
        let hash = Hash::digest(b"a");
        assert!(is_same(&hash, &Hash::digest(b"a")));
        for at in 0..256 {
            let mut bytes = *hash.as_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            assert!(!is_same(&hash, &Hash::from_bytes(bytes)), "bit {at}");
        }
    }

    /// Faults: X9.
    #[test]
    fn what_is_drawn_is_long_and_never_the_same() {
        let drawn: std::collections::BTreeSet<_> = (0..1000).map(|_| draw(32).unwrap()).collect();
        assert_eq!(drawn.len(), 1000);
        assert!(drawn.iter().all(|text| text.len() == 64));
    }
}
