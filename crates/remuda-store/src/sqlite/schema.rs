//! Opening: is it ours, is it whole, is it as new as we are? What is not is refused, untouched.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, ffi};

use super::BUSY_WAIT_MAX;
use super::files::{beside, unreachable};
use crate::StoreError;

/// `Rmda`, so that `file` and we can tell our databases from others.
const APPLICATION_ID: i32 = 0x526d_6461;
/// What every SQLite file begins with.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// A job's row is about 1 KB and a workflow some KB: several fit on a page, and a small commit does not write too much.
pub(super) const PAGE_BYTES: i32 = 8192;

/// From nothing to schema 1, from 1 to 2, and so on; the file's `user_version` counts them. Never change one that
/// was released: add the next.
const MIGRATIONS: [&str; 3] =
    [include_str!("schema.sql"), include_str!("schema/documents.sql"), include_str!("schema/fleets.sql")];

/// Opens the writer's connection, with the schema of this program in place and a write-ahead log on disk.
pub(super) fn open(path: &Path, was_left_open: bool) -> Result<Connection, StoreError> {
    check_files(path, was_left_open)?;
    let mut conn = Connection::open(path).map_err(|error| sort(path, error))?;
    // Whoever is refused below leaves without touching the log.
    leave_log(&conn).map_err(|error| sort(path, error))?;
    check_owner(&conn, path)?;
    conn.pragma_update(None, "page_size", PAGE_BYTES).map_err(|error| sort(path, error))?;
    prepare(&conn).map_err(|error| sort(path, error))?;
    migrate(&mut conn, path, &MIGRATIONS)?;
    // Changes nothing but makes a log, whose absence the next one to open would notice.
    conn.execute("UPDATE meta SET value = value WHERE key = 'latest'", [])
        .map_err(|error| sort(path, error))?;
    Ok(conn)
}

pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let open = || -> Result<Connection, Error> {
        let conn = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        conn.busy_timeout(BUSY_WAIT_MAX)?;
        leave_log(&conn)?;
        Ok(conn)
    };
    open().map_err(|error| sort(path, error))
}

/// Closing does not carry the log home by itself: after a failure it must not, and otherwise it was done before.
fn leave_log(conn: &Connection) -> Result<(), Error> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
}

/// What SQLite would not notice: it takes an empty file for a new database, and a missing log for no log.
fn check_files(path: &Path, was_left_open: bool) -> Result<(), StoreError> {
    let unreadable =
        |what: &str| Err(StoreError::Unreadable { path: path.to_owned(), what: what.to_owned() });
    let wal = beside(path, "-wal");
    let mut start = Vec::new();
    match File::open(path) {
        Ok(file) => {
            file.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(|error| unreachable(path, error))?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(unreachable(path, error)),
    };
    if start.is_empty() {
        return match fs::metadata(&wal) {
            Ok(log) if log.len() > 0 => {
                unreadable("the file is missing or empty, but its write-ahead log is there")
            }
            Ok(_) | Err(_) => Ok(()),
        };
    }
    if start != MAGIC {
        return unreadable("it is not an SQLite database");
    }
    if was_left_open && !wal.exists() {
        return unreadable(
            "it was not closed in order, and its write-ahead log (PATH-wal) with the newest commits is gone. If this \
             is a backup put back on purpose, remove PATH.lock",
        );
    }
    Ok(())
}

/// Ours, or empty and about to be.
fn check_owner(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let (application_id, tables) = conn
        .query_row(
            "SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id",
            [],
            |row| Ok((row.get::<_, i32>(0)?, row.get::<_, u32>(1)?)),
        )
        .map_err(|error| sort(path, error))?;
    if application_id == APPLICATION_ID || (application_id, tables) == (0, 0) {
        return Ok(());
    }
    Err(StoreError::Unreadable {
        path: path.to_owned(),
        what: "it is the database of another program".to_owned(),
    })
}

/// A second connection for the checkpoints.
pub(super) fn open_helper(path: &Path) -> Result<Connection, StoreError> {
    let conn = Connection::open(path).map_err(|error| sort(path, error))?;
    prepare(&conn).map_err(|error| sort(path, error))?;
    Ok(conn)
}

fn prepare(conn: &Connection) -> Result<(), Error> {
    conn.busy_timeout(BUSY_WAIT_MAX)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    // The log is synced before a commit returns: acknowledged is durable.
    conn.pragma_update(None, "synchronous", "FULL")?;
    // Checkpoints have their own policy, see `checkpoint`.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    leave_log(conn)?;
    // On a full disk there is no room for temporary files either.
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    // In KiB when negative: enough for the pages that a thousand batches in flight touch.
    conn.pragma_update(None, "cache_size", -32_768)?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Brings the schema up to date in one transaction: interrupted, it was never begun.
fn migrate(conn: &mut Connection, path: &Path, migrations: &[&str]) -> Result<(), StoreError> {
    let ours = u32::try_from(migrations.len()).expect("migrations are counted by hand");
    let run = |conn: &mut Connection| -> Result<u32, Error> {
        let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let version: u32 = tx.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version >= ours {
            return Ok(version);
        }
        for migration in &migrations[version as usize..] {
            tx.execute_batch(migration)?;
        }
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", ours)?;
        tx.commit()?;
        Ok(ours)
    };
    let theirs = run(conn).map_err(|error| sort(path, error))?;
    if theirs > ours {
        return Err(StoreError::NewerSchema { path: path.to_owned(), ours, theirs });
    }
    Ok(())
}

/// What an error of SQLite means to the caller.
pub(super) fn sort(path: &Path, error: Error) -> StoreError {
    let path = path.to_owned();
    let extended = error.sqlite_error().map_or(0, |error| error.extended_code);
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy(Arc::new(error)),
        Some(ErrorCode::DiskFull) => StoreError::Full { path },
        // The shared index of the log could not grow, which is how a full disk shows there.
        Some(ErrorCode::SystemIoFailure) if extended == ffi::SQLITE_IOERR_SHMSIZE => {
            StoreError::Full { path }
        }
        Some(ErrorCode::ConstraintViolation) => StoreError::Conflict { what: error.to_string() },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Unreadable { path, what: error.to_string() }
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            StoreError::Unreachable { path, source: Arc::new(error) }
        }
        Some(_) => StoreError::Broken { path, source: Arc::new(error) },
        None if matches!(error, Error::ToSqlConversionFailure(_)) => {
            StoreError::Conflict { what: error.to_string() }
        }
        // No error of the database: what stands in a row is not what we write there.
        None => StoreError::Unreadable { path, what: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "CREATE TABLE a (x); INSERT INTO a VALUES (1)";
    const SECOND: &str = "CREATE TABLE b AS SELECT x + 1 AS x FROM a; DROP TABLE a";

    fn tables(conn: &Connection) -> (u32, Vec<String>) {
        let version = conn.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        let mut names = conn.prepare("SELECT name FROM sqlite_schema ORDER BY name").unwrap();
        let names = names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        (version, names)
    }

    #[test]
    fn d15_a_migration_that_is_interrupted_was_never_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remuda.db");
        let mut conn = Connection::open(&path).unwrap();
        migrate(&mut conn, &path, &[FIRST]).unwrap();
        assert_eq!(tables(&conn), (1, vec!["a".to_owned()]));

        let interrupted = migrate(&mut conn, &path, &[FIRST, SECOND, "CREATE TABLE c (x); SELECT no_such()"]);
        assert!(interrupted.is_err());
        assert_eq!(tables(&conn), (1, vec!["a".to_owned()]));

        // As a crash does it: half of it done, and nobody left to finish.
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        conn.execute_batch(SECOND).unwrap();
        drop(conn);
        let mut conn = Connection::open(&path).unwrap();
        migrate(&mut conn, &path, &[FIRST, SECOND]).unwrap();
        assert_eq!(tables(&conn), (2, vec!["b".to_owned()]));
        migrate(&mut conn, &path, &[FIRST, SECOND]).unwrap();
    }

    #[test]
    fn errors_are_sorted_by_what_the_caller_can_do() {
        let sorted = |code| {
            let error = Error::SqliteFailure(ffi::Error::new(code), None);
            sort(Path::new("/x/remuda.db"), error)
        };
        assert!(matches!(sorted(ffi::SQLITE_BUSY), StoreError::Busy(_)));
        assert!(matches!(sorted(ffi::SQLITE_BUSY_SNAPSHOT), StoreError::Busy(_)));
        assert!(matches!(sorted(ffi::SQLITE_FULL), StoreError::Full { .. }));
        assert!(matches!(sorted(ffi::SQLITE_IOERR_SHMSIZE), StoreError::Full { .. }));
        assert!(matches!(sorted(ffi::SQLITE_IOERR_FSYNC), StoreError::Broken { .. }));
        assert!(matches!(sorted(ffi::SQLITE_IOERR_WRITE), StoreError::Broken { .. }));
        assert!(matches!(sorted(ffi::SQLITE_CORRUPT), StoreError::Unreadable { .. }));
        assert!(matches!(sorted(ffi::SQLITE_NOTADB), StoreError::Unreadable { .. }));
        assert!(matches!(sorted(ffi::SQLITE_CONSTRAINT_UNIQUE), StoreError::Conflict { .. }));
        assert!(matches!(sorted(ffi::SQLITE_CANTOPEN), StoreError::Unreachable { .. }));
    }
}
