//! `/api/jobs`: queue and history combined, since 0.7.0; cancelling by id since 0.30.0.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::Version;
use super::history::{Entry, Outcome};
use super::queue::Item;
use super::routes::answer;
use super::server::Server;
use super::values;

/// The original raises an exception for a prompt whose `extra_pnginfo` is not an object, for every client that lists
/// it.
struct Trips;

/// `GET /api/jobs`.
pub(super) fn list(server: &Server, query: &[(String, String)]) -> Response {
    let ask = |key: &str| query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    let known = known_statuses(server.options().version);
    let wanted: Vec<String> = ask("status")
        .into_iter()
        .flat_map(|list| list.split(','))
        .map(|name| name.trim().to_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    let unknown: Vec<&str> = wanted.iter().map(String::as_str).filter(|name| !known.contains(name)).collect();
    if !unknown.is_empty() {
        let message =
            format!("Invalid status value(s): {}. Valid values: {}", unknown.join(", "), known.join(", "));
        return bad(&message);
    }
    let limit = match ask("limit").map(str::parse::<usize>) {
        None => None,
        Some(Ok(limit)) if limit > 0 => Some(limit),
        Some(_) => return bad("limit must be a positive integer"),
    };
    let offset = ask("offset").and_then(|offset| offset.parse::<usize>().ok()).unwrap_or(0);
    let jobs = match gather(server, &wanted) {
        Ok(jobs) => jobs,
        Err(Trips) => return answer::trouble(),
    };
    let workflow = ask("workflow_id");
    let mut jobs: Vec<Value> =
        jobs.into_iter().filter(|job| workflow.is_none_or(|id| job["workflow_id"] == id)).collect();
    let by_duration = ask("sort_by") == Some("execution_duration");
    jobs.sort_by_key(
        |job| if by_duration { duration(job) } else { job["create_time"].as_u64().unwrap_or(0) },
    );
    if ask("sort_order") != Some("asc") {
        jobs.reverse();
    }
    let total = jobs.len();
    let page: Vec<Value> = jobs.into_iter().skip(offset).take(limit.unwrap_or(usize::MAX)).collect();
    let has_more = offset + page.len() < total;
    answer::json(
        StatusCode::OK,
        &json!({"jobs": page, "pagination": {"offset": offset, "limit": limit, "total": total, "has_more": has_more}}),
    )
}

fn bad(message: &str) -> Response {
    answer::json(StatusCode::BAD_REQUEST, &json!({"error": message}))
}

fn known_statuses(version: Version) -> Vec<&'static str> {
    let mut known = vec!["pending", "in_progress", "completed", "failed"];
    if version >= Version::V0_30_0 {
        known.push("cancelled");
    }
    known
}

fn duration(job: &Value) -> u64 {
    let time = |key: &str| job[key].as_u64().unwrap_or(0);
    time("execution_end_time").saturating_sub(time("execution_start_time"))
}

fn gather(server: &Server, wanted: &[String]) -> Result<Vec<Value>, Trips> {
    let is_wanted = |status: &str| wanted.is_empty() || wanted.iter().any(|name| name == status);
    let mut jobs = Vec::new();
    for item in server.queue.running().iter().filter(|_| is_wanted("in_progress")) {
        jobs.push(queued(item, "in_progress")?);
    }
    for item in server.queue.waiting().iter().filter(|_| is_wanted("pending")) {
        jobs.push(queued(item, "pending")?);
    }
    let version = server.options().version;
    // Finished entries are read before they are filtered, so one bad entry breaks every list that includes finished
    // ones.
    if ["completed", "failed", "cancelled"].into_iter().any(is_wanted) {
        for entry in server.history().all() {
            let job = ended(&entry, version)?;
            if job["status"].as_str().is_some_and(is_wanted) {
                jobs.push(job);
            }
        }
    }
    Ok(jobs)
}

/// `GET /api/jobs/{id}`: history first, so an id that runs again still shows its first result.
pub(super) fn one(server: &Server, id: &str) -> Response {
    let entry = server.history().get(id).map(Arc::clone);
    if let Some(entry) = entry {
        let Ok(mut job) = ended(&entry, server.options().version) else { return answer::trouble() };
        job["outputs"] = entry.outputs();
        job["execution_status"] = entry.status();
        let graph: Value = serde_json::from_str(entry.item.graph.text()).unwrap_or_default();
        job["workflow"] = json!({"prompt": graph, "extra_data": entry.item.extra});
        return answer::text_json(StatusCode::OK, values::text(&job));
    }
    let running =
        server.queue.running().filter(|item| item.id == id).map(|item| queued(&item, "in_progress"));
    let waiting = || {
        let item = server.queue.waiting().into_iter().find(|item| item.id == id)?;
        Some(queued(&item, "pending"))
    };
    match running.or_else(waiting) {
        Some(Ok(job)) => answer::json(StatusCode::OK, &job),
        Some(Err(Trips)) => answer::trouble(),
        None => answer::json(StatusCode::NOT_FOUND, &json!({"error": "Job not found"})),
    }
}

fn workflow_id(item: &Item) -> Result<Option<Value>, Trips> {
    match item.extra.get("extra_pnginfo") {
        None => Ok(None),
        Some(Value::Object(info)) => {
            Ok(info.get("workflow").and_then(|workflow| workflow.get("id")).cloned())
        }
        Some(_) => Err(Trips),
    }
}

fn queued(item: &Item, status: &str) -> Result<Value, Trips> {
    let mut job = json!({
        "id": item.id, "status": status, "priority": item.number.to_json(), "create_time": item.extra.get("create_time"),
        "outputs_count": 0,
    });
    if let Some(id) = workflow_id(item)? {
        job["workflow_id"] = id;
    }
    Ok(job)
}

fn ended(entry: &Entry, version: Version) -> Result<Value, Trips> {
    let status = match entry.outcome {
        Outcome::Success => "completed",
        Outcome::Interrupted if version >= Version::V0_30_0 => "cancelled",
        Outcome::Error | Outcome::Interrupted => "failed",
    };
    let mut job = queued(&entry.item, status)?;
    let time = |kind: &str| entry.message(kind).map(|data| data["timestamp"].clone());
    job["execution_start_time"] = time("execution_start").unwrap_or_default();
    let end = ["execution_success", "execution_error", "execution_interrupted"].into_iter().find_map(time);
    job["execution_end_time"] = end.unwrap_or_default();
    if let Some(error) = entry.message("execution_error") {
        job["execution_error"] = error.clone();
    }
    let all: Vec<(&str, &str, &Value)> = files(&entry.outputs);
    // Newer servers count files only, and show a text where there is no file.
    let is_counted = |(_, _, item): &&(&str, &str, &Value)| version < Version::V0_30_0 || item.is_object();
    let files: Vec<_> = all.iter().filter(is_counted).copied().collect();
    job["outputs_count"] = files.len().into();
    let is_output = |(_, _, file): &&(&str, &str, &Value)| file["type"] == "output";
    let is_file = |(_, _, file): &&(&str, &str, &Value)| file.is_object();
    if let Some((node, kind, file)) = files.iter().find(is_output).or_else(|| files.iter().find(is_file)) {
        let mut preview = (*file).clone();
        preview["nodeId"] = (*node).into();
        preview["mediaType"] = (*kind).into();
        job["preview_output"] = preview;
    } else if let Some((node, kind, text)) =
        all.iter().find(|(_, kind, text)| *kind == "text" && text.is_string())
        && version >= Version::V0_30_0
    {
        job["preview_output"] = json!({"content": text, "nodeId": node, "mediaType": kind});
    }
    Ok(job)
}

fn files(outputs: &[(String, Value)]) -> Vec<(&str, &str, &Value)> {
    let mut files = Vec::new();
    for (node, output) in outputs {
        for (kind, list) in output.as_object().map(Map::iter).into_iter().flatten() {
            files.extend(
                list.as_array().into_iter().flatten().map(|file| (node.as_str(), kind.as_str(), file)),
            );
        }
    }
    files
}

/// `POST /api/jobs/{id}/cancel`.
pub(super) fn cancel(server: &Server, id: &str) -> Response {
    answer::json(StatusCode::OK, &json!({"cancelled": cancel_one(server, id)}))
}

/// `POST /api/jobs/cancel`.
pub(super) fn cancel_many(server: &Server, body: &[u8]) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return bad("Request body must be valid JSON");
    };
    let Some(ids) = body["job_ids"].as_array() else { return bad("job_ids must be a list") };
    let is_valid = |id: &&Value| id.as_str().is_some_and(super::submit::is_canonical_uuid);
    let invalid: Vec<String> = ids.iter().filter(|id| !is_valid(id)).map(values::python_str).collect();
    if !invalid.is_empty() {
        let told = json!({"error": "job_ids contains invalid id(s)", "invalid_ids": invalid});
        return answer::json(StatusCode::BAD_REQUEST, &told);
    }
    let cancelled = ids.iter().filter_map(Value::as_str).filter(|id| cancel_one(server, id)).count();
    answer::json(StatusCode::OK, &json!({"cancelled": cancelled > 0}))
}

fn cancel_one(server: &Server, id: &str) -> bool {
    if server.queue.running().is_some_and(|item| item.id == id) {
        server.interrupt.store(true, std::sync::atomic::Ordering::Relaxed);
        return true;
    }
    let told = server.queue.delete(id).unwrap_or(1);
    for _ in 0..told {
        server.tell_status();
    }
    told > 0
}
