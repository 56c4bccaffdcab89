//! Documents: read by collection, id and index key, and deleted when they expire.

use std::sync::Arc;

use remuda_core::document::{Collection, Document};
use remuda_core::id::Tenant;
use remuda_core::time::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension, Row, Transaction, params};
use tokio::sync::oneshot;

use super::read::{bound, raw};
use super::write::Request;
use super::{SqliteStore, retention};
use crate::StoreError;

const COLUMNS: &str = "SELECT collection, id, tenant, index_key, expires_at, body FROM documents";

impl SqliteStore {
    pub(crate) async fn document(
        &self,
        collection: Collection,
        id: &str,
    ) -> Result<Option<Arc<Document>>, StoreError> {
        let id = id.to_owned();
        self.read(move |conn| {
            let mut select = conn.prepare_cached(&format!("{COLUMNS} WHERE collection = ?1 AND id = ?2"))?;
            select.query_row(params![collection.as_str(), id], document).optional()
        })
        .await
    }

    pub(crate) async fn documents(
        &self,
        collection: Collection,
        after: &str,
        limit: usize,
    ) -> Result<Vec<Arc<Document>>, StoreError> {
        let after = after.to_owned();
        self.read(move |conn| page(conn, collection, &after, limit)).await
    }

    pub(crate) async fn find_by_index_key(
        &self,
        collection: Collection,
        index_key: &str,
    ) -> Result<Vec<Arc<Document>>, StoreError> {
        let index_key = index_key.to_owned();
        self.read(move |conn| {
            let sql = format!("{COLUMNS} WHERE collection = ?1 AND index_key = ?2 ORDER BY id");
            conn.prepare_cached(&sql)?.query_map(params![collection.as_str(), index_key], document)?.collect()
        })
        .await
    }

    /// Deletes in steps, each a separate request, so that commits run in between.
    pub(crate) async fn delete_expired(&self, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
        let mut deleted = 0;
        while deleted < limit {
            let limit = (limit - deleted).min(retention::STEP_ROWS_MAX);
            let (reply, answer) = oneshot::channel();
            self.request(Request::DeleteExpired { now, limit, reply }).await?;
            let step = answer.await.map_err(|_| StoreError::Closed)??;
            deleted += step;
            if step < limit {
                break;
            }
        }
        Ok(deleted)
    }
}

pub(super) fn page(
    conn: &Connection,
    collection: Collection,
    after: &str,
    limit: usize,
) -> Result<Vec<Arc<Document>>, Error> {
    let sql = format!("{COLUMNS} WHERE collection = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
    let mut select = conn.prepare_cached(&sql)?;
    select.query_map(params![collection.as_str(), after, bound(limit)], document)?.collect()
}

/// The documents that are part of the restored state.
pub(super) fn load_restored(conn: &Connection) -> Result<Vec<Arc<Document>>, Error> {
    let mut held = Vec::new();
    for collection in Collection::ALL.into_iter().filter(|collection| collection.is_plane_state()) {
        held.extend(page(conn, collection, "", usize::MAX)?);
    }
    Ok(held)
}

pub(super) fn delete_expired(tx: &Transaction<'_>, now: Timestamp, limit: usize) -> Result<usize, Error> {
    tx.prepare_cached(
        "DELETE FROM documents WHERE (collection, id) IN
         (SELECT collection, id FROM documents WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    )?
    .execute(params![now.as_millis(), bound(limit)])
}

fn document(row: &Row<'_>) -> Result<Arc<Document>, Error> {
    let wrong =
        |column: usize, what: String| Error::FromSqlConversionFailure(column, Type::Text, what.into());
    let collection = row.get_ref(0)?.as_str()?.parse().map_err(|what| wrong(0, what))?;
    let tenant: Option<String> = row.get(2)?;
    let tenant: Option<Tenant> = tenant
        .map(|tenant| tenant.parse())
        .transpose()
        .map_err(|bad: remuda_core::id::BadId| wrong(2, bad.to_string()))?;
    let expires_at = row.get::<_, Option<u64>>(4)?.map(Timestamp::from_millis);
    Ok(Arc::new(Document {
        collection,
        id: row.get(1)?,
        tenant,
        index_key: row.get(3)?,
        expires_at,
        body: raw(row, 5)?,
    }))
}
