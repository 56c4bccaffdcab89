//! A loaded model: prompts to tokens to rows, noise through all steps to latents, latents to pixels.
//!
//! The same seed starts with the same noise everywhere. CPUs with other SIMD widths add in another order, so images of
//! two machines may differ by a level of brightness here and there; those of one machine do not.

use candle_core::Tensor;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::clip::Clip;
use super::folder::DiffusersFolder;
use super::layers::{ComputeError, TensorResult};
use super::noise::Noise;
use super::png_file;
use super::schedule::Schedule;
use super::scheduler::SchedulerConfig;
use super::tokenizer::ClipTokenizer;
use super::unet::Unet;
use super::vae::Decoder;
use crate::beacon::Beacon;
use crate::engine::candle_device;
use crate::failure::{InferenceError, LoadError};
use crate::model::TextToImage;
use crate::request::{AnswerUpdate, ImagePrompt};
use crate::spec::Device;

#[derive(Debug)]
pub(super) struct DiffusionPipeline {
    pub(super) clip: Clip,
    pub(super) unet: Unet,
    pub(super) decoder: Decoder,
    pub(super) tokens: ClipTokenizer,
    pub(super) scheduler: SchedulerConfig,
    channels: usize,
    factor: usize,
    pub(super) device: candle_core::Device,
    /// On a CPU candle computes with the threads of the rayon pool it is called in: our own pool limits it to the
    /// configured number. On a card it must be called by the thread that loaded the model.
    threads: Option<ThreadPool>,
}

/// The prompt, and the negative prompt with its weight.
pub(super) struct PromptEmbeddings {
    pub(super) positive: Tensor,
    /// The negative prompt and the guidance; `None` without guidance.
    pub(super) negative: Option<(Tensor, f32)>,
}

impl DiffusionPipeline {
    /// Loads onto a device with this much memory for it.
    pub(super) fn load(
        folder: &DiffusersFolder,
        (on, need_bytes): (Device, u64),
        threads: u32,
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let device = candle_device::open(on, need_bytes)?;
        let crew = || {
            ThreadPoolBuilder::new()
                .num_threads(threads.max(1) as usize)
                .thread_name(|number| format!("draw-{number}"))
                .build()
                .map_err(|error| LoadError::Engine(error.to_string()))
        };
        let threads = if on == Device::Cpu { Some(crew()?) } else { None };
        let places = folder.clip.max_position_embeddings;
        let pipeline = DiffusionPipeline {
            tokens: ClipTokenizer::load(&folder.path, places, folder.clip.vocab_size)?,
            clip: Clip::load(&folder.clip_weights, &folder.clip, &device, beacon)?,
            unet: Unet::load(&folder.unet_weights, &folder.unet, &device, beacon)?,
            decoder: Decoder::load(&folder.vae_weights, &folder.vae, &device, beacon)?,
            scheduler: folder.scheduler.clone(),
            channels: folder.unet.channels,
            factor: folder.vae.factor(),
            device,
            threads,
        };
        if on != Device::Cpu {
            let warmed = pipeline.warm(folder.unet.sample, beacon);
            warmed.map_err(|failure| candle_device::failed(on, need_bytes, failure))?;
        }
        Ok(pipeline)
    }

    /// Runs one step with an empty prompt and zero noise, in the native size.
    fn warm(&self, size: (usize, usize), beacon: &Beacon) -> Result<(), InferenceError> {
        let tokens = self.tokens.of("").map_err(InferenceError::Input)?;
        let text = self.compute(|| self.clip.run(&tokens, beacon))?;
        let latents = vec![0.0; self.channels * size.0 * size.1];
        let sample = self.compute(|| self.tensor(latents.clone(), size))?;
        let predicted = self.compute(|| self.unet.run(&sample, 0.0, &text, beacon))?;
        self.numbers(&predicted)?;
        self.decode(latents, size, beacon).map(drop)
    }

    pub(super) fn texts(
        &self,
        draw: &ImagePrompt,
        guidance: f32,
        beacon: &Beacon,
    ) -> Result<PromptEmbeddings, InferenceError> {
        let read = |text: &str| {
            let tokens = self.tokens.of(text).map_err(InferenceError::Input)?;
            self.compute(|| self.clip.run(&tokens, beacon))
        };
        // A guidance of 1 or less means none, so the negative prompt is not encoded.
        let negative = if guidance > 1.0 { Some((read(&draw.negative_prompt)?, guidance)) } else { None };
        Ok(PromptEmbeddings { positive: read(&draw.prompt)?, negative })
    }

    /// Runs the latents of this height and width through all steps.
    pub(super) fn denoise(
        &self,
        mut latents: Vec<f32>,
        size: (usize, usize),
        schedule: &Schedule,
        texts: &PromptEmbeddings,
        beacon: &Beacon,
        say: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<Vec<f32>, InferenceError> {
        latents.iter_mut().for_each(|number| *number = (f64::from(*number) * schedule.noise_scale) as f32);
        for (done, step) in schedule.steps.iter().enumerate() {
            beacon.step()?;
            let scaled =
                latents.iter().map(|number| (f64::from(*number) * step.input_scale) as f32).collect();
            let sample = self.compute(|| self.tensor(scaled, size))?;
            let predict = |text: &Tensor| {
                let predicted = self.compute(|| self.unet.run(&sample, step.time, text, beacon))?;
                self.numbers(&predicted)
            };
            let mut output = predict(&texts.positive)?;
            if let Some((text, guidance)) = &texts.negative {
                for (positive, negative) in output.iter_mut().zip(predict(text)?) {
                    *positive = negative + guidance * (*positive - negative);
                }
            }
            schedule.advance(step, &mut latents, &output);
            if latents.iter().any(|number| !number.is_finite()) {
                return Err(InferenceError::Engine(format!(
                    "step {} of {} produced non-finite values; the weights may be damaged",
                    done + 1,
                    schedule.steps.len()
                )));
            }
            // Decoding counts as one step.
            say(AnswerUpdate::Progress((done + 1) as f32 / (schedule.steps.len() + 1) as f32));
        }
        Ok(latents)
    }

    pub(super) fn decode(
        &self,
        latents: Vec<f32>,
        size: (usize, usize),
        beacon: &Beacon,
    ) -> Result<Vec<f32>, InferenceError> {
        let decoded = self.compute(|| self.decoder.run(&self.tensor(latents, size)?, beacon))?;
        let pixels = self.numbers(&decoded)?;
        // Non-finite values would become black pixels in a seemingly valid answer.
        if pixels.iter().any(|number| !number.is_finite()) {
            let why = "the decoder produced non-finite values; the weights may be damaged".to_owned();
            return Err(InferenceError::Engine(why));
        }
        Ok(pixels)
    }

    pub(super) fn tensor(&self, numbers: Vec<f32>, (height, width): (usize, usize)) -> TensorResult {
        Ok(Tensor::from_vec(numbers, (1, self.channels, height, width), &self.device)?)
    }

    pub(super) fn numbers(&self, tensor: &Tensor) -> Result<Vec<f32>, InferenceError> {
        self.compute(|| Ok(tensor.flatten_all()?.to_vec1::<f32>()?))
    }

    /// Computes with this copy's threads and classifies errors.
    fn compute<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, ComputeError> + Send,
    ) -> Result<T, InferenceError> {
        let done = match &self.threads {
            Some(threads) => threads.install(work),
            None => work(),
        };
        done.map_err(|broken| match broken {
            ComputeError::Stopped(stopped) => stopped.into(),
            ComputeError::Engine(error) => candle_device::failure(&error),
        })
    }
}

impl TextToImage for DiffusionPipeline {
    fn draw(
        &mut self,
        draw: &ImagePrompt,
        beacon: &Beacon,
        say: &mut dyn FnMut(AnswerUpdate),
    ) -> Result<Vec<u8>, InferenceError> {
        let open = || {
            InferenceError::Input("size, steps, guidance and seed must be set before generation".to_owned())
        };
        let ((width, height), steps) = (draw.size.ok_or_else(open)?, draw.steps.ok_or_else(open)?);
        let (guidance, seed) = (draw.guidance.ok_or_else(open)?, draw.seed.ok_or_else(open)?);
        if steps == 0 || steps as usize > self.scheduler.train_steps {
            return Err(open());
        }
        let size = (height as usize / self.factor, width as usize / self.factor);
        let texts = self.texts(draw, guidance, beacon)?;
        let schedule = Schedule::new(&self.scheduler, steps as usize);
        let noise = Noise::new(seed).take(self.channels * size.0 * size.1).collect();
        let latents = self.denoise(noise, size, &schedule, &texts, beacon, say)?;
        let pixels = self.decode(latents, size, beacon)?;
        beacon.step()?;
        let made = [
            ("seed", seed.to_string()),
            ("steps", steps.to_string()),
            ("guidance", guidance.to_string()),
            ("sampler", self.scheduler.sampler.name().to_owned()),
        ];
        let png = png_file::encode(&pixels, (width, height), &made).map_err(InferenceError::Engine)?;
        say(AnswerUpdate::Progress(1.0));
        Ok(png)
    }
}
