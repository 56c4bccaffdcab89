//! The one form every error takes: what, why, and what to do about it.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use remuda_core::id::BadId;
use remuda_core::refusal::Refusal;
use remuda_core::workflow::{InvalidKind, InvalidWorkflow};
use remuda_store::StoreError;
use remuda_store::blobs::{BadHash, BlobError};
use serde_json::json;

use crate::intake::IntakeError;
use crate::plane_handle::PlaneError;

/// What goes wrong for a caller.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    /// A word for programs.
    pub code: &'static str,
    /// A sentence for people.
    pub message: String,
    pub retry_after: Option<u64>,
    /// Facts that belong to it, such as the term a worker should go on with.
    pub detail: serde_json::Value,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, code, message: message.into(), retry_after: None, detail: serde_json::Value::Null }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn too_large(bytes_max: usize) -> Self {
        let message = format!("the body is larger than {bytes_max} bytes (limits.body_bytes_max)");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    pub(super) fn later(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = json!({ "code": self.code, "message": self.message });
        if !self.detail.is_null() {
            error["detail"] = self.detail.clone();
        }
        let mut response = (self.status, Json(json!({ "error": error }))).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // For surfaces whose clients expect another form of the same.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<PlaneError> for ApiError {
    fn from(unanswered: PlaneError) -> Self {
        match unanswered {
            PlaneError::Refused(refusal) => refusal.into(),
            PlaneError::NotStored(error) => error.into(),
            PlaneError::Overloaded => ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                PlaneError::Overloaded.to_string(),
            )
            .later(1),
            PlaneError::Stopping => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", PlaneError::Stopping.to_string())
                    .later(2)
            }
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let (status, code) = match &refusal {
            Refusal::UnknownJob(_) | Refusal::NothingToLift => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::TooManyAffinities { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            Refusal::UnknownWorker(_) => (StatusCode::NOT_FOUND, "unknown_worker"),
            Refusal::UnknownMachine(_) | Refusal::UnknownFleet(_) => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::IdentityUnproven(_) => (StatusCode::FORBIDDEN, "identity_unproven"),
            Refusal::MachineRetired(_) => (StatusCode::GONE, "machine_retired"),
            Refusal::StaleIncarnation { .. } => (StatusCode::GONE, "replaced"),
            Refusal::WrongToken => (StatusCode::FORBIDDEN, "wrong_token"),
            Refusal::Ended { .. } => (StatusCode::CONFLICT, "ended"),
            Refusal::KeyConflict { .. } => (StatusCode::CONFLICT, "key_conflict"),
            Refusal::QueueFull { .. } => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            Refusal::StaleBeat { .. } => (StatusCode::CONFLICT, "stale_beat"),
            Refusal::StaleTerm { .. }
            | Refusal::TooEarly
            | Refusal::StaleAttempt
            | Refusal::NotRunning
            | Refusal::AlreadyRecorded
            | Refusal::Leaving(_)
            | Refusal::MachineLeaving(_) => (StatusCode::CONFLICT, "refused"),
        };
        let problem = ApiError::new(status, code, message);
        match refusal {
            Refusal::QueueFull { retry_after, .. } => problem.later(retry_after.as_secs()),
            _ => problem,
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = format!("nothing was stored: {error}");
        match error {
            StoreError::Full { .. } => {
                ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", message).later(10)
            }
            _ => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message).later(2),
        }
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        let message = error.to_string();
        match error {
            BlobError::TooLarge { .. } => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message),
            BlobError::Mismatch { actual, .. } => {
                let mut problem = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "hash_mismatch", message);
                problem.detail = json!({ "hash": actual });
                problem
            }
            BlobError::Full { .. } => {
                ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", message).later(10)
            }
            BlobError::InUse { .. } | BlobError::Unreachable { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message).later(2)
            }
        }
    }
}

impl From<IntakeError> for ApiError {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Workflow(invalid) => invalid.into(),
            IntakeError::Invalid(message) => ApiError::invalid(message),
            IntakeError::Store(error) => error.into(),
            IntakeError::Blobs(error) => error.into(),
            IntakeError::Plane(unanswered) => unanswered.into(),
        }
    }
}

impl From<BadHash> for ApiError {
    fn from(bad: BadHash) -> Self {
        ApiError::bad_request(bad.to_string())
    }
}

impl From<InvalidWorkflow> for ApiError {
    fn from(invalid: InvalidWorkflow) -> Self {
        let message = format!("the workflow cannot be taken: {invalid}");
        match invalid.kind() {
            InvalidKind::Malformed => ApiError::new(StatusCode::BAD_REQUEST, "malformed", message),
            InvalidKind::TooLarge => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message),
            InvalidKind::Invalid => {
                ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_workflow", message)
            }
        }
    }
}

impl From<BadId> for ApiError {
    fn from(bad: BadId) -> Self {
        ApiError::bad_request(bad.to_string())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        ApiError::bad_request(rejection.body_text())
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        ApiError::new(rejection.status(), "bad_request", rejection.body_text())
    }
}

/// The plane answered something that was not asked.
pub(super) fn unexpected_answer() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the plane gave an answer to something else")
}

pub(super) async fn no_such_route(uri: Uri) -> ApiError {
    ApiError::not_found(format!("there is nothing at {}; docs/http.md lists every route", uri.path()))
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}; docs/http.md lists every route", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message)
}
