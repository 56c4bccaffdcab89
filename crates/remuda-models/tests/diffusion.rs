//! Text to image through the pool, with tiny models written here, and the errors for invalid models.

#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "a failed expectation fails the test")]

#[path = "reference/tiny.rs"]
mod tiny;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_models::engine::diffusion::Diffusion;
use remuda_models::request::ImagePrompt;
use remuda_models::{
    AnswerUpdate, Backend, Beacon, CallOptions, Capability, Engines, InferenceError, Isolation, LoadError,
    LoadedModel, ModelError, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer, Precision,
    RequestPart,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tiny::{TinyStyle, write};

fn folder(name: &str) -> (Value, TempDir) {
    let reference = tiny::reference()[name].clone();
    let folder = tempfile::tempdir().unwrap();
    write(&reference, folder.path(), TinyStyle::default());
    (reference, folder)
}

fn draw(reference: &Value) -> ImagePrompt {
    ImagePrompt {
        prompt: reference["prompt"].as_str().unwrap().to_owned(),
        negative_prompt: reference["negative_prompt"].as_str().unwrap().to_owned(),
        size: serde_json::from_value(reference["size"].clone()).unwrap(),
        steps: serde_json::from_value(reference["steps"].clone()).unwrap(),
        guidance: serde_json::from_value(reference["guidance"].clone()).unwrap(),
        seed: reference["seed"].as_u64(),
    }
}

fn pool(folder: &TempDir) -> ModelPool {
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(Diffusion));
    // In this process, which needs no second program; the images are the same.
    pool.add(ModelSpec { isolation: Isolation::Thread, ..ModelSpec::new("draw", folder.path()) }).unwrap();
    pool
}

fn drawn(pool: &ModelPool, draw: ImagePrompt) -> Vec<u8> {
    let answer =
        pool.call("draw", ModelRequest::TextToImage(draw), CallOptions::default()).unwrap().wait().unwrap();
    let [PartAnswer::Image(png)] = &answer.parts[..] else { panic!("{answer:?}") };
    png.clone()
}

#[test]
fn images_match_the_reference() {
    for name in ["first", "second"] {
        let (reference, folder) = folder(name);
        let picture = image::load_from_memory(&drawn(&pool(&folder), draw(&reference))).unwrap().to_rgb8();
        let expected: Vec<u8> = serde_json::from_value(reference["pixels"].clone()).unwrap();
        assert_eq!(Some(picture.dimensions()), draw(&reference).size);
        let off = picture.as_raw().iter().zip(&expected).filter(|(a, b)| a != b);
        assert!(off.clone().all(|(a, b)| a.abs_diff(*b) <= 1), "{name} differs by more than rounding");
        assert!(off.count() * 100 <= expected.len(), "{name} differs in more than one value in a hundred");
    }
}

#[test]
fn image_depends_on_the_seed_and_its_metadata_omits_the_prompt() {
    let (reference, folder) = folder("second");
    let pool = pool(&folder);
    let again = drawn(&pool, draw(&reference));
    assert_eq!(again, drawn(&pool, draw(&reference)));
    assert_ne!(again, drawn(&pool, ImagePrompt { seed: Some(9), ..draw(&reference) }));
    let has = |text: &str| again.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("seed 8, steps 4, guidance 5, sampler Euler"));
    assert!(!has("cat"));
}

#[test]
fn without_a_seed_every_image_differs() {
    let (reference, folder) = folder("second");
    let pool = pool(&folder);
    let open = ImagePrompt { seed: None, steps: Some(1), ..draw(&reference) };
    assert_ne!(drawn(&pool, open.clone()), drawn(&pool, open));
}

#[test]
fn inspection_reports_memory_and_recommends_a_process() {
    let (_, folder) = folder("first");
    let found = Diffusion.inspect(&ModelSpec::new("draw", folder.path())).unwrap().unwrap();
    assert_eq!((found.capability, found.isolation), (Capability::TextToImage, Isolation::Process));
    assert_eq!(found.architecture, "stable-diffusion 40x40 epsilon DDIM");
    assert_eq!(found.files.len(), 5, "{:?}", found.files);
    let weights: u64 = found.files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(found.memory_bytes > weights / 2 && found.memory_bytes < weights + (300 << 20), "{found:?}");
}

/// Like the files of Stable Diffusion 1: another sampler, and a safety checker that is not used here.
#[test]
fn deviations_from_the_files_are_noted() {
    let (_, folder) = folder("first");
    set(folder.path(), "scheduler/scheduler_config.json", "_class_name", json!("PNDMScheduler"));
    let checker = json!(["stable_diffusion", "StableDiffusionSafetyChecker"]);
    set(folder.path(), "model_index.json", "safety_checker", checker);
    let spec = ModelSpec::new("draw", folder.path());
    let notes = Diffusion.inspect(&spec).unwrap().unwrap().notes.join("; ");
    assert!(notes.contains("using DDIM instead of PNDMScheduler"), "{notes}");
    assert!(notes.contains("the safety checker is not used"), "{notes}");
    let eight_bits = ModelSpec { precision: Precision::Int8, ..spec };
    let refused = Diffusion.inspect(&eight_bits).unwrap_err().to_string();
    assert!(refused.contains("int8 weights"), "{refused}");
}

#[test]
fn impossible_images_are_refused_before_queueing() {
    let (reference, folder) = folder("first");
    let pool = pool(&folder);
    let refusals = [
        (
            ImagePrompt { size: Some((36, 40)), ..draw(&reference) },
            "36 x 40: sides must be multiples of 8 and at least 16",
        ),
        (
            ImagePrompt { size: Some((8, 8)), ..draw(&reference) },
            "8 x 8: sides must be multiples of 8 and at least 16",
        ),
        (
            ImagePrompt { size: Some((u32::MAX - 7, u32::MAX - 7)), ..draw(&reference) },
            "this model generates at most 2400",
        ),
        (
            ImagePrompt { size: Some((64, 64)), ..draw(&reference) },
            "64 x 64 are 4096 pixels; this model generates at most 2400",
        ),
        (ImagePrompt { steps: Some(0), ..draw(&reference) }, "0 steps: must be from 1 to 150"),
        (ImagePrompt { steps: Some(151), ..draw(&reference) }, "151 steps: must be from 1 to 150"),
        (
            ImagePrompt { guidance: Some(f32::NAN), ..draw(&reference) },
            "a guidance of NaN: must be from 0 to 50, usually 7.5",
        ),
        (
            ImagePrompt { guidance: Some(-1.0), ..draw(&reference) },
            "a guidance of -1: must be from 0 to 50, usually 7.5",
        ),
        (
            ImagePrompt { prompt: "x".repeat(20_000), ..draw(&reference) },
            "the prompt has 20000 bytes; the limit is 16384",
        ),
    ];
    for (asked, why) in refusals {
        match pool.call("draw", ModelRequest::TextToImage(asked), CallOptions::default()) {
            Err(ModelError::Input(message)) => {
                assert!(message.contains(why), "{message:?} does not say {why:?}");
            }
            other => panic!("{other:?} instead of {why}"),
        }
    }
}

/// Configured memory limits the image size, and a copy that could not generate the smallest image is not started.
#[test]
fn image_size_is_limited_by_memory() {
    let (reference, folder) = folder("first");
    let spec = |bytes: u64| ModelSpec { memory_bytes: Some(bytes), ..ModelSpec::new("draw", folder.path()) };
    let asked =
        |side: u32| ModelRequest::TextToImage(ImagePrompt { size: Some((side, side)), ..draw(&reference) });
    let ample = Diffusion.prepare(&spec(4 << 30)).unwrap();
    assert!(ample.prepare(asked(2048)).is_ok() && ample.prepare(asked(2056)).is_err());
    let scarce = Diffusion.prepare(&spec(300 << 20)).unwrap();
    assert!(scarce.prepare(asked(256)).is_ok() && scarce.prepare(asked(1024)).is_err());
    let refused = Diffusion.inspect(&spec(1 << 20)).unwrap_err();
    assert!(matches!(refused, LoadError::Memory { .. }), "{refused}");
}

/// Faults: T3. The decoder of a large image is silent for longer than that of a small one, and does not hang.
#[test]
fn stall_limit_grows_with_the_image_size() {
    let (_, folder) = folder("first");
    let spec = ModelSpec::new("draw", folder.path());
    let usual = Diffusion.stall_max(&spec).unwrap();
    let ample = Diffusion.stall_max(&ModelSpec { memory_bytes: Some(4 << 30), ..spec }).unwrap();
    assert!(usual >= ModelPoolSettings::default().stall_max, "{usual:?}");
    assert!(usual < Duration::from_secs(31), "tiny images take no time: {usual:?}");
    assert!(ample > Duration::from_secs(40), "2048 x 2048 in 8 channels: {ample:?}");
}

fn loaded(folder: &TempDir) -> (LoadedModel, RequestPart) {
    let spec = ModelSpec::new("draw", folder.path());
    let golden = Diffusion.prepare(&spec).unwrap().golden();
    (Diffusion.load(&spec, &Beacon::default()).unwrap(), golden)
}

#[test]
fn golden_answer_is_reproducible() {
    for name in ["first", "second"] {
        let (_, folder) = folder(name);
        let ((mut one, golden), (mut other, _)) = (loaded(&folder), loaded(&folder));
        let ask = |model: &mut LoadedModel| {
            model.answer(std::slice::from_ref(&golden), &Beacon::default(), &mut |_| {}).unwrap()
        };
        let first = ask(&mut one);
        assert_eq!(first, ask(&mut one));
        assert_eq!(first, ask(&mut other));
    }
}

#[test]
fn every_step_reports_progress_and_advances_the_beacon() {
    let (reference, folder) = folder("first");
    let (mut model, _) = loaded(&folder);
    let beacon = Beacon::default();
    let mut progress = Vec::new();
    let asked = RequestPart::GenerateImage(draw(&reference));
    let mut say = |piece| match piece {
        AnswerUpdate::Progress(part) => progress.push((part, beacon.steps())),
        AnswerUpdate::Text(text) => panic!("{text}"),
    };
    model.answer(&[asked], &beacon, &mut say).unwrap();
    let parts: Vec<f32> = progress.iter().map(|(part, _)| *part).collect();
    assert_eq!(parts, [0.25, 0.5, 0.75, 1.0]);
    assert!(progress.windows(2).all(|pair| pair[1].1 - pair[0].1 >= 10), "few beacon steps: {progress:?}");
}

/// A stop takes effect at the next beacon step, of which every denoising step has many.
#[test]
fn image_generation_stops_within_one_step() {
    let (reference, folder) = folder("first");
    let (mut model, _) = loaded(&folder);
    let asked = [RequestPart::GenerateImage(draw(&reference))];
    let counted = Beacon::default();
    let mut pieces = Vec::new();
    model.answer(&asked, &counted, &mut |piece| pieces.push(piece)).unwrap();
    assert!(
        pieces.len() > 2 && counted.steps() > 10 * pieces.len() as u64,
        "it reports progress and advances its beacon: {pieces:?} {}",
        counted.steps()
    );
    for at in 1..pieces.len() {
        let (stopping, mut reference, mut progress) = (Beacon::default(), 0, 0);
        let answer = model.answer(&asked, &stopping, &mut |_| {
            reference += 1;
            if reference == at {
                stopping.stop();
                progress = stopping.steps();
            }
        });
        assert_eq!(answer, Err(InferenceError::Stopped), "stopped at {at} of {} updates", pieces.len());
        assert_eq!(stopping.steps(), progress + 1, "it continued after the stop");
    }
}

#[test]
fn loading_can_be_stopped() {
    let (_, folder) = folder("first");
    let progress = Beacon::default();
    progress.stop();
    let stopped = Diffusion.load(&ModelSpec::new("draw", folder.path()), &progress).unwrap_err();
    assert_eq!((stopped, progress.steps()), (LoadError::Stopped, 1));
}

/// What is done to a folder, and the expected error: which file, and what is wrong with it.
#[test]
fn incomplete_folders_are_errors_that_name_the_file() {
    type TinyDamage = fn(&Path);
    let cases: [(TinyDamage, &str, &str); 14] = [
        (|at| remove(at, "model_index.json"), "model_index.json", "no configuration found here"),
        (
            |at| set(at, "model_index.json", "_class_name", json!("StableDiffusionXLPipeline")),
            "model_index.json",
            "a StableDiffusionXLPipeline",
        ),
        (|at| remove(at, "vae/config.json"), "vae/config.json", "no configuration found here"),
        (|at| put(at, "vae/config.json", b"{\"block_out"), "vae/config.json", "invalid"),
        (
            |at| remove(at, "unet/diffusion_pytorch_model.safetensors"),
            "unet",
            "no diffusion_pytorch_model.safetensors found here",
        ),
        (
            |at| rename(at, "unet/diffusion_pytorch_model.safetensors", "unet/diffusion_pytorch_model.bin"),
            "diffusion_pytorch_model.bin",
            "a Python pickle",
        ),
        (
            |at| put(at, "text_encoder/model.safetensors", b"PK\x03\x04 and more"),
            "model.safetensors",
            "a Python pickle",
        ),
        (
            |at| put(at, "text_encoder/model.safetensors", b"<html>not found</html>"),
            "model.safetensors",
            "not a safetensors file",
        ),
        (
            |at| cut(at, "vae/diffusion_pytorch_model.safetensors"),
            "diffusion_pytorch_model.safetensors",
            "truncated",
        ),
        (
            |at| set(at, "unet/config.json", "addition_embed_type", json!("text_time")),
            "unet/config.json",
            "addition_embed_type \"text_time\"",
        ),
        (|at| set(at, "unet/config.json", "in_channels", json!(9)), "unet/config.json", "as for inpainting"),
        (
            |at| set(at, "unet/config.json", "norm_num_groups", json!(0)),
            "unet/config.json",
            "norm_num_groups is 0",
        ),
        (
            |at| {
                let flow = json!("FlowMatchEulerDiscreteScheduler");
                set(at, "scheduler/scheduler_config.json", "_class_name", flow);
            },
            "scheduler_config.json",
            "DDIMScheduler",
        ),
        (|at| remove(at, "tokenizer/merges.txt"), "tokenizer", "or vocab.json with merges.txt"),
    ];
    for (damage, file, why) in cases {
        let (_, folder) = folder("first");
        damage(folder.path());
        let refused = Diffusion.inspect(&ModelSpec::new("draw", folder.path())).unwrap_err().to_string();
        assert!(refused.contains(file) && refused.contains(why), "{refused:?} does not say {file}: {why}");
    }
}

/// Valid headers with the contents of another model: noticed when the tensors are read.
#[test]
fn weights_of_another_model_are_errors_that_name_the_tensor() {
    type TinyDamage = fn(&Path);
    let cases: [(TinyDamage, &str); 4] = [
        (
            |at| set(at, "unet/config.json", "layers_per_block", json!(2)),
            "no tensor down_blocks.0.resnets.1.norm1.weight found here",
        ),
        (
            |at| set(at, "unet/config.json", "block_out_channels", json!([16, 32, 64])),
            "but by config.json it should be",
        ),
        (
            |at| set(at, "text_encoder/config.json", "intermediate_size", json!(1 << 20)),
            "mlp.fc1.weight has the shape [32, 16], but by config.json it should be [1048576, 16]",
        ),
        (
            |at| set(at, "vae/config.json", "layers_per_block", json!(3)),
            "no tensor decoder.up_blocks.0.resnets.2",
        ),
    ];
    for (damage, why) in cases {
        let (_, folder) = folder("first");
        damage(folder.path());
        let refused = Diffusion
            .load(&ModelSpec::new("draw", folder.path()), &Beacon::default())
            .unwrap_err()
            .to_string();
        assert!(refused.contains(why), "{refused:?} does not say {why}");
    }
}

#[test]
fn single_file_checkpoint_is_refused_with_instructions() {
    let folder = tempfile::tempdir().unwrap();
    let header =
        json!({"model.diffusion_model.out.0.bias": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})
            .to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat();
    let path = folder.path().join("v1-5-pruned.safetensors");
    fs::write(&path, file).unwrap();
    let refused = Diffusion.inspect(&ModelSpec::new("draw", &path)).unwrap_err().to_string();
    assert!(refused.contains("from_single_file"), "{refused}");
    let pickle = folder.path().join("v1-5-pruned.ckpt");
    fs::write(&pickle, b"PK\x03\x04").unwrap();
    let refused = Diffusion.inspect(&ModelSpec::new("draw", &pickle)).unwrap_err();
    assert_eq!(refused, LoadError::Pickle { path: pickle });
    let other = folder.path().join("notes.txt");
    fs::write(&other, "nothing").unwrap();
    assert_eq!(Diffusion.inspect(&ModelSpec::new("draw", &other)).unwrap(), None);
    assert_eq!(Diffusion.inspect(&ModelSpec::new("draw", folder.path())).unwrap(), None);
}

/// Non-finite weights are reported instead of producing an image of noise.
#[test]
fn damaged_weights_are_an_error() {
    let (reference, folder) = folder("second");
    let path = folder.path().join("unet/diffusion_pytorch_model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4096..].fill(0xFF);
    fs::write(&path, bytes).unwrap();
    let (mut model, _) = loaded(&folder);
    let answer =
        model.answer(&[RequestPart::GenerateImage(draw(&reference))], &Beacon::default(), &mut |_| {});
    assert!(matches!(&answer, Err(InferenceError::Engine(why)) if why.contains("step 1 of 4")), "{answer:?}");
}

/// Files are untrusted: whichever byte of a header or a configuration is changed, there is an answer and no panic.
#[test]
fn no_changed_byte_panics() {
    let (_, folder) = folder("second");
    let spec = ModelSpec::new("draw", folder.path());
    let files = [
        "vae/diffusion_pytorch_model.safetensors",
        "unet/config.json",
        "vae/config.json",
        "scheduler/scheduler_config.json",
    ];
    let mut refused = 0;
    for file in files {
        let path = folder.path().join(file);
        let whole = fs::read(&path).unwrap();
        for place in (0..whole.len().min(1200)).step_by(37) {
            let mut bytes = whole.clone();
            bytes[place] = b'9';
            fs::write(&path, &bytes).unwrap();
            let model = Diffusion.load(&spec, &Beacon::default());
            let golden = Diffusion.prepare(&spec).map(|prepare| prepare.golden());
            match (model, golden) {
                (Ok(mut model), Ok(golden)) => drop(model.answer(&[golden], &Beacon::default(), &mut |_| {})),
                _ => refused += 1,
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    assert!(refused > 20, "{refused} damaged files were refused");
}

fn remove(at: &Path, file: &str) {
    fs::remove_file(at.join(file)).unwrap();
}

fn rename(at: &Path, from: &str, to: &str) {
    fs::rename(at.join(from), at.join(to)).unwrap();
}

fn put(at: &Path, file: &str, bytes: &[u8]) {
    fs::write(at.join(file), bytes).unwrap();
}

fn cut(at: &Path, file: &str) {
    let path: PathBuf = at.join(file);
    let length = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(&path).unwrap().set_len(length - 100).unwrap();
}

fn set(at: &Path, file: &str, key: &str, value: Value) {
    let mut config: Value = serde_json::from_slice(&fs::read(at.join(file)).unwrap()).unwrap();
    config[key] = value;
    put(at, file, config.to_string().as_bytes());
}
