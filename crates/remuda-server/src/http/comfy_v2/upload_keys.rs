//! Keys that are good for one upload. Claimed in memory first, so that of two requests at the same moment one is told no;
//! then on a shelf of the store, so that the next plane knows as well. A request that fails lets go of its key.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use remuda_core::document::{Document, Shelf};
use remuda_core::id::Tenant;
use remuda_core::plane::Event;
use serde_json::value::RawValue;

use super::super::{ApiError, Context};

/// As the contract says.
pub(super) const KEEP_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// A UUID has 36. Leaves room for what is put around it where it is kept.
const KEY_BYTES_MAX: usize = 200;

/// Keys of requests under way. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims(Arc<Mutex<BTreeSet<String>>>);

impl Claims {
    fn under_way(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key that came with a request, if it has one.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= KEY_BYTES_MAX => Ok(Some(key.to_owned())),
        Ok(_) | Err(_) => {
            Err(ApiError::invalid(format!("an Idempotency-Key is plain text of 1 to {KEY_BYTES_MAX} bytes")))
        }
    }
}

pub(super) fn reused(key: &str) -> ApiError {
    let message = format!(
        "the Idempotency-Key {key:?} was used before: each is good for one request, whatever became of it"
    );
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reuse", message)
}

/// A key that nobody else has. Dropped before it is kept, it is free again.
#[derive(Debug)]
pub(super) struct Claim {
    claims: Claims,
    id: String,
    tenant: Tenant,
}

impl Claim {
    pub(super) async fn take(context: &Context, tenant: &Tenant, key: &str) -> Result<Claim, ApiError> {
        let (claims, id) = (context.comfy_v2.claims.clone(), format!("upload {tenant} {key}"));
        if !claims.under_way().insert(id.clone()) {
            return Err(reused(key));
        }
        let claim = Claim { claims, id, tenant: tenant.clone() };
        let known = context.store.document(Shelf::Claim, &claim.id).await?;
        match known.is_some_and(|known| known.is_there(context.plane.clock.now())) {
            true => Err(reused(key)),
            false => Ok(claim),
        }
    }

    /// For good: it must not be used again.
    pub(super) async fn keep(&self, context: &Context) -> Result<(), ApiError> {
        let document = Document {
            shelf: Shelf::Claim,
            id: self.id.clone(),
            tenant: Some(self.tenant.clone()),
            mark: String::new(),
            expires_at: Some(context.plane.clock.now().plus(KEEP_FOR)),
            body: Arc::from(RawValue::NULL.to_owned()),
        };
        context.plane.request(Event::Keep(Arc::new(document))).await?;
        Ok(())
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.under_way().remove(&self.id);
    }
}
