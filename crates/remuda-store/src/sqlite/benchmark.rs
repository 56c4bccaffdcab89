//! The speed of plain SQLite on this machine, as the reference for `remuda bench queue`.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Error, params};

const ROW_BYTES: usize = 1000;

/// Rows of 1 KB per second, in synced transactions of `batch` rows each.
pub fn measure_inserts(path: &Path, batch: usize, during: Duration) -> Result<f64, Error> {
    let mut db = BenchDb::open(path)?;
    rate(batch, during, || db.write(batch, "INSERT INTO rows (id, body) VALUES (?1, ?2)"))
}

/// Job cycles per second, `batch` jobs at a time: a row of 1 KB is inserted, marked as started and marked as done, and each of
/// the three steps is synced before the next.
pub fn measure_job_cycles(path: &Path, batch: usize, during: Duration) -> Result<f64, Error> {
    let mut db = BenchDb::open(path)?;
    rate(batch, during, || {
        let first = db.next;
        db.write(batch, "INSERT INTO rows (id, body) VALUES (?1, ?2)")?;
        for state in ["started", "done"] {
            db.next = first;
            db.write(batch, &format!("UPDATE rows SET state = '{state}' WHERE id = ?1 AND ?2 <> ''"))?;
        }
        Ok(())
    })
}

fn rate(batch: usize, during: Duration, mut write: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let started = Instant::now();
    let mut rows = 0;
    while started.elapsed() < during {
        write()?;
        rows += batch;
    }
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}

struct BenchDb {
    connection: Connection,
    body: String,
    next: i64,
}

impl BenchDb {
    fn open(path: &Path) -> Result<Self, Error> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, state TEXT, body TEXT);
             DELETE FROM rows;",
        )?;
        Ok(BenchDb { connection, body: "x".repeat(ROW_BYTES), next: 1 })
    }

    fn write(&mut self, batch: usize, sql: &str) -> Result<(), Error> {
        let transaction = self.connection.transaction()?;
        {
            let mut statement = transaction.prepare_cached(sql)?;
            for _ in 0..batch {
                statement.execute(params![self.next, self.body])?;
                self.next += 1;
            }
        }
        transaction.commit()
    }
}
