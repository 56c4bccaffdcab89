//! Axum's `Path`, with rejections as `ApiError`.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::ApiError;

#[derive(Debug)]
pub(super) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(it)| Path(it))
            .map_err(|rejection| ApiError::bad_request(rejection.body_text()))
    }
}
