//! Classifies errors of RunPod: by status, then by text, because missing capacity has no code of its own. Messages
//! contain only fields that are meant for display, never a whole body.

use std::time::Duration;

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use reqwest::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use remuda_net::text::one_line;

/// Longest message.
const CHARS_MAX: usize = 300;
/// How many of the single errors in a refusal are shown.
const ERRORS_MAX: usize = 5;

/// The operation. It decides what a missing answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Create,
    Delete,
}

impl Operation {
    /// The class if the request was sent and no readable answer came.
    fn unanswered(self) -> ProviderErrorClass {
        match self {
            Operation::Read => ProviderErrorClass::Transient,
            Operation::Create | Operation::Delete => ProviderErrorClass::Ambiguous,
        }
    }
}

/// `application/problem+json`
#[derive(Default, Deserialize)]
struct Problem {
    #[serde(default)]
    title: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    errors: Vec<String>,
}

/// Texts of refused creations that mean no capacity, in lower case.
const NO_CAPACITY: [&str; 6] = [
    "no longer any instances available",
    "no instances currently available",
    "no instances available",
    "with enough disk space",
    "does not have the resources",
    "not enough free gpus",
];
/// Texts that mean missing credit.
const NO_CREDIT: [&str; 5] =
    ["insufficient balance", "insufficient funds", "insufficient credit", "spend limit", "spending limit"];

/// A refusal.
pub(super) fn refused(operation: Operation, status: StatusCode, body: &[u8]) -> ProviderError {
    let problem: Option<Problem> = serde_json::from_slice(body).ok();
    let is_api_error = problem.is_some();
    let text = problem.map_or_else(|| "with something that is not of its API".to_owned(), said);
    let lower = text.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let class = match status.as_u16() {
        400 | 409 if operation == Operation::Create && has(&NO_CAPACITY) => ProviderErrorClass::Capacity,
        400 if has(&NO_CREDIT) => ProviderErrorClass::Billing,
        401 => ProviderErrorClass::Auth,
        402 => ProviderErrorClass::Billing,
        // A 403 from the proxy in front of the API says nothing about this offer.
        403 if operation == Operation::Create && is_api_error => ProviderErrorClass::Denied,
        403 => ProviderErrorClass::Auth,
        // Something that the request names, such as a volume or a registry, does not exist.
        404 if operation == Operation::Create => ProviderErrorClass::Invalid,
        404 => ProviderErrorClass::NotFound,
        409 => ProviderErrorClass::Conflict,
        429 => ProviderErrorClass::RateLimited,
        408 | 500.. => operation.unanswered(),
        _ => ProviderErrorClass::Invalid,
    };
    ProviderError::new(class, format!("RunPod answered {} {text}", status.as_u16()))
}

fn said(problem: Problem) -> String {
    let head = if problem.detail.is_empty() { problem.title } else { problem.detail };
    let errors = problem.errors.into_iter().take(ERRORS_MAX);
    let all: Vec<_> = std::iter::once(head).chain(errors).filter(|text| !text.trim().is_empty()).collect();
    one_line(&all.join("; "), CHARS_MAX)
}

/// No answer, or an incomplete one.
pub(super) fn unanswered(operation: Operation, error: &reqwest::Error, within: Duration) -> ProviderError {
    if error.is_connect() || error.is_builder() {
        return ProviderError::new(
            ProviderErrorClass::Transient,
            format!("no connection to RunPod: {}", innermost(error)),
        );
    }
    let why = if error.is_timeout() {
        format!("no answer from RunPod within {} s", within.as_secs())
    } else {
        format!("the connection to RunPod broke: {}", innermost(error))
    };
    ProviderError::new(operation.unanswered(), why)
}

/// An answer larger than the limit.
pub(super) fn too_large(operation: Operation, bytes_max: usize) -> ProviderError {
    ProviderError::new(operation.unanswered(), format!("RunPod answered with more than {bytes_max} bytes"))
}

/// Parses a body. An error says where it failed, without quoting: a pod contains its environment.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| {
        format!("it is not the expected JSON (line {}, column {})", error.line(), error.column())
    })
}

/// The innermost error; the outer layers only repeat it.
fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProviderErrorClass::{
        Ambiguous, Auth, Billing, Capacity, Conflict, Denied, Invalid, NotFound, RateLimited, Transient,
    };

    fn class(operation: Operation, status: u16, detail: &str) -> ProviderErrorClass {
        let body = serde_json::json!({ "title": "No", "status": status, "detail": detail }).to_string();
        refused(operation, StatusCode::from_u16(status).unwrap(), body.as_bytes()).class
    }

    /// Faults: P7, P9.
    #[test]
    fn refusals_are_classified_by_status_and_text() {
        let none = "There are no longer any instances available with the requested specifications. \
                    Please refresh and try again.";
        let volume =
            "Network volume v1 is in data center EU-RO-1, which is not in the requested set [US-KS-2]";
        for (operation, status, detail, expected) in [
            (Operation::Create, 400, none, Capacity),
            (Operation::Create, 400, "There are no instances currently available", Capacity),
            (
                Operation::Create,
                400,
                "There are no instances currently available with enough disk space",
                Capacity,
            ),
            (
                Operation::Create,
                400,
                "This machine does not have the resources to deploy your pod.",
                Capacity,
            ),
            (Operation::Create, 400, volume, Invalid),
            (Operation::Create, 400, "Your account's spend limit is reached", Billing),
            (Operation::Create, 401, "missing bearer token", Auth),
            (Operation::Create, 402, "insufficient balance", Billing),
            (Operation::Create, 403, "access denied", Denied),
            (Operation::Read, 403, "access denied", Auth),
            (Operation::Create, 404, "resource not found", Invalid),
            (Operation::Delete, 404, "resource not found", NotFound),
            (Operation::Delete, 409, "invalid for this status", Conflict),
            (Operation::Create, 413, "too large", Invalid),
            (Operation::Create, 422, "Request validation failed.", Invalid),
            (Operation::Read, 429, "rate limit exceeded for the minute window", RateLimited),
            (Operation::Create, 500, "Something went wrong", Ambiguous),
            (Operation::Delete, 503, "Something went wrong", Ambiguous),
            (Operation::Read, 500, "Something went wrong", Transient),
            (Operation::Read, 410, "retired", Invalid),
            (Operation::Create, 302, "", Invalid),
        ] {
            assert_eq!(class(operation, status, detail), expected, "{operation:?} {status} {detail}");
        }
    }

    #[test]
    fn proxy_page_is_not_an_api_answer() {
        let page = b"<html><title>error code: 1010</title><body>secret</body></html>";
        for (operation, status, expected) in [
            (Operation::Create, 403, Auth),
            (Operation::Create, 502, Ambiguous),
            (Operation::Read, 502, Transient),
        ] {
            let fault = refused(operation, StatusCode::from_u16(status).unwrap(), page);
            assert_eq!(fault.class, expected);
            assert!(!fault.message.contains("secret"), "{fault}");
        }
    }

    #[test]
    fn refusal_message_is_one_short_line() {
        let body = serde_json::json!({
            "title": "Unprocessable", "detail": "Request validation\u{1b}[31m failed.\n",
            "errors": (0..99).map(|n| format!("$: additional properties 'x{n}' not allowed")).collect::<Vec<_>>(),
        });
        let fault = refused(Operation::Create, StatusCode::UNPROCESSABLE_ENTITY, body.to_string().as_bytes());
        assert!(fault.message.contains("'x0' not allowed"), "{fault}");
        assert!(fault.message.len() < 400 && !fault.message.contains(['\n', '\u{1b}']), "{fault}");
    }
}
