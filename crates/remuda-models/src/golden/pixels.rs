//! Compares two images, allowing for rounding.

use std::io::Cursor;

/// The largest mean difference per channel (of 255) between two images that count as equal. Threads, SIMD widths and
/// GPUs add in another order, which moves single values by one; rounding all weights to 16 bits, which is far more,
/// moves the mean by 0.1. Other weights move it by 10 to 100, and a hundredth of them lost by 4 to 40. Corruption in
/// weights the golden prompt does not use, such as the embeddings of other tokens, is not detected.
const LEVELS_MAX: f64 = 1.0;

/// Many times the size of a golden image; a header that claims more is not ours.
const BYTES_MAX: usize = 64 << 20;

#[derive(Debug, PartialEq)]
pub(super) struct Pixels {
    size: (u32, u32),
    kind: (png::ColorType, png::BitDepth),
    levels: Vec<u8>,
}

impl Pixels {
    pub(super) fn read(file: &[u8]) -> Result<Self, String> {
        let mut reader =
            png::Decoder::new(Cursor::new(file)).read_info().map_err(|error| error.to_string())?;
        let bytes = reader.output_buffer_size().filter(|bytes| *bytes <= BYTES_MAX);
        let bytes = bytes.ok_or_else(|| format!("more than {BYTES_MAX} bytes of pixels"))?;
        let mut levels = vec![0; bytes];
        let frame = reader.next_frame(&mut levels).map_err(|error| error.to_string())?;
        levels.truncate(frame.buffer_size());
        Ok(Pixels { size: (frame.width, frame.height), kind: (frame.color_type, frame.bit_depth), levels })
    }

    /// How the other image differs from this one, if it does.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        if (self.size, self.kind) != (other.size, other.kind) {
            let (width, height) = self.size;
            let (other_width, other_height) = other.size;
            return Some(format!(
                "an image of {other_width} x {other_height} in {:?} instead of {width} x {height} in {:?}",
                other.kind, self.kind
            ));
        }
        let apart =
            self.levels.iter().zip(&other.levels).map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>();
        let mean = apart as f64 / self.levels.len().max(1) as f64;
        (mean > LEVELS_MAX).then(|| format!("an image that differs by {mean:.1} levels of 255"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture((width, height): (u32, u32), levels: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(levels).unwrap();
        file
    }

    #[test]
    fn rounding_is_no_difference_but_another_image_or_size_is() {
        let read = |size, levels: &[u8]| Pixels::read(&picture(size, levels)).unwrap();
        let known = read((2, 1), &[10, 20, 30, 40, 50, 60]);
        assert_eq!(known.difference(&read((2, 1), &[11, 19, 30, 41, 50, 61])), None);
        let other = known.difference(&read((2, 1), &[10, 20, 30, 40, 50, 70])).unwrap();
        assert_eq!(other, "an image that differs by 1.7 levels of 255");
        let turned = known.difference(&read((1, 2), &[10, 20, 30, 40, 50, 60])).unwrap();
        assert!(turned.contains("1 x 2") && turned.contains("2 x 1"), "{turned}");
    }

    /// Truncated files, and a header with an absurd size.
    #[test]
    fn incomplete_or_oversized_images_are_errors() {
        let whole = picture((2, 1), &[10, 20, 30, 40, 50, 60]);
        for length in 0..whole.len() - 12 {
            assert!(Pixels::read(&whole[..length]).is_err(), "the first {length} bytes of {}", whole.len());
        }
        let mut huge = Vec::new();
        drop(png::Encoder::new(&mut huge, 1 << 20, 1 << 20).write_header().unwrap());
        assert!(Pixels::read(&huge).is_err());
    }
}
