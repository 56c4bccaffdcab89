//! What only a server itself can say, such as the scripts of its custom nodes, is asked of one that the plane may call:
//! those that run beside it (`remuda up`). Whoever asks gets the same server each time, as long as it answers. Only reading
//! is passed on, and only what the web interface shows to everyone: a server knows no tenants, so its history, its files and
//! its logs are nobody's to read here. What changes a server is done at the server.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Uri, header};
use axum::response::Response;
use remuda_comfyui::Target;
use remuda_store::blobs::BlobHash;
use reqwest::Client;
use tracing::debug;

use super::super::Context;

/// What stands at these places, and below them where they end in a slash, is the same for every tenant.
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

/// A server that did not answer is not asked again for this long.
const SICK_FOR: Duration = Duration::from_secs(10);
const CONNECT_MAX: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// What tells one session from another, as far as nobody has to log in.
const SESSION: [HeaderName; 2] = [header::USER_AGENT, header::AUTHORIZATION];
const ASKED_WITH: [HeaderName; 4] =
    [header::ACCEPT, header::ACCEPT_LANGUAGE, header::IF_NONE_MATCH, header::RANGE];
const ANSWERED_WITH: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::ETAG,
    header::LAST_MODIFIED,
    header::CACHE_CONTROL,
];

/// The way to the servers that may be asked.
#[derive(Debug, Default)]
pub(super) struct Forward {
    client: Mutex<Option<Client>>,
    sick: Mutex<BTreeMap<String, Instant>>,
}

impl Forward {
    fn client(&self) -> Option<Client> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if client.is_none() {
            *client = remuda_net::http_client::client()
                .connect_timeout(CONNECT_MAX)
                .timeout(ANSWER_MAX)
                .build()
                .ok();
        }
        client.clone()
    }

    /// The servers in the order in which this visitor asks them; those that did not answer of late come last.
    fn order<'t>(&self, targets: &'t [Target], headers: &HeaderMap) -> Vec<&'t Target> {
        let mut session = Vec::new();
        for name in SESSION {
            session.extend(headers.get(name).map_or(&[][..], |value| value.as_bytes()));
            session.push(0);
        }
        let sick = self.sick.lock().unwrap_or_else(PoisonError::into_inner);
        let is_sick = |target: &Target| sick.get(&target.url).is_some_and(|since| since.elapsed() < SICK_FOR);
        let mut order: Vec<_> = targets.iter().collect();
        order.sort_by_key(|target| {
            let place = BlobHash::of(&[&session[..], target.url.as_bytes()].concat()).hex();
            (is_sick(target), place)
        });
        order
    }
}

/// Whether a server may be asked for it.
fn is_shared(path: &str) -> bool {
    let below = path.strip_prefix("/api").unwrap_or(path);
    let is_listed = SHARED.iter().any(|at| match at.ends_with('/') {
        true => below.starts_with(at),
        false => below == *at,
    });
    is_listed && is_plain(path)
}

/// Whether it means the same to everyone who reads it: no way up, and no letter that is written as an escape.
fn is_plain(path: &str) -> bool {
    let escapes_are_plain = path.split('%').skip(1).all(|after| {
        let byte = after.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        byte.is_some_and(|byte| {
            !byte.is_ascii_alphanumeric() && !byte.is_ascii_control() && !b"-._~/\\%".contains(&byte)
        })
    });
    let has_way_up = path.split('/').any(|part| matches!(part, "." | ".."));
    escapes_are_plain && !has_way_up && !path.contains('\\')
}

/// What a server says to this; nothing if there is none that may be asked, or none knows it.
pub(super) async fn ask(context: &Context, headers: &HeaderMap, uri: &Uri) -> Option<Response> {
    if !is_shared(uri.path()) {
        return None;
    }
    let forward = &context.comfyui.forward;
    let client = forward.client().filter(|_| !context.forward_to.is_empty())?;
    for target in forward.order(&context.forward_to, headers) {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = client.get(format!("{}{path}", target.url.trim_end_matches('/')));
        for (name, value) in &target.headers {
            request = request.header(name, value.reveal());
        }
        for name in ASKED_WITH {
            request =
                headers.get(&name).into_iter().fold(request, |request, value| request.header(&name, value));
        }
        match request.send().await {
            Ok(answer) if answer.status().as_u16() == 404 => return None,
            Ok(answer) => return Some(pass_on(answer)),
            Err(error) => {
                debug!(url = %target.url, %error, "a server that the web interface asked did not answer");
                let mut sick = forward.sick.lock().unwrap_or_else(PoisonError::into_inner);
                sick.insert(target.url.clone(), Instant::now());
            }
        }
    }
    None
}

fn pass_on(answer: reqwest::Response) -> Response {
    let (status, headers) = (answer.status(), answer.headers().clone());
    let mut response = Response::new(Body::from_stream(answer.bytes_stream()));
    *response.status_mut() = status;
    for name in ANSWERED_WITH {
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
    fn only_what_is_the_same_for_every_tenant_is_asked_of_a_server() {
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
    fn a_session_stays_with_its_server_unless_that_does_not_answer() {
        let targets: Vec<Target> = (1..=4).map(|n| Target::new(format!("http://server-{n}"))).collect();
        let forward = Forward::default();
        let session = |agent: &str| HeaderMap::from_iter([(header::USER_AGENT, agent.parse().unwrap())]);
        let first = |agent: &str| forward.order(&targets, &session(agent))[0].url.clone();
        let chosen = first("a");
        assert_eq!(first("a"), chosen);
        let others: std::collections::BTreeSet<_> = (0..50).map(|n| first(&format!("agent {n}"))).collect();
        assert_eq!(others.len(), 4, "sessions are spread: {others:?}");
        forward.sick.lock().unwrap().insert(chosen.clone(), Instant::now());
        assert_ne!(first("a"), chosen);
    }
}
