//! Puts the alpha channel of a mask into an image, as ComfyUI's `/upload/mask` does. This is the only place where the plane
//! decodes images, and the uploader may be hostile, so everything is bounded before it is allocated:
//!
//! | what | limit |
//! |---|---|
//! | file | `FILE_BYTES_MAX`, checked by the caller before it is read |
//! | pixels, from the header, before any of them is decoded | `PIXELS_MAX` |
//! | what a decoder may allocate beside the pixels | `DECODER_BYTES_MAX` |
//! | texts inside the image, once unpacked | `TEXT_BYTES_MAX` |
//!
//! Only PNG and JPEG are read. Decoding takes up to a second: callers run it off the event loop, few at a time.

use std::io::Cursor;

use image::{ImageDecoder as _, ImageReader};
use png::{ColorType, Transformations};

/// A file of an image or a mask. A PNG of the largest image that is decoded has about this size.
pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;
/// 5792 x 5792: 128 MiB once decoded.
const PIXELS_MAX: u64 = 32 << 20;
/// Rows, tables, and the texts inside the file.
const DECODER_BYTES_MAX: usize = 64 << 20;
/// Texts of one image, such as its workflow.
const TEXT_BYTES_MAX: usize = 8 << 20;
const TEXTS_MAX: usize = 64;

const PNG_HEAD: &[u8] = b"\x89PNG\r\n\x1a\n";
const JPEG_HEAD: &[u8] = b"\xff\xd8\xff";

/// Why a mask cannot be applied. All of these are faults of the files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MaskError {
    #[error("{what} is neither a PNG nor a JPEG image")]
    Format { what: &'static str },
    #[error("{what} has {width} x {height} pixels; at most {PIXELS_MAX} are decoded")]
    TooLarge { what: &'static str, width: u32, height: u32 },
    #[error("{what} cannot be decoded: {problem}")]
    Unreadable { what: &'static str, problem: String },
    #[error("the mask has {mask:?} pixels, its image {image:?}")]
    Sizes { mask: (u32, u32), image: (u32, u32) },
}

/// Returns the image as a PNG with the alpha channel of the mask. Texts inside a PNG image are kept. A mask without an alpha
/// channel makes the image opaque.
pub(super) fn apply_mask(image: &[u8], mask: &[u8]) -> Result<Vec<u8>, MaskError> {
    // One after the other: of the mask only its alpha channel stays in memory.
    let (mask_size, alpha) = {
        let mask = Pixels::decode(mask, "the mask")?;
        (mask.size, mask.rgba.chunks_exact(4).map(|pixel| pixel[3]).collect::<Vec<u8>>())
    };
    let mut image = Pixels::decode(image, "the image")?;
    if mask_size != image.size {
        return Err(MaskError::Sizes { mask: mask_size, image: image.size });
    }
    for (pixel, alpha) in image.rgba.chunks_exact_mut(4).zip(alpha) {
        pixel[3] = alpha;
    }
    image.encode().map_err(|error| unreadable("the image", &error))
}

fn unreadable(what: &'static str, problem: &dyn std::fmt::Display) -> MaskError {
    MaskError::Unreadable { what, problem: problem.to_string() }
}

/// A decoded image.
#[derive(Debug, Default)]
struct Pixels {
    size: (u32, u32),
    rgba: Vec<u8>,
    texts: Vec<(String, String)>,
}

impl Pixels {
    fn decode(bytes: &[u8], what: &'static str) -> Result<Pixels, MaskError> {
        if bytes.starts_with(PNG_HEAD) {
            Pixels::from_png(bytes, what)
        } else if bytes.starts_with(JPEG_HEAD) {
            Pixels::from_jpeg(bytes, what)
        } else {
            Err(MaskError::Format { what })
        }
    }

    fn from_png(bytes: &[u8], what: &'static str) -> Result<Pixels, MaskError> {
        let fail = |error: png::DecodingError| unreadable(what, &error);
        let limits = png::Limits { bytes: DECODER_BYTES_MAX };
        let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
        decoder.set_transformations(
            Transformations::EXPAND | Transformations::STRIP_16 | Transformations::ALPHA,
        );
        check_pixels(decoder.read_header_info().map_err(fail)?.size(), what)?;
        let mut reader = decoder.read_info().map_err(fail)?;
        let size = reader.info().size();
        let mut decoded = vec![0; reader.output_buffer_size().unwrap_or_default()];
        let color = reader.next_frame(&mut decoded).map_err(fail)?.color_type;
        // Texts may follow the pixels; an image that ends early has been decoded nevertheless.
        let _ = reader.finish();
        let rgba = match color {
            ColorType::Rgba => decoded,
            ColorType::GrayscaleAlpha => {
                decoded.chunks_exact(2).flat_map(|it| [it[0], it[0], it[0], it[1]]).collect()
            }
            ColorType::Rgb => decoded.chunks_exact(3).flat_map(|it| [it[0], it[1], it[2], 255]).collect(),
            ColorType::Grayscale => decoded.iter().flat_map(|grey| [*grey, *grey, *grey, 255]).collect(),
            ColorType::Indexed => return Err(unreadable(what, &"its palette was not expanded")),
        };
        Ok(Pixels { size, rgba, texts: texts(reader.info()) })
    }

    fn from_jpeg(bytes: &[u8], what: &'static str) -> Result<Pixels, MaskError> {
        let fail = |error: image::ImageError| unreadable(what, &error);
        let mut limits = image::Limits::no_limits();
        limits.max_alloc = Some(PIXELS_MAX * 4 + DECODER_BYTES_MAX as u64);
        let mut reader = ImageReader::with_format(Cursor::new(bytes), image::ImageFormat::Jpeg);
        reader.limits(limits);
        let decoder = reader.into_decoder().map_err(fail)?;
        let size = decoder.dimensions();
        check_pixels(size, what)?;
        let rgba = image::DynamicImage::from_decoder(decoder).map_err(fail)?.into_rgba8().into_raw();
        Ok(Pixels { size, rgba, texts: Vec::new() })
    }

    fn encode(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.size.0, self.size.1);
        encoder.set_color(ColorType::Rgba);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Fast);
        for (key, text) in &self.texts {
            match text.chars().all(|c| u32::from(c) < 256) {
                true => encoder.add_text_chunk(key.clone(), text.clone())?,
                false => encoder.add_itxt_chunk(key.clone(), text.clone())?,
            }
        }
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgba)?;
        writer.finish()?;
        Ok(file)
    }
}

fn check_pixels((width, height): (u32, u32), what: &'static str) -> Result<(), MaskError> {
    if u64::from(width) * u64::from(height) > PIXELS_MAX {
        return Err(MaskError::TooLarge { what, width, height });
    }
    Ok(())
}

/// Keys and texts, as many as fit; a text that cannot be unpacked is left out.
fn texts(info: &png::Info<'_>) -> Vec<(String, String)> {
    let plain = info.uncompressed_latin1_text.iter().map(|it| (it.keyword.clone(), Some(it.text.clone())));
    let packed = info.compressed_latin1_text.iter().map(|it| {
        let mut chunk = it.clone();
        let text = chunk.decompress_text_with_limit(TEXT_BYTES_MAX).and_then(|()| chunk.get_text());
        (it.keyword.clone(), text.ok())
    });
    let utf8 = info.utf8_text.iter().map(|it| {
        let mut chunk = it.clone();
        let text = chunk.decompress_text_with_limit(TEXT_BYTES_MAX).and_then(|()| chunk.get_text());
        (it.keyword.clone(), text.ok())
    });
    let mut bytes_left = TEXT_BYTES_MAX;
    let texts = plain.chain(packed).chain(utf8).take(TEXTS_MAX).filter_map(|(key, text)| {
        let text = text.filter(|text| text.len() <= bytes_left)?;
        bytes_left -= text.len();
        Some((key, text))
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PNG of one colour, with texts.
    fn png(size: (u32, u32), color: ColorType, pixel: &[u8], texts: &[(&str, &str)]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, size.0, size.1);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        for (key, text) in texts {
            encoder.add_itxt_chunk((*key).to_owned(), (*text).to_owned()).unwrap();
        }
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&pixel.repeat((size.0 * size.1) as usize)).unwrap();
        writer.finish().unwrap();
        file
    }

    fn jpeg(size: (u32, u32)) -> Vec<u8> {
        let mut file = Vec::new();
        let image = image::RgbImage::from_pixel(size.0, size.1, image::Rgb([200, 100, 50]));
        image.write_to(&mut Cursor::new(&mut file), image::ImageFormat::Jpeg).unwrap();
        file
    }

    /// A PNG whose header claims a size that its data does not have.
    fn claimed(width: u32, height: u32) -> Vec<u8> {
        let mut file = png((1, 1), ColorType::Rgba, &[0; 4], &[]);
        file[16..20].copy_from_slice(&width.to_be_bytes());
        file[20..24].copy_from_slice(&height.to_be_bytes());
        // The checksum of the header covers its type and its 13 bytes.
        let mut crc = u32::MAX;
        for byte in &file[12..29] {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            }
        }
        file[29..33].copy_from_slice(&(!crc).to_be_bytes());
        file
    }

    #[test]
    fn alpha_comes_from_the_mask_and_everything_else_from_the_image() {
        let texts = [("prompt", "{\"1\": {}}"), ("note", "höhe ✓")];
        let mask = png((3, 2), ColorType::Rgba, &[9, 9, 9, 77], &[("prompt", "of the mask")]);
        for (image, rgb) in [
            (png((3, 2), ColorType::Rgb, &[1, 2, 3], &texts), [1, 2, 3]),
            (png((3, 2), ColorType::Rgba, &[1, 2, 3, 4], &texts), [1, 2, 3]),
            (png((3, 2), ColorType::Grayscale, &[8], &texts), [8, 8, 8]),
            (png((3, 2), ColorType::GrayscaleAlpha, &[8, 1], &texts), [8, 8, 8]),
        ] {
            let applied = Pixels::decode(&apply_mask(&image, &mask).unwrap(), "the result").unwrap();
            assert_eq!((applied.size, &applied.rgba), ((3, 2), &[rgb[0], rgb[1], rgb[2], 77].repeat(6)));
            assert_eq!(applied.texts, texts.map(|(key, text)| (key.to_owned(), text.to_owned())));
        }
        let opaque = png((3, 2), ColorType::Rgb, &[9, 9, 9], &[]);
        let applied = apply_mask(&png((3, 2), ColorType::Rgba, &[1, 2, 3, 4], &[]), &opaque).unwrap();
        assert_eq!(Pixels::decode(&applied, "").unwrap().rgba[..4], [1, 2, 3, 255]);
        let photo = apply_mask(&jpeg((3, 2)), &mask).unwrap();
        let photo = Pixels::decode(&photo, "").unwrap();
        assert_eq!((photo.size, photo.rgba[3]), ((3, 2), 77));
    }

    /// Faults: B7.
    #[test]
    fn small_file_that_claims_many_pixels_is_refused_before_it_is_decoded() {
        let small = png((1, 1), ColorType::Rgba, &[0; 4], &[]);
        for (width, height) in [(5793, 5793), (1, 32 << 21), (1 << 30, 1 << 30)] {
            let bomb = claimed(width, height);
            let error = MaskError::TooLarge { what: "the mask", width, height };
            assert_eq!(apply_mask(&small, &bomb).unwrap_err(), error);
            let error = MaskError::TooLarge { what: "the image", width, height };
            assert_eq!(apply_mask(&bomb, &small).unwrap_err(), error);
        }
        let mut photo = jpeg((3, 2));
        // The frame header: marker, length, precision, then height and width.
        let at = photo.windows(2).position(|it| it == b"\xff\xc0").unwrap();
        photo[at + 5..at + 9].copy_from_slice(&[0xff; 4]);
        let error = MaskError::TooLarge { what: "the image", width: 65535, height: 65535 };
        assert_eq!(apply_mask(&photo, &small).unwrap_err(), error);
        let cut = claimed(5000, 5000);
        assert!(matches!(apply_mask(&cut, &small), Err(MaskError::Unreadable { what: "the image", .. })));
    }

    /// Faults: B7.
    #[test]
    fn text_that_is_huge_once_unpacked_is_left_out() {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 1, 1);
        encoder.set_color(ColorType::Rgba);
        encoder.add_ztxt_chunk("bomb".to_owned(), "x".repeat(TEXT_BYTES_MAX + 1)).unwrap();
        encoder.add_ztxt_chunk("kept".to_owned(), "a text".to_owned()).unwrap();
        let mut writer = encoder.write_header().unwrap();
        writer.write_image_data(&[1, 2, 3, 4]).unwrap();
        writer.finish().unwrap();
        assert!(file.len() < TEXT_BYTES_MAX / 8, "{} bytes", file.len());
        let mask = png((1, 1), ColorType::Rgba, &[0; 4], &[]);
        let applied = Pixels::decode(&apply_mask(&file, &mask).unwrap(), "").unwrap();
        assert_eq!(applied.texts, [("kept".to_owned(), "a text".to_owned())]);
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let image = png((3, 2), ColorType::Rgb, &[1, 2, 3], &[]);
        let mask = png((2, 3), ColorType::Rgba, &[0; 4], &[]);
        assert_eq!(apply_mask(&image, &mask).unwrap_err(), MaskError::Sizes { mask: (2, 3), image: (3, 2) });
        for other in [&b""[..], b"GIF89a", b"RIFF____WEBP", b"<svg>"] {
            assert_eq!(apply_mask(other, &mask).unwrap_err(), MaskError::Format { what: "the image" });
        }
        assert!(matches!(apply_mask(&image[..image.len() / 2], &mask), Err(MaskError::Unreadable { .. })));
    }
}
