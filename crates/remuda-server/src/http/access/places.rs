//! Which place the connection of a request takes (`http/listen/places.rs`), by its caller and, where no token is needed, by
//! its route.

use axum::http::{HeaderValue, header};
use axum::response::Response;

use super::super::ApiError;
use super::super::listen::ConnectionClass;
use super::token_store::is_credential;
use super::{Access, Caller, RequestInfo, Role};
use remuda_net::secret::Secret;

/// Takes the place of a client, worker or admin for the connection of a request. Health checks need none.
pub(super) fn claim(
    request_info: &RequestInfo,
    caller: &Caller,
    secret: Option<&Secret>,
) -> Result<(), ApiError> {
    let access = request_info.route.access;
    let Some(connection) = request_info.connection.as_ref().filter(|_| access != Access::Public) else {
        return Ok(());
    };
    let credential = secret.filter(|secret| is_credential(secret.reveal())).map(Secret::hash);
    let class = match caller.role {
        Role::Worker => ConnectionClass::Worker(credential),
        Role::Client => ConnectionClass::Client,
        // Monitoring must see a flood of clients, not wait behind it.
        Role::Metrics => ConnectionClass::Admin,
        Role::Admin if !caller.is_anyone() => ConnectionClass::Admin,
        // Where no token is needed, the route says what the caller is.
        Role::Admin => match access {
            Access::Worker | Access::WorkerSelf => ConnectionClass::Worker(credential),
            Access::AnyToken | Access::WorkerSelfOrAdmin if credential.is_some() => {
                ConnectionClass::Worker(credential)
            }
            Access::Admin | Access::Metrics | Access::WorkerSelfOrAdmin => ConnectionClass::Admin,
            Access::Public | Access::Client | Access::AnyToken => ConnectionClass::Client,
        },
    };
    Ok(connection.claim(class)?)
}

/// The connection is closed after it.
pub(super) fn last_answer(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The credential of a request is not a worker's: its connection is one without a request again.
pub(super) fn disprove(request_info: &RequestInfo) {
    if let Some(connection) = &request_info.connection {
        connection.disprove();
    }
}
