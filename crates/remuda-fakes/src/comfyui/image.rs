//! Images: one colour each, but really encoded.

use std::io::{self, Write};

/// A batch of images of one size and one colour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Image {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) batch: u32,
    pub(super) rgb: [u8; 3],
}

impl Image {
    pub(super) fn inverted(self) -> Image {
        Image { rgb: self.rgb.map(|value| 255 - value), ..self }
    }

    /// As a PNG file; `texts` are embedded, as the original embeds the workflow.
    pub(super) fn to_png(self, texts: &[(&str, &str)]) -> Vec<u8> {
        let mut file = Vec::new();
        // Writing to memory does not fail, and every validated size can be encoded.
        if let Err(error) = self.encode(texts, &mut file) {
            tracing::warn!(%error, "a picture could not be encoded");
        }
        file
    }

    fn encode(self, texts: &[(&str, &str)], file: &mut Vec<u8>) -> Result<(), png::EncodingError> {
        let mut encoder = png::Encoder::new(file, self.width.max(1), self.height.max(1));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Fast);
        for (key, text) in texts {
            encoder.add_itxt_chunk((*key).to_owned(), (*text).to_owned())?;
        }
        let row = self.rgb.repeat(self.width.max(1) as usize);
        let mut writer = encoder.write_header()?;
        let mut pixels = writer.stream_writer()?;
        for _ in 0..self.height.max(1) {
            pixels.write_all(&row).map_err(png::EncodingError::from)?;
        }
        pixels.finish()
    }

    /// Reads the size, and the colour of the first pixel.
    pub(super) fn from_png(bytes: &[u8]) -> Option<Image> {
        let mut decoder = png::Decoder::new(io::Cursor::new(bytes));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().ok()?;
        let (width, height) = reader.info().size();
        let row = reader.next_row().ok()??;
        let rgb = match *row.data() {
            [red, green, blue, ..] => [red, green, blue],
            [grey, ..] => [grey; 3],
            [] => return None,
        };
        Some(Image { width, height, batch: 1, rgb })
    }
}

/// Real previews had about 4,700 bytes.
const PREVIEW_COMMENT: usize = 4_500;

/// A JPEG of eight by eight grey pixels. Previews are not worth an encoder.
pub(super) fn jpeg() -> Vec<u8> {
    let mut file = Vec::with_capacity(PREVIEW_COMMENT + 256);
    file.extend([0xff, 0xd8]);
    file.extend(b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00");
    // A comment pads it to the size of a real preview.
    file.extend([0xff, 0xfe]);
    file.extend(u16::try_from(PREVIEW_COMMENT).unwrap_or(2).to_be_bytes());
    file.resize(file.len() + PREVIEW_COMMENT - 2, b' ');
    file.extend(b"\xff\xdb\x00\x43\x00");
    file.extend([1; 64]);
    file.extend(b"\xff\xc0\x00\x0b\x08\x00\x08\x00\x08\x01\x01\x11\x00");
    // Two code tables with one code each: zero difference, and end of block.
    for table in [0x00, 0x10] {
        file.extend([0xff, 0xc4, 0x00, 0x14, table, 1]);
        file.extend([0; 16]);
    }
    file.extend(b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x3f\xff\xd9");
    file
}

#[cfg(test)]
mod tests {
    use super::{Image, jpeg};

    #[test]
    fn a_picture_is_read_back() {
        let image = Image { width: 64, height: 48, batch: 1, rgb: [1, 2, 3] };
        let file = image.to_png(&[("prompt", "{}")]);
        assert_eq!(Image::from_png(&file), Some(image));
        assert!(file.windows(6).any(|window| window == b"prompt"));
    }

    #[test]
    fn previews_look_like_jpeg() {
        assert!(jpeg().starts_with(&[0xff, 0xd8, 0xff, 0xe0]) && jpeg().ends_with(&[0xff, 0xd9]));
    }
}
