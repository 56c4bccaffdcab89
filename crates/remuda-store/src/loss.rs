//! What is missing of a store that lost acknowledged data.

use std::fmt;

use remuda_core::id::{Sequence, Term};
use remuda_core::time::Timestamp;

/// How far a store had come at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitMark {
    /// Tells stores apart; random.
    pub store: u64,
    pub commit: u64,
    pub sequence: Sequence,
    pub term: Term,
    pub latest: Timestamp,
}

/// What is missing, or cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLoss {
    /// The newest commits are gone: a damaged or truncated write-ahead log, or an older copy of the file.
    Behind {
        stored: CommitMark,
        proved: CommitMark,
    },
    /// The database is new, or older than the proof.
    Emptied {
        proved: CommitMark,
    },
    /// The proof belongs to another store.
    ForeignProof {
        stored: CommitMark,
        proved: CommitMark,
    },
    /// The store was not closed cleanly, and its write-ahead log was removed.
    LogRemoved,
    /// The store was in use, and its proof was removed.
    ProofRemoved {
        stored: CommitMark,
    },
    ProofDamaged {
        stored: Option<CommitMark>,
    },
}

impl StoreLoss {
    /// How far the store is known to have been.
    pub fn proved(&self) -> Option<CommitMark> {
        match *self {
            StoreLoss::Behind { proved, .. } | StoreLoss::Emptied { proved } => Some(proved),
            StoreLoss::LogRemoved
            | StoreLoss::ForeignProof { .. }
            | StoreLoss::ProofRemoved { .. }
            | StoreLoss::ProofDamaged { .. } => None,
        }
    }
}

impl fmt::Display for StoreLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreLoss::Behind { stored, proved } => {
                write!(f, "commits {} to {} are missing", stored.commit + 1, proved.commit)?;
                if stored.sequence < proved.sequence {
                    write!(f, ", with events {} to {}", stored.sequence.0 + 1, proved.sequence)?;
                }
                write!(f, ": it ends at {}, and was acknowledged up to {}", stored.latest, proved.latest)?;
                f.write_str(" (its write-ahead log was cut or damaged, or the file is an older copy)")
            }
            StoreLoss::Emptied { proved } => write!(
                f,
                "commits 1 to {} are missing, with events up to {}: the file is new or an older copy, and was acknowledged \
                 up to {}",
                proved.commit, proved.sequence, proved.latest
            ),
            StoreLoss::LogRemoved => {
                f.write_str("it was not closed cleanly, and its write-ahead log (PATH-wal) is missing")
            }
            StoreLoss::ForeignProof { .. } => {
                f.write_str("PATH.proof belongs to another store: the file or its proof was replaced")
            }
            StoreLoss::ProofRemoved { stored } => write!(
                f,
                "PATH.proof is missing, so that nothing tells whether commit {} is the last one that was acknowledged",
                stored.commit
            ),
            StoreLoss::ProofDamaged { .. } => {
                f.write_str("PATH.proof is damaged, so that nothing tells which commit was acknowledged last")
            }
        }
    }
}
