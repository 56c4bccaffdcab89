//! The table of bytes by tenant.

use std::collections::BTreeMap;

use remuda_core::id::Tenant;
use rusqlite::{Connection, Error, Transaction, params};

use crate::tenant_bytes::ByteChanges;

pub(super) fn load(conn: &Connection) -> Result<BTreeMap<Tenant, u64>, Error> {
    let mut select = conn.prepare_cached("SELECT tenant, bytes FROM tenant_bytes")?;
    let rows = select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?)))?;
    let mut all = BTreeMap::new();
    for row in rows {
        let (tenant, bytes) = row?;
        // A name that is none was not written by us, and no tenant could ask for it.
        all.extend(tenant.parse().ok().map(|tenant| (tenant, bytes)));
    }
    Ok(all)
}

/// Part of the transaction that stores or deletes the bytes.
pub(super) fn write(tx: &Transaction<'_>, changes: &ByteChanges) -> Result<(), Error> {
    let mut upsert = tx.prepare_cached(
        "INSERT INTO tenant_bytes VALUES (?1, max(?2, 0))
         ON CONFLICT (tenant) DO UPDATE SET bytes = max(bytes + ?2, 0)",
    )?;
    changes.iter().try_for_each(|(tenant, change)| upsert.execute(params![tenant.as_str(), change]).map(drop))
}
