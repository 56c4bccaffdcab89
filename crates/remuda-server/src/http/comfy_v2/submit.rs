//! Submitting a workflow. All that can be known to be wrong with it is said at once; a `201` means that it is stored.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use remuda_core::id::{JobId, Tenant};
use remuda_core::options::{JobOptions, Webhook};
use remuda_core::time::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::{ApiError, Caller, Context};
use super::job;
use super::links::Links;
use super::upload_keys::{self, KEEP_FOR};
use super::validate::Sound;
use crate::intake::{Request, Taken};

const METADATA_MAX: usize = 16;
const SECRET_BYTES_MAX: usize = 4096;

/// What the contract knows, and what was added to it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body<'a> {
    #[serde(borrow)]
    workflow: &'a RawValue,
    extra_data: Option<Extra>,
    tenant: Option<Tenant>,
    #[serde(default)]
    priority: i8,
    deadline_seconds: Option<u64>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    metadata: Option<Value>,
    webhook: Option<Webhook>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Extra {
    api_key_comfy_org: Option<String>,
}

impl std::fmt::Debug for Extra {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Extra(***)")
    }
}

pub(super) async fn submit(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let body = read(&body)?;
    let tenant = caller.tenant(body.tenant.as_ref())?;
    let key = upload_keys::key(&headers)?;
    let Sound { workflow, examined } = Sound::check(&context, &caller, body.workflow).await?;
    let request = Request {
        priority: context.access.priority(&caller, body.priority)?,
        deadline: body.deadline_seconds.map(Duration::from_secs),
        idempotency_key: match &key {
            Some(key) => Some(unused(&context, &tenant, key).await?),
            None => None,
        },
        labels: body.labels,
        metadata: metadata(body.metadata)?,
        keys: keys(body.extra_data)?,
        options: JobOptions { webhook: body.webhook, ..JobOptions::default() },
        ..Request::new(workflow, tenant)
    };
    let Taken { job, is_new } = context.intake().take_examined(request, examined).await?;
    if let Some(key) = key.filter(|_| !is_new) {
        return Err(upload_keys::reused(&key));
    }
    let seen = job::look(&context, job).await?.ok_or_else(job::missing)?;
    let location = [(header::LOCATION, format!("/api/v2/jobs/{job}"))];
    Ok((StatusCode::CREATED, location, Json(seen.shown(&context, &links))).into_response())
}

fn read(body: &[u8]) -> Result<Body<'_>, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::invalid(format!("the body is not UTF-8: {error}")))?;
    serde_json::from_str(text).map_err(|error| {
        let hint = "a submission is an object with \"workflow\" and, if you like, extra_data, tenant, priority, \
                    deadline_seconds, labels, metadata, webhook";
        ApiError::invalid(format!("{error}; {hint}"))
    })
}

/// As the contract's own clients send it: a few texts.
fn metadata(given: Option<Value>) -> Result<serde_json::Map<String, Value>, ApiError> {
    match given {
        None | Some(Value::Null) => Ok(serde_json::Map::new()),
        Some(Value::Object(pairs)) if pairs.len() <= METADATA_MAX && pairs.values().all(Value::is_string) => {
            Ok(pairs)
        }
        Some(_) => {
            let message = format!("metadata is an object of at most {METADATA_MAX} texts");
            Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "metadata_invalid", message))
        }
    }
}

fn keys(extra: Option<Extra>) -> Result<crate::job_secrets::Keys, ApiError> {
    let key = extra.and_then(|extra| extra.api_key_comfy_org);
    if key.as_ref().is_some_and(|key| key.len() > SECRET_BYTES_MAX) {
        return Err(ApiError::invalid(format!("api_key_comfy_org has at most {SECRET_BYTES_MAX} bytes")));
    }
    Ok(key.map(|key| ("api_key_comfy_org".to_owned(), key)).into_iter().collect())
}

/// Under which name the key is kept with its job, apart from those of other surfaces. A key is free again after a day; its
/// former job is then part of the name, since no two jobs that are stored have the same.
async fn unused(context: &Context, tenant: &Tenant, key: &str) -> Result<String, ApiError> {
    let now = context.plane.clock.now();
    let mut name = format!("v2:{key}");
    while let Some((job, _)) = context.store.by_key(tenant, &name).await? {
        name = name_after(key, job, now).ok_or_else(|| upload_keys::reused(key))?;
    }
    Ok(name)
}

/// The next name of a key that this job had; nothing while it is that job's.
fn name_after(key: &str, job: JobId, now: Timestamp) -> Option<String> {
    (now.since(drawn_at(job)) >= KEEP_FOR).then(|| format!("v2:{key}:{job}"))
}

/// When a job was accepted, give or take a moment: it stands in the id that it was given here.
fn drawn_at(job: JobId) -> Timestamp {
    Timestamp::from_millis(u64::try_from(job.as_u128() >> 80).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: B5, X10.
    #[test]
    fn a_body_is_what_the_contract_says_or_refused() {
        let body = read(br#"{"workflow":{"1":{}},"extra_data":{"api_key_comfy_org":"hidden"},"priority":3}"#)
            .unwrap();
        assert!(!format!("{body:?}").contains("hidden"));
        assert_eq!(keys(body.extra_data).unwrap()["api_key_comfy_org"], "hidden");
        for refused in [
            r#"{}"#,
            r#"[]"#,
            r#"{"workflow":{"1":{"seed":NaN}}}"#,
            r#"{"workflow":{},"workflow":{}}"#,
            r#"{"workflow":{},"webhook_url":"http://x"}"#,
            r#"{"workflow":{},"inputs":{}}"#,
            r#"{"workflow":{},"extra_data":{"auth_token_comfy_org":"x"}}"#,
            r#"{"workflow":{},"priority":1000}"#,
            "{\"workflow\":\"\u{0}\"}",
        ] {
            assert_eq!(read(refused.as_bytes()).unwrap_err().status, 422, "{refused}");
        }
        assert_eq!(read(b"{\"workflow\":\"\xff\"}").unwrap_err().status, 422);
    }

    #[test]
    fn a_key_is_free_again_after_a_day_under_another_name() {
        let job: JobId = "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11".parse().unwrap();
        let drawn_at = Timestamp::from_millis(0x0193_e7a0_5b1c);
        let after = |time: Duration| name_after("k", job, drawn_at.plus(time));
        assert_eq!(after(KEEP_FOR - Duration::from_millis(1)), None);
        assert_eq!(after(KEEP_FOR), Some("v2:k:0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11".to_owned()));
        assert_eq!(name_after("k", job, Timestamp::ZERO), None, "however clocks were set");
    }

    #[test]
    fn metadata_is_a_few_texts() {
        for (given, is_taken) in [
            (serde_json::json!({ "a": "b" }), true),
            (Value::Null, true),
            (serde_json::json!({ "a": 1 }), false),
            (serde_json::json!([]), false),
            (Value::Object((0..17).map(|n| (n.to_string(), "x".into())).collect()), false),
        ] {
            assert_eq!(metadata(Some(given.clone())).is_ok(), is_taken, "{given}");
        }
    }
}
