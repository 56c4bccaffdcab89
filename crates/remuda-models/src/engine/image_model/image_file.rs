//! Images from outside: checked before decoding, decoded within limits, and converted for models.

use std::io::Cursor;

use image::{
    DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, Rgb, RgbImage, RgbaImage,
};

/// The limits of side length and pixels: 64 megapixels take 192 MB in memory.
const SIDE_MAX: u32 = 16_384;
const PIXELS_MAX: u64 = 64_000_000;
/// Larger than any file of a camera or a screenshot.
const FILE_BYTES_MAX: usize = 64 << 20;
/// The memory limit of decoding: eight bytes per pixel for the richest PNG, plus overhead.
const DECODE_BYTES_MAX: u64 = PIXELS_MAX * 8 + (64 << 20);

/// The image size from its header, or why it is refused.
pub(crate) fn examine(file: &[u8]) -> Result<(u32, u32), String> {
    let (width, height) = reader(file)?.into_dimensions().map_err(decode_error)?;
    within_limits(width, height)?;
    Ok((width, height))
}

/// Decodes a PNG or JPEG file: rotated by its EXIF orientation, transparent pixels on white.
pub(crate) fn decode(file: &[u8]) -> Result<RgbImage, String> {
    let mut decoder = reader(file)?.into_decoder().map_err(decode_error)?;
    let (width, height) = decoder.dimensions();
    within_limits(width, height)?;
    let orientation = decoder.orientation().map_err(decode_error)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(decode_error)?;
    picture.apply_orientation(orientation);
    Ok(if picture.color().has_alpha() { on_white(&picture.into_rgba8()) } else { picture.into_rgb8() })
}

fn reader(file: &[u8]) -> Result<ImageReader<Cursor<&[u8]>>, String> {
    if file.len() > FILE_BYTES_MAX {
        return Err(format!("an image of {} bytes; the limit is {FILE_BYTES_MAX}", file.len()));
    }
    let format = image::guess_format(file).ok();
    let Some(format) = format.filter(|it| matches!(it, ImageFormat::Png | ImageFormat::Jpeg)) else {
        return Err("an image must be a PNG or JPEG file".to_owned());
    };
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX);
    limits.max_image_height = Some(SIDE_MAX);
    limits.max_alloc = Some(DECODE_BYTES_MAX);
    reader.limits(limits);
    Ok(reader)
}

fn within_limits(width: u32, height: u32) -> Result<(), String> {
    let pixels = u64::from(width) * u64::from(height);
    if width == 0 || height == 0 || width.max(height) > SIDE_MAX || pixels > PIXELS_MAX {
        return Err(format!(
            "an image of {width} x {height} pixels; the limits are {SIDE_MAX} per side and {PIXELS_MAX} in total"
        ));
    }
    Ok(())
}

fn decode_error(error: ImageError) -> String {
    match error {
        ImageError::Limits(_) => format!("the image is too large: {error}"),
        other => format!("the image cannot be read: {other}"),
    }
}

fn on_white(picture: &RgbaImage) -> RgbImage {
    let blend = |color: u8, alpha: u8| {
        let (color, alpha) = (u32::from(color), u32::from(alpha));
        u8::try_from((color * alpha + 255 * (255 - alpha) + 127) / 255).unwrap_or(u8::MAX)
    };
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let [r, g, b, a] = picture.get_pixel(x, y).0;
        Rgb([blend(r, a), blend(g, a), blend(b, a)])
    })
}

/// Planes of red, green and blue, as image models expect them.
pub(crate) fn planes(picture: &RgbImage, mean: [f32; 3], deviation: [f32; 3]) -> Vec<f32> {
    let pixels = picture.width() as usize * picture.height() as usize;
    let mut planes = Vec::with_capacity(3 * pixels);
    for channel in 0..3 {
        let (mean, deviation) = (mean[channel], deviation[channel]);
        planes.extend(picture.pixels().map(|pixel| (f32::from(pixel.0[channel]) / 255.0 - mean) / deviation));
    }
    planes
}
