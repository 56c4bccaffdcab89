//! Preview images of running attempts: accepted formats and size.

use serde::{Deserialize, Serialize};

/// Previews have about 50 KB; anything larger is refused.
pub const PREVIEW_BYTES_MAX: usize = 1 << 20;

/// The answer to a preview.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct PreviewAnswer {
    /// A client is connected that sees every preview of this attempt; otherwise a few are enough.
    #[serde(default, rename = "watched")]
    pub is_watched: bool,
}

/// The accepted image formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviewFormat {
    Jpeg,
    Png,
    Webp,
}

impl PreviewFormat {
    /// By the magic bytes; a declared content type is ignored.
    pub fn detect(bytes: &[u8]) -> Option<PreviewFormat> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some(PreviewFormat::Jpeg),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(PreviewFormat::Png),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(PreviewFormat::Webp),
            _ => None,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            PreviewFormat::Jpeg => "image/jpeg",
            PreviewFormat::Png => "image/png",
            PreviewFormat::Webp => "image/webp",
        }
    }

    pub fn file_name(self) -> &'static str {
        match self {
            PreviewFormat::Jpeg => "preview.jpg",
            PreviewFormat::Png => "preview.png",
            PreviewFormat::Webp => "preview.webp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_detected_from_magic_bytes() {
        let png = b"\x89PNG\r\n\x1a\n....";
        for (bytes, media) in [
            (&b"\xff\xd8\xff\xe0.."[..], Some(PreviewFormat::Jpeg)),
            (&png[..], Some(PreviewFormat::Png)),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some(PreviewFormat::Webp)),
            (b"RIFF\0\0\0\0WAVE", None),
            (b"<svg onload=alert(1)>", None),
            (b"\xff\xd8", None),
            (b"", None),
        ] {
            assert_eq!(PreviewFormat::detect(bytes), media, "{bytes:?}");
        }
    }
}
