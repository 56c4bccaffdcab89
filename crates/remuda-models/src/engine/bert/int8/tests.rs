use super::elementwise::{dequantize, quantize};
use super::*;

/// Deterministic numbers between -1 and 1.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Widths that fill whole vectors and widths that do not, deeper and shallower than the blocks of the products.
#[test]
fn int8_product_matches_the_float_product() {
    for (count, inputs, outputs) in [(1, 8, 4), (3, 37, 29), (9, 384, 70), (70, 1536, 33)] {
        let (weights, bias) = (numbers(inputs * outputs, 1), numbers(outputs, 2));
        let rows = numbers(count * inputs, 3);
        let matrix = QuantizedMatrix::new(&weights, &bias, inputs).unwrap();
        let (mut bytes, mut params, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        quantize(&rows, inputs, &mut bytes, &mut params);
        let stands_for: Vec<f32> = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| {
                let param: &QuantParams = &params[at / inputs];
                (f32::from(*byte) - param.zero) * param.scale
            })
            .collect();
        for (at, (stands_for, number)) in stands_for.iter().zip(&rows).enumerate() {
            assert!((stands_for - number).abs() <= params[at / inputs].scale, "{stands_for} for {number}");
        }
        matrix.multiply(&bytes, &mut sums).unwrap();
        let mut found = vec![0.0; count * outputs];
        dequantize(&sums, &params, &matrix, &mut found);
        for (at, found) in found.iter().enumerate() {
            let (row, column) = (at / outputs, at % outputs);
            let rounded = |weight: &f32| (weight / matrix.scales[column]).round() * matrix.scales[column];
            let pairs =
                stands_for[row * inputs..][..inputs].iter().zip(&weights[column * inputs..][..inputs]);
            let expected = pairs.map(|(a, b)| a * rounded(b)).sum::<f32>() + bias[column];
            assert!(
                (expected - found).abs() < 1e-3,
                "{count}×{inputs}×{outputs} at {at}: {found} for {expected}"
            );
        }
    }
}
