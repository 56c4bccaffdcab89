//! The places of patches, made for another number of patches.
//!
//! Trap: a transformer that was trained on larger pictures has its grid of places made smaller by cubic interpolation, in
//! its graph; rten takes that for linear and says nothing, and every vector is off by 1e-4. It depends on no picture, so it
//! is computed here, once, and given to the graph in place of its own.

use rten::NodeId;
use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use crate::engine::onnx::graph::OnnxGraph;
use crate::engine::onnx::header::CubicResize;
use crate::failure::{InferenceError, LoadError};

/// How sharp the interpolation is: what torch takes, and the only one that rten lets pass.
const SHARPNESS: f64 = -0.75;

/// What a value of the graph should be; `see` runs the graph on a picture of one brightness up to a value.
pub(super) fn make(
    graph: &OnnxGraph,
    CubicResize { given, made, .. }: &CubicResize,
    see: impl Fn(f32, NodeId) -> Result<Tensor<f32>, InferenceError>,
) -> Result<Tensor<f32>, LoadError> {
    let see = |brightness, value: &String| {
        see(brightness, graph.value(value)?).map_err(|failure| LoadError::Engine(failure.to_string()))
    };
    let (dark, bright, target) = (see(0.0, given)?, see(1.0, given)?, see(0.0, made)?);
    match (dark.shape(), target.shape()) {
        (&[1, planes, from_height, from_width], &[1, same, height, width])
            if planes == same && dark.to_vec() == bright.to_vec() =>
        {
            let numbers = dark.to_vec();
            let plane = |plane: &[f32]| cubic(plane, (from_height, from_width), (height, width));
            let places = numbers.chunks_exact((from_height * from_width).max(1)).flat_map(plane);
            Ok(Tensor::from_data(&[1, planes, height, width], places.collect::<Vec<_>>()))
        }
        _ => Err(graph.unsupported("cubic interpolation of what it sees")),
    }
}

fn cubic(
    plane: &[f32],
    (from_height, from_width): (usize, usize),
    (height, width): (usize, usize),
) -> Vec<f32> {
    let (rows, columns) = (mixes(from_height, height), mixes(from_width, width));
    let mut made = Vec::with_capacity(height * width);
    for row in &rows {
        for column in &columns {
            let along = |y: usize| {
                column.iter().map(|(x, weight)| f64::from(plane[y * from_width + x]) * weight).sum::<f64>()
            };
            let sum: f64 = row.iter().map(|(y, weight)| along(*y) * weight).sum();
            made.push(sum as f32);
        }
    }
    made
}

/// From which four each is made, and how much of each; at the edge the last one counts more than once.
fn mixes(from: usize, to: usize) -> Vec<[(usize, f64); 4]> {
    let scale = from as f64 / to as f64;
    let last = from.saturating_sub(1) as f64;
    let mix = |at: usize| {
        let place = (at as f64 + 0.5) * scale - 0.5;
        let (first, part) = (place.floor(), place - place.floor());
        [-1.0, 0.0, 1.0, 2.0].map(|step| ((first + step).clamp(0.0, last) as usize, weight(step - part)))
    };
    (0..to).map(mix).collect()
}

fn weight(distance: f64) -> f64 {
    let (x, a) = (distance.abs(), SHARPNESS);
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as ONNX Runtime gives them for the same.
    #[test]
    fn a_grid_is_made_smaller_and_larger_as_the_reference_does() {
        let plane: Vec<f32> = (0..20).map(|at| ((at * at * 7 + 3) % 23) as f32).collect();
        for (to, expected) in [((2, 3), SMALLER), ((5, 2), LARGER)] {
            let made = cubic(&plane, (4, 5), to);
            assert_eq!(made.len(), expected.len());
            assert!(made.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{made:?} {expected:?}");
        }
    }

    const SMALLER: &[f32] = &[8.49595, 2.53125, 12.35706, 13.17072, 13.96875, 10.91145];
    const LARGER: &[f32] =
        &[8.81461, 16.76214, 4.78081, 16.74594, 13.95117, 14.5426, 17.05704, 13.27409, 2.86049, 14.82444];
}
