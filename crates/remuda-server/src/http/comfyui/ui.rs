use std::path::{Component, PathBuf};
use std::time::UNIX_EPOCH;

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;

use super::super::{ApiError, Context, error};
use super::proxy;

const TYPES: [(&str, &str); 16] = [
    ("html", "text/html; charset=utf-8"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("json", "application/json"),
    ("map", "application/json"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("webp", "image/webp"),
    ("ico", "image/x-icon"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("ttf", "font/ttf"),
    ("wasm", "application/wasm"),
    ("txt", "text/plain; charset=utf-8"),
];

/// Fallback for unknown paths: a file of the web interface, the answer of a reachable server, or 404.
pub(in super::super) async fn fallback(
    State(context): State<Context>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let is_read = matches!(method, Method::GET | Method::HEAD);
    let found = context.ui.as_deref().filter(|_| is_read).and_then(|folder| find(folder, uri.path()));
    if let Some(path) = found {
        return serve(path, uri.path(), &headers).await;
    }
    if is_read && let Some(answer) = proxy::forward(&context, &headers, &uri).await {
        return answer;
    }
    error::no_such_route(uri).await.into_response()
}

/// Finds a file inside the folder; `None` for paths that lead outside.
fn find(folder: &std::path::Path, path: &str) -> Option<PathBuf> {
    let path = percent_decode_str(path).decode_utf8().ok().filter(|path| !path.contains('\0'))?;
    let path = path.trim_start_matches('/');
    let below = std::path::Path::new(if path.is_empty() { "index.html" } else { path });
    if !below.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    let found = folder.join(below).canonicalize().ok()?;
    (found.starts_with(folder.canonicalize().ok()?) && found.is_file()).then_some(found)
}

async fn serve(path: PathBuf, asked: &str, headers: &HeaderMap) -> Response {
    let unreadable = |error: std::io::Error| {
        let message = format!("a file of the web interface cannot be read: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message).into_response()
    };
    let about = match tokio::fs::metadata(&path).await {
        Ok(about) => about,
        Err(error) => return unreadable(error),
    };
    let changed = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    let tag = format!("\"{:x}-{:x}\"", changed.as_millis(), about.len());
    // Asset names contain a content hash; all other files are revalidated.
    let cache = match asked.starts_with("/assets/") {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    let known = TYPES.iter().find(|(known, _)| *known == ending);
    let kind = known.map_or("application/octet-stream", |(_, kind)| kind);
    let head = [
        (header::ETAG, tag.clone()),
        (header::CACHE_CONTROL, cache.to_owned()),
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    if headers.get(header::IF_NONE_MATCH).is_some_and(|it| it.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    match tokio::fs::read(&path).await {
        Ok(bytes) => (head, bytes).into_response(),
        Err(error) => unreadable(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X6.
    #[test]
    fn file_outside_the_folder_is_not_found() {
        let outside = tempfile::tempdir().unwrap();
        let folder = outside.path().join("ui");
        std::fs::create_dir_all(folder.join("assets")).unwrap();
        std::fs::write(outside.path().join("secret"), "x").unwrap();
        std::fs::write(folder.join("index.html"), "x").unwrap();
        std::fs::write(folder.join("assets/a b.js"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), folder.join("link")).unwrap();
        for path in ["/", "/index.html", "/assets/a%20b.js", "//assets/a b.js"] {
            assert!(find(&folder, path).is_some(), "{path}");
        }
        for path in
            ["/../secret", "/%2e%2e/secret", "/assets/../../secret", "/link", "/assets", "/%00", "/%zz", "/x"]
        {
            assert!(find(&folder, path).is_none(), "{path}");
        }
    }
}
