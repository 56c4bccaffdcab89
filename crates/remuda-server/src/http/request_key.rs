//! The header `Idempotency-Key`: a client that did not hear the answer sends the same request with the same key again, and
//! gets the same job. Each surface stores it under a prefix of its own, so that keys of two surfaces never meet.

use axum::http::HeaderMap;

use super::ApiError;

/// A UUID has 36; the stored name adds a prefix.
const KEY_BYTES_MAX: usize = 200;

/// The key of a request, if it has one.
pub(super) fn read(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    match key.to_str() {
        Ok(key) if !key.is_empty() && key.len() <= KEY_BYTES_MAX => Ok(Some(key.to_owned())),
        Ok(_) | Err(_) => {
            Err(ApiError::invalid(format!("an Idempotency-Key is plain text of 1 to {KEY_BYTES_MAX} bytes")))
        }
    }
}
