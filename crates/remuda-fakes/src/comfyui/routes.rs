//! Every path, with and without the `/api` prefix, as in the original.
//!
//! Paths are matched by a table instead of the framework's router: the original answers unknown paths, wrong methods
//! and OPTIONS in its own way, and requests are counted by table entry.

pub(super) mod answer;
mod guard;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::header::SERVER;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::queue::{Flags, Item};
use super::server::Server;
use super::values::is_truthy;
use super::{Version, control, history, info, jobs, socket, submit, transfer};
use crate::connection::{Gate, Switch};
use crate::url::{decode, query, query_value};

/// Largest request body.
pub(super) const BODY_MAX: usize = 100 << 20;

/// Paths and their methods; `{}` matches one segment, `{*}` the rest.
const TABLE: &[(&str, &str)] = &[
    ("/prompt", "GET,HEAD,POST"),
    ("/queue", "GET,HEAD,POST"),
    ("/interrupt", "POST"),
    ("/free", "POST"),
    ("/history", "GET,HEAD,POST"),
    ("/history/{id}", "GET,HEAD"),
    ("/system_stats", "GET,HEAD"),
    ("/object_info", "GET,HEAD"),
    ("/object_info/{class}", "GET,HEAD"),
    ("/features", "GET,HEAD"),
    ("/models", "GET,HEAD"),
    ("/models/{folder}", "GET,HEAD"),
    ("/embeddings", "GET,HEAD"),
    ("/extensions", "GET,HEAD"),
    ("/users", "GET,HEAD,POST"),
    ("/settings", "GET,HEAD,POST"),
    ("/settings/{id}", "GET,HEAD,POST"),
    ("/userdata", "GET,HEAD"),
    ("/userdata/{file}", "GET,HEAD"),
    ("/v2/userdata", "GET,HEAD"),
    ("/workflow_templates", "GET,HEAD"),
    ("/i18n", "GET,HEAD"),
    ("/global_subgraphs", "GET,HEAD"),
    ("/experiment/models", "GET,HEAD"),
    ("/node_replacements", "GET,HEAD"),
    ("/view", "GET,HEAD"),
    ("/upload/image", "POST"),
    ("/upload/mask", "POST"),
    ("/ws", "GET,HEAD"),
];

/// Only under `/api`, since the given version.
const JOBS: &[(&str, &str, Version)] = &[
    ("/jobs", "GET,HEAD", Version::V0_7_0),
    ("/jobs/cancel", "POST", Version::V0_30_0),
    ("/jobs/{id}", "GET,HEAD", Version::V0_7_0),
    ("/jobs/{id}/cancel", "POST", Version::V0_30_0),
    ("/assets", "GET,HEAD", Version::V0_30_0),
];

/// Starts answering; must be called inside the runtime of this server run.
pub(super) fn serve(listener: std::net::TcpListener, server: Arc<Server>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = Gate(tokio::net::TcpListener::from_std(listener)?);
    let routes = Router::new().fallback(respond).with_state(server);
    let service = routes.into_make_service_with_connect_info::<Switch>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(())
}

/// A matched table entry with the value of its placeholder.
struct Found {
    pattern: &'static str,
    methods: &'static str,
    part: String,
}

fn find(path: &str, version: Version) -> Option<Found> {
    let inner = path.strip_prefix("/api").filter(|rest| rest.starts_with('/'));
    let jobs = JOBS.iter().filter(|(.., since)| inner.is_some() && version >= *since);
    let jobs = jobs.map(|(pattern, methods, _)| (*pattern, *methods));
    let at = inner.unwrap_or(path);
    let is_known =
        |(pattern, _): &(&str, &str)| *pattern != "/node_replacements" || version >= Version::V0_30_0;
    jobs.chain(TABLE.iter().copied().filter(is_known)).find_map(|(pattern, methods)| {
        let part = fit(pattern, at)?;
        Some(Found { pattern, methods, part })
    })
}

/// The value of the pattern's placeholder in this path; `None` if the pattern does not match.
fn fit(pattern: &str, path: &str) -> Option<String> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut part = String::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(part),
            (Some(name), Some(text)) if name.starts_with('{') && !text.is_empty() => part = decode(text),
            (Some(name), Some(text)) if name == text => {}
            _ => return None,
        }
    }
}

async fn respond(server: State<Arc<Server>>, switch: ConnectInfo<Switch>, request: Request) -> Response {
    let mut response = route(server.0, switch.0, request).await;
    response.headers_mut().insert(SERVER, HeaderValue::from_static("Python/3.11 aiohttp/3.14.5"));
    response
}

async fn route(server: Arc<Server>, switch: Switch, request: Request) -> Response {
    let path = request.uri().path();
    if let Some(order) = path.strip_prefix("/fake") {
        let (order, method) = (order.trim_matches('/').to_owned(), request.method().clone());
        return match guard::body(request).await {
            Ok(body) => control::respond(&server, &method, &order, &body).await,
            Err(refusal) => refusal,
        };
    }
    if let Some(refusal) = guard::check(&server, request.headers()) {
        return refusal;
    }
    let delay = server.http_delay_ms.load(Ordering::Relaxed);
    if delay > 0 {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    let Some(path) = path.strip_prefix(server.options().base_path.as_str()) else { return answer::unknown() };
    if request.method() == Method::OPTIONS {
        return answer::empty(StatusCode::OK);
    }
    let Some(found) = find(path, server.options().version) else {
        // Static files come last and are read-only.
        let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
        return if is_reading { answer::unknown() } else { answer::wrong_method("GET,HEAD") };
    };
    let method = request.method().as_str().to_owned();
    *server.estate.tally.change().requests.entry(format!("{method} {}", found.pattern)).or_default() += 1;
    if !found.methods.split(',').any(|allowed| allowed == method) {
        return answer::wrong_method(found.methods);
    }
    match (method.as_str(), found.pattern) {
        (_, "/ws") => upgrade(server, request).await,
        (_, "/view") => transfer::view(&server, request.uri(), request.headers()),
        ("POST", "/upload/image") => transfer::upload(&server, request, false).await,
        ("POST", "/upload/mask") => transfer::upload(&server, request, true).await,
        ("POST", pattern) => match guard::body(request).await {
            Ok(body) => change(&server, pattern, &found.part, &body, &switch).await,
            Err(refusal) => refusal,
        },
        (_, pattern) => show(&server, pattern, &found.part, request.uri()),
    }
}

async fn upgrade(server: Arc<Server>, request: Request) -> Response {
    let client = query_value(&query(request.uri()), "clientId").map(str::to_owned);
    let (mut parts, _) = request.into_parts();
    match WebSocketUpgrade::from_request_parts(&mut parts, &()).await {
        Ok(upgrade) => upgrade
            .max_message_size(socket::MESSAGE_MAX)
            .on_upgrade(move |socket| socket::attend(server, socket, client)),
        Err(refusal) => refusal.into_response(),
    }
}

/// Routes that only read.
fn show(server: &Server, pattern: &str, part: &str, uri: &Uri) -> Response {
    let query = query(uri);
    let ok = |value: Value| answer::json(StatusCode::OK, &value);
    match pattern {
        "/prompt" => ok(server.exec_info()),
        "/queue" => answer::text_json(StatusCode::OK, queue(server)),
        "/history" => past(server, &query),
        "/history/{id}" => {
            let entry = server.history().get(part).map(Arc::clone);
            answer::text_json(StatusCode::OK, history::to_text(entry.as_slice()))
        }
        "/jobs" => jobs::list(server, &query),
        "/jobs/{id}" => jobs::one(server, part),
        "/system_stats" => ok(info::system_stats(server)),
        "/object_info" => {
            answer::text_json(StatusCode::OK, server.catalogue.to_text(None, &server.estate.disk))
        }
        "/object_info/{class}" => {
            answer::text_json(StatusCode::OK, server.catalogue.to_text(Some(part), &server.estate.disk))
        }
        "/features" => ok(info::features(server)),
        "/models" => ok(info::model_folders()),
        "/models/{folder}" => {
            info::models(server, part).map_or_else(|| answer::empty(StatusCode::NOT_FOUND), ok)
        }
        "/users" => ok(json!({"storage": "server", "migrated": true})),
        "/settings/{id}" => ok(Value::Null),
        "/userdata" if query_value(&query, "dir").is_none() => {
            answer::plain(StatusCode::BAD_REQUEST, "Directory not provided")
        }
        "/userdata" => answer::plain(StatusCode::NOT_FOUND, "Directory not found"),
        "/userdata/{file}" => answer::empty(StatusCode::NOT_FOUND),
        "/assets" => {
            let message =
                "Assets system is disabled. Start the server with --enable-assets to use this feature.";
            let error = json!({"error": {"code": "SERVICE_DISABLED", "message": message, "details": {}}});
            answer::json(StatusCode::SERVICE_UNAVAILABLE, &error)
        }
        "/embeddings" | "/extensions" | "/v2/userdata" | "/experiment/models" => ok(json!([])),
        _ => ok(json!({})),
    }
}

fn queue(server: &Server) -> String {
    let list = |items: Vec<Arc<Item>>| items.iter().map(|item| item.to_text()).collect::<Vec<_>>().join(",");
    let running = list(server.queue.running().into_iter().collect());
    format!("{{\"queue_running\":[{running}],\"queue_pending\":[{}]}}", list(server.queue.waiting()))
}

fn past(server: &Server, query: &[(String, String)]) -> Response {
    let number = |key| query_value(query, key).map(str::parse::<i64>).transpose();
    let (Ok(max_items), Ok(offset)) = (number("max_items"), number("offset")) else {
        return answer::trouble();
    };
    let all = server.history().all();
    let page = history::page(&all, max_items, offset.unwrap_or(-1));
    answer::text_json(StatusCode::OK, history::to_text(page))
}

/// Routes that change state.
async fn change(server: &Arc<Server>, pattern: &str, part: &str, body: &Bytes, switch: &Switch) -> Response {
    match pattern {
        "/prompt" => return submit::submit(server, body, switch).await,
        "/jobs/cancel" => return jobs::cancel_many(server, body),
        "/jobs/{id}/cancel" => return jobs::cancel(server, part),
        "/interrupt" => return interrupt(server, body),
        "/users" | "/settings" | "/settings/{id}" => return answer::empty(StatusCode::OK),
        _ => {}
    }
    let Ok(Value::Object(asked)) = serde_json::from_slice(body) else { return answer::trouble() };
    let is_asked = |key: &str| asked.get(key).is_some_and(is_truthy);
    let listed =
        asked.get("delete").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    match pattern {
        "/queue" => {
            if is_asked("clear") {
                server.queue.clear();
                server.tell_status();
            }
            for id in listed {
                let Ok(told) = server.queue.delete(id) else { return answer::trouble() };
                (0..told).for_each(|_| server.tell_status());
            }
        }
        "/history" => {
            let mut history = server.history();
            if is_asked("clear") {
                history.clear();
            }
            listed.for_each(|id| history.delete(id));
        }
        _ => server
            .queue
            .ask(Flags { unload_models: is_asked("unload_models"), free_memory: is_asked("free_memory") }),
    }
    answer::empty(StatusCode::OK)
}

/// Sets only a flag. An unreadable body means the running prompt.
fn interrupt(server: &Server, body: &Bytes) -> Response {
    let asked: Value = serde_json::from_slice(body).unwrap_or_else(|_| json!({}));
    let Value::Object(asked) = asked else { return answer::trouble() };
    let is_meant = match asked.get("prompt_id").filter(|id| is_truthy(id)) {
        None => true,
        Some(id) => server.queue.running().is_some_and(|item| *id == item.id),
    };
    if is_meant {
        server.interrupt.store(true, Ordering::Relaxed);
    }
    answer::empty(StatusCode::OK)
}
