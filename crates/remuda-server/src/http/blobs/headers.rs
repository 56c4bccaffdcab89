//! Request and response headers of blobs: ranges, ETags, content types, file names.

use std::fmt::Write;

use axum::http::{HeaderMap, HeaderName, header};
use remuda_store::blobs::BlobHash;

/// The requested part of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    /// At least one byte.
    Range {
        start: u64,
        length: u64,
    },
    OutOfRange,
    /// Not modified: the client has it.
    Known,
}

pub(super) fn etag(hash: BlobHash) -> String {
    format!("\"{hash}\"")
}

pub(super) fn part(headers: &HeaderMap, hash: BlobHash, size: u64) -> Part {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let is_this = |tag: &str| tag.trim().trim_start_matches("W/") == etag(hash);
    if text(header::IF_NONE_MATCH).is_some_and(|tags| tags.trim() == "*" || tags.split(',').any(is_this)) {
        return Part::Known;
    }
    if headers.contains_key(header::IF_RANGE) && text(header::IF_RANGE).is_none_or(|tag| tag != etag(hash)) {
        return Part::Whole;
    }
    text(header::RANGE).map_or(Part::Whole, |range| read_range(range, size))
}

/// One range of bytes. Several ranges, other units and invalid ones are answered with the whole blob, as RFC 9110 allows.
fn read_range(range: &str, size: u64) -> Part {
    let Some((start, end)) = range.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Part::Whole;
    };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
    let (start, end) = match (start.is_empty(), end.is_empty()) {
        (true, true) => return Part::Whole,
        (true, false) => match number(end) {
            Some(last) => (size - last.min(size), size),
            None => return Part::Whole,
        },
        (false, true) => match number(start) {
            Some(start) => (start, size),
            None => return Part::Whole,
        },
        (false, false) => match number(start).zip(number(end)) {
            Some((start, end)) if start <= end => (start, end.saturating_add(1).min(size)),
            Some(_) | None => return Part::Whole,
        },
    };
    if start >= end { Part::OutOfRange } else { Part::Range { start, length: end - start } }
}

/// Types that a browser shows or plays without running anything; everything else is bytes.
const TYPES: &[(&str, &str)] = &[
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("webp", "image/webp"),
    ("gif", "image/gif"),
    ("avif", "image/avif"),
    ("mp4", "video/mp4"),
    ("webm", "video/webm"),
    ("mov", "video/quicktime"),
    ("mkv", "video/x-matroska"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("flac", "audio/flac"),
    ("ogg", "audio/ogg"),
    ("opus", "audio/ogg"),
    ("json", "application/json"),
    ("txt", "text/plain; charset=utf-8"),
];

/// Whether this type may be sent to a browser.
pub(in crate::http) fn is_harmless(content_type: &str) -> bool {
    TYPES.iter().any(|(_, known)| *known == content_type)
}

pub(in crate::http) fn content_type(name: Option<&str>) -> &'static str {
    let ending = name.and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending.to_ascii_lowercase());
    let known = TYPES.iter().find(|(known, _)| Some(*known) == ending.as_deref());
    known.map_or("application/octet-stream", |(_, content_type)| content_type)
}

/// The longest name that file systems take.
const NAME_BYTES_MAX: usize = 200;

/// A Content-Disposition that saves the file and never opens it in place. Path separators, control and invisible characters
/// are removed from the name; names beyond ASCII are also given in the encoded form (`filename*`).
pub(in crate::http) fn disposition(name: Option<&str>) -> String {
    let is_shown = |c: char| {
        !c.is_control()
            && !matches!(c, '/' | '\\' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let name: String = name.unwrap_or_default().chars().filter(|c| is_shown(*c)).collect();
    let mut name = name.trim_start_matches(['.', ' ']).trim_end();
    while name.len() > NAME_BYTES_MAX {
        name = name.char_indices().next_back().map_or("", |(at, _)| &name[..at]);
    }
    if name.is_empty() {
        return "attachment".to_owned();
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let plain: String = name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let mut shown = format!("attachment; filename=\"{plain}\"");
    if plain != name {
        shown.push_str("; filename*=UTF-8''");
        for byte in name.bytes() {
            if is_plain(char::from(byte)) {
                shown.push(char::from(byte));
            } else {
                write!(shown, "%{byte:02X}").expect("writing to a string cannot fail");
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed() {
        let range = |start, length| Part::Range { start, length };
        for (text, expected) in [
            ("bytes=0-0", range(0, 1)),
            ("bytes=10-19", range(10, 10)),
            ("bytes=90-", range(90, 10)),
            ("bytes=90-1000", range(90, 10)),
            ("bytes=-7", range(93, 7)),
            ("bytes=-1000", range(0, 100)),
            ("bytes=0-18446744073709551615", range(0, 100)),
            ("bytes=100-", Part::OutOfRange),
            ("bytes=100-200", Part::OutOfRange),
            ("bytes=-0", Part::OutOfRange),
            ("bytes=20-10", Part::Whole),
            ("bytes=0-1,5-6", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("lines=0-1", Part::Whole),
            ("bytes=99999999999999999999-", Part::Whole),
        ] {
            assert_eq!(read_range(text, 100), expected, "{text}");
        }
        assert_eq!(read_range("bytes=0-", 0), Part::OutOfRange);
    }

    #[test]
    fn known_content_is_not_sent_and_changed_content_is_sent_whole() {
        let hash = BlobHash::from_content(b"x");
        let check = |pairs: &[(HeaderName, &str)], expected| {
            let headers = pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
            assert_eq!(part(&headers, hash, 100), expected, "{pairs:?}");
        };
        let (tag, range) = (etag(hash), Part::Range { start: 5, length: 95 });
        check(&[], Part::Whole);
        check(&[(header::IF_NONE_MATCH, &tag)], Part::Known);
        check(&[(header::IF_NONE_MATCH, &format!("\"a\", W/{tag}"))], Part::Known);
        check(&[(header::IF_NONE_MATCH, "\"a\"")], Part::Whole);
        check(&[(header::RANGE, "bytes=5-"), (header::IF_RANGE, &tag)], range);
        check(&[(header::RANGE, "bytes=5-"), (header::IF_RANGE, "\"a\"")], Part::Whole);
    }

    /// Faults: X7.
    #[test]
    fn active_content_is_served_as_bytes() {
        for name in
            ["a.html", "a.svg", "a.svgz", "a.xhtml", "a.xml", "a.js", "a.pdf", "a.png.html", "png", "a.", ""]
        {
            assert_eq!(content_type(Some(name)), "application/octet-stream", "{name}");
        }
        assert_eq!(content_type(Some("a.html.PNG")), "image/png");
        assert_eq!(content_type(Some("a.txt")), "text/plain; charset=utf-8");
        assert_eq!(content_type(None), "application/octet-stream");
    }

    /// Faults: B9, X6.
    #[test]
    fn file_names_are_sanitised() {
        for (name, expected) in [
            ("photo.png", "attachment; filename=\"photo.png\""),
            ("../../etc/passwd", "attachment; filename=\"etcpasswd\""),
            (
                "a\r\nset-cookie: x",
                "attachment; filename=\"aset-cookie__x\"; filename*=UTF-8''aset-cookie%3A%20x",
            ),
            ("\u{202e}gnp.exe", "attachment; filename=\"gnp.exe\""),
            ("a\"; b=\"c", "attachment; filename=\"a___b__c\"; filename*=UTF-8''a%22%3B%20b%3D%22c"),
            ("größe.png", "attachment; filename=\"gr__e.png\"; filename*=UTF-8''gr%C3%B6%C3%9Fe.png"),
            ("...", "attachment"),
            ("", "attachment"),
        ] {
            assert_eq!(disposition(Some(name)), expected);
        }
        let long = disposition(Some(&"ö".repeat(4096)));
        assert!(long.len() < 1000, "{} bytes", long.len());
        assert_eq!(disposition(None), "attachment");
    }
}
