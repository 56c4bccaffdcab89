//! Generations of a store. A new one begins where the store continues with less than was acknowledged: then event numbers
//! must not be used twice, and readers can be told what is gone.
//!
//! ```text
//!  events  1 … 300   301 … 500   501 …
//!          kept      lost        the new generation, as the proof says that 500 was acknowledged
//!          1 … 300   ?           4294967296 …    without a proof: far enough that no number was ever given out
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use remuda_core::id::Sequence;
use remuda_core::time::Timestamp;
use rusqlite::{Connection, Error, Row, TransactionBehavior, params};

use super::read::bound;
use crate::loss::CommitMark;

/// Without a proof the new events begin at the next multiple: a store writes fewer between two backups, and numbers stay
/// below 2^53, which JavaScript can count to, for two million generations.
const SEQUENCE_STRIDE: u64 = 1 << 32;

/// Why a generation began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationCause {
    /// A copy without a proof was opened.
    RestoredCopy,
    /// An operator accepted that data is missing.
    AcceptedLoss,
}

impl GenerationCause {
    pub fn as_str(self) -> &'static str {
        match self {
            GenerationCause::RestoredCopy => "restored_copy",
            GenerationCause::AcceptedLoss => "accepted_loss",
        }
    }
}

/// A generation after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// From 2 on.
    pub number: u64,
    /// As `GenerationCause::as_str` writes it.
    pub cause: String,
    /// The last event of the generation before that is still there.
    pub kept_sequence: Sequence,
    /// The first event of this generation has this number or a higher one.
    pub first_sequence: Sequence,
    /// The newest time that was stored before.
    pub kept_until: Timestamp,
    /// By the wall clock.
    pub began_at: Timestamp,
}

/// How far events go, and where some were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHistory {
    /// The newest event.
    pub sequence: Sequence,
    /// All after the first, in order.
    pub generations: Vec<Generation>,
}

impl StoreHistory {
    /// The first generation that begins after `position`, at or before `next`.
    pub fn begun_between(&self, position: Sequence, next: Sequence) -> Option<&Generation> {
        self.generations.iter().find(|it| it.first_sequence > position && it.first_sequence <= next)
    }

    /// The generation that lost the event `position`, if one did.
    pub fn lost_event(&self, position: Sequence) -> Option<&Generation> {
        self.generations.iter().find(|it| it.kept_sequence < position && position < it.first_sequence)
    }

    /// The generation that lost what was accepted at this time, if one did.
    pub fn lost_time(&self, at: Timestamp) -> Option<&Generation> {
        self.generations.iter().find(|it| it.kept_until < at && at <= it.began_at)
    }

    /// The number of the present generation.
    pub fn generation(&self) -> u64 {
        self.generations.last().map_or(1, |it| it.number)
    }
}

/// Begins a generation that continues after `proved`, as far as that is known.
pub(super) fn begin(
    conn: &mut Connection,
    cause: GenerationCause,
    proved: Option<CommitMark>,
) -> Result<Generation, Error> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let stored = CommitMark::read(&tx)?;
    let number: u64 =
        tx.query_row("SELECT ifnull(max(generation), 1) + 1 FROM generations", [], |row| row.get(0))?;
    let last_sequence = match proved {
        Some(proved) => proved.sequence.0.max(stored.sequence.0),
        None => (stored.sequence.0 / SEQUENCE_STRIDE + 1) * SEQUENCE_STRIDE - 1,
    };
    let generation = Generation {
        number,
        cause: cause.as_str().to_owned(),
        kept_sequence: stored.sequence,
        first_sequence: Sequence(last_sequence + 1),
        kept_until: stored.latest,
        began_at: Timestamp::ZERO.plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
    };
    tx.execute(
        "INSERT INTO generations VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            bound(number),
            generation.cause,
            bound(generation.kept_sequence.0),
            bound(generation.first_sequence.0),
            bound(generation.kept_until.as_millis()),
            bound(generation.began_at.as_millis()),
        ],
    )?;
    let (term, commit) =
        proved.map_or((stored.term.0, stored.commit), |proved| (proved.term.0, proved.commit));
    let raised = [
        ("sequence", last_sequence),
        ("term", term.max(stored.term.0)),
        ("commit", commit.max(stored.commit) + 1),
    ];
    for (key, value) in raised {
        tx.execute("UPDATE meta SET value = ?2 WHERE key = ?1", params![key, bound(value)])?;
    }
    tx.commit()?;
    Ok(generation)
}

/// All generations after the first, in order.
pub(super) fn list(conn: &Connection) -> Result<Vec<Generation>, Error> {
    let sql = "SELECT generation, cause, kept_sequence, first_sequence, kept_until, began_at FROM generations ORDER BY generation";
    let read = |row: &Row<'_>| {
        Ok(Generation {
            number: row.get(0)?,
            cause: row.get(1)?,
            kept_sequence: Sequence(row.get(2)?),
            first_sequence: Sequence(row.get(3)?),
            kept_until: Timestamp::from_millis(row.get(4)?),
            began_at: Timestamp::from_millis(row.get(5)?),
        })
    };
    conn.prepare_cached(sql)?.query_map([], read)?.collect()
}
