//! What is open for long ends when its token does: a stream of events, a socket, a worker's line.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;

use super::super::ApiError;
use super::{AccessControl, Caller, RequestInfo, credential};
use remuda_net::clock::Clock;

/// The answer, unless the token ends before it comes; a stream of events or a socket lasts no longer than the token
/// either, and counts against what one may have open.
pub(super) async fn until_revoked(
    access: &AccessControl,
    request_info: &RequestInfo,
    caller: &Caller,
    clock: Clock,
    answer: impl Future<Output = Response>,
) -> Response {
    let response = tokio::select! {
        response = answer => response,
        () = caller.revoked(clock) => {
            let message = "the token was revoked or has expired";
            return ApiError::new(StatusCode::UNAUTHORIZED, "wrong_token", message).into_response();
        }
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return socket(access, request_info, caller, clock, response);
    }
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
        return response;
    }
    let place = match access.guard.stream(caller.counted(), caller.from) {
        Ok(place) => place,
        Err(problem) => return problem.into_response(),
    };
    let caller = caller.clone();
    response.map(|body| {
        let revoked = async move { caller.revoked(clock).await };
        let pieces = body.into_data_stream().take_until(Box::pin(revoked));
        Body::from_stream(pieces.map(move |piece| {
            let _held = &place;
            piece
        }))
    })
}

fn socket(
    access: &AccessControl,
    request_info: &RequestInfo,
    caller: &Caller,
    clock: Clock,
    mut response: Response,
) -> Response {
    let place = match access.guard.stream(caller.counted(), caller.from) {
        Ok(place) => place,
        Err(problem) => return problem.into_response(),
    };
    if request_info.speaks_remuda {
        // A browser goes on only if one of the protocols it offered is chosen, and the token is none to be repeated.
        response.headers_mut().entry(header::SEC_WEBSOCKET_PROTOCOL).or_insert(credential::REMUDA);
    }
    if let Some(line) = request_info.line.clone() {
        let caller = caller.clone();
        tokio::spawn(async move {
            let _held = place;
            tokio::select! {
                () = caller.revoked(clock) => line.cut(),
                () = line.over() => {}
            }
        });
    }
    response
}
