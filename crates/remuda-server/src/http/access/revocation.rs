//! Long-lived answers end with their token: event streams, WebSockets, held beats.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;

use super::super::ApiError;
use super::{AccessControl, Caller, RequestInfo, credential};
use remuda_net::clock::Clock;

/// The answer, unless the token ends first. An event stream or a WebSocket ends with its token too, and counts against
/// the limit of open streams.
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
    let permit = match access.guard.stream(caller.counted(), caller.from) {
        Ok(permit) => permit,
        Err(problem) => return problem.into_response(),
    };
    let caller = caller.clone();
    response.map(|body| {
        let revoked = async move { caller.revoked(clock).await };
        let pieces = body.into_data_stream().take_until(Box::pin(revoked));
        Body::from_stream(pieces.map(move |piece| {
            let _permit = &permit;
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
    let permit = match access.guard.stream(caller.counted(), caller.from) {
        Ok(permit) => permit,
        Err(problem) => return problem.into_response(),
    };
    if request_info.offers_remuda {
        // A browser connects only if one of its offered protocols is selected, and the token must not be echoed.
        response.headers_mut().entry(header::SEC_WEBSOCKET_PROTOCOL).or_insert(credential::REMUDA);
    }
    if let Some(connection) = request_info.connection.clone() {
        let caller = caller.clone();
        tokio::spawn(async move {
            let _permit = permit;
            tokio::select! {
                () = caller.revoked(clock) => connection.end.cut(),
                () = connection.end.over() => {}
            }
        });
    }
    response
}
