//! The dashboard: a page, a script and a style, built from `dashboard/` and embedded in the program. Anyone may read them,
//! because they hold nothing but the program's own files; what they show comes from the native API, with the caller's
//! token. The content policy lets the page load from and talk to this plane only, and run no code but its own.

mod files;

use std::io::Write as _;
use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use remuda_core::id::Hash;

use super::ApiError;
use super::path::Path;
use files::{FILES, PAGE};

/// A built file. Its name contains a hash of its content, except for the page.
struct BuiltFile {
    name: &'static str,
    media_type: &'static str,
    bytes: &'static [u8],
}

/// No inline script or style, nothing from elsewhere; pictures and sounds of outputs are `blob:` addresses, because a
/// plain address could not carry the token.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; \
                              media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                              frame-ancestors 'none'";
/// The name says what is in it, so it never changes.
const FOREVER: &str = "public, max-age=31536000, immutable";
/// Asked for each time, and answered with 304 while it is the same.
const EACH_TIME: &str = "no-cache";

/// A file as it is sent.
struct PreparedFile {
    tag: String,
    compressed: Bytes,
}

/// Compressed at the first request: a third of the bytes, in a few milliseconds, once.
static PREPARED: LazyLock<Vec<PreparedFile>> = LazyLock::new(|| {
    let prepare = |file: &BuiltFile| PreparedFile {
        tag: format!("\"{}\"", Hash::digest(file.bytes)),
        compressed: gzip(file.bytes),
    };
    FILES.iter().map(prepare).collect()
});

/// `/`, `/remuda` and `/remuda/`: the page finds out itself what to show, by the part of the address after `#`.
pub(super) async fn page(headers: HeaderMap) -> Response {
    serve(PAGE, &headers)
}

/// `/remuda/assets/{name}`
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().position(|file| file.name == name) {
        Some(at) if at != PAGE => serve(at, &headers),
        _ => {
            let message = format!(
                "the dashboard has no file {:?}: load its page again",
                name.escape_debug().to_string()
            );
            ApiError::not_found(message).into_response()
        }
    }
}

fn serve(at: usize, headers: &HeaderMap) -> Response {
    let (file, PreparedFile { tag, compressed }) = (&FILES[at], &PREPARED[at]);
    let mut head = HeaderMap::new();
    let cache = if at == PAGE { EACH_TIME } else { FOREVER };
    for (name, value) in [
        (header::CONTENT_TYPE, file.media_type),
        (header::CACHE_CONTROL, cache),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::VARY, "Accept-Encoding"),
    ] {
        head.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(tag) = HeaderValue::from_str(tag) {
        head.insert(header::ETAG, tag);
    }
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    if accepts_gzip(headers) {
        head.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        return (head, compressed.clone()).into_response();
    }
    (head, Bytes::from_static(file.bytes)).into_response()
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|accepted| accepted.to_str().ok());
    accepted.is_some_and(|accepted| accepted.split(',').any(|one| one.trim() == "gzip"))
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory can be written to").into()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// As much as the dashboard may add to the program.
    const BYTES_MAX: usize = 1_500_000;

    fn request(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn page_names_only_files_that_are_embedded_and_no_other_origin() {
        let page = std::str::from_utf8(FILES[PAGE].bytes).unwrap();
        for file in FILES.iter().filter(|file| file.name != FILES[PAGE].name) {
            assert!(
                page.contains(&format!("/remuda/assets/{}", file.name)),
                "{} is not on the page",
                file.name
            );
        }
        assert!(!page.contains("://"), "the page loads something from elsewhere: {page}");
        assert!(
            !page.contains("<style") && !page.contains(" style="),
            "the content policy forbids inline styles"
        );
        assert!(FILES.iter().map(|file| file.bytes.len()).sum::<usize>() <= BYTES_MAX);
    }

    #[tokio::test]
    async fn known_file_is_not_sent_again() {
        let first = serve(PAGE, &HeaderMap::new());
        assert_eq!(first.headers()[header::CACHE_CONTROL], EACH_TIME);
        let tag = first.headers()[header::ETAG].clone();
        let again = serve(PAGE, &HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]));
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        let changed = serve(PAGE, &request(&[(header::IF_NONE_MATCH, "\"other\"")]));
        assert_eq!(changed.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn compressed_file_is_the_same_file() {
        for (at, file) in FILES.iter().enumerate() {
            let answer = serve(at, &request(&[(header::ACCEPT_ENCODING, "br, gzip")]));
            assert_eq!(answer.headers()[header::CONTENT_ENCODING], "gzip", "{}", file.name);
            let body = axum::body::to_bytes(answer.into_body(), BYTES_MAX).await.unwrap();
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&*body).read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == file.bytes, "{} came out different", file.name);
        }
    }
}
