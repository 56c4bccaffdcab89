//! Sets stored times back after the plane ran with a clock that was ahead: `remuda_core::clock` decides how, this reads
//! every record that has such a time and writes it again. It runs at a start, in one transaction, before the plane reads.

use remuda_core::clock::SetBack;
use remuda_core::document::Collection;
use remuda_core::id::Sequence;
use remuda_core::record::{AcceptedJob, BlockRow, JobStatus, QuarantineRow, Record, StoredEvent, WorkerRow};
use remuda_core::time::Timestamp;
use rusqlite::{Error, Transaction, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::documents;
use super::merge::MergedRecords;
use super::read::{all, bound, from_json, header, parsed};
use super::write::rows;

/// Rows held in memory at a time.
const PAGE: usize = 500;

pub(super) fn apply(tx: &Transaction<'_>, by: SetBack) -> Result<(), Error> {
    jobs(tx, by)?;
    small_tables(tx, by)?;
    Collection::ALL.into_iter().try_for_each(|collection| documents_of(tx, by, collection))?;
    events(tx, by)?;
    cycles(tx, by)?;
    tx.execute("UPDATE meta SET value = ?1 WHERE key = 'latest'", [bound(by.to.as_millis())])?;
    Ok(())
}

/// Open and ended ones: the ends count for retention.
fn jobs(tx: &Transaction<'_>, by: SetBack) -> Result<(), Error> {
    let mut select =
        tx.prepare_cached("SELECT accepted, status FROM jobs WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut update =
        tx.prepare_cached("UPDATE jobs SET accepted = ?2, status = ?3, ended_at = ?4 WHERE id = ?1")?;
    let (mut after, mut texts) = (Vec::new(), (Vec::new(), Vec::new()));
    loop {
        let page: Vec<(AcceptedJob, JobStatus)> =
            select.query_map(params![after, bound(PAGE)], header)?.collect::<Result<_, _>>()?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = rows::key(last.id).to_vec();
        for (mut accepted, mut status) in page {
            if by.apply_to_job(&mut accepted, &mut status).map_err(unwritable)? {
                let (id, ended_at) = (rows::key(accepted.id), rows::ended_at(&status));
                let accepted = rows::json(&mut texts.0, &accepted)?;
                update.execute(params![id, accepted, rows::json(&mut texts.1, &status)?, ended_at])?;
            }
        }
    }
}

/// Workers, blocks and quarantine: thousands at most.
fn small_tables(tx: &Transaction<'_>, by: SetBack) -> Result<(), Error> {
    let mut records = Vec::new();
    let workers: Vec<WorkerRow> = all(tx, "SELECT row FROM workers", |row| parsed(row, 0))?;
    for row in changed(workers, by)? {
        records.push(Record::Worker(Box::new(row)));
    }
    let blocks: Vec<BlockRow> = all(tx, "SELECT row FROM blocks", |row| parsed(row, 0))?;
    records.extend(changed(blocks, by)?.into_iter().map(Record::Block));
    let quarantine: Vec<QuarantineRow> = all(tx, "SELECT row FROM quarantine", |row| parsed(row, 0))?;
    records.extend(changed(quarantine, by)?.into_iter().map(Record::Quarantine));
    write(tx, &records)
}

fn changed<T>(mut rows: Vec<T>, by: SetBack) -> Result<Vec<T>, Error>
where
    T: Serialize + DeserializeOwned,
{
    rows.iter_mut().try_for_each(|row| by.apply(row)).map_err(unwritable)?;
    Ok(rows)
}

fn documents_of(tx: &Transaction<'_>, by: SetBack, collection: Collection) -> Result<(), Error> {
    let mut after = String::new();
    loop {
        let page = documents::page(tx, collection, &after, PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after.clone_from(&last.id);
        let mut records = Vec::new();
        for document in page {
            let changed = by.apply_to_document(&document).map_err(unwritable)?;
            if changed != *document {
                records.push(Record::Document(changed.into()));
            }
        }
        write(tx, &records)?;
    }
}

/// Their order is that of their numbers; the times count for retention and for people.
fn events(tx: &Transaction<'_>, by: SetBack) -> Result<(), Error> {
    let to = bound(by.to.as_millis());
    let rows: Vec<i64> = tx
        .prepare("SELECT last FROM events WHERE at > ?1")?
        .query_map([to], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut text = Vec::new();
    for last in rows {
        let body: String = tx
            .prepare_cached("SELECT body FROM events WHERE last = ?1")?
            .query_row([last], |row| row.get(0))?;
        let mut lines = String::with_capacity(body.len());
        for line in body.lines() {
            let mut event: StoredEvent = from_json(line, 0)?;
            event.at = by.time(event.at);
            lines.push_str(rows::json(&mut text, &event)?);
            lines.push('\n');
        }
        tx.prepare_cached("UPDATE events SET at = ?2, body = ?3 WHERE last = ?1")?
            .execute(params![last, to, lines])?;
    }
    Ok(())
}

/// They are kept by their time, so each keeps a time of its own.
fn cycles(tx: &Transaction<'_>, by: SetBack) -> Result<(), Error> {
    let ahead: Vec<u64> = tx
        .prepare("SELECT at FROM cycles WHERE at > ?1 ORDER BY at")?
        .query_map([bound(by.to.as_millis())], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for at in ahead {
        let earlier = by.span(Timestamp::from_millis(at)).as_millis();
        tx.prepare_cached("UPDATE OR REPLACE cycles SET at = ?2 WHERE at = ?1")?
            .execute([bound(at), bound(earlier)])?;
    }
    Ok(())
}

fn write(tx: &Transaction<'_>, records: &[Record]) -> Result<(), Error> {
    let mut merged = MergedRecords::default();
    merged.add(records);
    rows::write(tx, &merged, Sequence(0)).map(drop)
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::ToSqlConversionFailure(error.into())
}
