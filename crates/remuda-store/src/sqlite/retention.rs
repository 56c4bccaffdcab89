//! Deletes old records in small steps.

use remuda_core::time::Timestamp;
use rusqlite::{Error, Transaction, params};

use super::tenant_bytes;
use crate::tenant_bytes::{ByteChanges, add};

/// A step takes a few milliseconds, which delays the next commit by as much.
pub(super) const STEP_ROWS_MAX: usize = 256;

/// Open jobs have NULL in `ended_at`, which is never less than a number.
pub(super) const ENDED_JOBS: &str = "SELECT id FROM jobs WHERE ended_at < ?1 ORDER BY ended_at LIMIT ?2";

/// Deletes at most `limit` ended jobs (each with its bodies), rows of events and cycle reports older than `before`.
pub(super) fn delete_ended_before(
    tx: &Transaction<'_>,
    before: Timestamp,
    limit: usize,
) -> Result<(usize, ByteChanges), Error> {
    let before = before.as_millis();
    let mut left = limit;
    let jobs: Vec<Vec<u8>> = tx
        .prepare_cached(ENDED_JOBS)?
        .query_map(params![before, left], |row| row.get(0))?
        .collect::<Result<_, Error>>()?;
    let freed = count_bytes(tx, &jobs)?;
    for table in [
        "DELETE FROM workflows WHERE job = ?1",
        "DELETE FROM results WHERE job = ?1",
        "DELETE FROM jobs WHERE id = ?1",
    ] {
        let mut delete = tx.prepare_cached(table)?;
        jobs.iter().try_for_each(|job| delete.execute([job]).map(drop))?;
    }
    left -= jobs.len();
    // Events are ordered by time, so the oldest come first.
    left -= tx
        .prepare_cached(
            "DELETE FROM events WHERE last IN (SELECT last FROM events ORDER BY last LIMIT ?2) AND at < ?1",
        )?
        .execute(params![before, left])?;
    left -= tx
        .prepare_cached(
            "DELETE FROM cycles WHERE at IN (SELECT at FROM cycles WHERE at < ?1 ORDER BY at LIMIT ?2)",
        )?
        .execute(params![before, left])?;
    tenant_bytes::write(tx, &freed)?;
    Ok((limit - left, freed))
}

/// The bytes of these jobs' bodies for each tenant, as what their deletion changes.
fn count_bytes(tx: &Transaction<'_>, jobs: &[Vec<u8>]) -> Result<ByteChanges, Error> {
    let mut select = tx.prepare_cached(
        "SELECT tenant,
             ifnull((SELECT length(CAST(body AS BLOB)) FROM workflows WHERE job = ?1), 0)
             + ifnull((SELECT length(CAST(body AS BLOB)) FROM results WHERE job = ?1), 0)
         FROM jobs WHERE id = ?1",
    )?;
    let mut freed = ByteChanges::new();
    for job in jobs {
        let (tenant, bytes) =
            select.query_row([job], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
        if let Ok(tenant) = tenant.parse() {
            add(&mut freed, &tenant, -bytes);
        }
    }
    Ok(freed)
}
