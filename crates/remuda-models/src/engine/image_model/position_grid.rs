//! Position embeddings, resized for another number of patches.
//!
//! A transformer trained on larger images shrinks its position grid by cubic interpolation inside the graph. rten
//! silently computes that as linear, and every vector is off by 1e-4. The result does not depend on the image, so it is
//! computed here once and replaces the graph's value.

use rten::NodeId;
use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use crate::engine::onnx::graph::OnnxGraph;
use crate::engine::onnx::header::CubicResize;
use crate::failure::{InferenceError, LoadError};

/// The interpolation coefficient of torch, and the only one that rten accepts.
const SHARPNESS: f64 = -0.75;

/// Computes the correct value; `see` runs the graph on a uniform image up to a value.
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
        _ => Err(graph.unsupported("cubic interpolation of the image")),
    }
}

fn cubic(
    plane: &[f32],
    (from_height, from_width): (usize, usize),
    (height, width): (usize, usize),
) -> Vec<f32> {
    let (rows, columns) = (cubic_weights(from_height, height), cubic_weights(from_width, width));
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

/// The four source positions and weights of each target position; edge positions are repeated.
fn cubic_weights(from: usize, to: usize) -> Vec<[(usize, f64); 4]> {
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

    /// Expected numbers from ONNX Runtime.
    #[test]
    fn resized_grid_matches_onnx_runtime() {
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
