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

/// The image as a PNG with the alpha channel of the mask, as `/upload/mask` composes it. Texts of the image are kept. `None` if
/// one of them is no PNG, or if their sizes differ.
pub(super) fn with_alpha(image: &[u8], mask: &[u8]) -> Option<Vec<u8>> {
    let (image, mask) = (Rgba::decode(image)?, Rgba::decode(mask)?);
    if image.size != mask.size {
        return None;
    }
    let mut pixels = image.pixels;
    for (pixel, mask) in pixels.chunks_exact_mut(4).zip(mask.pixels.chunks_exact(4)) {
        pixel[3] = mask[3];
    }
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, image.size.0, image.size.1);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    for (key, text) in image.texts {
        encoder.add_itxt_chunk(key, text).ok()?;
    }
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&pixels).ok()?;
    writer.finish().ok()?;
    Some(file)
}

/// Every pixel of a PNG, with its alpha channel.
struct Rgba {
    size: (u32, u32),
    pixels: Vec<u8>,
    texts: Vec<(String, String)>,
}

impl Rgba {
    fn decode(bytes: &[u8]) -> Option<Rgba> {
        let mut decoder = png::Decoder::new(io::Cursor::new(bytes));
        decoder
            .set_transformations(png::Transformations::normalize_to_color8() | png::Transformations::ALPHA);
        let mut reader = decoder.read_info().ok()?;
        let mut decoded = vec![0; reader.output_buffer_size()?];
        let color = reader.next_frame(&mut decoded).ok()?.color_type;
        reader.finish().ok()?;
        let pixels = match color {
            png::ColorType::Rgba => decoded,
            png::ColorType::GrayscaleAlpha => {
                decoded.chunks_exact(2).flat_map(|it| [it[0], it[0], it[0], it[1]]).collect()
            }
            _ => return None,
        };
        let info = reader.info();
        let plain = info.uncompressed_latin1_text.iter().map(|it| (it.keyword.clone(), it.text.clone()));
        let utf8 = info.utf8_text.iter().filter_map(|it| Some((it.keyword.clone(), it.get_text().ok()?)));
        Some(Rgba { size: info.size(), pixels, texts: plain.chain(utf8).collect() })
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
    use super::{Image, Rgba, jpeg, with_alpha};

    #[test]
    fn a_picture_is_read_back() {
        let image = Image { width: 64, height: 48, batch: 1, rgb: [1, 2, 3] };
        let file = image.to_png(&[("prompt", "{}")]);
        assert_eq!(Image::from_png(&file), Some(image));
        assert!(file.windows(6).any(|window| window == b"prompt"));
    }

    #[test]
    fn alpha_comes_from_the_mask_and_texts_from_the_image() {
        let image = Image { width: 4, height: 2, batch: 1, rgb: [1, 2, 3] }.to_png(&[("prompt", "höhe ✓")]);
        let mut mask = Vec::new();
        let mut encoder = png::Encoder::new(&mut mask, 4, 2);
        encoder.set_color(png::ColorType::GrayscaleAlpha);
        encoder.write_header().unwrap().write_image_data(&[9, 77].repeat(8)).unwrap();
        let composed = Rgba::decode(&with_alpha(&image, &mask).unwrap()).unwrap();
        assert_eq!((composed.size, composed.pixels), ((4, 2), [1, 2, 3, 77].repeat(8)));
        assert_eq!(composed.texts, [("prompt".to_owned(), "höhe ✓".to_owned())]);
        let other = Image { width: 2, height: 2, batch: 1, rgb: [0; 3] }.to_png(&[]);
        assert!(with_alpha(&image, &other).is_none(), "another size");
        assert!(with_alpha(&image, b"GIF89a").is_none());
    }

    #[test]
    fn previews_look_like_jpeg() {
        assert!(jpeg().starts_with(&[0xff, 0xd8, 0xff, 0xe0]) && jpeg().ends_with(&[0xff, 0xd9]));
    }
}
