//! Every path, and the access checks: User-Agent (the proxy in front), body size, key, rate limit.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{AUTHORIZATION, USER_AGENT};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::account::Account;
use super::answer::Answer;
use super::faults::{Occasion, RunpodFault};
use super::logs::Wish;
use super::order::{Change, Order};
use super::server::Server;
use super::{billing, catalog, control};
use crate::connection::{Gate, Switch};
use crate::url::{decode, query, query_value};

/// Largest request body.
const BODY_MAX: usize = 102_400;
/// Default user agents of scripts.
const SCRIPTS: [&str; 4] = ["python-urllib", "python-requests", "libwww-perl", "java/"];

/// Prefix of the key in a pod's environment; the pod's id follows.
pub(super) const POD_KEY: &str = "rpa_of_";

pub(super) async fn serve(listener: tokio::net::TcpListener, server: Arc<Server>) -> std::io::Result<()> {
    let routes = Router::new().fallback(respond).with_state(server);
    axum::serve(Gate(listener), routes.into_make_service_with_connect_info::<Switch>()).await
}

async fn respond(server: State<Arc<Server>>, switch: ConnectInfo<Switch>, request: Request) -> Response {
    let State(server) = server;
    let (parts, body) = request.into_parts();
    let path: Vec<String> = parts.uri.path().split('/').skip(1).map(decode).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let body = to_bytes(body, BODY_MAX).await;
    if let ["_remuda", order @ ..] = path.as_slice() {
        let answer = control::respond(&server, &parts.method, order, &body.unwrap_or_default());
        server.notice();
        return answer.into_response();
    }
    if !is_welcome(&parts.headers) {
        return Answer::Html(StatusCode::FORBIDDEN, "error code: 1010").into_response();
    }
    let Ok(body) = body else {
        let detail = format!("request body exceeds {BODY_MAX} bytes");
        return Answer::problem(StatusCode::PAYLOAD_TOO_LARGE, detail).into_response();
    };
    if let Err(answer) = is_allowed(&server, &parts.headers, &path) {
        return answer.into_response();
    }
    let pairs = query(&parts.uri);
    let asked = |key: &str| query_value(&pairs, key).map(str::to_owned);
    let response = {
        let mut account = server.account();
        account.settle();
        *account.requests.entry(format!("{} {}", parts.method, pattern(&path))).or_default() += 1;
        match meet(&server, &mut account) {
            Some(answer) => Err(answer),
            None => match (&parts.method, path.as_slice()) {
                (&Method::GET, ["v2", "pods", id, "logs"]) => {
                    let after = header(&parts.headers, "last-event-id").map(str::to_owned);
                    let wish = Wish::read(&asked, after);
                    account.follow(id).map(|logs| logs.follow(&wish)).ok_or_else(Answer::not_found)
                }
                (method, path) => Err(answer(&mut account, method, path, &body, &asked)),
            },
        }
    };
    server.notice();
    let mut response = match response {
        Ok(stream) => stream,
        Err(Answer::Cut(after)) => {
            if after > Duration::ZERO {
                server.clock.pass(after).await;
            }
            switch.cut();
            Answer::Cut(after).into_response()
        }
        Err(answer) => answer.into_response(),
    };
    sign(&server, response.headers_mut());
    response
}

/// The proxy refuses requests without a proper user agent.
fn is_welcome(headers: &HeaderMap) -> bool {
    let agent = header(headers, USER_AGENT.as_str()).unwrap_or_default().to_ascii_lowercase();
    !agent.is_empty() && !SCRIPTS.iter().any(|script| agent.starts_with(script))
}

/// The account's key allows everything, a pod's key only requests about itself.
fn is_allowed(server: &Server, headers: &HeaderMap, path: &[&str]) -> Result<(), Answer> {
    let refuse = |detail: &str| Err(Answer::problem(StatusCode::UNAUTHORIZED, detail));
    let bearer = header(headers, AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
    let Some(key) = bearer.filter(|key| !key.is_empty()) else { return refuse("missing bearer token") };
    if let Some(pod) = key.strip_prefix(POD_KEY) {
        let is_own = matches!(path, ["v2", "pods", id, ..] if *id == pod);
        return if is_own { Ok(()) } else { Err(Answer::problem(StatusCode::FORBIDDEN, "access denied")) };
    }
    if server.options.token.as_ref().is_some_and(|token| token != key) {
        return refuse("invalid bearer token");
    }
    Ok(())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Faults that any request may get before it is handled.
fn meet(server: &Server, account: &mut Account) -> Option<Answer> {
    let limited = |window: &str, seconds| Answer::Problem {
        status: StatusCode::TOO_MANY_REQUESTS,
        detail: format!("rate limit exceeded for the {window} window"),
        errors: Vec::new(),
        retry_after: Some(seconds),
    };
    if let Err((window, seconds)) = server.quota().take(&server.clock, server.clock.now()) {
        return Some(limited(window, seconds));
    }
    let drawn = account.luck.draw(Occasion::Request);
    let mut strikes = |fault| account.luck.strikes(&drawn, fault);
    if strikes(RunpodFault::Html502) {
        return Some(Answer::Html(StatusCode::BAD_GATEWAY, "502 Bad Gateway"));
    }
    if strikes(RunpodFault::Html403) {
        return Some(Answer::Html(StatusCode::FORBIDDEN, "error code: 1010"));
    }
    if strikes(RunpodFault::Unauthorized) {
        return Some(Answer::problem(StatusCode::UNAUTHORIZED, "invalid bearer token"));
    }
    let wait = server.clock.scaled(Duration::from_secs(10)).as_millis().div_ceil(1000) as u64;
    strikes(RunpodFault::RateLimited).then(|| limited("minute", wait.max(1)))
}

fn answer(
    account: &mut Account,
    method: &Method,
    path: &[&str],
    body: &[u8],
    asked: &dyn Fn(&str) -> Option<String>,
) -> Answer {
    match (method.as_str(), path) {
        ("POST", ["v2", "pods"]) => match Order::read(body) {
            Ok(order) => account.create(order),
            Err(refusal) => refusal,
        },
        ("GET", ["v2", "pods"]) => account.list(asked("limit").as_deref(), asked("cursor").as_deref()),
        ("GET", ["v2", "pods", id]) => account.show(id),
        ("PATCH", ["v2", "pods", id]) => match Change::read(body) {
            Ok(change) => account.change(id, change),
            Err(refusal) => refusal,
        },
        ("DELETE", ["v2", "pods", id]) => account.delete(id),
        ("POST", ["v2", "pods", id, "action"]) => account.act(id, body),
        ("GET", ["v2", "catalog", what @ ..]) => catalog::show(what, asked),
        ("GET", ["v2", "billing", "pods"]) => Answer::ok(billing::records(account, asked)),
        ("GET", ["v2", "account", "ssh-keys"]) => Answer::ok(json!({"keys": account.ssh_keys})),
        ("PUT", ["v2", "account", "ssh-keys"]) => {
            let asked: Value = serde_json::from_slice(body).unwrap_or_default();
            match serde_json::from_value(asked["keys"].clone()) {
                Ok(keys) => account.ssh_keys = keys,
                Err(_) => return Answer::invalid(vec!["$.keys: want array of strings".to_owned()]),
            }
            Answer::ok(json!({"keys": account.ssh_keys}))
        }
        ("GET", ["v2", "network-volumes"]) => {
            let volumes: Value = account.options.volumes.iter().map(super::Volume::to_json).collect();
            Answer::ok(json!({"networkVolumes": volumes}))
        }
        ("GET", ["v2", "network-volumes", id]) => {
            let volume = account.options.volumes.iter().find(|volume| volume.id == *id);
            volume.map_or_else(Answer::not_found, |volume| Answer::ok(volume.to_json()))
        }
        _ => Answer::not_found(),
    }
}

/// A path as it is counted: without ids.
fn pattern(path: &[&str]) -> String {
    match path {
        ["v2", kind @ ("pods" | "network-volumes"), _, rest @ ..] => {
            let rest: String = rest.iter().map(|part| format!("/{part}")).collect();
            format!("/v2/{kind}/{{id}}{rest}")
        }
        ["v2", "catalog", kind, _] => format!("/v2/catalog/{kind}/{{id}}"),
        path => format!("/{}", path.join("/")),
    }
}

/// Headers of every answer to a request with a valid key.
fn sign(server: &Server, headers: &mut HeaderMap) {
    let mut put = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    put("x-request-id", &uuid::Uuid::new_v4().to_string());
    if let Some((limit, policy)) = server.quota().headers(&server.clock, server.clock.now()) {
        put("ratelimit", &limit);
        put("ratelimit-policy", &policy);
    }
}
