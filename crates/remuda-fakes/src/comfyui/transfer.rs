//! Files in and out: `/upload/image`, `/upload/mask` and `/view`, with the original's refusals.

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Multipart, Request};
use axum::http::header::{ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response as Built, StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use super::files::{Folder, Place};
use super::image::{jpeg, with_alpha};
use super::routes::{BODY_MAX, answer};
use super::server::Server;
use crate::url::{query, query_value};

/// A WebP of one pixel: previews are not worth an encoder.
const WEBP: &[u8] = b"RIFF\x1a\0\0\0WEBPVP8L\x0d\0\0\0\x2f\0\0\0\x10\x07\x10\x11\x11\x88\x88\xfe\x07\0";

#[derive(Default)]
struct Form {
    file: Option<(String, Bytes)>,
    folder: Option<String>,
    subfolder: String,
    overwrite: bool,
    original_ref: Option<String>,
}

/// `POST /upload/image` and `POST /upload/mask`.
pub(super) async fn upload(server: &Server, mut request: Request, is_mask: bool) -> Response {
    let length = request
        .headers()
        .get("content-length")
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > BODY_MAX) {
        // Reads to the end first: a client that is still sending would not see the answer.
        let _ = axum::body::to_bytes(request.into_body(), 2 * BODY_MAX).await;
        return answer::plain(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("Maximum request body size {BODY_MAX} exceeded."),
        );
    }
    request.extensions_mut().remove::<DefaultBodyLimit>();
    let Ok(form) = read(request).await else { return answer::trouble() };
    let Some((name, bytes)) = form.file.filter(|(name, _)| !name.is_empty()) else {
        return answer::empty(StatusCode::BAD_REQUEST);
    };
    let Some(folder) = Folder::named(form.folder.as_deref().unwrap_or("input")) else {
        return answer::trouble();
    };
    let mut place = Place { folder, subfolder: form.subfolder, name };
    if place.leaves_its_folder() || place.name.split('/').any(|part| part == "..") {
        return answer::empty(StatusCode::BAD_REQUEST);
    }
    if place.name.contains('/') {
        return answer::trouble();
    }
    if !form.overwrite {
        place = free_place(server, &place, &bytes);
    }
    let told = json!({"name": place.name, "subfolder": place.subfolder, "type": folder.name()});
    // The same bytes are there already.
    let is_there = !form.overwrite && server.estate.disk.read(&place).is_some();
    let stored = match is_mask && !is_there {
        true => match compose(server, form.original_ref.as_deref().unwrap_or_default(), &bytes) {
            Ok(composed) => composed,
            Err(()) => return answer::trouble(),
        },
        false => Some(bytes),
    };
    if let Some(bytes) = stored {
        server.estate.disk.write(place, bytes);
    }
    answer::json(StatusCode::OK, &told)
}

/// The image that `original_ref` names, with the alpha channel of the mask. The original stores nothing if there is no such
/// image, and answers 200; it raises an exception if it cannot read the reference or one of the images.
fn compose(server: &Server, original_ref: &str, mask: &Bytes) -> Result<Option<Bytes>, ()> {
    let original: Value = serde_json::from_str(original_ref).map_err(|_| ())?;
    let filename = original["filename"].as_str().ok_or(())?;
    let subfolder = original["subfolder"].as_str().unwrap_or_default();
    let kind = original["type"].as_str().unwrap_or("output");
    let path = if subfolder.is_empty() { filename.to_owned() } else { format!("{subfolder}/{filename}") };
    let is_annotated = filename.ends_with(']');
    let found = server.estate.disk.annotated(&if is_annotated { path } else { format!("{path} [{kind}]") });
    let Some(image) = found.filter(|_| !filename.starts_with('/') && !filename.contains("..")) else {
        return Ok(None);
    };
    with_alpha(&image, mask).map(|composed| Some(composed.into())).ok_or(())
}

async fn read(request: Request) -> Result<Form, ()> {
    let mut multipart = Multipart::from_request(request, &()).await.map_err(|_| ())?;
    let mut form = Form::default();
    while let Some(field) = multipart.next_field().await.map_err(|_| ())? {
        let (key, name) = (field.name().map(str::to_owned), field.file_name().map(str::to_owned));
        let bytes = field.bytes().await.map_err(|_| ())?;
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        match key.as_deref() {
            Some("image") => form.file = name.map(|name| (name, bytes)),
            Some("type") => form.folder = Some(text()),
            Some("subfolder") => form.subfolder = text().trim_end_matches('/').to_owned(),
            Some("original_ref") => form.original_ref = Some(text()),
            Some("overwrite") => form.overwrite = matches!(text().as_str(), "true" | "1"),
            _ => {}
        }
    }
    Ok(form)
}

/// The same name for the same bytes, `name (1).png` and so on for others.
fn free_place(server: &Server, wanted: &Place, bytes: &Bytes) -> Place {
    let (stem, ending) = match wanted.name.rfind('.') {
        Some(at) if at > 0 => wanted.name.split_at(at),
        _ => (wanted.name.as_str(), ""),
    };
    let mut place = wanted.clone();
    let mut number = 1;
    while server.estate.disk.read(&place).is_some_and(|there| there != *bytes) {
        place.name = format!("{stem} ({number}){ending}");
        number += 1;
    }
    place
}

/// `GET /view`.
pub(super) fn view(server: &Server, uri: &Uri, headers: &HeaderMap) -> Response {
    let query = query(uri);
    let Some(name) = query_value(&query, "filename") else { return answer::empty(StatusCode::NOT_FOUND) };
    if name.starts_with('/') || name.contains("..") {
        return answer::empty(StatusCode::BAD_REQUEST);
    }
    let Some(folder) = Folder::named(query_value(&query, "type").unwrap_or("output")) else {
        return answer::empty(StatusCode::BAD_REQUEST);
    };
    let subfolder = query_value(&query, "subfolder").unwrap_or("").trim_end_matches('/').to_owned();
    let name = name.rsplit('/').next().unwrap_or(name).to_owned();
    let place = Place { folder, subfolder, name };
    if place.leaves_its_folder() {
        return answer::empty(StatusCode::FORBIDDEN);
    }
    let Some(bytes) = server.estate.disk.read(&place) else { return answer::empty(StatusCode::NOT_FOUND) };
    if let Some(preview) = query_value(&query, "preview") {
        let is_image = kind(&place.name).starts_with("image/");
        return match preview.split(';').next() {
            _ if !is_image => answer::trouble(),
            Some("jpeg") => file(StatusCode::OK, &place.name, "image/jpeg", jpeg().into()),
            _ => file(StatusCode::OK, &place.name, "image/webp", Bytes::from_static(WEBP)),
        };
    }
    part(&place.name, bytes, headers)
}

/// The whole file, a range of it, or 304.
fn part(name: &str, bytes: Bytes, headers: &HeaderMap) -> Response {
    let tag = format!("\"{}-{:x}\"", &blake3::hash(&bytes).to_hex()[..16], bytes.len());
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let length = bytes.len();
    let mut response = if header("if-none-match") == Some(&tag) {
        file(StatusCode::NOT_MODIFIED, name, kind(name), Bytes::new())
    } else {
        match header("range").map(|range| span(range, length)) {
            None => file(StatusCode::OK, name, kind(name), bytes),
            Some(Some((first, last))) => {
                let mut response =
                    file(StatusCode::PARTIAL_CONTENT, name, kind(name), bytes.slice(first..=last));
                insert(&mut response, CONTENT_RANGE, &format!("bytes {first}-{last}/{length}"));
                response
            }
            Some(None) => {
                let mut response = answer::empty(StatusCode::RANGE_NOT_SATISFIABLE);
                insert(&mut response, CONTENT_RANGE, &format!("bytes */{length}"));
                response
            }
        }
    };
    insert(&mut response, ETAG, &tag);
    insert(&mut response, ACCEPT_RANGES, "bytes");
    response
}

/// The first and last byte of `bytes=0-9`, `bytes=5-` or `bytes=-5`.
fn span(range: &str, length: usize) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let end = length.checked_sub(1)?;
    let (first, last) = match (first.is_empty(), last.is_empty()) {
        (true, _) => (length.saturating_sub(last.parse().ok()?), end),
        (false, true) => (first.parse().ok()?, end),
        (false, false) => (first.parse().ok()?, last.parse::<usize>().ok()?.min(end)),
    };
    (first <= last).then_some((first, last))
}

fn file(status: StatusCode, name: &str, kind: &str, bytes: Bytes) -> Response {
    let mut response = Built::new(Body::from(bytes));
    *response.status_mut() = status;
    insert(&mut response, CONTENT_TYPE, kind);
    insert(&mut response, CONTENT_DISPOSITION, &format!("filename=\"{name}\""));
    response
}

fn insert(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
        response.headers_mut().insert(name, value);
    }
}

fn kind(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default().to_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "webp" => "image/webp",
        "gif" => "image/gif",
        "txt" => "text/plain",
        "json" => "application/json",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn parts_of_a_file_are_understood() {
        assert_eq!(span("bytes=0-9", 100), Some((0, 9)));
        assert_eq!(span("bytes=90-", 100), Some((90, 99)));
        assert_eq!(span("bytes=-5", 100), Some((95, 99)));
        assert_eq!(span("bytes=50-500", 100), Some((50, 99)));
        assert_eq!(span("bytes=100-", 100), None);
        assert_eq!(span("lines=1-2", 100), None);
    }
}
