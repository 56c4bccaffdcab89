//! Documents: read by shelf, id and mark, and forgotten when their time is over.

use std::sync::Arc;

use remuda_core::document::{Document, Shelf};
use remuda_core::id::Tenant;
use remuda_core::time::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension, Row, Transaction, params};
use tokio::sync::oneshot;

use super::read::{bound, raw};
use super::write::Request;
use super::{Sqlite, retention};
use crate::StoreError;

const COLUMNS: &str = "SELECT shelf, id, tenant, mark, expires_at, body FROM documents";

impl Sqlite {
    pub(crate) async fn document(&self, shelf: Shelf, id: &str) -> Result<Option<Arc<Document>>, StoreError> {
        let id = id.to_owned();
        self.read(move |conn| {
            let mut select = conn.prepare_cached(&format!("{COLUMNS} WHERE shelf = ?1 AND id = ?2"))?;
            select.query_row(params![shelf.as_str(), id], document).optional()
        })
        .await
    }

    pub(crate) async fn documents(
        &self,
        shelf: Shelf,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Arc<Document>>, StoreError> {
        let after = after.to_owned();
        self.read(move |conn| page(conn, shelf, &after, limit)).await
    }

    pub(crate) async fn marked(&self, shelf: Shelf, mark: &str) -> Result<Vec<Arc<Document>>, StoreError> {
        let mark = mark.to_owned();
        self.read(move |conn| {
            let sql = format!("{COLUMNS} WHERE shelf = ?1 AND mark = ?2 ORDER BY id");
            conn.prepare_cached(&sql)?.query_map(params![shelf.as_str(), mark], document)?.collect()
        })
        .await
    }

    /// In steps, each a request of its own, so that commits go in between.
    pub(crate) async fn expire(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut forgotten = 0;
        while forgotten < limit {
            let limit = (limit - forgotten).min(retention::STEP_ROWS_MAX);
            let (reply, answer) = oneshot::channel();
            self.ask(Request::Expire { now, limit, reply }).await?;
            let step = answer.await.map_err(|_| StoreError::Closed)??;
            forgotten += step;
            if step < limit {
                break;
            }
        }
        Ok(forgotten)
    }
}

fn page(conn: &Connection, shelf: Shelf, after: &str, limit: usize) -> Result<Vec<Arc<Document>>, Error> {
    let sql = format!("{COLUMNS} WHERE shelf = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
    let mut select = conn.prepare_cached(&sql)?;
    select.query_map(params![shelf.as_str(), after, bound(limit)], document)?.collect()
}

/// What the plane gets back when it is restored.
pub(super) fn held(conn: &Connection) -> Result<Vec<Arc<Document>>, Error> {
    let mut held = Vec::new();
    for shelf in Shelf::ALL.into_iter().filter(|shelf| shelf.is_held()) {
        held.extend(page(conn, shelf, "", usize::MAX)?);
    }
    Ok(held)
}

pub(super) fn forget(tx: &Transaction<'_>, now: Timestamp, limit: usize) -> Result<usize, Error> {
    tx.prepare_cached(
        "DELETE FROM documents WHERE (shelf, id) IN
         (SELECT shelf, id FROM documents WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    )?
    .execute(params![now.as_millis(), bound(limit)])
}

fn document(row: &Row<'_>) -> Result<Arc<Document>, Error> {
    let wrong =
        |column: usize, what: String| Error::FromSqlConversionFailure(column, Type::Text, what.into());
    let shelf = row.get_ref(0)?.as_str()?.parse().map_err(|what| wrong(0, what))?;
    let tenant: Option<String> = row.get(2)?;
    let tenant: Option<Tenant> = tenant
        .map(|tenant| tenant.parse())
        .transpose()
        .map_err(|bad: remuda_core::id::BadId| wrong(2, bad.to_string()))?;
    let expires_at = row.get::<_, Option<u64>>(4)?.map(Timestamp::from_millis);
    Ok(Arc::new(Document {
        shelf,
        id: row.get(1)?,
        tenant,
        mark: row.get(3)?,
        expires_at,
        body: raw(row, 5)?,
    }))
}
