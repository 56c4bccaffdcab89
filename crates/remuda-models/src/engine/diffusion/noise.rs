//! Noise that is identical on every machine: SplitMix64 from the seed, two values at a time by Marsaglia's polar
//! method.
//!
//! The logarithm is our own, because those of the platforms differ in their last bit. It uses only sums, products,
//! quotients and a square root, which IEEE 754 rounds in one way. `tests/reference/diffusion.py` has the same noise in
//! twenty lines of Python.

/// Values of a normal distribution.
#[derive(Clone, Debug)]
pub(super) struct Noise {
    state: u64,
    /// The second value of a pair.
    kept: Option<f64>,
}

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Noise { state: seed, kept: None }
    }

    /// From -1 to 1, in steps of 2^-52.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let x = x ^ (x >> 31);
        (x >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

impl Iterator for Noise {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        if let Some(kept) = self.kept.take() {
            return Some(kept as f32);
        }
        loop {
            let (a, b) = (self.uniform(), self.uniform());
            let s = a * a + b * b;
            if s > 0.0 && s < 1.0 {
                let factor = (-2.0 * ln(s) / s).sqrt();
                self.kept = Some(b * factor);
                return Some((a * factor) as f32);
            }
        }
    }
}

/// The natural logarithm of a normal positive number, by `2 artanh((m - 1) / (m + 1))` around 1: 14 terms are exact
/// enough for a double where |m - 1| / (m + 1) is below 0.172.
fn ln(s: f64) -> f64 {
    let bits = s.to_bits();
    let mut exponent = ((bits >> 52) & 0x7FF) as i64 - 1022;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1022 << 52));
    if m < std::f64::consts::FRAC_1_SQRT_2 {
        m *= 2.0;
        exponent -= 1;
    }
    let z = (m - 1.0) / (m + 1.0);
    let squared = z * z;
    let (mut power, mut total) = (z, 0.0);
    for k in (1..28).step_by(2) {
        total += power / f64::from(k);
        power *= squared;
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * total
}

#[cfg(test)]
mod tests {
    use super::{Noise, ln};

    #[test]
    fn logarithm_matches_the_standard_library() {
        for s in [1e-30, 0.001, 0.3, 0.5, 0.707, 0.71, 0.999_999] {
            assert!((ln(s) - f64::ln(s)).abs() <= 4.0 * f64::EPSILON * f64::ln(s).abs(), "{s}");
        }
    }

    #[test]
    fn noise_is_normal_and_reproducible() {
        let drawn: Vec<f32> = Noise::new(3).take(100_000).collect();
        let mean = drawn.iter().map(|x| f64::from(*x)).sum::<f64>() / 1e5;
        let moment = |power| drawn.iter().map(|x| f64::from(*x).powi(power)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (moment(2) - 1.0).abs() < 0.02 && (moment(4) - 3.0).abs() < 0.1);
        assert_eq!(drawn, Noise::new(3).take(100_000).collect::<Vec<_>>());
        assert_ne!(drawn[..8], Noise::new(4).take(8).collect::<Vec<_>>()[..]);
    }
}
