//! Writes merged records as rows.

use remuda_core::document::Document;
use remuda_core::id::{JobId, Sequence, Tenant};
use remuda_core::record::{AcceptedJob, JobStatus, StoredEvent, WorkerRow};
use rusqlite::{CachedStatement, Error, OptionalExtension, Transaction, params};
use serde::Serialize;
use serde_json::value::RawValue;

use super::super::merge::{Job, MergedRecords};
use super::super::read::bound;
use super::super::tenant_bytes;
use crate::tenant_bytes::{ByteChanges, add, signed};

/// Events per row; reading one of them reads the whole row.
const CHUNK_EVENTS_MAX: usize = 512;

/// `sequence` is the last stored event; returns the new one, and the bytes that were added for each tenant.
pub(super) fn write(
    tx: &Transaction<'_>,
    merged: &MergedRecords<'_>,
    sequence: Sequence,
) -> Result<(Sequence, ByteChanges), Error> {
    let mut changes = ByteChanges::new();
    write_jobs(tx, merged, &mut changes)?;
    write_results(tx, merged, &mut changes)?;
    tenant_bytes::write(tx, &changes)?;
    let sequence = write_events(tx, &merged.events, sequence)?;
    write_workers(tx, merged)?;
    write_blocks_and_quarantine(tx, merged)?;
    write_documents(tx, merged)?;
    for (at, report) in &merged.cycles {
        tx.prepare_cached("INSERT OR REPLACE INTO cycles VALUES (?1, ?2)")?
            .execute(params![bound(at.as_millis()), report.get()])?;
    }
    tx.prepare_cached("UPDATE meta SET value = max(value, ?1) WHERE key = 'latest'")?
        .execute([merged.latest.as_millis()])?;
    Ok((sequence, changes))
}

fn write_jobs(
    tx: &Transaction<'_>,
    merged: &MergedRecords<'_>,
    changes: &mut ByteChanges,
) -> Result<(), Error> {
    if merged.jobs.is_empty() {
        return Ok(());
    }
    let mut jobs = Jobs::prepare(tx)?;
    merged.jobs.iter().try_for_each(|(id, job)| match job {
        Job::New { accepted, status, workflow } => {
            // A repeated record changes nothing.
            if jobs.insert(accepted, status, workflow)? {
                add(changes, &accepted.tenant, signed(workflow.get().len()));
            }
            Ok(())
        }
        Job::Changed(status) => jobs.change(*id, status),
    })
}

/// The statements that run once per job, and their JSON buffers.
struct Jobs<'tx> {
    insert: CachedStatement<'tx>,
    insert_workflow: CachedStatement<'tx>,
    /// Does not change `ended_at`, and so not its index.
    update_open: CachedStatement<'tx>,
    end: CachedStatement<'tx>,
    accepted: Vec<u8>,
    status: Vec<u8>,
}

impl<'tx> Jobs<'tx> {
    fn prepare(tx: &'tx Transaction<'_>) -> Result<Self, Error> {
        Ok(Jobs {
            insert: tx.prepare_cached(
                "INSERT INTO jobs (id, tenant, key, state, ended_at, accepted, status)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                 ON CONFLICT (id) DO UPDATE
                 SET state = excluded.state, ended_at = excluded.ended_at, status = excluded.status",
            )?,
            insert_workflow: tx.prepare_cached("INSERT OR IGNORE INTO workflows VALUES (?1, ?2)")?,
            update_open: tx.prepare_cached(
                "UPDATE jobs SET state = ?2, status = ?3 WHERE id = ?1 AND ended_at IS NULL",
            )?,
            end: tx.prepare_cached("UPDATE jobs SET state = ?2, status = ?3, ended_at = ?4 WHERE id = ?1")?,
            accepted: Vec::new(),
            status: Vec::new(),
        })
    }

    /// Returns whether the workflow is new.
    fn insert(&mut self, job: &AcceptedJob, status: &JobStatus, workflow: &RawValue) -> Result<bool, Error> {
        let id = key(job.id);
        self.insert.execute(params![
            id,
            job.tenant.as_str(),
            job.key.as_ref().map(|key| &key.key),
            status.state.name(),
            ended_at(status),
            json(&mut self.accepted, job)?,
            json(&mut self.status, status)?,
        ])?;
        Ok(self.insert_workflow.execute(params![id, workflow.get()])? > 0)
    }

    fn change(&mut self, job: JobId, status: &JobStatus) -> Result<(), Error> {
        let id = key(job);
        let state = status.state.name();
        let text = json(&mut self.status, status)?;
        if status.state.is_open() && self.update_open.execute(params![id, state, text])? == 1 {
            return Ok(());
        }
        let changed = self.end.execute(params![id, state, text, ended_at(status)])?;
        if changed == 0 {
            tracing::error!(%job, state, "change of an unknown job ignored");
        }
        Ok(())
    }
}

fn key(job: JobId) -> [u8; 16] {
    job.as_u128().to_be_bytes()
}

fn ended_at(status: &JobStatus) -> Option<i64> {
    (!status.state.is_open()).then(|| bound(status.changed_at.as_millis()))
}

fn json<'b>(buffer: &'b mut Vec<u8>, value: &impl Serialize) -> Result<&'b str, Error> {
    buffer.clear();
    serde_json::to_writer(&mut *buffer, value)
        .map_err(|error| Error::ToSqlConversionFailure(error.into()))?;
    str::from_utf8(buffer).map_err(|error| Error::ToSqlConversionFailure(error.into()))
}

fn write_results(
    tx: &Transaction<'_>,
    merged: &MergedRecords<'_>,
    changes: &mut ByteChanges,
) -> Result<(), Error> {
    let mut owner = tx.prepare_cached("SELECT tenant FROM jobs WHERE id = ?1")?;
    let mut insert = tx.prepare_cached("INSERT OR IGNORE INTO results VALUES (?1, ?2)")?;
    for (job, body) in &merged.results {
        let (job, mut added) = (key(*job), signed(body.get().len()));
        if insert.execute(params![job, body.get()])? == 0 {
            // A repetition; the last one wins.
            added -= tx
                .prepare_cached("SELECT length(CAST(body AS BLOB)) FROM results WHERE job = ?1")?
                .query_row([job], |row| row.get::<_, i64>(0))?;
            tx.prepare_cached("UPDATE results SET body = ?2 WHERE job = ?1")?
                .execute(params![job, body.get()])?;
        }
        let tenant = owner.query_row([job], |row| row.get::<_, String>(0)).optional()?;
        if let Some(tenant) = tenant.and_then(|tenant| tenant.parse::<Tenant>().ok()) {
            add(changes, &tenant, added);
        }
    }
    Ok(())
}

fn write_events(
    tx: &Transaction<'_>,
    events: &[&StoredEvent],
    sequence: Sequence,
) -> Result<Sequence, Error> {
    let mut last_sequence = sequence;
    let mut fresh = Vec::with_capacity(events.len());
    for event in events {
        if event.seq > last_sequence {
            last_sequence = event.seq;
            fresh.push(*event);
        }
    }
    let mut insert =
        tx.prepare_cached("INSERT INTO events (first, last, at, body) VALUES (?1, ?2, ?3, ?4)")?;
    let mut body = Vec::new();
    for chunk in fresh.chunks(CHUNK_EVENTS_MAX) {
        let (Some(first), Some(last)) = (chunk.first(), chunk.last()) else { continue };
        body.clear();
        for event in chunk {
            serde_json::to_writer(&mut body, event)
                .map_err(|error| Error::ToSqlConversionFailure(error.into()))?;
            body.push(b'\n');
        }
        let text = str::from_utf8(&body).map_err(|error| Error::ToSqlConversionFailure(error.into()))?;
        insert.execute(params![bound(first.seq.0), bound(last.seq.0), bound(last.at.as_millis()), text])?;
    }
    if last_sequence > sequence {
        tx.prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'sequence'")?
            .execute([bound(last_sequence.0)])?;
    }
    Ok(last_sequence)
}

fn write_workers(tx: &Transaction<'_>, merged: &MergedRecords<'_>) -> Result<(), Error> {
    let mut insert = tx.prepare_cached(
        "INSERT OR REPLACE INTO workers (id, machine, fleet, incarnation, state, presence, slots, joined_at, seen_at,
             changed_at, completed, failed, lost, busy_millis, went_stale, reason, metrics_at, metrics, row)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
    )?;
    let (mut metrics, mut text) = (Vec::new(), Vec::new());
    for (id, row) in &merged.workers {
        let Some(row) = row else {
            tx.prepare_cached("DELETE FROM workers WHERE id = ?1")?.execute(params![id.as_str()])?;
            continue;
        };
        let WorkerRow { id, machine, fleet, incarnation, state, presence, slots, reason, .. } = row;
        insert.execute(params![
            id.as_str(),
            machine.as_str(),
            fleet.as_ref().map(|fleet| fleet.as_str()),
            bound(incarnation.0),
            state.as_str(),
            presence.as_str(),
            slots,
            bound(row.joined_at.as_millis()),
            bound(row.seen_at.as_millis()),
            bound(row.changed_at.as_millis()),
            bound(row.completed),
            bound(row.failed),
            bound(row.lost),
            bound(row.busy_millis),
            bound(row.went_stale),
            reason,
            row.metrics_at.map(|at| bound(at.as_millis())),
            json(&mut metrics, &row.metrics)?,
            json(&mut text, row)?,
        ])?;
    }
    Ok(())
}

fn write_documents(tx: &Transaction<'_>, merged: &MergedRecords<'_>) -> Result<(), Error> {
    for ((collection, id), document) in &merged.documents {
        match document {
            Some(Document { tenant, index_key, expires_at, body, .. }) => tx
                .prepare_cached("INSERT OR REPLACE INTO documents VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
                .execute(params![
                    collection.as_str(),
                    id,
                    tenant.as_ref().map(Tenant::as_str),
                    index_key,
                    expires_at.map(|at| bound(at.as_millis())),
                    body.get(),
                ])?,
            None => tx
                .prepare_cached("DELETE FROM documents WHERE collection = ?1 AND id = ?2")?
                .execute(params![collection.as_str(), id])?,
        };
    }
    Ok(())
}

/// Blocks and quarantine.
fn write_blocks_and_quarantine(tx: &Transaction<'_>, merged: &MergedRecords<'_>) -> Result<(), Error> {
    let mut text = Vec::new();
    for ((worker, scope), block) in &merged.blocks {
        match block {
            Some(row) => tx
                .prepare_cached("INSERT OR REPLACE INTO blocks VALUES (?1, ?2, ?3)")?
                .execute(params![worker.as_str(), scope.key(), json(&mut text, row)?])?,
            None => tx
                .prepare_cached("DELETE FROM blocks WHERE worker = ?1 AND shape = ?2")?
                .execute(params![worker.as_str(), scope.key()])?,
        };
    }
    for (jobs, quarantine_row) in &merged.quarantine {
        match quarantine_row {
            Some(row) => tx
                .prepare_cached("INSERT OR REPLACE INTO quarantine VALUES (?1, ?2)")?
                .execute(params![jobs.key(), json(&mut text, row)?])?,
            None => {
                tx.prepare_cached("DELETE FROM quarantine WHERE shape = ?1")?.execute(params![jobs.key()])?
            }
        };
    }
    Ok(())
}
