//! The writer: a thread that owns the one connection that writes. It takes everything that waits, merges it, writes
//! it in one transaction, and answers each batch by itself.
//!
//! ```text
//!            ┌─ written ──▶ Ok to each
//!  merged ───┼─ conflict, no space ──▶ each batch in a transaction of its own, to see whose fault it was
//!            └─ the disk failed ──▶ Broken to each, and to all that come after
//! ```
//!
//! A disk that failed once is not asked again: after a failed sync nobody knows what it kept.

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
use super::files::{Lock, Reserve, unreachable};
use super::merge::Merged;
use super::{documents, retention, schema};
use crate::{Batch, Source, StoreError};

mod rows;

/// Records in one transaction. More of them are no cheaper each, and the first one waits for the last.
const GROUP_RECORDS_MAX: usize = 8192;
/// How often room is looked for while the reserve is gone.
const RESERVE_RENEW_WAIT: Duration = Duration::from_secs(1);

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

#[derive(Debug)]
pub(super) enum Request {
    Commit { term: Term, batch: Batch, reply: Reply<()> },
    Lead { reply: Reply<Term> },
    Retain { before: Timestamp, limit: usize, reply: Reply<usize> },
    Expire { now: Timestamp, limit: usize, reply: Reply<usize> },
    Close,
}

/// A request, and the place in the queue that it gives back once it is taken out.
#[derive(Debug)]
pub(super) struct Sent {
    pub request: Request,
    pub _place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    conn: Connection,
    lock: Lock,
    reserve: Arc<Reserve>,
    checkpoints: Checkpoints,
    /// When room was last looked for.
    looked_at: Instant,
    /// Why nothing is written any more.
    broken: Option<Source>,
}

#[derive(Debug)]
struct Waiting {
    term: Term,
    batch: Batch,
    reply: Reply<()>,
}

impl Waiting {
    fn answer(self, answer: Result<(), StoreError>) {
        // Whoever asked may have gone; what was written stays written.
        self.reply.send(answer).ok();
    }

    fn accepts(&self) -> bool {
        self.batch.records.iter().any(|record| matches!(record, Record::JobAccepted { .. }))
    }
}

impl Writer {
    pub(super) fn new(
        path: PathBuf,
        mut conn: Connection,
        lock: Lock,
        reserve: Arc<Reserve>,
    ) -> Result<Writer, StoreError> {
        let checkpoints = Checkpoints::of(&mut conn, &path)?;
        Ok(Writer { path, conn, lock, reserve, checkpoints, looked_at: Instant::now(), broken: None })
    }

    pub(super) fn spawn(self, requests: Receiver<Sent>) -> Result<JoinHandle<()>, StoreError> {
        let path = self.path.clone();
        let thread =
            thread::Builder::new().name("store-writer".to_owned()).spawn(move || self.run(&requests));
        thread.map_err(|error: io::Error| unreachable(&path, error))
    }

    fn run(mut self, requests: &Receiver<Sent>) {
        let mut next = None;
        loop {
            let Some(request) = next.take().or_else(|| self.wait(requests)) else { break };
            match request {
                Request::Commit { term, batch, reply } => {
                    let (group, other) = gather(Waiting { term, batch, reply }, requests);
                    self.commit(group);
                    next = other;
                }
                Request::Lead { reply } => drop(reply.send(self.write_into_reserve(take_lead))),
                Request::Retain { before, limit, reply } => {
                    let forget = |tx: &Transaction<'_>| retention::forget(tx, before, limit);
                    drop(reply.send(self.write_into_reserve(forget)));
                }
                Request::Expire { now, limit, reply } => {
                    let forget = |tx: &Transaction<'_>| documents::forget(tx, now, limit);
                    drop(reply.send(self.write_into_reserve(forget)));
                }
                Request::Close => break,
            }
            // Without room to spare, the log begins anew after each write rather than growing.
            let tidy = if self.reserve.is_there() { Checkpoints::after_write } else { Checkpoints::now };
            self.tidy(tidy);
        }
        self.close();
    }

    /// The next request, looking for lost room now and then; nothing when nobody is left to ask.
    fn wait(&mut self, requests: &Receiver<Sent>) -> Option<Request> {
        loop {
            if self.reserve.is_there() || self.broken.is_some() {
                return requests.recv().ok().map(|sent| sent.request);
            }
            if self.looked_at.elapsed() >= RESERVE_RENEW_WAIT {
                self.reserve.renew();
                self.looked_at = Instant::now();
            }
            match requests.recv_timeout(RESERVE_RENEW_WAIT) {
                Ok(sent) => return Some(sent.request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn commit(&mut self, mut group: Vec<Waiting>) {
        if !self.reserve.is_there() && self.broken.is_none() {
            let (accepting, ending) = group.into_iter().partition(Waiting::accepts);
            group = ending;
            self.refuse(accepting);
        }
        if group.is_empty() {
            return;
        }
        let answers = self.write(|tx| write_group(tx, &group));
        match answers {
            Ok(answers) => {
                group.into_iter().zip(answers).for_each(|(waiting, answer)| waiting.answer(answer));
            }
            Err(StoreError::Full { .. }) if self.make_room() => self.commit_apart(group),
            Err(StoreError::Full { .. } | StoreError::Conflict { .. }) if group.len() > 1 => {
                self.commit_apart(group);
            }
            Err(error) => group.into_iter().for_each(|waiting| waiting.answer(Err(error.clone()))),
        }
    }

    /// Each in its own transaction: one that cannot be written does not take the others with it.
    fn commit_apart(&mut self, group: Vec<Waiting>) {
        group.into_iter().for_each(|waiting| self.commit(vec![waiting]));
    }

    fn refuse(&self, group: Vec<Waiting>) {
        for waiting in group {
            waiting.answer(Err(StoreError::Full { path: self.path.clone() }));
        }
    }

    /// For what must go on when the disk is full.
    fn write_into_reserve<T>(
        &mut self,
        work: impl Fn(&Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        match self.write(&work) {
            Err(StoreError::Full { .. }) if self.make_room() => self.write(&work),
            done => done,
        }
    }

    /// Whether there was something to give up.
    fn make_room(&mut self) -> bool {
        let had_room = self.reserve.is_there();
        if had_room {
            self.reserve.release();
            // What is home already makes room in the log.
            self.tidy(Checkpoints::now);
        }
        had_room
    }

    /// Runs one transaction, and never another one after the disk failed.
    fn write<T>(&mut self, work: impl FnOnce(&Transaction<'_>) -> Result<T, Error>) -> Result<T, StoreError> {
        if let Some(source) = &self.broken {
            return Err(StoreError::Broken { path: self.path.clone(), source: source.clone() });
        }
        let done = self.conn.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|tx| {
            let done = work(&tx)?;
            tx.commit()?;
            Ok(done)
        });
        done.map_err(|error| self.sort(error))
    }

    /// Carries the log home, all or part of it. If there is no room for that, it stays where it is for now.
    fn tidy(&mut self, work: impl FnOnce(&mut Checkpoints, &Connection) -> Result<(), Error>) {
        if self.broken.is_none()
            && let Err(error) = work(&mut self.checkpoints, &self.conn)
        {
            let error = self.sort(error);
            tracing::warn!(path = %self.path.display(), %error, "the write-ahead log was not carried home");
        }
    }

    fn sort(&mut self, error: Error) -> StoreError {
        let error = schema::sort(&self.path, error);
        if let StoreError::Broken { source, .. } = &error {
            tracing::error!(path = %self.path.display(), error = %source, "the store's disk failed");
            self.broken = Some(source.clone());
        }
        error
    }

    /// Leaves everything in the one file, unless the disk failed: then what is there stays as it is.
    fn close(mut self) {
        if self.broken.is_some() {
            return;
        }
        match self.checkpoints.finish(&self.conn) {
            Ok(true) => {}
            // The next one to open it finds the log, and that it must be there.
            Ok(false) | Err(_) => return,
        }
        drop(self.conn);
        if let Err(error) = self.lock.mark_closed() {
            tracing::warn!(path = %self.path.display(), %error, "the store is closed, but its lock does not say so");
        }
    }
}

/// Everything that waits behind `first`, up to a bound, and the request that ended the line, if one did.
fn gather(first: Waiting, requests: &Receiver<Sent>) -> (Vec<Waiting>, Option<Request>) {
    let mut records = first.batch.records.len();
    let mut group = vec![first];
    while records < GROUP_RECORDS_MAX {
        match requests.try_recv().map(|sent| sent.request) {
            Ok(Request::Commit { term, batch, reply }) => {
                records += batch.records.len();
                group.push(Waiting { term, batch, reply });
            }
            Ok(other) => return (group, Some(other)),
            Err(_) => break,
        }
    }
    (group, None)
}

fn take_lead(tx: &Transaction<'_>) -> Result<Term, Error> {
    tx.query_row("UPDATE meta SET value = value + 1 WHERE key = 'term' RETURNING value", [], |row| {
        row.get(0).map(Term)
    })
}

/// Writes what may be written of a group, and says to each batch whether it was.
fn write_group(tx: &Transaction<'_>, group: &[Waiting]) -> Result<Vec<Result<(), StoreError>>, Error> {
    let mut meta = tx.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    let theirs = Term(meta.query_row(["term"], |row| row.get(0))?);
    let sequence = Sequence(meta.query_row(["sequence"], |row| row.get(0))?);
    let mut merged = Merged::default();
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
    rows::write(tx, &merged, sequence)?;
    Ok(answers)
}
