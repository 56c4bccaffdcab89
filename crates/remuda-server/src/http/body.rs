//! Reads a body whole before its handler runs, within limits of size and time: a body that announces too large a size is
//! refused before its first byte is read, and a stalled sender is disconnected.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::StatusCode;
use futures_util::StreamExt as _;

use super::ApiError;

/// Between two pieces of a body; a sender that takes longer is gone.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// For the whole body: 8 MiB over a very slow network. One byte now and then must not hold a connection for ever.
const WHOLE_MAX: Duration = Duration::from_secs(300);

/// The request with its body in memory.
pub(super) async fn read_whole(request: Request, bytes_max: usize) -> Result<Request, ApiError> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(WHOLE_MAX, read(body, bytes_max)).await.map_err(|_| too_slow())??;
    Ok(Request::from_parts(head, Body::from(body)))
}

async fn read(body: Body, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(ApiError::too_large(bytes_max));
    }
    let mut whole = Vec::with_capacity(announced);
    let mut pieces = body.into_data_stream();
    while let Some(piece) = tokio::time::timeout(PAUSE_MAX, pieces.next()).await.map_err(|_| too_slow())? {
        let piece = piece.map_err(|error| ApiError::bad_request(format!("the body broke off: {error}")))?;
        if whole.len() + piece.len() > bytes_max {
            return Err(ApiError::too_large(bytes_max));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

pub(super) fn too_slow() -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", "the body did not come in time: send it again")
}
