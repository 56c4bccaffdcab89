//! Submission of a workflow. All known errors are reported at once; `201` means that the job is stored.

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
use remuda_core::workflow::JobKeys;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::super::{ApiError, Caller, Context, request_key};
use super::job;
use super::links::Links;
use super::upload_keys::{self, KEY_TTL};
use super::validate;
use crate::intake::{SubmitFields, Submitted};

const METADATA_MAX: usize = 16;
const SECRET_BYTES_MAX: usize = 4096;

/// Fields of the contract, and our additions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubmitBody<'a> {
    #[serde(borrow)]
    workflow: &'a RawValue,
    extra_data: Option<ExtraData>,
    tenant: Option<Tenant>,
    #[serde(default)]
    priority: i8,
    deadline_seconds: Option<u64>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    metadata: Option<Value>,
    webhook: Option<Webhook>,
    #[serde(default)]
    wait_for_capability: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtraData {
    api_key_comfy_org: Option<String>,
}

impl std::fmt::Debug for ExtraData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExtraData(***)")
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
    let key = request_key::read(&headers)?;
    let workflow =
        validate::parse(&context, &caller, &tenant, body.workflow, body.wait_for_capability).await?;
    let left_out = validate::left_out(&workflow);
    let fields = SubmitFields {
        token: caller.token(),
        priority: context.access.priority(&caller, body.priority)?,
        deadline: body.deadline_seconds.map(Duration::from_secs),
        idempotency_key: match &key {
            Some(key) => Some(free_key_name(&context, &tenant, key).await?),
            None => None,
        },
        labels: body.labels,
        metadata: metadata(body.metadata)?,
        options: JobOptions {
            webhook: body.webhook,
            wait_for_capability: body.wait_for_capability,
            ..JobOptions::default()
        },
        ..SubmitFields::new(tenant)
    };
    let workflow = workflow.with_keys(keys(body.extra_data)?);
    let Submitted { job, created } = context.intake().submit(workflow, fields).await?;
    if let Some(key) = key.filter(|_| !created) {
        return Err(upload_keys::key_reused(&key));
    }
    let view = job::read(&context, job).await?.ok_or_else(job::not_found)?;
    let location = [(header::LOCATION, format!("/api/v2/jobs/{job}"))];
    let mut answer = view.to_json(&context, &links);
    if let Some(left_out) = left_out {
        answer["node_errors"] = left_out;
    }
    Ok((StatusCode::CREATED, location, Json(answer)).into_response())
}

fn read(body: &[u8]) -> Result<SubmitBody<'_>, ApiError> {
    let text = std::str::from_utf8(body)
        .map_err(|error| ApiError::invalid(format!("the body is not UTF-8: {error}")))?;
    serde_json::from_str(text).map_err(|error| {
        let hint = "a submission is an object with \"workflow\" and, if you like, extra_data, tenant, priority, \
                    deadline_seconds, labels, metadata, webhook, wait_for_capability";
        ApiError::invalid(format!("{error}; {hint}"))
    })
}

/// A few strings, as the official clients send them.
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

fn keys(extra: Option<ExtraData>) -> Result<JobKeys, ApiError> {
    let key = extra.and_then(|extra| extra.api_key_comfy_org);
    if key.as_ref().is_some_and(|key| key.len() > SECRET_BYTES_MAX) {
        return Err(ApiError::invalid(format!("api_key_comfy_org has at most {SECRET_BYTES_MAX} bytes")));
    }
    let mut keys = JobKeys::default();
    key.into_iter().for_each(|key| keys.insert("api_key_comfy_org", key));
    Ok(keys)
}

/// The name under which the key is stored with its job, distinct from keys of other surfaces. A key is free again after a
/// day; the name then contains its former job, because stored names are unique.
async fn free_key_name(context: &Context, tenant: &Tenant, key: &str) -> Result<String, ApiError> {
    let now = context.plane.clock.now();
    let mut name = format!("v2:{key}");
    while let Some((job, _)) = context.store.job_by_key(tenant, &name).await? {
        name = next_key_name(key, job, now).ok_or_else(|| upload_keys::key_reused(key))?;
    }
    Ok(name)
}

/// The next name of a key that this job used; `None` while the key is still reserved.
fn next_key_name(key: &str, job: JobId, now: Timestamp) -> Option<String> {
    (now.since(id_created_at(job)) >= KEY_TTL).then(|| format!("v2:{key}:{job}"))
}

/// The approximate time of acceptance, which is part of generated job ids.
fn id_created_at(job: JobId) -> Timestamp {
    Timestamp::from_millis(u64::try_from(job.as_u128() >> 80).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: B5, X10.
    #[test]
    fn body_outside_the_contract_is_refused() {
        let body = read(br#"{"workflow":{"1":{}},"extra_data":{"api_key_comfy_org":"hidden"},"priority":3}"#)
            .unwrap();
        assert!(!format!("{body:?}").contains("hidden"));
        assert!(keys(body.extra_data).unwrap().iter().eq([("api_key_comfy_org", "hidden")]));
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
    fn key_is_free_again_after_a_day() {
        let job: JobId = "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11".parse().unwrap();
        let id_created_at = Timestamp::from_millis(0x0193_e7a0_5b1c);
        let after = |time: Duration| next_key_name("k", job, id_created_at.plus(time));
        assert_eq!(after(KEY_TTL - Duration::from_millis(1)), None);
        assert_eq!(after(KEY_TTL), Some("v2:k:0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11".to_owned()));
        assert_eq!(next_key_name("k", job, Timestamp::ZERO), None, "however clocks were set");
    }

    #[test]
    fn metadata_is_limited_to_a_few_strings() {
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
