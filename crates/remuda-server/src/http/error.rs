//! The one form of every error: a code for programs, a message for people, and the table of all codes.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use remuda_core::id::BadId;
use remuda_core::refusal::Refusal;
use remuda_core::workflow::{InvalidKind, InvalidWorkflow};
use remuda_store::StoreError;
use remuda_store::blobs::{BlobError, InvalidBlobHash};
use serde_json::json;

use crate::intake::IntakeError;
use crate::plane_handle::PlaneError;

/// A code that answers may carry, and what its reader should do.
pub(super) struct ErrorCode {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) remedy: &'static str,
}

const fn error_code(status: StatusCode, code: &'static str, remedy: &'static str) -> ErrorCode {
    ErrorCode { status, code, remedy }
}

/// Every code of every surface; `docs/http.md` and the OpenAPI document are written from this table. Comfy API v2 and the
/// ComfyUI API translate some of them into their own words.
pub(super) const ERROR_CODES: &[ErrorCode] = {
    use StatusCode as S;
    &[
        error_code(S::BAD_REQUEST, "bad_request", "Fix the request: it could not be read."),
        error_code(S::BAD_REQUEST, "malformed", "Fix the workflow: it is not valid JSON."),
        error_code(S::BAD_REQUEST, "invalid_value", "OpenAI: fix the field that the message names."),
        error_code(
            S::BAD_REQUEST,
            "unsupported_parameter",
            "OpenAI: remove the parameter that the message names.",
        ),
        error_code(S::BAD_REQUEST, "wrong_model", "OpenAI: choose a model that does this kind of work."),
        error_code(S::UNAUTHORIZED, "no_token", "Send a token."),
        error_code(
            S::UNAUTHORIZED,
            "wrong_token",
            "Send a token that is neither unknown, expired nor revoked.",
        ),
        error_code(S::FORBIDDEN, "wrong_token", "Send the credential that this worker got when it joined."),
        error_code(
            S::FORBIDDEN,
            "forbidden",
            "Use a token of a role that may do this; the message names it.",
        ),
        error_code(S::FORBIDDEN, "origin_not_allowed", "Add the page's origin to `http.allowed_origins`."),
        error_code(
            S::FORBIDDEN,
            "host_not_allowed",
            "Use the plane's address, or add the name to `http.allowed_hosts`.",
        ),
        error_code(
            S::FORBIDDEN,
            "identity_unproven",
            "A rented machine joins with its own join token; a worker stops here.",
        ),
        error_code(
            S::FORBIDDEN,
            "tenant_rule",
            "The operator does not let this tenant use a node class or pool of workers; the message names it.",
        ),
        error_code(S::NOT_FOUND, "not_found", "Check the id and the path."),
        error_code(S::NOT_FOUND, "unknown_worker", "Join again."),
        error_code(S::NOT_FOUND, "blob_not_found", "Comfy API v2: upload the content first."),
        error_code(S::NOT_FOUND, "model_not_found", "OpenAI: `GET /v1/models` lists the models."),
        error_code(S::METHOD_NOT_ALLOWED, "wrong_method", "See the routes below."),
        error_code(S::REQUEST_TIMEOUT, "too_slow", "Send the body again, without long pauses."),
        error_code(S::CONFLICT, "ended", "The job has ended; read its state."),
        error_code(S::CONFLICT, "refused", "The state has changed meanwhile; read it, then decide."),
        error_code(
            S::CONFLICT,
            "repeated_join",
            "An earlier join, sent twice or come late; join again with a new `nonce` and a higher `join_number`.",
        ),
        error_code(
            S::CONFLICT,
            "stale_beat",
            "A newer beat of this worker has arrived; continue with the next `seq`.",
        ),
        error_code(S::CONFLICT, "key_conflict", "The idempotency key belongs to another job; use a new one."),
        error_code(S::CONFLICT, "no_admin", "Create an admin token first."),
        error_code(S::CONFLICT, "last_admin", "Create another admin token first."),
        error_code(S::CONFLICT, "ambiguous", "Several tokens have this name; use the id."),
        error_code(S::CONFLICT, "asset_in_use", "Comfy API v2: a job still uses the asset; delete it later."),
        error_code(S::GONE, "replaced", "A newer worker has this name: stop."),
        error_code(
            S::GONE,
            "lost_in_restore",
            "The store was restored as of before this was made: make it again.",
        ),
        error_code(S::GONE, "machine_retired", "The machine is being returned: stop."),
        error_code(
            S::PAYLOAD_TOO_LARGE,
            "too_large",
            "Send less, or raise the limit that the message names.",
        ),
        error_code(
            S::UNSUPPORTED_MEDIA_TYPE,
            "wrong_media_type",
            "Send JSON, with `Content-Type: application/json`.",
        ),
        error_code(
            S::RANGE_NOT_SATISFIABLE,
            "range_not_satisfiable",
            "Request a range within the blob: `Content-Range` has its size.",
        ),
        error_code(S::UNPROCESSABLE_ENTITY, "invalid", "Fix the content: the message says what is wrong."),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "out_of_bounds",
            "A worker sent more than its join agreed on; join again with the right `slots_max`.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "invalid_workflow",
            "Fix the workflow: the message says what is wrong.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "no_capability",
            "No worker has the model or node class that the message names, and no fleet could bring it; correct the name, or \
             submit with `wait_for_capability`.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "hash_mismatch",
            "The content is not what the hash says; `detail.hash` is its hash.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "workflow_format_ui",
            "Comfy API v2: export the workflow in API format.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "missing_asset",
            "Comfy API v2: upload the asset that the message names.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "metadata_invalid",
            "Comfy API v2: metadata is up to 16 short texts.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "invalid_metadata_filter",
            "Comfy API v2: write `metadata[key]=value`.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "invalid_cursor",
            "Comfy API v2: use a cursor from an earlier answer.",
        ),
        error_code(
            S::UNPROCESSABLE_ENTITY,
            "idempotency_key_reuse",
            "Comfy API v2: the key belongs to another request; use a new one.",
        ),
        error_code(S::TOO_MANY_REQUESTS, "queue_full", "Retry after `Retry-After` seconds."),
        error_code(
            S::TOO_MANY_REQUESTS,
            "quota_exceeded",
            "The tenant or the token has as many jobs, different needs or stored bytes, or submits as fast, as it may; `detail` \
             has the quota, its limit and the use. Retry after `Retry-After` seconds, or have the quota raised.",
        ),
        error_code(S::TOO_MANY_REQUESTS, "too_many_requests", "Retry after `Retry-After` seconds."),
        error_code(
            S::TOO_MANY_REQUESTS,
            "too_many_connections",
            "Close some connections; retry after `Retry-After` seconds.",
        ),
        error_code(
            S::TOO_MANY_REQUESTS,
            "too_many_streams",
            "Close some streams; retry after `Retry-After` seconds.",
        ),
        error_code(
            S::TOO_MANY_REQUESTS,
            "too_many_reports",
            "A worker sent more live reports or previews than it may; this one was dropped. Send fewer.",
        ),
        error_code(S::TOO_MANY_REQUESTS, "too_many_uploads", "Retry after `Retry-After` seconds."),
        error_code(
            S::TOO_MANY_REQUESTS,
            "locked_out",
            "Too many bad tokens from this address; retry after `Retry-After` seconds.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "connections_full",
            "Every connection for clients (or workers) is in use; retry after `Retry-After` seconds.",
        ),
        error_code(S::INTERNAL_SERVER_ERROR, "internal", "A bug in Remuda: please report it."),
        error_code(
            S::INTERNAL_SERVER_ERROR,
            "model_failed",
            "OpenAI: the model failed on this request; `remuda models status` says more.",
        ),
        error_code(
            S::NOT_IMPLEMENTED,
            "not_implemented",
            "No server of the fleet can do this; the message names what is missing.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "overloaded",
            "Nothing was stored; retry after `Retry-After` seconds.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "stopping",
            "Nothing was stored; retry after `Retry-After` seconds.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "store_unavailable",
            "Nothing was stored; retry after `Retry-After` seconds.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "outcome_unknown",
            "The disk failed: what you sent may be stored or not. After `Retry-After` seconds send it again with the same \
             idempotency key; without a key, look first whether it is there.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "model_unavailable",
            "OpenAI: no copy of the model can answer; retry later.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "stream_diverged",
            "OpenAI: a retried stream gave another text; ask again.",
        ),
        error_code(
            S::SERVICE_UNAVAILABLE,
            "out_of_memory",
            "OpenAI: the model ran out of memory; retry, or send less.",
        ),
        error_code(S::SERVICE_UNAVAILABLE, "gone", "OpenAI: the job behind the request is gone; ask again."),
        error_code(
            S::GATEWAY_TIMEOUT,
            "deadline",
            "OpenAI: no answer within the deadline; retry, or allow more time.",
        ),
        error_code(S::INSUFFICIENT_STORAGE, "store_full", "Nothing was stored; free disk space, then retry."),
    ]
};

/// An error as its caller sees it.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    /// For programs; one of `ERROR_CODES`.
    pub code: &'static str,
    /// For people.
    pub message: String,
    pub retry_after: Option<u64>,
    /// Further facts, such as the term that a worker should continue with.
    pub detail: serde_json::Value,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        debug_assert!(ERROR_CODES.iter().any(|it| it.code == code), "{code} is not in ERROR_CODES");
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

    pub(super) fn with_retry_after(mut self, seconds: u64) -> Self {
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
        // Surfaces with their own error format read it from here.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<PlaneError> for ApiError {
    fn from(unanswered: PlaneError) -> Self {
        match unanswered {
            PlaneError::Refused(refusal) => refusal.into(),
            PlaneError::NotStored(error) => error.into(),
            PlaneError::OutcomeUnknown(_) => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown", unanswered.to_string())
                    .with_retry_after(2)
            }
            PlaneError::Overloaded => ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                PlaneError::Overloaded.to_string(),
            )
            .with_retry_after(1),
            PlaneError::Stopping => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", PlaneError::Stopping.to_string())
                    .with_retry_after(2)
            }
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let (status, code) = match &refusal {
            Refusal::UnknownJob(_) | Refusal::NothingToRemove { .. } => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::TooManyAffinities { .. } | Refusal::NoService(_) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid")
            }
            Refusal::UnknownWorker(_) => (StatusCode::NOT_FOUND, "unknown_worker"),
            Refusal::UnknownMachine(_) | Refusal::UnknownFleet(_) => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::IdentityUnproven(_) => (StatusCode::FORBIDDEN, "identity_unproven"),
            Refusal::MachineRetired(_) => (StatusCode::GONE, "machine_retired"),
            Refusal::StaleIncarnation { .. } => (StatusCode::GONE, "replaced"),
            Refusal::WrongToken => (StatusCode::FORBIDDEN, "wrong_token"),
            Refusal::Ended { .. } => (StatusCode::CONFLICT, "ended"),
            Refusal::KeyConflict { .. } => (StatusCode::CONFLICT, "key_conflict"),
            Refusal::QueueFull { .. } => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            Refusal::QuotaExceeded { .. } => (StatusCode::TOO_MANY_REQUESTS, "quota_exceeded"),
            Refusal::RepeatedJoin(_) => (StatusCode::CONFLICT, "repeated_join"),
            Refusal::NoCapability { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "no_capability"),
            Refusal::ForbiddenClass { .. } | Refusal::ForeignPool { .. } => {
                (StatusCode::FORBIDDEN, "tenant_rule")
            }
            Refusal::OutOfBounds { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "out_of_bounds"),
            Refusal::StaleBeat { .. } => (StatusCode::CONFLICT, "stale_beat"),
            Refusal::TooEarly
            | Refusal::StaleAttempt
            | Refusal::NotRunning
            | Refusal::AlreadyRecorded
            | Refusal::Leaving(_)
            | Refusal::MachineLeaving(_) => (StatusCode::CONFLICT, "refused"),
        };
        let problem = ApiError::new(status, code, message);
        match refusal {
            Refusal::QueueFull { retry_after, .. } => problem.with_retry_after(retry_after.as_secs()),
            Refusal::QuotaExceeded { tenant, quota, limit, current, retry_after } => {
                let detail =
                    json!({ "quota": quota.as_str(), "tenant": tenant, "limit": limit, "current": current });
                let problem = ApiError { detail, ..problem };
                // Whole seconds, and never zero: that would mean at once.
                let seconds = retry_after.map(|wait| wait.as_millis().div_ceil(1000).max(1));
                match seconds {
                    Some(seconds) => problem.with_retry_after(seconds.try_into().unwrap_or(u64::MAX)),
                    None => problem,
                }
            }
            Refusal::NoCapability { models, classes } => {
                ApiError { detail: json!({ "models": models, "node_classes": classes }), ..problem }
            }
            _ => problem,
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = format!("nothing was stored: {error}");
        match error {
            StoreError::Full { .. } => {
                ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", message).with_retry_after(10)
            }
            _ => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message)
                .with_retry_after(2),
        }
    }
}

impl From<BlobError> for ApiError {
    fn from(error: BlobError) -> Self {
        let message = error.to_string();
        match error {
            BlobError::TooLarge { .. } => ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message),
            BlobError::OverQuota { .. } => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", message)
            }
            BlobError::Mismatch { actual, .. } => {
                let mut problem = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "hash_mismatch", message);
                problem.detail = json!({ "hash": actual });
                problem
            }
            BlobError::Full { .. } => {
                ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "store_full", message).with_retry_after(10)
            }
            BlobError::InUse { .. } | BlobError::Unreachable { .. } => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message)
                    .with_retry_after(2)
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

impl From<InvalidBlobHash> for ApiError {
    fn from(bad: InvalidBlobHash) -> Self {
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
                let problem = ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_workflow", message);
                match invalid {
                    InvalidWorkflow::Refused(refusal) => {
                        let detail = json!({ "error": refusal.error, "node_errors": refusal.node_errors });
                        ApiError { detail, ..problem }
                    }
                    _ => problem,
                }
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
        let code = match rejection.status() {
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "wrong_media_type",
            StatusCode::UNPROCESSABLE_ENTITY => "invalid",
            _ => "bad_request",
        };
        ApiError::new(rejection.status(), code, rejection.body_text())
    }
}

/// The plane answered another question: a bug.
pub(super) fn unexpected_answer() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the plane answered another question")
}

pub(super) async fn no_such_route(uri: Uri) -> ApiError {
    ApiError::not_found(format!("there is nothing at {}; docs/http.md lists every route", uri.path()))
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}; docs/http.md lists every route", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message)
}
