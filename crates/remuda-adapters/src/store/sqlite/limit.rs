//! How fast SQLite itself is here, with nothing of ours around it: the yardstick of `remuda bench queue`.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Error, params};

const ROW_BYTES: usize = 1000;

/// Rows of 1 KB a second, in synced transactions of `batch` rows each.
pub fn measure_inserts(path: &Path, batch: usize, during: Duration) -> Result<f64, Error> {
    let mut connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, body TEXT);",
    )?;
    let body = "x".repeat(ROW_BYTES);
    let started = Instant::now();
    let mut rows = 0_u64;
    while started.elapsed() < during {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached("INSERT INTO rows (body) VALUES (?1)")?;
            for _ in 0..batch {
                insert.execute(params![body])?;
            }
        }
        transaction.commit()?;
        rows += batch as u64;
    }
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}
