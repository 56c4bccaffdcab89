//! Cuts a rotated text box out of an image.

use image::{Rgb, RgbImage, imageops};

use super::boxes::{Corners, distance};

/// A box this many times as high as wide is a vertical line.
const UPRIGHT_RATIO: f32 = 1.5;
/// A box is no larger than its image, which is no larger than this.
const SIDE_MAX: f32 = 32_768.0;

/// The line from left to right, and by how many corners it was rotated for that.
pub(super) fn strip(picture: &RgbImage, corners: &Corners) -> (RgbImage, usize) {
    let [start, right, end, below] = *corners;
    let width = distance(start, right).max(distance(below, end)).clamp(1.0, SIDE_MAX).floor();
    let height = distance(start, below).max(distance(right, end)).clamp(1.0, SIDE_MAX).floor();
    let along = ((right.0 - start.0) / width, (right.1 - start.1) / width);
    let down = ((below.0 - start.0) / height, (below.1 - start.1) / height);
    let strip = RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let (x, y) = (x as f32, y as f32);
        pixel(picture, start.0 + along.0 * x + down.0 * y, start.1 + along.1 * x + down.1 * y)
    });
    if height / width >= UPRIGHT_RATIO { (imageops::rotate270(&strip), 1) } else { (strip, 0) }
}

/// Bilinear; beyond the edge, the edge pixel.
fn pixel(picture: &RgbImage, x: f32, y: f32) -> Rgb<u8> {
    let (right, bottom) = (picture.width() - 1, picture.height() - 1);
    let (x, y) = (x.clamp(0.0, right as f32), y.clamp(0.0, bottom as f32));
    let (left, top) = (x as u32, y as u32);
    let (across, down) = (x.fract(), y.fract());
    let (next, under) = ((left + 1).min(right), (top + 1).min(bottom));
    let at = |x, y| picture.get_pixel(x, y).0.map(f32::from);
    let (a, b, c, d) = (at(left, top), at(next, top), at(left, under), at(next, under));
    Rgb(std::array::from_fn(|channel| {
        let above = a[channel] + (b[channel] - a[channel]) * across;
        let below = c[channel] + (d[channel] - c[channel]) * across;
        (above + (below - above) * down).round() as u8
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn box_is_cut_out_in_reading_direction() {
        // Red above, blue below, green to the right of both.
        let color = |x, y| {
            if x >= 60 {
                [0, 255, 0]
            } else if y < 50 {
                [255, 0, 0]
            } else {
                [0, 0, 255]
            }
        };
        let picture = RgbImage::from_fn(100, 100, |x, y| Rgb(color(x, y)));
        let (flat, turns) = strip(&picture, &[(10.0, 40.0), (50.0, 40.0), (50.0, 60.0), (10.0, 60.0)]);
        assert_eq!((flat.dimensions(), turns), ((40, 20), 0));
        assert_eq!((flat.get_pixel(5, 2).0, flat.get_pixel(5, 18).0), ([255, 0, 0], [0, 0, 255]));
        // A vertical line begins at the top.
        let (upright, turns) = strip(&picture, &[(50.0, 10.0), (70.0, 10.0), (70.0, 90.0), (50.0, 90.0)]);
        assert_eq!((upright.dimensions(), turns), ((80, 20), 1));
        assert_eq!((upright.get_pixel(2, 2).0, upright.get_pixel(2, 17).0), ([0, 255, 0], [255, 0, 0]));
        // Beyond the edge there are only edge pixels.
        let (beyond, _) = strip(&picture, &[(90.0, -10.0), (130.0, -10.0), (130.0, 5.0), (90.0, 5.0)]);
        assert!(beyond.pixels().all(|pixel| pixel.0 == [0, 255, 0]));
    }
}
