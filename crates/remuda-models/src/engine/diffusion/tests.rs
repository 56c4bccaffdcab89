//! Compares with the reference implementation (`tests/reference/diffusion.py`) on two tiny models.
//!
//! Tolerances are relative to the largest value: both sides compute in 32 bits, in another order.

use candle_core::{Device, Tensor};
use serde_json::Value;
use tempfile::TempDir;

use super::folder::DiffusersFolder;
use super::layers::Conv;
use super::noise::Noise;
use super::pipeline::DiffusionPipeline;
use super::schedule::Schedule;
use super::scheduler::SchedulerConfig;
use super::tokenizer::ClipTokenizer;
use crate::beacon::Beacon;
use crate::request::ImagePrompt;

#[path = "../../../tests/reference/tiny.rs"]
mod tiny;

use tiny::{TinyStyle, reference, write};

struct LoadedTiny {
    reference: Value,
    pipeline: DiffusionPipeline,
    _folder: TempDir,
}

fn loaded(name: &str, style: TinyStyle) -> LoadedTiny {
    let reference = reference()[name].clone();
    let folder = tempfile::tempdir().unwrap();
    write(&reference, folder.path(), style);
    let pipeline = DiffusionPipeline::load(
        &DiffusersFolder::open(folder.path()).unwrap(),
        (crate::Device::Cpu, 0),
        1,
        &Beacon::default(),
    )
    .unwrap();
    LoadedTiny { reference, pipeline, _folder: folder }
}

/// The second model uses the older file layout.
fn both() -> [LoadedTiny; 2] {
    [
        loaded("first", TinyStyle::default()),
        loaded("second", TinyStyle { is_old: true, ..TinyStyle::default() }),
    ]
}

impl LoadedTiny {
    fn numbers(&self, key: &str) -> Vec<f64> {
        serde_json::from_value(self.reference[key].clone()).unwrap()
    }

    fn draw(&self) -> ImagePrompt {
        ImagePrompt {
            prompt: self.reference["prompt"].as_str().unwrap().to_owned(),
            negative_prompt: self.reference["negative_prompt"].as_str().unwrap().to_owned(),
            size: serde_json::from_value(self.reference["size"].clone()).unwrap(),
            steps: serde_json::from_value(self.reference["steps"].clone()).unwrap(),
            guidance: serde_json::from_value(self.reference["guidance"].clone()).unwrap(),
            seed: self.reference["seed"].as_u64(),
        }
    }

    /// Height and width of the latents.
    fn size(&self) -> (usize, usize) {
        let (width, height) = self.draw().size.unwrap();
        let factor =
            if self.reference["configs"]["vae/config.json"]["block_out_channels"].as_array().unwrap().len()
                == 3
            {
                4
            } else {
                2
            };
        (height as usize / factor, width as usize / factor)
    }

    fn noise(&self) -> Vec<f32> {
        let (height, width) = self.size();
        Noise::new(self.draw().seed.unwrap()).take(4 * height * width).collect()
    }
}

#[track_caller]
fn check(computed: &[f32], reference: &[f64], tolerance: f64) {
    assert_eq!(computed.len(), reference.len());
    let largest = reference.iter().fold(0.0_f64, |largest, number| largest.max(number.abs()));
    let off = computed.iter().zip(reference).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(off <= tolerance * largest, "off by {off:e} of {largest}: {:e}", off / largest);
}

#[test]
fn tokens_match_the_reference() {
    for LoadedTiny { reference, pipeline, .. } in both() {
        for pair in reference["tokens"].as_array().unwrap() {
            let tokens: Vec<u32> = serde_json::from_value(pair[1].clone()).unwrap();
            assert_eq!(pipeline.tokens.of(pair[0].as_str().unwrap()).unwrap(), tokens, "{}", pair[0]);
        }
    }
}

#[test]
fn noise_matches_the_reference() {
    for model in both() {
        check(&model.noise()[..16], &model.numbers("noise"), 1e-6);
    }
}

#[test]
fn text_encoder_matches_the_reference() {
    for model in both() {
        let text = model.pipeline.texts(&model.draw(), 1.0, &Beacon::default()).unwrap().positive;
        check(&model.pipeline.numbers(&text).unwrap(), &model.numbers("embedding"), 1e-5);
    }
}

#[test]
fn denoiser_matches_the_reference() {
    for model in both() {
        let (pipeline, beacon) = (&model.pipeline, Beacon::default());
        let text = pipeline.texts(&model.draw(), 1.0, &beacon).unwrap().positive;
        let sample = pipeline.tensor(model.noise(), model.size()).unwrap();
        let predicted = pipeline.unet.run(&sample, 341.0, &text, &beacon).unwrap();
        check(&pipeline.numbers(&predicted).unwrap(), &model.numbers("predicted"), 1e-5);
    }
}

#[test]
fn decoder_matches_the_reference() {
    for model in both() {
        let decoded = model.pipeline.decode(model.noise(), model.size(), &Beacon::default()).unwrap();
        check(&decoded, &model.numbers("decoded"), 1e-5);
    }
}

#[test]
fn sampling_with_guidance_matches_the_reference() {
    for model in both() {
        let (pipeline, draw, beacon) = (&model.pipeline, model.draw(), Beacon::default());
        let texts = pipeline.texts(&draw, draw.guidance.unwrap(), &beacon).unwrap();
        let schedule = Schedule::new(&pipeline.scheduler, draw.steps.unwrap() as usize);
        let (noise, size) = (model.noise(), model.size());
        let ended = pipeline.denoise(noise, size, &schedule, &texts, &beacon, &mut |_| {}).unwrap();
        check(&ended, &model.numbers("final"), 1e-5);
    }
}

/// Each phase can take minutes with a large model on a CPU: text encoding, a denoising step, decoding.
#[test]
fn every_phase_advances_the_beacon_many_times() {
    for model in both() {
        let (pipeline, draw) = (&model.pipeline, model.draw());
        let count = |part: &str, start: &str, end: &str| {
            let names = model.reference["shapes"][part].as_object().unwrap().keys();
            names.filter(|name| name.starts_with(start) && name.ends_with(end)).count() as u64
        };
        let reading = Beacon::default();
        let texts = pipeline.texts(&draw, 1.0, &reading).unwrap();
        assert!(reading.steps() >= 2 * count("text_encoder", "", ".fc1.weight"), "{reading:?}");

        let denoising = Beacon::default();
        let schedule = Schedule::new(&pipeline.scheduler, 1);
        pipeline.denoise(model.noise(), model.size(), &schedule, &texts, &denoising, &mut |_| {}).unwrap();
        let (blocks, readers) = (count("unet", "", ".conv1.weight"), count("unet", "", ".proj_in.weight"));
        assert!(denoising.steps() >= 5 * blocks + 4 * readers, "{denoising:?}");

        let decoding = Beacon::default();
        pipeline.decode(model.noise(), model.size(), &decoding).unwrap();
        assert!(decoding.steps() >= 5 * count("vae", "decoder.", ".conv1.weight"), "{decoding:?}");
    }
}

#[test]
fn banded_convolution_equals_the_whole() {
    let reference = reference()["first"].clone();
    let folder = tempfile::tempdir().unwrap();
    write(&reference, folder.path(), TinyStyle::default());
    let (weights, beacon) = (DiffusersFolder::open(folder.path()).unwrap().unet_weights, Beacon::default());
    let source = weights.source(&Device::Cpu, &beacon).at("mid_block.resnets.0.conv1");
    let conv = Conv::load(&source, 32, 32).unwrap();
    let sample: Vec<f32> = Noise::new(5).take(32 * 11 * 6).collect();
    let sample = Tensor::from_vec(sample, (1, 32, 11, 6), &Device::Cpu).unwrap();
    let numbers = |rows: usize| {
        let bands = conv.run_in_bands(&sample, rows, &beacon).unwrap();
        bands.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let whole: Vec<f64> = numbers(11).into_iter().map(f64::from).collect();
    for rows in [1, 2, 3, 5, 10] {
        check(&numbers(rows), &whole, 1e-6);
    }
}

/// 16-bit weights differ slightly; the computation does not.
#[test]
fn half_precision_weights_give_nearly_the_same_image() {
    let model = loaded("first", TinyStyle { is_half: true, is_old: true });
    let decoded = model.pipeline.decode(model.noise(), model.size(), &Beacon::default()).unwrap();
    check(&decoded, &model.numbers("decoded"), 5e-3);
}

#[test]
fn schedules_match_the_reference() {
    let reference = reference();
    let schedules = reference["first"]["schedules"].as_array().unwrap();
    assert!(schedules.len() >= 40);
    for reference in schedules {
        let numbers = |key: &str| serde_json::from_value::<Vec<f64>>(reference[key].clone()).unwrap();
        let (times, path, scaled) = (numbers("times"), numbers("path"), numbers("scaled"));
        let schedule = Schedule::new(&SchedulerConfig::from_json(reference["config"].clone()), times.len());
        let mut sample = [(1.25 * schedule.noise_scale) as f32];
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
        assert!(
            near(sample[0].into(), path[0]),
            "{} begins with {sample:?}, not {}",
            reference["config"],
            path[0]
        );
        assert_eq!(schedule.steps.len(), times.len());
        for (place, step) in schedule.steps.iter().enumerate() {
            assert!(
                near(step.time, times[place]),
                "{}: {} not {}",
                reference["config"],
                step.time,
                times[place]
            );
            sample[0] = path[place] as f32;
            let input = f64::from(sample[0]) * step.input_scale;
            assert!(
                near(input, scaled[place]),
                "{} at {place}: {input} not {}",
                reference["config"],
                scaled[place]
            );
            schedule.advance(step, &mut sample, &[0.5]);
            // A small remainder of a much larger number is only as exact in 32 bits as the larger one.
            let expected = path[place + 1];
            let off = (f64::from(sample[0]) - expected).abs();
            assert!(
                off <= 1e-5 * path[place].abs().max(1.0),
                "{} at {place}: {sample:?} not {expected}",
                reference["config"]
            );
        }
    }
}

#[test]
fn tokenizer_json_equals_vocab_and_merges() {
    let reference = reference()["second"].clone();
    let folder = tempfile::tempdir().unwrap();
    write(&reference, folder.path(), TinyStyle::default());
    let parts = ClipTokenizer::load(folder.path(), 77, 526).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), parts.to_json()).unwrap();
    std::fs::remove_file(folder.path().join("tokenizer/vocab.json")).unwrap();
    let whole = ClipTokenizer::load(folder.path(), 77, 526).unwrap();
    for prompt in ["the red horse", "A cat's  tail!", "in the <|endoftext|> end"] {
        assert_eq!(whole.of(prompt).unwrap(), parts.of(prompt).unwrap());
    }
}
