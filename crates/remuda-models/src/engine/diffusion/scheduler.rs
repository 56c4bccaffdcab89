//! Reads `scheduler_config.json`: the noise a model was trained with, and how its images are sampled.

use std::path::Path;

use serde::Deserialize;

use super::config::{read, unsupported, wrong};
use crate::failure::LoadError;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SchedulerConfig {
    pub(super) sampler: DiffusionSampler,
    pub(super) train_steps: usize,
    pub(super) betas: BetaSchedule,
    pub(super) beta_start: f64,
    pub(super) beta_end: f64,
    pub(super) prediction: Prediction,
    pub(super) spacing: Spacing,
    pub(super) steps_offset: usize,
    /// Whether the last step leaves no noise.
    pub(super) is_alpha_one_at_end: bool,
    /// Whether the noisiest time has no signal.
    pub(super) is_zero_snr: bool,
    /// The clipping range of the predicted clean image.
    pub(super) clip: Option<f64>,
    /// The sampler in the file, if another one is used instead.
    pub(super) replaced: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiffusionSampler {
    Ddim,
    Euler,
}

impl DiffusionSampler {
    pub(super) fn name(self) -> &'static str {
        match self {
            DiffusionSampler::Ddim => "DDIM",
            DiffusionSampler::Euler => "Euler",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BetaSchedule {
    Linear,
    ScaledLinear,
    #[serde(rename = "squaredcos_cap_v2")]
    Cosine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Prediction {
    Epsilon,
    #[serde(rename = "v_prediction")]
    V,
    Sample,
}

impl Prediction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Prediction::Epsilon => "epsilon",
            Prediction::V => "v_prediction",
            Prediction::Sample => "sample",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Spacing {
    Leading,
    Trailing,
    Linspace,
}

/// Samplers for the same training noise: they are interchangeable, with other steps to comparable images.
const REPLACEABLE: [&str; 12] = [
    "PNDMScheduler",
    "DDPMScheduler",
    "LMSDiscreteScheduler",
    "HeunDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "UniPCMultistepScheduler",
    "DEISMultistepScheduler",
    "KDPM2DiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "DPMSolverSDEScheduler",
];

/// The file's contents. Values whose default depends on the sampler are optional.
#[derive(Deserialize)]
struct SchedulerFile {
    _class_name: String,
    #[serde(default = "thousand")]
    num_train_timesteps: usize,
    #[serde(default = "linear")]
    beta_schedule: BetaSchedule,
    #[serde(default = "beta_start")]
    beta_start: f64,
    #[serde(default = "beta_end")]
    beta_end: f64,
    trained_betas: Option<serde_json::Value>,
    #[serde(default = "epsilon")]
    prediction_type: Prediction,
    timestep_spacing: Option<Spacing>,
    #[serde(default)]
    steps_offset: usize,
    set_alpha_to_one: Option<bool>,
    #[serde(default)]
    rescale_betas_zero_snr: bool,
    clip_sample: Option<bool>,
    #[serde(default = "one")]
    clip_sample_range: f64,
    #[serde(default)]
    thresholding: bool,
    use_karras_sigmas: Option<bool>,
    use_exponential_sigmas: Option<bool>,
    use_beta_sigmas: Option<bool>,
    interpolation_type: Option<String>,
    timestep_type: Option<String>,
    final_sigmas_type: Option<String>,
}

fn thousand() -> usize {
    1000
}
fn linear() -> BetaSchedule {
    BetaSchedule::Linear
}
fn beta_start() -> f64 {
    0.0001
}
fn beta_end() -> f64 {
    0.02
}
fn epsilon() -> Prediction {
    Prediction::Epsilon
}
fn one() -> f64 {
    1.0
}

impl SchedulerConfig {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        Self::resolve(read(path)?, path)
    }

    fn resolve(written: SchedulerFile, path: &Path) -> Result<Self, LoadError> {
        let class = written._class_name.as_str();
        let is_plain = !(written.use_karras_sigmas == Some(true)
            || written.use_exponential_sigmas == Some(true)
            || written.use_beta_sigmas == Some(true))
            && written.interpolation_type.as_deref().is_none_or(|kind| kind == "linear")
            && written.timestep_type.as_deref().is_none_or(|kind| kind == "discrete")
            && written.final_sigmas_type.as_deref().is_none_or(|kind| kind == "zero");
        let (sampler, replaced) = match class {
            "DDIMScheduler" => (DiffusionSampler::Ddim, None),
            "EulerDiscreteScheduler" if is_plain => (DiffusionSampler::Euler, None),
            "EulerDiscreteScheduler" => {
                (DiffusionSampler::Euler, Some(format!("{class} with spaced sigmas")))
            }
            class if REPLACEABLE.contains(&class) => (DiffusionSampler::Ddim, Some(class.to_owned())),
            class => return Err(unsupported(path, format!("the scheduler {class}"), HINT)),
        };
        if written.trained_betas.is_some_and(|betas| !betas.is_null()) {
            return Err(unsupported(path, "trained_betas", HINT));
        }
        if written.thresholding {
            return Err(unsupported(path, "thresholding, which is for pixel models", HINT));
        }
        if written.rescale_betas_zero_snr && written.prediction_type == Prediction::Epsilon {
            return Err(wrong(
                path,
                "rescale_betas_zero_snr cannot be combined with a prediction_type of epsilon",
            ));
        }
        if !(2..=100_000).contains(&written.num_train_timesteps)
            || written.steps_offset >= written.num_train_timesteps
        {
            return Err(wrong(
                path,
                "num_train_timesteps must be from 2 to 100000, and steps_offset below it",
            ));
        }
        let is_beta = |beta: f64| (1e-9..1.0).contains(&beta);
        if !is_beta(written.beta_start) || !is_beta(written.beta_end) || written.beta_start > written.beta_end
        {
            return Err(wrong(
                path,
                "beta_start and beta_end must be between 0 and 1, and beta_end the larger",
            ));
        }
        if written.clip_sample_range.is_nan() || written.clip_sample_range <= 0.0 {
            return Err(wrong(path, "clip_sample_range is not above 0"));
        }
        // DDIM's defaults differ from those of the samplers it replaces.
        let is_ddim = class == "DDIMScheduler";
        let spacing = match (written.timestep_spacing, class) {
            (Some(spacing), _) => spacing,
            (None, "DDIMScheduler" | "PNDMScheduler" | "DDPMScheduler") => Spacing::Leading,
            (None, _) => Spacing::Linspace,
        };
        let is_clipped = sampler == DiffusionSampler::Ddim && written.clip_sample.unwrap_or(is_ddim);
        Ok(SchedulerConfig {
            sampler,
            train_steps: written.num_train_timesteps,
            betas: written.beta_schedule,
            beta_start: written.beta_start,
            beta_end: written.beta_end,
            prediction: written.prediction_type,
            spacing,
            steps_offset: written.steps_offset,
            is_alpha_one_at_end: written.set_alpha_to_one.unwrap_or(is_ddim),
            is_zero_snr: written.rescale_betas_zero_snr,
            clip: is_clipped.then_some(written.clip_sample_range),
            replaced,
        })
    }

    #[cfg(test)]
    pub(super) fn from_json(json: serde_json::Value) -> Self {
        Self::resolve(serde_json::from_value(json).unwrap(), Path::new("scheduler_config.json")).unwrap()
    }
}

const HINT: &str = "; save the model with a DDIMScheduler or an EulerDiscreteScheduler";
