//! Finds text boxes in a probability map of text pixels.

use image::imageops::{self, FilterType};
use image::{Rgb, RgbImage};
use rten_imageproc::{Point, Polygon, RetrievalMode, RotatedRect, find_contours};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, NdTensorView};

use super::contour::least_box;
use crate::beacon::Beacon;
use crate::failure::InferenceError;

/// Clockwise from the upper left.
pub(super) type Corners = [(f32, f32); 4];

/// The shorter side is scaled up to at least this, so that small text is found as well.
const SHORTER_SIDE_MIN: f32 = 736.0;
/// The longer side is scaled down to at most this, which bounds the cost of an image.
const LONGER_SIDE_MAX: f32 = 2000.0;
/// The graph halves an image five times.
const SIDE_STEP: f32 = 32.0;
/// An image this many times as wide as high, or no higher than a line, gets black margins above and below: text that
/// touches the edges is not found.
const STRIP_RATIO: u32 = 8;
const STRIP_HEIGHT: u32 = 30;

/// The threshold of a text pixel, and of the mean over a box.
const PIXEL_MIN: f32 = 0.3;
const BOX_MIN: f32 = 0.5;
/// The map marks the centre of a line: boxes grow by this times their area over their perimeter.
const GROWTH: f32 = 1.6;
const SIDE_MIN: f32 = 3.0;
const GROWN_SIDE_MIN: f32 = 5.0;
/// Boxes whose tops differ by less are on the same line.
const SAME_LINE: f32 = 10.0;
/// More boxes on one image are noise.
const BOXES_MAX: usize = 1000;

/// The scaling of an image for the graph, and the way back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct InputFrame {
    /// Of the image including its margins.
    width: u32,
    height: u32,
    added_above: u32,
    scaled_width: u32,
    scaled_height: u32,
}

impl InputFrame {
    pub(super) fn of(picture: &RgbImage) -> InputFrame {
        let (width, given) = picture.dimensions();
        let is_strip = given <= STRIP_HEIGHT || width / given.max(1) >= STRIP_RATIO;
        let added_above =
            if is_strip { (width / STRIP_RATIO).max(STRIP_HEIGHT).saturating_sub(given / 2) } else { 0 };
        let height = given + 2 * added_above;
        let (shorter, longer) = (width.min(height) as f32, width.max(height) as f32);
        let scale = (SHORTER_SIDE_MIN / shorter).max(1.0).min(LONGER_SIDE_MAX / longer);
        let side = |length: u32| ((length as f32 * scale / SIDE_STEP).round().max(1.0) * SIDE_STEP) as u32;
        InputFrame { width, height, added_above, scaled_width: side(width), scaled_height: side(height) }
    }

    pub(super) fn scaled(&self, picture: &RgbImage) -> RgbImage {
        let (width, height) = (self.scaled_width, self.scaled_height);
        if self.added_above == 0 {
            return imageops::resize(picture, width, height, FilterType::Triangle);
        }
        let mut framed = RgbImage::from_pixel(self.width, self.height, Rgb([0; 3]));
        imageops::replace(&mut framed, picture, 0, i64::from(self.added_above));
        imageops::resize(&framed, width, height, FilterType::Triangle)
    }

    /// Maps a point of the map back to the image.
    fn to_image(self, x: f32, y: f32) -> (f32, f32) {
        let x = x * self.width as f32 / self.scaled_width as f32;
        let y = y * self.height as f32 / self.scaled_height as f32;
        (x.round(), y.round() - self.added_above as f32)
    }
}

/// The boxes in reading order: top to bottom, left to right.
pub(super) fn find(
    map: &NdTensor<f32, 2>,
    frame: &InputFrame,
    beacon: &Beacon,
) -> Result<Vec<Corners>, InferenceError> {
    let mask = grown(map);
    beacon.step()?;
    let mut boxes = Vec::new();
    for contour in find_contours(mask.view(), RetrievalMode::List).iter().take(BOXES_MAX) {
        let Some(rect) = least_box(contour) else { continue };
        if rect.width().min(rect.height()) < SIDE_MIN || mean_within(map.view(), &rect) < BOX_MIN {
            continue;
        }
        let growth = rect.area() * GROWTH / (2.0 * (rect.width() + rect.height()));
        let rect = rect.expanded(2.0 * growth, 2.0 * growth);
        if rect.width().min(rect.height()) < GROWN_SIDE_MIN {
            continue;
        }
        boxes.push(ordered(rect.corners().map(|corner| frame.to_image(corner.x, corner.y))));
    }
    beacon.step()?;
    boxes.retain(|[start, right, _, below]| {
        distance(*start, *right) > SIDE_MIN && distance(*start, *below) > SIDE_MIN
    });
    sort(&mut boxes);
    Ok(boxes)
}

/// The text pixels, each dilated by one to the right and below, which joins parts separated by a single pixel.
fn grown(map: &NdTensor<f32, 2>) -> NdTensor<bool, 2> {
    let [height, width] = map.shape();
    let mut mask = NdTensor::full([height, width], false);
    for y in 0..height {
        for x in 0..width {
            if map[[y, x]] > PIXEL_MIN {
                for (y, x) in [(y, x), (y + 1, x), (y, x + 1), (y + 1, x + 1)] {
                    if y < height && x < width {
                        mask[[y, x]] = true;
                    }
                }
            }
        }
    }
    mask
}

fn mean_within(map: NdTensorView<f32, 2>, rect: &RotatedRect) -> f32 {
    let [height, width] = map.shape();
    let corners = rect.corners().map(|corner| Point::from_yx(corner.y as i32, corner.x as i32));
    let (mut sum, mut count) = (0.0, 0_u32);
    for point in Polygon::new(corners).fill_iter() {
        if let (Ok(y), Ok(x)) = (usize::try_from(point.y), usize::try_from(point.x))
            && y < height
            && x < width
        {
            sum += map[[y, x]];
            count += 1;
        }
    }
    sum / count.max(1) as f32
}

/// Clockwise from the upper left.
fn ordered(mut corners: Corners) -> Corners {
    corners.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [mut left, mut left_below, mut right, mut right_below] = corners;
    if left.1 > left_below.1 {
        std::mem::swap(&mut left, &mut left_below);
    }
    if right.1 > right_below.1 {
        std::mem::swap(&mut right, &mut right_below);
    }
    [left, right, right_below, left_below]
}

fn sort(boxes: &mut [Corners]) {
    boxes.sort_by(|a, b| a[0].1.total_cmp(&b[0].1).then(a[0].0.total_cmp(&b[0].0)));
    for end in 1..boxes.len() {
        for at in (1..=end).rev() {
            let [before, here] = [boxes[at - 1][0], boxes[at][0]];
            if (here.1 - before.1).abs() >= SAME_LINE || here.0 >= before.0 {
                break;
            }
            boxes.swap(at - 1, at);
        }
    }
}

pub(super) fn distance(a: (f32, f32), b: (f32, f32)) -> f32 {
    (a.0 - b.0).hypot(a.1 - b.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_sides_are_bounded_multiples_of_32() {
        for (width, height) in
            [(640, 320), (10, 10), (1, 1), (4000, 30), (30, 4000), (16_000, 4000), (500, 500)]
        {
            let frame = InputFrame::of(&RgbImage::new(width, height));
            let sides = [frame.scaled_width, frame.scaled_height];
            assert!(sides.iter().all(|side| *side >= 32 && side % 32 == 0 && *side <= 2016), "{frame:?}");
            let (x, y) = frame.to_image(sides[0] as f32, sides[1] as f32);
            assert_eq!((x, y), (width as f32, (height + frame.added_above) as f32), "{frame:?}");
        }
        assert_eq!(InputFrame::of(&RgbImage::new(640, 320)).added_above, 0);
        assert_eq!(InputFrame::of(&RgbImage::new(640, 60)).added_above, 50, "a strip gets margins");
    }

    #[test]
    fn boxes_follow_the_map_in_reading_order() {
        let mut map = NdTensor::full([736, 736], 0.0_f32);
        for (top, left) in [(300, 400), (304, 40), (100, 200)] {
            map.slice_mut((top..top + 20, left..left + 200)).fill(0.9);
        }
        // Too weak, and too small.
        map.slice_mut((600..620, 40..240)).fill(0.4);
        map.slice_mut((700..701, 700..701)).fill(0.9);
        let frame = InputFrame::of(&RgbImage::new(736, 736));
        let boxes = find(&map, &frame, &Beacon::default()).unwrap();
        let starts: Vec<_> = boxes.iter().map(|corners| corners[0]).collect();
        assert_eq!(boxes.len(), 3, "{boxes:?}");
        let near = |at: (f32, f32), x: f32, y: f32| {
            (at.0 - (x - 15.0)).abs() < 3.0 && (at.1 - (y - 15.0)).abs() < 3.0
        };
        assert!(
            near(starts[0], 200.0, 100.0) && near(starts[1], 40.0, 304.0) && near(starts[2], 400.0, 300.0),
            "{boxes:?}"
        );
    }
}
