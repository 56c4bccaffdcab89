//! The sampling schedule: the times at which the denoiser runs, and how its outputs are used.
//!
//! DDIM (without added noise) and Euler, both as in `diffusers`. Either is a list of steps with the same five
//! coefficients: sample and output give the predicted clean image, and these three give the next sample.
//!
//! ```text
//!  clean = clean_sample * sample + clean_output * output          (clipped if configured)
//!  next  = next_clean * clean + next_sample * sample + next_output * output
//! ```

use super::scheduler::{BetaSchedule, DiffusionSampler, Prediction, SchedulerConfig, Spacing};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Schedule {
    pub(super) steps: Vec<ScheduleStep>,
    /// The scale of the initial noise.
    pub(super) noise_scale: f64,
    clip: Option<f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ScheduleStep {
    /// The time passed to the denoiser.
    pub(super) time: f64,
    /// The factor applied to the sample before the denoiser.
    pub(super) input_scale: f64,
    clean_sample: f64,
    clean_output: f64,
    next_clean: f64,
    next_sample: f64,
    next_output: f64,
}

impl Schedule {
    /// `steps` is from 1 to the number of training steps.
    pub(super) fn new(config: &SchedulerConfig, steps: usize) -> Self {
        match config.sampler {
            DiffusionSampler::Ddim => ddim(config, steps),
            DiffusionSampler::Euler => euler(config, steps),
        }
    }

    /// Advances the sample by one step.
    pub(super) fn advance(&self, step: &ScheduleStep, sample: &mut [f32], output: &[f32]) {
        for (sample, output) in sample.iter_mut().zip(output) {
            let (x, y) = (f64::from(*sample), f64::from(*output));
            let clean = step.clean_sample * x + step.clean_output * y;
            let clean = self.clip.map_or(clean, |range| clean.clamp(-range, range));
            *sample = (step.next_clean * clean + step.next_sample * x + step.next_output * y) as f32;
        }
    }
}

fn ddim(config: &SchedulerConfig, steps: usize) -> Schedule {
    let alphas = alphas(config);
    let last = alphas.len() - 1;
    let at = |time: f64| alphas[(time.max(0.0) as usize).min(last)];
    let stride = (config.train_steps / steps) as f64;
    let step = |time: f64| {
        let alpha = at(time);
        let end = if config.is_alpha_one_at_end { 1.0 } else { alphas[0] };
        let before = if time - stride >= 0.0 { at(time - stride) } else { end };
        let (signal, noise) = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let (next_clean, rest) = (before.sqrt(), (1.0 - before).sqrt());
        let (clean_sample, clean_output, next_sample, next_output) = match config.prediction {
            Prediction::Epsilon => (1.0 / signal, -noise / signal, 0.0, rest),
            Prediction::V => (signal, -noise, rest * noise, rest * signal),
            Prediction::Sample => (0.0, 1.0, rest / noise, -rest * signal / noise),
        };
        ScheduleStep {
            time,
            input_scale: 1.0,
            clean_sample,
            clean_output,
            next_clean,
            next_sample,
            next_output,
        }
    };
    let steps = times(config, steps).into_iter().map(step).collect();
    Schedule { steps, noise_scale: 1.0, clip: config.clip }
}

fn euler(config: &SchedulerConfig, steps: usize) -> Schedule {
    let mut alphas = alphas(config);
    if config.is_zero_snr
        && let Some(last) = alphas.last_mut()
    {
        // The smallest number of half precision, because infinite noise cannot be stepped from.
        *last = f64::from(2.0_f32.powi(-24));
    }
    let sigmas: Vec<f64> = alphas.iter().map(|alpha| ((1.0 - alpha) / alpha).sqrt()).collect();
    let times = times(config, steps);
    let mut noises: Vec<f64> = times.iter().map(|time| between(&sigmas, *time)).collect();
    let largest = noises.iter().copied().fold(0.0, f64::max);
    noises.push(0.0);
    let step = |(time, pair): (f64, &[f64])| {
        let (sigma, next) = (pair[0], pair[1]);
        let spread = (sigma * sigma + 1.0).sqrt();
        let (clean_sample, clean_output) = match config.prediction {
            Prediction::Epsilon => (1.0, -sigma),
            Prediction::V => (1.0 / (spread * spread), -sigma / spread),
            Prediction::Sample => (0.0, 1.0),
        };
        let kept = next / sigma;
        ScheduleStep {
            time,
            input_scale: 1.0 / spread,
            clean_sample,
            clean_output,
            next_clean: 1.0 - kept,
            next_sample: kept,
            next_output: 0.0,
        }
    };
    let steps = times.into_iter().zip(noises.windows(2)).map(step).collect();
    let noise_scale = match config.spacing {
        Spacing::Leading => (largest * largest + 1.0).sqrt(),
        Spacing::Linspace | Spacing::Trailing => largest,
    };
    Schedule { steps, noise_scale, clip: None }
}

/// The times of the steps, noisiest first.
fn times(config: &SchedulerConfig, steps: usize) -> Vec<f64> {
    let train = config.train_steps as f64;
    let count = steps as f64;
    let mut times: Vec<f64> = match config.spacing {
        Spacing::Leading => {
            let stride = config.train_steps / steps;
            (0..steps).rev().map(|step| (step * stride + config.steps_offset) as f64).collect()
        }
        Spacing::Trailing => {
            let stride = train / count;
            (0..steps).map(|step| (train - step as f64 * stride).round_ties_even() - 1.0).collect()
        }
        Spacing::Linspace => {
            let stride = if steps > 1 { (train - 1.0) / (count - 1.0) } else { 0.0 };
            (0..steps).rev().map(|step| step as f64 * stride).collect()
        }
    };
    // Euler uses fractional times, DDIM only training times.
    if config.sampler == DiffusionSampler::Ddim {
        times.iter_mut().for_each(|time| *time = time.round_ties_even());
    }
    times
}

/// The cumulative products of `1 - beta` at each training time.
fn alphas(config: &SchedulerConfig) -> Vec<f64> {
    let count = config.train_steps;
    let line = |from: f64, to: f64| {
        let stride = if count > 1 { (to - from) / (count - 1) as f64 } else { 0.0 };
        (0..count).map(move |step| from + stride * step as f64)
    };
    let betas: Vec<f64> = match config.betas {
        BetaSchedule::Linear => line(config.beta_start, config.beta_end).collect(),
        BetaSchedule::ScaledLinear => {
            line(config.beta_start.sqrt(), config.beta_end.sqrt()).map(|root| root * root).collect()
        }
        BetaSchedule::Cosine => {
            let left = |time: f64| ((time + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
            let at = |step: usize| left(step as f64 / count as f64);
            (0..count).map(|step| (1.0 - at(step + 1) / at(step)).min(0.999)).collect()
        }
    };
    let mut product = 1.0;
    let mut alphas: Vec<f64> = betas
        .iter()
        .map(|beta| {
            product *= 1.0 - beta;
            product
        })
        .collect();
    if config.is_zero_snr
        && let (Some(first), Some(last)) = (alphas.first().copied(), alphas.last().copied())
    {
        let (first, last) = (first.sqrt(), last.sqrt());
        for alpha in &mut alphas {
            *alpha = ((alpha.sqrt() - last) * first / (first - last)).powi(2);
        }
    }
    alphas
}

/// Linear interpolation in a list.
fn between(numbers: &[f64], place: f64) -> f64 {
    let last = numbers.len() - 1;
    let below = (place.max(0.0) as usize).min(last);
    let above = (below + 1).min(last);
    numbers[below] + (numbers[above] - numbers[below]) * (place - below as f64).clamp(0.0, 1.0)
}
