//! The writer thread, which owns the only writing connection. It takes all waiting batches, merges them, writes them in one
//! transaction, and answers each batch separately.
//!
//! ```text
//!            ┌─ written ──▶ Ok to each
//!  merged ───┼─ conflict, no space ──▶ each batch in a separate transaction, to find the one that fails
//!            └─ the disk failed ──▶ Broken to each, and to all later ones
//! ```
//!
//! After a failed write or sync nothing is written any more, because the state of the disk is unknown.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use remuda_core::id::{Sequence, Term};
use remuda_core::record::Record;
use remuda_core::time::Timestamp;
use rusqlite::{Connection, Error, Transaction, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::checkpoint::Checkpoints;
use super::files::{Lock, Reserve, unreachable_error};
use super::merge::MergedRecords;
use super::place::Place;
use super::proof::Proof;
use super::{documents, retention, schema};
use crate::loss::CommitMark;
use crate::tenant_bytes::{ByteChanges, TenantBytes};
use crate::{RecordBatch, SharedError, StoreError};

mod rows;

/// Records in one transaction. Larger transactions are not more efficient and increase the latency.
const GROUP_RECORDS_MAX: usize = 8192;
/// Interval between attempts to recreate the reserve.
const RESERVE_RENEW_WAIT: Duration = Duration::from_secs(1);

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

#[derive(Debug)]
pub(super) enum Request {
    Commit { term: Term, batch: RecordBatch, reply: Reply<()> },
    TakeLeadership { reply: Reply<Term> },
    DeleteEnded { before: Timestamp, limit: usize, reply: Reply<usize> },
    DeleteExpired { now: Timestamp, limit: usize, reply: Reply<usize> },
    Close,
}

/// A request and its permit, which is released when the request leaves the queue.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub request: Request,
    pub _permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    conn: Connection,
    lock: Lock,
    proof: Proof,
    /// The last commit. Kept here, because reading it back costs more than writing its number.
    mark: CommitMark,
    reserve: Arc<Reserve>,
    place: Arc<Place>,
    checkpoints: Checkpoints,
    bytes: TenantBytes,
    /// Last attempt to recreate the reserve.
    reserve_checked_at: Instant,
    /// The error after which nothing is written any more.
    broken: Option<SharedError>,
}

#[derive(Debug)]
struct PendingBatch {
    term: Term,
    batch: RecordBatch,
    reply: Reply<()>,
}

impl PendingBatch {
    fn answer(self, answer: Result<(), StoreError>) {
        // The caller may be gone; the result does not depend on it.
        self.reply.send(answer).ok();
    }

    fn accepts_job(&self) -> bool {
        self.batch.records.iter().any(|record| matches!(record, Record::JobAccepted { .. }))
    }
}

impl Writer {
    pub(super) fn new(
        path: PathBuf,
        mut conn: Connection,
        lock: Lock,
        proof: Proof,
        reserve: Arc<Reserve>,
        place: Arc<Place>,
        bytes: TenantBytes,
    ) -> Result<Writer, StoreError> {
        let checkpoints = Checkpoints::new(&mut conn, &path)?;
        let mark = CommitMark::read(&conn).map_err(|error| schema::classify(&path, error))?;
        Ok(Writer {
            path,
            conn,
            lock,
            proof,
            mark,
            reserve,
            place,
            checkpoints,
            bytes,
            reserve_checked_at: Instant::now(),
            broken: None,
        })
    }

    pub(super) fn spawn(self, requests: Receiver<QueuedRequest>) -> Result<JoinHandle<()>, StoreError> {
        let path = self.path.clone();
        let thread =
            thread::Builder::new().name("store-writer".to_owned()).spawn(move || self.run(&requests));
        thread.map_err(|error: io::Error| unreachable_error(&path, error))
    }

    fn run(mut self, requests: &Receiver<QueuedRequest>) {
        let mut next = None;
        loop {
            let Some(request) = next.take().or_else(|| self.wait(requests)) else { break };
            match request {
                Request::Commit { term, batch, reply } => {
                    let (group, other) = gather(PendingBatch { term, batch, reply }, requests);
                    self.commit(group);
                    next = other;
                }
                Request::TakeLeadership { reply } => {
                    drop(reply.send(self.write_using_reserve(increment_term)));
                }
                Request::DeleteEnded { before, limit, reply } => {
                    let forget = |tx: &Transaction<'_>, _: &mut CommitMark| {
                        retention::delete_ended_before(tx, before, limit)
                    };
                    let deleted = self.write_using_reserve(forget).map(|(rows, changes)| {
                        self.bytes.apply(&changes);
                        rows
                    });
                    drop(reply.send(deleted));
                }
                Request::DeleteExpired { now, limit, reply } => {
                    let forget =
                        |tx: &Transaction<'_>, _: &mut CommitMark| documents::delete_expired(tx, now, limit);
                    drop(reply.send(self.write_using_reserve(forget)));
                }
                Request::Close => break,
            }
            // Without the reserve, the WAL is checkpointed after each write instead of growing.
            let step = if self.reserve.has_space() { Checkpoints::after_write } else { Checkpoints::now };
            self.run_checkpoint(step);
        }
        self.close();
    }

    /// The next request; attempts to recreate a released reserve meanwhile. `None` when all senders are gone.
    fn wait(&mut self, requests: &Receiver<QueuedRequest>) -> Option<Request> {
        loop {
            if self.reserve.has_space() || self.broken.is_some() {
                return requests.recv().ok().map(|sent| sent.request);
            }
            if self.reserve_checked_at.elapsed() >= RESERVE_RENEW_WAIT {
                self.reserve.renew();
                self.reserve_checked_at = Instant::now();
            }
            match requests.recv_timeout(RESERVE_RENEW_WAIT) {
                Ok(sent) => return Some(sent.request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn commit(&mut self, mut group: Vec<PendingBatch>) {
        if !self.reserve.has_space() && self.broken.is_none() {
            let (accepting, ending) = group.into_iter().partition(PendingBatch::accepts_job);
            group = ending;
            self.refuse(accepting);
        }
        if group.is_empty() {
            return;
        }
        let answers = self.write(|tx, mark| write_group(tx, mark, &group));
        match answers {
            Ok((answers, changes)) => {
                self.bytes.apply(&changes);
                group.into_iter().zip(answers).for_each(|(waiting, answer)| waiting.answer(answer));
            }
            Err(StoreError::Full { .. }) if self.release_reserve() => self.commit_one_by_one(group),
            Err(StoreError::Full { .. } | StoreError::Conflict { .. }) if group.len() > 1 => {
                self.commit_one_by_one(group);
            }
            Err(error) => group.into_iter().for_each(|waiting| waiting.answer(Err(error.clone()))),
        }
    }

    /// Writes each batch in a separate transaction, so that one failure does not affect the others.
    fn commit_one_by_one(&mut self, group: Vec<PendingBatch>) {
        group.into_iter().for_each(|waiting| self.commit(vec![waiting]));
    }

    fn refuse(&self, group: Vec<PendingBatch>) {
        for waiting in group {
            waiting.answer(Err(StoreError::Full { path: self.path.clone() }));
        }
    }

    /// For writes that must succeed on a full disk.
    fn write_using_reserve<T>(
        &mut self,
        work: impl Fn(&Transaction<'_>, &mut CommitMark) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        match self.write(&work) {
            Err(StoreError::Full { .. }) if self.release_reserve() => self.write(&work),
            done => done,
        }
    }

    /// Releases the reserve; returns whether there was one.
    fn release_reserve(&mut self) -> bool {
        let had_room = self.reserve.has_space();
        if had_room {
            self.reserve.release();
            // A checkpoint makes space in the WAL.
            self.run_checkpoint(Checkpoints::now);
        }
        had_room
    }

    /// Runs one transaction, unless the disk has failed before, and writes the proof of it. `work` updates the mark.
    fn write<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>, &mut CommitMark) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        if let Some(source) = &self.broken {
            return Err(StoreError::Broken { path: self.path.clone(), source: source.clone() });
        }
        let mut mark = CommitMark { commit: self.mark.commit + 1, ..self.mark };
        let done = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|tx| {
            let done = work(&tx, &mut mark)?;
            mark.number(&tx)?;
            tx.commit()?;
            Ok(done)
        });
        let done = done.map_err(|error| self.classify(error))?;
        self.mark = mark;
        if let Err(error) = self.proof.record(mark) {
            return Err(self.break_off(error));
        }
        // The last thing before the answer: what only a deleted file holds is not acknowledged.
        self.place.check_files()?;
        Ok(done)
    }

    /// Runs a checkpoint. If there is no space for it, the WAL stays as it is.
    fn run_checkpoint(&mut self, work: impl FnOnce(&mut Checkpoints, &Connection) -> Result<(), Error>) {
        if self.broken.is_none()
            && let Err(error) = work(&mut self.checkpoints, &self.conn)
        {
            let error = self.classify(error);
            tracing::warn!(path = %self.path.display(), %error, "WAL checkpoint failed");
        }
    }

    fn classify(&mut self, error: Error) -> StoreError {
        match schema::classify(&self.path, error) {
            StoreError::Broken { source, .. } => self.break_off(source),
            error => error,
        }
    }

    /// Writes nothing any more.
    fn break_off(&mut self, source: SharedError) -> StoreError {
        tracing::error!(path = %self.path.display(), error = %source, "store write failed; nothing is written until the store is reopened");
        self.broken = Some(source.clone());
        StoreError::Broken { path: self.path.clone(), source }
    }

    /// Moves all data into the database file, unless the disk has failed.
    fn close(mut self) {
        if self.broken.is_some() {
            return;
        }
        match self.checkpoints.finish(&self.conn) {
            Ok(true) => {}
            // The lock still says that the WAL is needed.
            Ok(false) | Err(_) => return,
        }
        drop(self.conn);
        if let Err(error) = self.proof.close() {
            tracing::warn!(path = %self.path.display(), %error, "syncing the proof of the last commit failed");
        }
        if let Err(error) = self.lock.mark_closed() {
            tracing::warn!(path = %self.path.display(), %error, "marking the store as closed failed");
        }
    }
}

/// The batches that wait behind `first`, up to a limit, and the request of another kind that follows them, if any.
fn gather(first: PendingBatch, requests: &Receiver<QueuedRequest>) -> (Vec<PendingBatch>, Option<Request>) {
    let mut records = first.batch.records.len();
    let mut group = vec![first];
    while records < GROUP_RECORDS_MAX {
        match requests.try_recv().map(|sent| sent.request) {
            Ok(Request::Commit { term, batch, reply }) => {
                records += batch.records.len();
                group.push(PendingBatch { term, batch, reply });
            }
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}

fn increment_term(tx: &Transaction<'_>, mark: &mut CommitMark) -> Result<Term, Error> {
    mark.term =
        tx.query_row("UPDATE meta SET value = value + 1 WHERE key = 'term' RETURNING value", [], |row| {
            row.get(0).map(Term)
        })?;
    Ok(mark.term)
}

/// Writes the batches of the current term and returns the result of each batch.
fn write_group(
    tx: &Transaction<'_>,
    mark: &mut CommitMark,
    group: &[PendingBatch],
) -> Result<(Vec<Result<(), StoreError>>, ByteChanges), Error> {
    let mut meta = tx.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    let theirs = Term(meta.query_row(["term"], |row| row.get(0))?);
    let sequence = Sequence(meta.query_row(["sequence"], |row| row.get(0))?);
    let mut merged = MergedRecords::default();
    let mut answers = Vec::with_capacity(group.len());
    for waiting in group {
        let ours = waiting.term;
        if ours < theirs {
            answers.push(Err(StoreError::Superseded { ours, theirs }));
        } else {
            merged.add(&waiting.batch.records);
            answers.push(Ok(()));
        }
    }
    let changes;
    (mark.sequence, changes) = rows::write(tx, &merged, sequence)?;
    mark.latest = mark.latest.max(merged.latest);
    Ok((answers, changes))
}
