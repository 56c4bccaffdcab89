//! What an operator does about a store that lost data: `check_store` looks and changes nothing, also while a plane runs;
//! `recover_store` goes on with what is left, as a new generation.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::checkpoint::checkpoint;
use super::files::{Lock, sibling, unreachable_error};
use super::generation::{self, Generation, GenerationCause};
use super::proof::Proof;
use super::schema;
use crate::StoreError;
use crate::loss::CommitMark;
use crate::loss::StoreLoss;

/// Lines of SQLite's own check that are shown.
const DAMAGES_MAX: usize = 10;
const KEPT_LOG_SUFFIX: &str = "-wal.before-recovery";

/// What `check_store` found.
#[derive(Clone, Debug)]
pub struct StoreReport {
    pub path: PathBuf,
    /// A process has it open.
    pub is_in_use: bool,
    /// `None` if the database is older than the numbers of commits.
    pub stored: Option<CommitMark>,
    pub loss: Option<StoreLoss>,
    /// The database file itself is damaged: lines of SQLite's check.
    pub damages: Vec<String>,
    /// All after the first.
    pub generations: Vec<Generation>,
}

impl StoreReport {
    pub fn is_whole(&self) -> bool {
        self.loss.is_none() && self.damages.is_empty()
    }
}

/// What `recover_store` did.
#[derive(Clone, Debug)]
pub struct Recovery {
    pub loss: StoreLoss,
    pub generation: Generation,
    /// The write-ahead log as it was before, if there was one.
    pub kept_log: Option<PathBuf>,
}

/// Checks a store completely: against its proof, and every page of the database. Changes nothing.
pub fn check_store(path: &Path) -> Result<StoreReport, StoreError> {
    let state = Lock::peek(path)?;
    schema::check_files(path, false)?;
    let report = StoreReport {
        path: path.to_owned(),
        is_in_use: state.is_in_use,
        stored: None,
        loss: schema::find_emptied(path)?,
        damages: Vec::new(),
        generations: Vec::new(),
    };
    if report.loss.is_some() {
        return Ok(report);
    }
    if !path.exists() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(unreachable_error(path, missing));
    }
    let is_log_missing = state.was_left_open && !sibling(path, "-wal").exists();
    let conn = schema::open_reader(path)?;
    let read = || -> Result<StoreReport, StoreError> {
        let loss = find_loss(&conn, path, state.was_left_open, is_log_missing)?;
        let classify = |error| schema::classify(path, error);
        let stored = schema::stored_mark(&conn).map_err(classify)?;
        let generations = match stored {
            Some(_) => generation::list(&conn).map_err(classify)?,
            None => Vec::new(),
        };
        Ok(StoreReport { stored, loss, damages: find_damages(&conn, path)?, generations, ..report.clone() })
    };
    match read() {
        Err(StoreError::Unreadable { what, .. }) => Ok(StoreReport { damages: vec![what], ..report }),
        read => read,
    }
}

/// Continues with what is left of a store, as a new generation; `None` if nothing is missing. Everything that SQLite can still
/// read is kept, and the write-ahead log is copied aside before anything is written.
pub fn recover_store(path: &Path) -> Result<Option<Recovery>, StoreError> {
    let mut lock = Lock::take(path)?;
    let classify = |error| schema::classify(path, error);
    schema::check_files(path, false)?;
    let is_log_missing = lock.was_left_open() && !sibling(path, "-wal").exists();
    let mut conn = schema::open_unproved(path)?;
    let Some(loss) = find_loss(&conn, path, lock.was_left_open(), is_log_missing)? else { return Ok(None) };
    let damages = find_damages(&conn, path)?;
    if !damages.is_empty() {
        let what = format!("the database file itself is damaged ({})", damages.join("; "));
        return Err(StoreError::Unreadable { path: path.to_owned(), what });
    }
    let kept_log = keep_log(path).map_err(|error| unreachable_error(path, error))?;
    schema::migrate_all(&mut conn, path)?;
    let generation =
        generation::begin(&mut conn, GenerationCause::AcceptedLoss, loss.proved()).map_err(classify)?;
    let is_complete = checkpoint(&conn, "TRUNCATE").map_err(classify)?;
    let mark = CommitMark::read(&conn).map_err(classify)?;
    // After the database, as with every commit: an interruption leaves the store ahead of its proof.
    Proof::create(path, mark).map_err(|error| unreachable_error(path, error))?;
    drop(conn);
    if is_complete {
        lock.mark_closed().map_err(|error| unreachable_error(path, error))?;
    }
    Ok(Some(Recovery { loss, generation, kept_log }))
}

fn find_loss(
    conn: &Connection,
    path: &Path,
    was_left_open: bool,
    is_log_missing: bool,
) -> Result<Option<StoreLoss>, StoreError> {
    if let Some(loss) = schema::find_loss(conn, path, was_left_open)? {
        return Ok(Some(loss));
    }
    // What the proof names is there; but after a power cut the log may have held more.
    Ok(is_log_missing.then_some(StoreLoss::LogRemoved))
}

fn keep_log(path: &Path) -> std::io::Result<Option<PathBuf>> {
    let (log, kept) = (sibling(path, "-wal"), sibling(path, KEPT_LOG_SUFFIX));
    match std::fs::metadata(&log) {
        Ok(meta) if meta.len() > 0 => {
            std::fs::copy(&log, &kept)?;
            Ok(Some(kept))
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

fn find_damages(conn: &Connection, path: &Path) -> Result<Vec<String>, StoreError> {
    let check = || -> Result<Vec<String>, rusqlite::Error> {
        let mut check = conn.prepare(&format!("PRAGMA integrity_check({DAMAGES_MAX})"))?;
        let lines = check.query_map([], |row| row.get::<_, String>(0))?;
        lines.filter(|line| line.as_ref().map_or(true, |line| line != "ok")).collect()
    };
    match check().map_err(|error| schema::classify(path, error)) {
        Ok(lines) => Ok(lines),
        Err(StoreError::Unreadable { what, .. }) => Ok(vec![what]),
        Err(error) => Err(error),
    }
}
