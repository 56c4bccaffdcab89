//! The smallest rotated box around a group of pixels.
//!
//! rten-imageproc has one as well, but its hull sorts by angles in 32 bits; on lines of some hundred pixels it loses
//! corners, and with them half the line. Pixels are integers, and integers suffice for a hull.

use rten_imageproc::{Point, PointF, RotatedRect, Vec2};

/// `None` for no pixels.
pub(super) fn least_box(pixels: &[Point]) -> Option<RotatedRect> {
    let hull = hull(pixels);
    let edges = hull.iter().zip(hull.iter().cycle().skip(1));
    let along = edges.map(|(from, to)| (f64::from(to.x - from.x), f64::from(to.y - from.y)));
    // A single pixel has no edge and gets an axis-aligned box.
    let boxes =
        along.filter(|edge| *edge != (0.0, 0.0)).chain([(1.0, 0.0)]).filter_map(|edge| around(&hull, edge));
    let area = |rect: &RotatedRect| rect.width() * rect.height();
    boxes.min_by(|a, b| area(a).total_cmp(&area(b)))
}

/// The box around a hull along a direction.
fn around(hull: &[Point], (x, y): (f64, f64)) -> Option<RotatedRect> {
    let length = x.hypot(y);
    let (x, y) = (x / length, y / length);
    let span = |direction: (f64, f64)| {
        let places =
            hull.iter().map(|point| f64::from(point.x) * direction.0 + f64::from(point.y) * direction.1);
        places.fold(None, |span: Option<(f64, f64)>, at| {
            let (least, most) = span.unwrap_or((at, at));
            Some((least.min(at), most.max(at)))
        })
    };
    let ((left, right), (top, bottom)) = (span((x, y))?, span((-y, x))?);
    let (across, down) = (f64::midpoint(left, right), f64::midpoint(top, bottom));
    let center = PointF::from_yx((across * y + down * x) as f32, (across * x - down * y) as f32);
    let up = Vec2::from_yx(x as f32, -y as f32);
    Some(RotatedRect::new(center, up, (right - left) as f32, (bottom - top) as f32))
}

/// The convex hull in order (Andrew's monotone chain).
fn hull(pixels: &[Point]) -> Vec<Point> {
    let mut sorted = pixels.to_vec();
    sorted.sort_by_key(|pixel| (pixel.x, pixel.y));
    sorted.dedup();
    if sorted.len() < 3 {
        return sorted;
    }
    let mut hull = half(sorted.iter());
    hull.pop();
    hull.extend(half(sorted.iter().rev()));
    hull.pop();
    hull
}

fn half<'a>(pixels: impl Iterator<Item = &'a Point>) -> Vec<Point> {
    let mut half: Vec<Point> = Vec::new();
    for pixel in pixels {
        while let [.., a, b] = half.as_slice()
            && turn(*a, *b, *pixel) <= 0
        {
            half.pop();
        }
        half.push(*pixel);
    }
    half
}

/// The turn direction at the second of three points; zero if they are collinear.
fn turn(a: Point, b: Point, c: Point) -> i64 {
    let across =
        |from: Point, to: Point| (i64::from(to.x) - i64::from(from.x), i64::from(to.y) - i64::from(from.y));
    let ((x, y), (u, v)) = (across(a, b), across(a, c));
    x * v - y * u
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(width: i32, height: i32, place: impl Fn(f64, f64) -> (f64, f64)) -> Vec<Point> {
        let all = (0..=height).flat_map(|y| (0..=width).map(move |x| (f64::from(x), f64::from(y))));
        all.map(|(x, y)| place(x, y))
            .map(|(x, y)| Point::from_yx(y.round() as i32, x.round() as i32))
            .collect()
    }

    #[test]
    fn box_of_a_rotated_line_has_its_size() {
        let flat = least_box(&pixels(563, 20, |x, y| (x + 103.0, y + 254.0))).unwrap();
        assert_eq!((flat.width(), flat.height()), (563.0, 20.0));
        assert_eq!((flat.center().x, flat.center().y), (384.5, 264.0));
        for degrees in [3.0_f64, 12.0, 45.0, 80.0, 170.0] {
            let (sin, cos) = degrees.to_radians().sin_cos();
            let turned = pixels(600, 26, |x, y| (700.0 + x * cos - y * sin, 700.0 + x * sin + y * cos));
            let rect = least_box(&turned).unwrap();
            let (long, short) = (rect.width().max(rect.height()), rect.width().min(rect.height()));
            assert!((long - 600.0).abs() < 2.0 && (short - 26.0).abs() < 2.0, "{degrees}: {long} x {short}");
            assert!(turned.iter().all(|pixel| rect.expanded(2.0, 2.0).contains(pixel.to_f32())), "{degrees}");
        }
    }

    #[test]
    fn few_pixels_have_a_box_and_no_pixels_have_none() {
        assert!(least_box(&[]).is_none());
        let one = least_box(&[Point::from_yx(5, 7)]).unwrap();
        assert_eq!((one.width(), one.height(), one.center().x, one.center().y), (0.0, 0.0, 7.0, 5.0));
        let row = least_box(&pixels(9, 0, |x, y| (x, y))).unwrap();
        assert_eq!((row.width().max(row.height()), row.width().min(row.height())), (9.0, 0.0));
    }
}
