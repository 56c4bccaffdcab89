//! Reads, each on a separate connection: a reader sees a snapshot and blocks neither the writer nor other readers.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use remuda_core::id::{Hash, JobId, Sequence, Tenant};
use remuda_core::record::{AcceptedJob, JobStatus, StoredEvent, StoredState};
use remuda_core::time::Timestamp;
use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, Error, OptionalExtension, Row as SqlRow, params};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::generation::StoreHistory;
use super::place::Place;
use super::{SqliteStore, blocking, documents, generation, schema};
use crate::{JobFilter, JobStateFilter, StatusView, StoreError, ViewRow};

pub(super) const OPEN_JOBS: &str = "SELECT accepted, status FROM jobs WHERE ended_at IS NULL ORDER BY id";
pub(super) const OPEN_JOBS_PAGE: &str =
    "SELECT accepted, status FROM jobs WHERE ended_at IS NULL AND id > ?1 ORDER BY id LIMIT ?2";
pub(super) const BY_KEY: &str = "SELECT accepted FROM jobs WHERE tenant = ?1 AND key = ?2";

/// Concurrent readers; more would only compete for the same disk and cores.
const READERS_MAX: usize = 8;

/// The pool of idle connections; `None` once the store is closed.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    place: Arc<Place>,
    idle: Mutex<Option<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(path: PathBuf, place: Arc<Place>) -> Readers {
        let permits = Arc::new(Semaphore::new(READERS_MAX));
        Readers { path, place, idle: Mutex::new(Some(Vec::new())), permits }
    }

    pub(super) fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn take(&self) -> Result<Connection, StoreError> {
        match self.idle.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            None => return Err(StoreError::Closed),
            Some(idle) => {
                if let Some(conn) = idle.pop() {
                    return Ok(conn);
                }
            }
        }
        // At the path there may be another store by now.
        if let Some(lost) = self.place.lost() {
            return Err(lost);
        }
        schema::open_reader(&self.path)
    }

    fn put_back(&self, conn: Connection) {
        if let Some(idle) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            idle.push(conn);
        }
    }
}

impl SqliteStore {
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.0.readers.permits.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let shared = self.0.clone();
        blocking(move || {
            let _permit = permit;
            let readers = &shared.readers;
            let conn = readers.take()?;
            // A failed connection is not returned to the pool.
            let done = work(&conn).map_err(|error| schema::classify(&readers.path, error))?;
            readers.put_back(conn);
            Ok(done)
        })
        .await
    }

    pub(crate) async fn restore(&self) -> Result<StoredState, StoreError> {
        self.read(|conn| {
            let tx = conn.unchecked_transaction()?;
            Ok(StoredState { jobs: all(&tx, OPEN_JOBS, header)?, ..fleet(&tx)? })
        })
        .await
    }

    pub(crate) async fn restore_fleet(&self) -> Result<StoredState, StoreError> {
        self.read(|conn| {
            let tx = conn.unchecked_transaction()?;
            fleet(&tx)
        })
        .await
    }

    pub(crate) async fn open_jobs(
        &self,
        after: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<(AcceptedJob, JobStatus)>, StoreError> {
        self.read(move |conn| {
            let after = after.map_or(Vec::new(), |after| key(after).to_vec());
            let mut select = conn.prepare_cached(OPEN_JOBS_PAGE)?;
            select.query_map(params![after, bound(limit)], header)?.collect()
        })
        .await
    }

    pub(crate) async fn workflow(&self, job: JobId) -> Result<Option<Arc<RawValue>>, StoreError> {
        self.body("SELECT body FROM workflows WHERE job = ?1", job).await
    }

    pub(crate) async fn workflows_from(
        &self,
        job: JobId,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<(JobId, Arc<RawValue>)>, StoreError> {
        self.read(move |conn| {
            let sql = "SELECT job, body FROM workflows WHERE job >= ?1 ORDER BY job LIMIT ?2";
            let mut select = conn.prepare_cached(sql)?;
            let mut rows = select.query(params![key(job), bound(limit)])?;
            let (mut page, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let workflow = raw(row, 1)?;
                bytes += workflow.get().len();
                if bytes > bytes_max && !page.is_empty() {
                    break;
                }
                page.push((JobId::from_u128(u128::from_be_bytes(row.get(0)?)), workflow));
            }
            Ok(page)
        })
        .await
    }

    pub(crate) async fn result(&self, job: JobId) -> Result<Option<Arc<RawValue>>, StoreError> {
        self.body("SELECT body FROM results WHERE job = ?1", job).await
    }

    async fn body(&self, sql: &'static str, job: JobId) -> Result<Option<Arc<RawValue>>, StoreError> {
        self.read(move |conn| conn.prepare_cached(sql)?.query_row([key(job)], |row| raw(row, 0)).optional())
            .await
    }

    pub(crate) async fn job(&self, job: JobId) -> Result<Option<(AcceptedJob, JobStatus)>, StoreError> {
        self.read(move |conn| {
            let mut select = conn.prepare_cached("SELECT accepted, status FROM jobs WHERE id = ?1")?;
            select.query_row([key(job)], header).optional()
        })
        .await
    }

    pub(crate) async fn job_by_key(
        &self,
        tenant: &Tenant,
        key: &str,
    ) -> Result<Option<(JobId, Hash)>, StoreError> {
        let (tenant, key) = (tenant.clone(), key.to_owned());
        self.read(move |conn| {
            let mut select = conn.prepare_cached(BY_KEY)?;
            let found =
                select.query_row([tenant.as_str(), &key], |row| parsed::<AcceptedJob>(row, 0)).optional()?;
            Ok(found.and_then(|job| Some((job.id, job.key?.fingerprint))))
        })
        .await
    }

    pub(crate) async fn jobs(
        &self,
        filter: JobFilter,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<Vec<(AcceptedJob, JobStatus)>, StoreError> {
        self.read(move |conn| {
            let before = before.map_or(vec![0xff; 17], |before| key(before).to_vec());
            let tenant = filter.tenant.as_ref().map(|tenant| tenant.as_str());
            let mut select = conn.prepare_cached(&page(filter.state))?;
            select.query_map(params![before, tenant, bound(limit)], header)?.collect()
        })
        .await
    }

    pub(crate) async fn events(&self, after: Sequence, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        self.read(move |conn| {
            let mut select = conn.prepare_cached("SELECT body FROM events WHERE last > ?1 ORDER BY last")?;
            let mut rows = select.query([bound(after.0)])?;
            let mut events = Vec::new();
            while events.len() < limit
                && let Some(row) = rows.next()?
            {
                for line in row.get_ref(0)?.as_str()?.lines() {
                    let event: StoredEvent = from_json(line, 0)?;
                    // Only the first row can contain events up to `after`.
                    if event.seq > after {
                        events.push(event);
                    }
                    if events.len() == limit {
                        break;
                    }
                }
            }
            Ok(events)
        })
        .await
    }

    pub(crate) async fn history(&self) -> Result<StoreHistory, StoreError> {
        self.read(|conn| {
            let tx = conn.unchecked_transaction()?;
            let sequence =
                tx.query_row("SELECT value FROM meta WHERE key = 'sequence'", [], |row| row.get(0))?;
            Ok(StoreHistory { sequence: Sequence(sequence), generations: generation::list(&tx)? })
        })
        .await
    }

    pub(crate) async fn cycles(&self, limit: usize) -> Result<Vec<(Timestamp, Arc<RawValue>)>, StoreError> {
        self.read(move |conn| {
            let mut select =
                conn.prepare_cached("SELECT at, report FROM cycles ORDER BY at DESC LIMIT ?1")?;
            let cycle = |row: &SqlRow<'_>| Ok((Timestamp::from_millis(row.get(0)?), raw(row, 1)?));
            select.query_map([bound(limit)], cycle)?.collect()
        })
        .await
    }

    pub(crate) async fn view(&self, view: StatusView) -> Result<Vec<ViewRow>, StoreError> {
        self.read(move |conn| {
            let mut select = conn.prepare_cached(&format!("SELECT * FROM {view}"))?;
            let names: Vec<String> = select.column_names().map(str::to_owned).collect();
            let to_object = |row: &SqlRow<'_>| {
                names
                    .iter()
                    .enumerate()
                    .map(|(at, name)| Ok((name.clone(), json_value(row.get_ref(at)?))))
                    .collect()
            };
            select.query_map([], to_object)?.collect()
        })
        .await
    }
}

fn key(job: JobId) -> [u8; 16] {
    job.as_u128().to_be_bytes()
}

/// The table is ordered by id; rare states have an index, which SQLite would not choose by itself.
pub(super) fn page(state: Option<JobStateFilter>) -> String {
    let condition = match state {
        None => "WHERE true",
        Some(JobStateFilter::Queued) => "INDEXED BY jobs_by_end WHERE ended_at IS NULL AND state = 'queued'",
        Some(JobStateFilter::Running) => {
            "INDEXED BY jobs_by_end WHERE ended_at IS NULL AND state = 'running'"
        }
        Some(JobStateFilter::Completed) => "WHERE state = 'completed'",
        // The condition is repeated because SQLite uses a partial index only with its exact condition.
        Some(JobStateFilter::Failed) => {
            "INDEXED BY jobs_failed WHERE state IN ('failed', 'cancelled') AND state = 'failed'"
        }
        Some(JobStateFilter::Cancelled) => {
            "INDEXED BY jobs_failed WHERE state IN ('failed', 'cancelled') AND state = 'cancelled'"
        }
    };
    format!(
        "SELECT accepted, status FROM jobs {condition} AND id < ?1 AND (?2 IS NULL OR tenant = ?2)
         ORDER BY id DESC LIMIT ?3"
    )
}

/// SQLite integers end at 2^63.
pub(super) fn bound(limit: impl TryInto<i64>) -> i64 {
    limit.try_into().unwrap_or(i64::MAX)
}

/// The stored state without jobs.
fn fleet(conn: &Connection) -> Result<StoredState, Error> {
    let meta = |key: &str| {
        conn.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get::<_, u64>(0))
    };
    Ok(StoredState {
        jobs: Vec::new(),
        workers: all(conn, "SELECT row FROM workers ORDER BY id", |row| parsed(row, 0))?,
        blocks: all(conn, "SELECT row FROM blocks ORDER BY worker, shape", |row| parsed(row, 0))?,
        quarantine: all(conn, "SELECT row FROM quarantine ORDER BY shape", |row| parsed(row, 0))?,
        documents: documents::load_restored(conn)?,
        sequence: Sequence(meta("sequence")?),
        latest: Timestamp::from_millis(meta("latest")?),
        newest_job: conn.query_row("SELECT max(id) FROM jobs", [], |row| {
            Ok(row.get::<_, Option<[u8; 16]>>(0)?.map(|id| JobId::from_u128(u128::from_be_bytes(id))))
        })?,
    })
}

pub(super) fn all<T>(
    conn: &Connection,
    sql: &str,
    read: fn(&SqlRow<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    conn.prepare_cached(sql)?.query_map([], read)?.collect()
}

pub(super) fn header(row: &SqlRow<'_>) -> Result<(AcceptedJob, JobStatus), Error> {
    Ok((parsed(row, 0)?, parsed(row, 1)?))
}

pub(super) fn parsed<T: DeserializeOwned>(row: &SqlRow<'_>, column: usize) -> Result<T, Error> {
    from_json(row.get_ref(column)?.as_str()?, column)
}

pub(super) fn from_json<T: DeserializeOwned>(text: &str, column: usize) -> Result<T, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, error.into()))
}

pub(super) fn raw(row: &SqlRow<'_>, column: usize) -> Result<Arc<RawValue>, Error> {
    let body = RawValue::from_string(row.get(column)?);
    let body = body.map_err(|error| Error::FromSqlConversionFailure(column, Type::Text, error.into()))?;
    Ok(body.into())
}

fn json_value(value: ValueRef<'_>) -> serde_json::Value {
    match value {
        ValueRef::Null => serde_json::Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
        ValueRef::Blob(_) => serde_json::Value::Null,
    }
}
