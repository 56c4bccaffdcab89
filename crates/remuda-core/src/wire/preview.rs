//! Preview pictures that a worker sends while an attempt runs: what counts as one, and how large it may be.

/// A preview has some 50 KB: what is larger is no preview.
pub const PREVIEW_BYTES_MAX: usize = 1 << 20;

/// A picture as it is served: nothing else becomes a preview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviewFormat {
    Jpeg,
    Png,
    Webp,
}

impl PreviewFormat {
    /// By what it begins with, whatever anyone calls it.
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
    fn a_picture_is_known_by_what_it_begins_with() {
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
