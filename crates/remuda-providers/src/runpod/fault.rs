//! What a refusal of RunPod means: by its status, then by its text, because a lack of machines has no code of its own.
//! What is shown of it are the fields that are meant to be shown, and never a body as it came.

use std::time::Duration;

use remuda_core::provider::{ProviderError, ProviderErrorClass};
use reqwest::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use remuda_net::text::one_line;

/// How much of a refusal is told.
const CHARS_MAX: usize = 300;
/// How many of the single errors in it.
const ERRORS_MAX: usize = 5;

/// What was asked for: it decides what silence means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Read,
    Create,
    Delete,
}

impl Act {
    /// What is known if it was sent, and no answer came that could be read.
    fn unanswered(self) -> ProviderErrorClass {
        match self {
            Act::Read => ProviderErrorClass::Transient,
            Act::Create | Act::Delete => ProviderErrorClass::Ambiguous,
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

/// Texts with which a creation is refused because there is no machine, in small letters.
const NO_CAPACITY: [&str; 6] = [
    "no longer any instances available",
    "no instances currently available",
    "no instances available",
    "with enough disk space",
    "does not have the resources",
    "not enough free gpus",
];
/// And those for which somebody has to pay.
const NO_CREDIT: [&str; 5] =
    ["insufficient balance", "insufficient funds", "insufficient credit", "spend limit", "spending limit"];

/// An answer that says no.
pub(super) fn refused(act: Act, status: StatusCode, body: &[u8]) -> ProviderError {
    let problem: Option<Problem> = serde_json::from_slice(body).ok();
    let is_theirs = problem.is_some();
    let text = problem.map_or_else(|| "with something that is not of its API".to_owned(), said);
    let lower = text.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let class = match status.as_u16() {
        400 | 409 if act == Act::Create && has(&NO_CAPACITY) => ProviderErrorClass::Capacity,
        400 if has(&NO_CREDIT) => ProviderErrorClass::Billing,
        401 => ProviderErrorClass::Auth,
        402 => ProviderErrorClass::Billing,
        // A page in front of the API that keeps us out is no word about this offer.
        403 if act == Act::Create && is_theirs => ProviderErrorClass::Denied,
        403 => ProviderErrorClass::Auth,
        // What the order names, a volume or a registry, is not there.
        404 if act == Act::Create => ProviderErrorClass::Invalid,
        404 => ProviderErrorClass::NotFound,
        409 => ProviderErrorClass::Conflict,
        429 => ProviderErrorClass::RateLimited,
        408 | 500.. => act.unanswered(),
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

/// No answer, or not all of one.
pub(super) fn unanswered(act: Act, error: &reqwest::Error, within: Duration) -> ProviderError {
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
    ProviderError::new(act.unanswered(), why)
}

/// An answer whose end was not waited for.
pub(super) fn endless(act: Act, bytes_max: usize) -> ProviderError {
    ProviderError::new(act.unanswered(), format!("RunPod answered with more than {bytes_max} bytes"))
}

/// Reads a body; if that fails, where, and not what stands there: a pod shows its environment.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| {
        format!("it makes no sense to us (line {}, column {})", error.line(), error.column())
    })
}

/// Every layer repeats in its own words what the innermost one knows.
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

    fn class(act: Act, status: u16, detail: &str) -> ProviderErrorClass {
        let body = serde_json::json!({ "title": "No", "status": status, "detail": detail }).to_string();
        refused(act, StatusCode::from_u16(status).unwrap(), body.as_bytes()).class
    }

    /// Faults: P7, P9.
    #[test]
    fn refusals_are_told_apart_by_status_and_text() {
        let none = "There are no longer any instances available with the requested specifications. \
                    Please refresh and try again.";
        let volume =
            "Network volume v1 is in data center EU-RO-1, which is not in the requested set [US-KS-2]";
        for (act, status, detail, expected) in [
            (Act::Create, 400, none, Capacity),
            (Act::Create, 400, "There are no instances currently available", Capacity),
            (Act::Create, 400, "There are no instances currently available with enough disk space", Capacity),
            (Act::Create, 400, "This machine does not have the resources to deploy your pod.", Capacity),
            (Act::Create, 400, volume, Invalid),
            (Act::Create, 400, "Your account's spend limit is reached", Billing),
            (Act::Create, 401, "missing bearer token", Auth),
            (Act::Create, 402, "insufficient balance", Billing),
            (Act::Create, 403, "access denied", Denied),
            (Act::Read, 403, "access denied", Auth),
            (Act::Create, 404, "resource not found", Invalid),
            (Act::Delete, 404, "resource not found", NotFound),
            (Act::Delete, 409, "invalid for this status", Conflict),
            (Act::Create, 413, "too large", Invalid),
            (Act::Create, 422, "Request validation failed.", Invalid),
            (Act::Read, 429, "rate limit exceeded for the minute window", RateLimited),
            (Act::Create, 500, "Something went wrong", Ambiguous),
            (Act::Delete, 503, "Something went wrong", Ambiguous),
            (Act::Read, 500, "Something went wrong", Transient),
            (Act::Read, 410, "retired", Invalid),
            (Act::Create, 302, "", Invalid),
        ] {
            assert_eq!(class(act, status, detail), expected, "{act:?} {status} {detail}");
        }
    }

    #[test]
    fn a_page_of_a_proxy_is_not_taken_for_the_api() {
        let page = b"<html><title>error code: 1010</title><body>secret</body></html>";
        for (act, status, expected) in
            [(Act::Create, 403, Auth), (Act::Create, 502, Ambiguous), (Act::Read, 502, Transient)]
        {
            let fault = refused(act, StatusCode::from_u16(status).unwrap(), page);
            assert_eq!(fault.class, expected);
            assert!(!fault.message.contains("secret"), "{fault}");
        }
    }

    #[test]
    fn a_refusal_is_one_short_line() {
        let body = serde_json::json!({
            "title": "Unprocessable", "detail": "Request validation\u{1b}[31m failed.\n",
            "errors": (0..99).map(|n| format!("$: additional properties 'x{n}' not allowed")).collect::<Vec<_>>(),
        });
        let fault = refused(Act::Create, StatusCode::UNPROCESSABLE_ENTITY, body.to_string().as_bytes());
        assert!(fault.message.contains("'x0' not allowed"), "{fault}");
        assert!(fault.message.len() < 400 && !fault.message.contains(['\n', '\u{1b}']), "{fault}");
    }
}
