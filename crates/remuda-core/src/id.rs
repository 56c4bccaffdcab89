//! Identifiers. Each has its own type, so that a worker cannot be passed for a machine.
//!
//! Numbers (attempt, incarnation, term) only rise, and each is a fence: the lower one is refused.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// A job's id: a UUID drawn by the shell (version 7), so that ids sort by age and cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(u128);

impl JobId {
    pub const fn from_u128(id: u128) -> Self {
        JobId(id)
    }

    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// A pseudo-random number for jitter, derived from the id's random bits; the salt separates uses.
    pub fn jitter(self, salt: u32) -> u64 {
        let digest =
            Sha256::new().chain_update(self.0.to_be_bytes()).chain_update(salt.to_be_bytes()).finalize();
        u64::from_be_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ])
    }

    /// The id under which a service knows this attempt: a lower-case version-4 UUID, which every ComfyUI accepts. It
    /// is derived from job and attempt, so that a restarted agent can still ask the service about it.
    pub fn service_job_id(self, attempt: Attempt) -> String {
        let digest = Sha256::new()
            .chain_update(b"service job")
            .chain_update(self.0.to_be_bytes())
            .chain_update(attempt.0.to_be_bytes())
            .finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        JobId(u128::from_be_bytes(bytes)).to_string()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits: [u8; 32] = hex(self.0.to_be_bytes());
        let mut text = [b'-'; 36];
        for (to, from) in [(0..8, 0..8), (9..13, 8..12), (14..18, 12..16), (19..23, 16..20), (24..36, 20..32)]
        {
            text[to].copy_from_slice(&digits[from]);
        }
        f.pad(std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// Lower-case hexadecimal digits. By hand, because ids and hashes are written several times for every job.
fn hex<const N: usize, const DIGITS: usize>(bytes: [u8; N]) -> [u8; DIGITS] {
    const { assert!(DIGITS == 2 * N) };
    let mut digits = [0; DIGITS];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
        pair[1] = b"0123456789abcdef"[usize::from(byte & 15)];
    }
    digits
}

/// The value of a hexadecimal digit.
fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is not a valid id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadId {
    pub what: &'static str,
    pub text: String,
    pub expected: &'static str,
}

impl fmt::Display for BadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a {}: expected {}", self.text, self.what, self.expected)
    }
}

impl std::error::Error for BadId {}

impl FromStr for JobId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            what: "job id",
            text: text.chars().take(64).collect(),
            expected: "a UUID such as 0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11",
        };
        if text.len() != 36 {
            return Err(bad());
        }
        let mut id = 0;
        for (at, byte) in text.bytes().enumerate() {
            match (at, nibble(byte)) {
                (8 | 13 | 18 | 23, None) if byte == b'-' => {}
                (8 | 13 | 18 | 23, _) | (_, None) => return Err(bad()),
                (_, Some(digit)) => id = id << 4 | u128::from(digit),
            }
        }
        Ok(JobId(id))
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The longest name of a worker, machine, tenant or service.
pub const NAME_BYTES_MAX: usize = 128;

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= NAME_BYTES_MAX
        && !text.starts_with('.')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':'))
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $type(Arc<str>);

        impl $type {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                if is_name(text) {
                    Ok($type(text.into()))
                } else {
                    Err(BadId {
                        what: $what,
                        text: text.chars().take(64).collect(),
                        expected: "1 to 128 letters, digits, '-', '_', '.' or ':', not beginning with '.'",
                    })
                }
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A worker's name; a later join under the same name is the same worker in a new incarnation.
    WorkerId, "worker name"
);
name!(
    /// The host of one or more workers.
    MachineId, "machine name"
);
name!(
    /// Machines of one kind with a scaling policy.
    FleetId, "fleet name"
);
name!(
    /// A machine's name at its provider.
    PodId, "pod id"
);
name!(
    /// The owner of a job; tenants share the fleet fairly.
    Tenant, "tenant"
);
name!(
    /// A token that jobs are submitted with; its id is no secret.
    TokenId, "token id"
);
name!(
    /// What runs the job: `comfyui`, `exec`, or a model's capability.
    Service, "service"
);

macro_rules! number {
    ($(#[$doc:meta])* $type:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(pub $inner);

        impl $type {
            #[must_use]
            pub fn next(self) -> Self {
                $type(self.0 + 1)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({})"), self.0)
            }
        }
    };
}

number!(
    /// The number of an attempt at a job, from 1. Only the newest may report.
    Attempt, u32
);
number!(
    /// Which start of a worker this is; issued by the plane, never by the worker.
    Incarnation, u64
);
number!(
    /// Which leader is in charge; the store refuses writes of a lower one.
    Term, u64
);
number!(
    /// The position of an event in the one sequence of all events.
    Sequence, u64
);

/// Carried by every report of a worker; the report is applied only if it matches the plane's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence {
    pub job: JobId,
    pub attempt: Attempt,
    pub incarnation: Incarnation,
}

/// A SHA-256, shown as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 32]);

/// Hash of the whole canonical workflow, prompts and seeds included.
pub type WorkflowHash = Hash;
/// Hash of the workflow's graph and model files, without prompts, seeds and sizes.
pub type Shape = Hash;

impl Hash {
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Hash(bytes)
    }

    pub fn digest(bytes: &[u8]) -> Self {
        Hash(Sha256::digest(bytes).into())
    }

    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A prefix, enough to distinguish two hashes in a message.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits: [u8; 64] = hex(self.0);
        f.pad(std::str::from_utf8(&digits).unwrap_or_default())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl FromStr for Hash {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            what: "hash",
            text: text.chars().take(64).collect(),
            expected: "64 hexadecimal digits",
        };
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0]).ok_or_else(bad)? << 4 | nibble(pair[1]).ok_or_else(bad)?;
        }
        Ok(Hash(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_id_reads_back_as_it_was_written() {
        let id = JobId::from_u128(0x0193_e7a0_5b1c_7d52_9c7e_0a4b_6f0e_2d11);
        assert_eq!(id.to_string(), "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11");
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in [
            "",
            "0193e7a0",
            "0193e7a05b1c7d529c7e0a4b6f0e2d11----",
            "../../etc/passwd",
            "é".repeat(18).as_str(),
        ] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn service_job_ids_are_version_four_and_differ_by_attempt() {
        let id = JobId::from_u128(7);
        let (first, second) = (id.service_job_id(Attempt(1)), id.service_job_id(Attempt(2)));
        assert_ne!(first, second);
        assert_eq!(first, id.service_job_id(Attempt(1)));
        assert_eq!(&first[14..15], "4");
        assert!(matches!(&first[19..20], "8" | "9" | "a" | "b"));
    }

    #[test]
    fn a_name_is_never_a_path_or_markup() {
        for good in ["gpu-1", "a", "host:8188", "A_b.c"] {
            assert!(good.parse::<WorkerId>().is_ok(), "{good}");
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for bad in ["", "..", ".hidden", "a/b", "<b>", "a b", "\u{202e}x", "a\0", long.as_str()] {
            assert!(bad.parse::<WorkerId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_hash_reads_back_as_it_was_written() {
        let hash = Hash::digest(b"remuda");
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert!("zz".repeat(32).parse::<Hash>().is_err());
    }
}
