//! Opens the database: checks that it is ours, complete and not newer than this program. A database that fails a check is
//! refused and not changed.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, ffi};

use super::BUSY_WAIT_MAX;
use super::files::{close_to_others, create_private, sibling, unreachable_error};
use super::proof::StoredProof;
use crate::StoreError;
use crate::loss::CommitMark;
use crate::loss::StoreLoss;

/// `Rmda`: identifies our databases, also for `file`.
const APPLICATION_ID: i32 = 0x526d_6461;
/// The header of every SQLite file.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// A job's row has about 1 KB and a workflow several: a page holds several rows, and a small commit writes little.
pub(super) const PAGE_BYTES: i32 = 8192;

/// Migrations to schema 1, 2 and so on, counted by the file's `user_version`. Never change a released migration; add one.
const MIGRATIONS: [&str; 5] = [
    include_str!("schema.sql"),
    include_str!("schema/documents.sql"),
    include_str!("schema/fleets.sql"),
    include_str!("schema/generations.sql"),
    include_str!("schema/tenant_bytes.sql"),
];
/// The schema in which commits have numbers.
const NUMBERED_SCHEMA: u32 = 4;

/// Opens the writer's connection, migrates the schema, and makes sure that a WAL exists.
pub(super) fn open(path: &Path, was_left_open: bool) -> Result<Connection, StoreError> {
    check_files(path, was_left_open)?;
    // SQLite would create it.
    if let Some(loss) = find_emptied(path)? {
        return Err(StoreError::Incomplete { path: path.to_owned(), loss: Box::new(loss) });
    }
    let mut conn = open_unproved(path)?;
    // Before anything is written: a write would go over what is left of a damaged WAL.
    if let Some(loss) = find_loss(&conn, path, was_left_open)? {
        return Err(StoreError::Incomplete { path: path.to_owned(), loss: Box::new(loss) });
    }
    migrate_all(&mut conn, path)?;
    // Changes nothing, but creates the WAL, whose absence would be detected at the next start.
    conn.execute("UPDATE meta SET value = value WHERE key = 'latest'", [])
        .map_err(|error| classify(path, error))?;
    Ok(conn)
}

/// As `open`, but neither compares the database with its proof nor writes to it.
pub(super) fn open_unproved(path: &Path) -> Result<Connection, StoreError> {
    create_private(path)
        .and_then(|()| close_to_others(path))
        .map_err(|error| unreachable_error(path, error))?;
    let conn = Connection::open(path).map_err(|error| classify(path, error))?;
    // Before the checks below, so that a refusal does not change the WAL.
    disable_checkpoint_on_close(&conn).map_err(|error| classify(path, error))?;
    check_owner(&conn, path)?;
    conn.pragma_update(None, "page_size", PAGE_BYTES).map_err(|error| classify(path, error))?;
    prepare(&conn).map_err(|error| classify(path, error))?;
    Ok(conn)
}

pub(super) fn migrate_all(conn: &mut Connection, path: &Path) -> Result<(), StoreError> {
    migrate(conn, path, &MIGRATIONS)
}

/// Whether the file is missing or empty, and a proof says that it was not.
pub(super) fn find_emptied(path: &Path) -> Result<Option<StoreLoss>, StoreError> {
    if fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return Ok(None);
    }
    let proof = StoredProof::read(path).map_err(|error| unreachable_error(path, error))?;
    Ok(StoreLoss::find(None, proof, false))
}

/// Compares the database with its proof.
pub(super) fn find_loss(
    conn: &Connection,
    path: &Path,
    was_left_open: bool,
) -> Result<Option<StoreLoss>, StoreError> {
    // The proof first: a plane that runs meanwhile commits before it writes its proof.
    let proof = StoredProof::read(path).map_err(|error| unreachable_error(path, error))?;
    let stored = stored_mark(conn).map_err(|error| classify(path, error))?;
    Ok(StoreLoss::find(stored, proof, was_left_open))
}

/// `None` if the database is new, or older than the numbers of commits.
pub(super) fn stored_mark(conn: &Connection) -> Result<Option<CommitMark>, Error> {
    let version: u32 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version >= NUMBERED_SCHEMA { CommitMark::read(conn).map(Some) } else { Ok(None) }
}

pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let open = || -> Result<Connection, Error> {
        let conn = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        conn.busy_timeout(BUSY_WAIT_MAX)?;
        disable_checkpoint_on_close(&conn)?;
        Ok(conn)
    };
    open().map_err(|error| classify(path, error))
}

/// SQLite must not checkpoint on close: after a failure that would be wrong, and otherwise the writer has done it.
fn disable_checkpoint_on_close(conn: &Connection) -> Result<(), Error> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map(drop)
}

/// Checks that SQLite does not make: it accepts an empty file as a new database, and a missing WAL as an empty one.
pub(super) fn check_files(path: &Path, was_left_open: bool) -> Result<(), StoreError> {
    let unreadable =
        |what: &str| Err(StoreError::Unreadable { path: path.to_owned(), what: what.to_owned() });
    let wal = sibling(path, "-wal");
    let mut start = Vec::new();
    match File::open(path) {
        Ok(file) => file
            .take(MAGIC.len() as u64)
            .read_to_end(&mut start)
            .map_err(|error| unreachable_error(path, error))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(unreachable_error(path, error)),
    };
    if start.is_empty() {
        return match fs::metadata(&wal) {
            Ok(log) if log.len() > 0 => {
                unreadable("the file is missing or empty, but its write-ahead log exists")
            }
            Ok(_) | Err(_) => Ok(()),
        };
    }
    if start != MAGIC {
        return unreadable("it is not an SQLite database");
    }
    if was_left_open && !wal.exists() {
        return unreadable(
            "it was not closed cleanly, and its write-ahead log (PATH-wal) with the newest commits is missing. Put it \
             back, or go on without those commits: `remuda store recover --accept-loss`",
        );
    }
    Ok(())
}

/// Accepts our databases and empty ones.
fn check_owner(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let (application_id, tables) = conn
        .query_row(
            "SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id",
            [],
            |row| Ok((row.get::<_, i32>(0)?, row.get::<_, u32>(1)?)),
        )
        .map_err(|error| classify(path, error))?;
    if application_id == APPLICATION_ID || (application_id, tables) == (0, 0) {
        return Ok(());
    }
    Err(StoreError::Unreadable {
        path: path.to_owned(),
        what: "it is a database of another program".to_owned(),
    })
}

/// A second connection, for checkpoints.
pub(super) fn open_helper(path: &Path) -> Result<Connection, StoreError> {
    let conn = Connection::open(path).map_err(|error| classify(path, error))?;
    prepare(&conn).map_err(|error| classify(path, error))?;
    Ok(conn)
}

fn prepare(conn: &Connection) -> Result<(), Error> {
    conn.busy_timeout(BUSY_WAIT_MAX)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    // The WAL is synced before a commit returns, so an acknowledged commit is durable.
    conn.pragma_update(None, "synchronous", "FULL")?;
    // The module `checkpoint` decides when to checkpoint.
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    disable_checkpoint_on_close(conn)?;
    // A full disk has no space for temporary files either.
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    // A negative number counts KiB: enough for the pages of a thousand concurrent batches.
    conn.pragma_update(None, "cache_size", -32_768)?;
    conn.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Migrates the schema in one transaction, so that an interruption changes nothing.
fn migrate(conn: &mut Connection, path: &Path, migrations: &[&str]) -> Result<(), StoreError> {
    let ours = u32::try_from(migrations.len()).expect("there are few migrations");
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
    let theirs = run(conn).map_err(|error| classify(path, error))?;
    if theirs > ours {
        return Err(StoreError::NewerSchema { path: path.to_owned(), ours, theirs });
    }
    Ok(())
}

/// Maps an SQLite error to what the caller can do.
pub(super) fn classify(path: &Path, error: Error) -> StoreError {
    let path = path.to_owned();
    let extended = error.sqlite_error().map_or(0, |error| error.extended_code);
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy(Arc::new(error)),
        Some(ErrorCode::DiskFull) => StoreError::Full { path },
        // The WAL index could not grow, which happens on a full disk.
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
        // Not an SQLite error: a row contains something that we did not write.
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
    fn d15_interrupted_migration_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("remuda.db");
        let mut conn = Connection::open(&path).unwrap();
        migrate(&mut conn, &path, &[FIRST]).unwrap();
        assert_eq!(tables(&conn), (1, vec!["a".to_owned()]));

        let interrupted = migrate(&mut conn, &path, &[FIRST, SECOND, "CREATE TABLE c (x); SELECT no_such()"]);
        assert!(interrupted.is_err());
        assert_eq!(tables(&conn), (1, vec!["a".to_owned()]));

        // Simulates a crash in the middle of a migration.
        conn.execute_batch("BEGIN IMMEDIATE").unwrap();
        conn.execute_batch(SECOND).unwrap();
        drop(conn);
        let mut conn = Connection::open(&path).unwrap();
        migrate(&mut conn, &path, &[FIRST, SECOND]).unwrap();
        assert_eq!(tables(&conn), (2, vec!["b".to_owned()]));
        migrate(&mut conn, &path, &[FIRST, SECOND]).unwrap();
    }

    #[test]
    fn sqlite_errors_are_classified() {
        let classified = |code| {
            let error = Error::SqliteFailure(ffi::Error::new(code), None);
            classify(Path::new("/x/remuda.db"), error)
        };
        assert!(matches!(classified(ffi::SQLITE_BUSY), StoreError::Busy(_)));
        assert!(matches!(classified(ffi::SQLITE_BUSY_SNAPSHOT), StoreError::Busy(_)));
        assert!(matches!(classified(ffi::SQLITE_FULL), StoreError::Full { .. }));
        assert!(matches!(classified(ffi::SQLITE_IOERR_SHMSIZE), StoreError::Full { .. }));
        assert!(matches!(classified(ffi::SQLITE_IOERR_FSYNC), StoreError::Broken { .. }));
        assert!(matches!(classified(ffi::SQLITE_IOERR_WRITE), StoreError::Broken { .. }));
        assert!(matches!(classified(ffi::SQLITE_CORRUPT), StoreError::Unreadable { .. }));
        assert!(matches!(classified(ffi::SQLITE_NOTADB), StoreError::Unreadable { .. }));
        assert!(matches!(classified(ffi::SQLITE_CONSTRAINT_UNIQUE), StoreError::Conflict { .. }));
        assert!(matches!(classified(ffi::SQLITE_CANTOPEN), StoreError::Unreachable { .. }));
    }
}
