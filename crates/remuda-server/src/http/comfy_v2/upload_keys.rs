//! Idempotency keys of uploads. A key is claimed in memory first, so that one of two concurrent requests fails, then stored, so
//! that it survives a restart. A failed request releases its key.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use remuda_core::document::{Collection, Document};
use remuda_core::id::Tenant;
use remuda_core::plane::PlaneEvent;
use serde_json::value::RawValue;

use super::super::{ApiError, Context};

/// As the contract specifies.
pub(super) const KEY_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Keys of requests in progress. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyClaims(Arc<Mutex<BTreeSet<String>>>);

impl KeyClaims {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn key_reused(key: &str) -> ApiError {
    let message = format!(
        "the Idempotency-Key {key:?} was used before: each key is valid for one request, even if it failed"
    );
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "idempotency_key_reuse", message)
}

/// A key reserved for this request. Dropping it before `store` releases it.
#[derive(Debug)]
pub(super) struct KeyClaim {
    claims: KeyClaims,
    id: String,
    tenant: Tenant,
}

impl KeyClaim {
    pub(super) async fn claim(context: &Context, tenant: &Tenant, key: &str) -> Result<KeyClaim, ApiError> {
        let (claims, id) = (context.comfy_v2.claims.clone(), format!("upload {tenant} {key}"));
        if !claims.lock().insert(id.clone()) {
            return Err(key_reused(key));
        }
        let claim = KeyClaim { claims, id, tenant: tenant.clone() };
        let known = context.store.document(Collection::Claim, &claim.id).await?;
        match known.is_some_and(|known| known.is_live(context.plane.clock.now())) {
            true => Err(key_reused(key)),
            false => Ok(claim),
        }
    }

    /// Stores the key: it cannot be used again.
    pub(super) async fn store(&self, context: &Context) -> Result<(), ApiError> {
        let document = Document {
            collection: Collection::Claim,
            id: self.id.clone(),
            tenant: Some(self.tenant.clone()),
            index_key: String::new(),
            expires_at: Some(context.plane.clock.now().plus(KEY_TTL)),
            body: Arc::from(RawValue::NULL.to_owned()),
        };
        context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await?;
        Ok(())
    }
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.id);
    }
}
