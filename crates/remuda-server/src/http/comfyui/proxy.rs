//! Forwards requests that only a ComfyUI server can answer, such as the scripts of custom nodes, to a server that the plane
//! can reach (those started by `remuda up`). A session keeps its server while that server answers. Only reads are forwarded,
//! and only paths that are the same for every tenant: a server knows no tenants, so its history, files and logs are never
//! served. Requests that change a server are not forwarded.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Uri, header};
use axum::response::Response;
use remuda_comfyui::ComfyuiTarget;
use remuda_store::blobs::BlobHash;
use reqwest::Client;
use tracing::debug;

use super::super::Context;

/// Paths that are the same for every tenant. An entry that ends in a slash includes everything below it.
const SHARED: [&str; 16] = [
    "/docs/",
    "/embeddings",
    "/experiment/models",
    "/experiment/models/",
    "/extensions",
    "/extensions/",
    "/global_subgraphs",
    "/global_subgraphs/",
    "/i18n",
    "/models",
    "/models/",
    "/node_replacements",
    "/scripts/",
    "/templates/",
    "/workflow_templates",
    "/workflow_templates/",
];

/// A server that did not answer is tried last for this long.
const UNREACHABLE_FOR: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Headers that distinguish sessions when no login is required.
const SESSION_HEADERS: [HeaderName; 2] = [header::USER_AGENT, header::AUTHORIZATION];
const REQUEST_HEADERS: [HeaderName; 4] =
    [header::ACCEPT, header::ACCEPT_LANGUAGE, header::IF_NONE_MATCH, header::RANGE];
const RESPONSE_HEADERS: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::CACHE_CONTROL,
];

/// Connections to the servers that may be asked.
#[derive(Debug, Default)]
pub(super) struct ServerProxy {
    client: Mutex<Option<Client>>,
    unreachable: Mutex<BTreeMap<String, Instant>>,
}

impl ServerProxy {
    fn client(&self) -> Option<Client> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if client.is_none() {
            *client = remuda_net::http_client::client_builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(RESPONSE_TIMEOUT)
                .build()
                .ok();
        }
        client.clone()
    }

    /// The servers in the order in which they are tried; unreachable ones come last.
    fn order_servers<'t>(&self, targets: &'t [ComfyuiTarget], headers: &HeaderMap) -> Vec<&'t ComfyuiTarget> {
        let mut session = Vec::new();
        for name in SESSION_HEADERS {
            session.extend(headers.get(name).map_or(&[][..], |value| value.as_bytes()));
            session.push(0);
        }
        let unreachable = self.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unreachable = |target: &ComfyuiTarget| {
            unreachable.get(&target.url).is_some_and(|since| since.elapsed() < UNREACHABLE_FOR)
        };
        let mut order: Vec<_> = targets.iter().collect();
        order.sort_by_key(|target| {
            let rank = BlobHash::from_content(&[&session[..], target.url.as_bytes()].concat()).hex();
            (is_unreachable(target), rank)
        });
        order
    }
}

/// True if the path may be forwarded.
fn is_shared(path: &str) -> bool {
    let below = path.strip_prefix("/api").unwrap_or(path);
    let is_listed = SHARED.iter().any(|at| match at.ends_with('/') {
        true => below.starts_with(at),
        false => below == *at,
    });
    is_listed && is_unambiguous(path)
}

/// True if every server reads the path the same way: no dot segments, no escaped letters.
fn is_unambiguous(path: &str) -> bool {
    let escapes_are_harmless = path.split('%').skip(1).all(|after| {
        let byte = after.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        byte.is_some_and(|byte| {
            !byte.is_ascii_alphanumeric() && !byte.is_ascii_control() && !b"-._~/\\%".contains(&byte)
        })
    });
    let has_dot_segment = path.split('/').any(|part| matches!(part, "." | ".."));
    escapes_are_harmless && !has_dot_segment && !path.contains('\\')
}

/// The server's answer; `None` if no server may be asked or none knows the path.
pub(super) async fn forward(context: &Context, headers: &HeaderMap, uri: &Uri) -> Option<Response> {
    if !is_shared(uri.path()) {
        return None;
    }
    let proxy = &context.comfyui.proxy;
    let client = proxy.client().filter(|_| !context.forward_to.is_empty())?;
    for target in proxy.order_servers(&context.forward_to, headers) {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = client.get(format!("{}{path}", target.url.trim_end_matches('/')));
        for (name, value) in &target.headers {
            request = request.header(name, value.reveal());
        }
        for name in REQUEST_HEADERS {
            request =
                headers.get(&name).into_iter().fold(request, |request, value| request.header(&name, value));
        }
        match request.send().await {
            Ok(answer) if answer.status().as_u16() == 404 => return None,
            Ok(answer) => return Some(relay(answer)),
            Err(error) => {
                debug!(url = %target.url, %error, "ComfyUI server did not answer a forwarded request");
                let mut unreachable = proxy.unreachable.lock().unwrap_or_else(PoisonError::into_inner);
                unreachable.insert(target.url.clone(), Instant::now());
            }
        }
    }
    None
}

fn relay(answer: reqwest::Response) -> Response {
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut response = Response::new(Body::from_stream(answer.bytes_stream()));
    *response.status_mut() = status;
    for name in RESPONSE_HEADERS {
        if let Some(value) = headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X16.
    #[test]
    fn only_paths_shared_by_all_tenants_are_forwarded() {
        for path in [
            "/extensions",
            "/api/extensions",
            "/extensions/some-nodes/a%20b.js",
            "/extensions/knoten/h%C3%B6he.js",
            "/scripts/app.js",
            "/api/experiment/models/checkpoints",
            "/templates/index.json",
            "/api/workflow_templates",
            "/docs/KSampler/en.md",
        ] {
            assert!(is_shared(path), "{path}");
        }
        for path in [
            "/%68istory",
            "/api/%71ueue",
            "/%76iew",
            "/%75serdata",
            "/history",
            "/internal/logs",
            "/internal/folder_paths",
            "/internal/files/output",
            "/v2/userdata",
            "/some_node/secrets",
            "/extensionsX",
            "/api/api/extensions",
            "/extensions/../internal/logs",
            "/extensions/%2e%2e/internal/logs",
            "/extensions/..%2Finternal/logs",
            "/extensions/.%2E/history",
            "/extensions/..%5chistory",
            "/extensions/..\\history",
            "/extensions/%252e%252e/history",
            "/extensions/%",
            "/extensions/%+f",
            "/extensions/%zz",
        ] {
            assert!(!is_shared(path), "{path}");
        }
    }

    #[test]
    fn session_keeps_its_server_while_it_answers() {
        let targets: Vec<ComfyuiTarget> =
            (1..=4).map(|n| ComfyuiTarget::new(format!("http://server-{n}"))).collect();
        let proxy = ServerProxy::default();
        let session = |agent: &str| HeaderMap::from_iter([(header::USER_AGENT, agent.parse().unwrap())]);
        let first = |agent: &str| proxy.order_servers(&targets, &session(agent))[0].url.clone();
        let chosen = first("a");
        assert_eq!(first("a"), chosen);
        let others: std::collections::BTreeSet<_> = (0..50).map(|n| first(&format!("agent {n}"))).collect();
        assert_eq!(others.len(), 4, "sessions are spread: {others:?}");
        proxy.unreachable.lock().unwrap().insert(chosen.clone(), Instant::now());
        assert_ne!(first("a"), chosen);
    }
}
