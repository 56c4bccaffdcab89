//! Resizes images bit for bit like Pillow: models were trained with it, and another rounding moves vectors by 1e-4.

use image::{Rgb, RgbImage};

/// The radius of Pillow's bicubic filter, in pixels of the smaller image.
const REACH: f64 = 2.0;
/// Weights are fixed-point numbers with this many fractional bits.
const POINT: u32 = 22;

/// The central square of `side` pixels, after scaling the shorter side to `resized`. Pixels outside the square are not
/// computed, however long the image is.
pub(crate) fn central_square(picture: &RgbImage, resized: u32, side: u32) -> RgbImage {
    let (width, height) = picture.dimensions();
    let columns = weights(width, width.min(height), resized, side);
    let rows = weights(height, width.min(height), resized, side);
    let first = rows.iter().map(|row| row.first).min().unwrap_or(0);
    let last = rows.iter().map(|row| row.first + row.weights.len()).max().unwrap_or(0);
    let mut between = RgbImage::new(side, (last - first) as u32);
    for (y, source) in (first as u32..last as u32).enumerate() {
        for (x, column) in columns.iter().enumerate() {
            let pixel = column.sum(|at| picture.get_pixel(at, source));
            between.put_pixel(x as u32, y as u32, pixel);
        }
    }
    RgbImage::from_fn(side, side, |x, y| {
        let row = &rows[y as usize];
        row.sum(|at| between.get_pixel(x, at - first as u32))
    })
}

/// The source pixels of one target pixel, with their weights.
struct PixelWeights {
    first: usize,
    weights: Vec<i64>,
}

impl PixelWeights {
    fn sum<'a>(&self, pixel: impl Fn(u32) -> &'a Rgb<u8>) -> Rgb<u8> {
        let mut sums = [1_i64 << (POINT - 1); 3];
        for (at, weight) in self.weights.iter().enumerate() {
            let Rgb(colors) = pixel((self.first + at) as u32);
            sums.iter_mut().zip(colors).for_each(|(sum, color)| *sum += weight * i64::from(*color));
        }
        Rgb(sums.map(|sum| (sum >> POINT).clamp(0, 255) as u8))
    }
}

/// For each pixel of the centre of one axis.
fn weights(length: u32, shorter: u32, resized: u32, side: u32) -> Vec<PixelWeights> {
    let whole = (u64::from(length) * u64::from(resized) / u64::from(shorter.max(1))).max(u64::from(side));
    let scale = f64::from(length) / whole as f64;
    let spread = scale.max(1.0);
    let skipped = (whole - u64::from(side)) / 2;
    (0..u64::from(side))
        .map(|at| {
            let center = ((at + skipped) as f64 + 0.5) * scale;
            let first = (center - REACH * spread + 0.5).max(0.0) as usize;
            let last = ((center + REACH * spread + 0.5) as usize).min(length as usize);
            let raw = (first..last).map(|at| bicubic((at as f64 - center + 0.5) / spread));
            let raw: Vec<f64> = raw.collect();
            let sum: f64 = raw.iter().sum();
            let weights = raw.iter().map(|weight| (weight / sum * f64::from(1 << POINT)).round() as i64);
            PixelWeights { first, weights: weights.collect() }
        })
        .collect()
}

fn bicubic(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        (1.5 * x - 2.5) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected numbers from Pillow 12: `resize(…, BICUBIC)`, then a central crop.
    #[test]
    fn resized_image_matches_pillow() {
        let picture = |width, height| {
            RgbImage::from_fn(width, height, |x, y| {
                Rgb([(x * 7 + y * 13) as u8, (x * x + y) as u8, ((x * 31) ^ (y * 17)) as u8])
            })
        };
        let pixels = |picture: &RgbImage| picture.pixels().map(|pixel| pixel.0).collect::<Vec<_>>();
        assert_eq!(pixels(&central_square(&picture(23, 17), 5, 3)), SMALLER);
        assert_eq!(pixels(&central_square(&picture(4, 3), 6, 3)), LARGER);
        assert_eq!(central_square(&picture(1, 5000), 8, 7).dimensions(), (7, 7), "a strip");
    }

    const SMALLER: [[u8; 3]; 9] = [
        [95, 32, 162],
        [123, 89, 104],
        [149, 172, 138],
        [140, 35, 118],
        [168, 92, 134],
        [201, 175, 124],
        [186, 38, 91],
        [220, 95, 151],
        [200, 178, 117],
    ];
    const LARGER: [[u8; 3]; 9] = [
        [7, 1, 19],
        [11, 2, 35],
        [14, 3, 51],
        [14, 2, 11],
        [18, 3, 22],
        [21, 4, 42],
        [22, 2, 21],
        [26, 3, 26],
        [29, 4, 35],
    ];
}
