//! Secrets: a text that no log, error message or settings dump prints, random secrets, and comparison in constant time.

use std::fmt;
use std::str::FromStr;

use remuda_core::id::Hash;
use subtle::ConstantTimeEq as _;

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself, for the caller that sends it or prints it once on purpose.
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

/// Environment variables that may hold our secrets. No process that we start inherits them.
pub const SECRET_VARIABLES: [&str; 3] = ["REMUDA_TOKEN", "REMUDA_ADMIN_TOKEN", "REMUDA_COMFYUI_HEADER"];

/// Compares two hashes in a time that does not reveal how many of their bytes are equal.
pub fn constant_time_eq(one: &Hash, other: &Hash) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// `bytes` random bytes from the operating system, as hexadecimal digits.
pub fn random_hex(bytes: usize) -> Result<String, RngError> {
    let mut random = vec![0; bytes];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut random).map_err(|_| RngError)?;
    Ok(hex::encode(random))
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the operating system returned no random bytes, so no secret can be generated")]
pub struct RngError;

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X10.
    #[test]
    fn secret_is_never_printed() {
        let secret = Secret::new("canary");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(secret.reveal(), "canary");
    }

    /// Faults: X9.
    #[test]
    fn hashes_that_differ_in_one_bit_are_not_equal() {
        let hash = Hash::digest(b"a");
        assert!(constant_time_eq(&hash, &Hash::digest(b"a")));
        for at in 0..256 {
            let mut bytes = *hash.as_bytes();
            bytes[at / 8] ^= 1 << (at % 8);
            assert!(!constant_time_eq(&hash, &Hash::from_bytes(bytes)), "bit {at}");
        }
    }

    /// Faults: X9.
    #[test]
    fn random_secrets_are_long_and_distinct() {
        let secrets: std::collections::BTreeSet<_> = (0..1000).map(|_| random_hex(32).unwrap()).collect();
        assert_eq!(secrets.len(), 1000);
        assert!(secrets.iter().all(|text| text.len() == 64));
    }
}
