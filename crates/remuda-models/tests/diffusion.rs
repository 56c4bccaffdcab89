//! Pictures from text through the pool, with tiny models that are written here; and what is said of models that are none.

#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

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
use tiny::{TinyStyle, reference, write};

fn folder(name: &str) -> (Value, TempDir) {
    let said = reference()[name].clone();
    let folder = tempfile::tempdir().unwrap();
    write(&said, folder.path(), TinyStyle::default());
    (said, folder)
}

fn draw(said: &Value) -> ImagePrompt {
    ImagePrompt {
        prompt: said["prompt"].as_str().unwrap().to_owned(),
        negative_prompt: said["negative_prompt"].as_str().unwrap().to_owned(),
        size: serde_json::from_value(said["size"].clone()).unwrap(),
        steps: serde_json::from_value(said["steps"].clone()).unwrap(),
        guidance: serde_json::from_value(said["guidance"].clone()).unwrap(),
        seed: said["seed"].as_u64(),
    }
}

fn pool(folder: &TempDir) -> ModelPool {
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(Diffusion));
    // In this process: a child would need a program of its own, and what is drawn is the same.
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
fn a_prompt_becomes_the_picture_the_reference_draws() {
    for name in ["first", "second"] {
        let (said, folder) = folder(name);
        let picture = image::load_from_memory(&drawn(&pool(&folder), draw(&said))).unwrap().to_rgb8();
        let expected: Vec<u8> = serde_json::from_value(said["pixels"].clone()).unwrap();
        assert_eq!(Some(picture.dimensions()), draw(&said).size);
        let off = picture.as_raw().iter().zip(&expected).filter(|(a, b)| a != b);
        assert!(off.clone().all(|(a, b)| a.abs_diff(*b) <= 1), "{name} differs by more than rounding");
        assert!(off.count() * 100 <= expected.len(), "{name} differs in more than one number in a hundred");
    }
}

#[test]
fn a_seed_is_a_picture_and_the_file_says_how_it_was_made_but_not_what_was_asked_for() {
    let (said, folder) = folder("second");
    let pool = pool(&folder);
    let again = drawn(&pool, draw(&said));
    assert_eq!(again, drawn(&pool, draw(&said)));
    assert_ne!(again, drawn(&pool, ImagePrompt { seed: Some(9), ..draw(&said) }));
    let has = |text: &str| again.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("seed 8, steps 4, guidance 5, sampler Euler"));
    assert!(!has("cat"));
}

#[test]
fn without_a_seed_every_picture_is_another() {
    let (said, folder) = folder("second");
    let pool = pool(&folder);
    let open = ImagePrompt { seed: None, steps: Some(1), ..draw(&said) };
    assert_ne!(drawn(&pool, open.clone()), drawn(&pool, open));
}

#[test]
fn what_is_found_says_what_it_takes_and_that_it_had_better_be_alone() {
    let (_, folder) = folder("first");
    let found = Diffusion.inspect(&ModelSpec::new("draw", folder.path())).unwrap().unwrap();
    assert_eq!((found.capability, found.isolation), (Capability::TextToImage, Isolation::Process));
    assert_eq!(found.architecture, "stable-diffusion 40x40 epsilon DDIM");
    assert_eq!(found.files.len(), 5, "{:?}", found.files);
    let weights: u64 = found.files.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(found.memory_bytes > weights / 2 && found.memory_bytes < weights + (300 << 20), "{found:?}");
}

/// As the files of Stable Diffusion 1 are: another sampler, and a checker that nobody runs here.
#[test]
fn what_is_done_otherwise_than_the_files_say_is_noted() {
    let (_, folder) = folder("first");
    set(folder.path(), "scheduler/scheduler_config.json", "_class_name", json!("PNDMScheduler"));
    let checker = json!(["stable_diffusion", "StableDiffusionSafetyChecker"]);
    set(folder.path(), "model_index.json", "safety_checker", checker);
    let spec = ModelSpec::new("draw", folder.path());
    let notes = Diffusion.inspect(&spec).unwrap().unwrap().notes.join("; ");
    assert!(notes.contains("DDIM samples in place of PNDMScheduler"), "{notes}");
    assert!(notes.contains("the safety checker is not run"), "{notes}");
    let eight_bits = ModelSpec { precision: Precision::Int8, ..spec };
    let refused = Diffusion.inspect(&eight_bits).unwrap_err().to_string();
    assert!(refused.contains("weights of eight bits"), "{refused}");
}

#[test]
fn what_cannot_be_drawn_is_refused_before_it_waits() {
    let (said, folder) = folder("first");
    let pool = pool(&folder);
    let refusals = [
        (
            ImagePrompt { size: Some((36, 40)), ..draw(&said) },
            "36 x 40: sides are multiples of 8, and at least 16",
        ),
        (
            ImagePrompt { size: Some((8, 8)), ..draw(&said) },
            "8 x 8: sides are multiples of 8, and at least 16",
        ),
        (
            ImagePrompt { size: Some((u32::MAX - 7, u32::MAX - 7)), ..draw(&said) },
            "this model draws at most 2400",
        ),
        (
            ImagePrompt { size: Some((64, 64)), ..draw(&said) },
            "64 x 64 are 4096 pixels; this model draws at most 2400",
        ),
        (ImagePrompt { steps: Some(0), ..draw(&said) }, "0 steps: from 1 to 150 are done"),
        (ImagePrompt { steps: Some(151), ..draw(&said) }, "151 steps: from 1 to 150 are done"),
        (
            ImagePrompt { guidance: Some(f32::NAN), ..draw(&said) },
            "a guidance of NaN: it is from 0 to 50, and usually 7.5",
        ),
        (
            ImagePrompt { guidance: Some(-1.0), ..draw(&said) },
            "a guidance of -1: it is from 0 to 50, and usually 7.5",
        ),
        (
            ImagePrompt { prompt: "x".repeat(20_000), ..draw(&said) },
            "the prompt has 20000 bytes; at most 16384 are read",
        ),
    ];
    for (asked, why) in refusals {
        match pool.call("draw", ModelRequest::TextToImage(asked), CallOptions::default()) {
            Err(ModelError::Input(said)) => assert!(said.contains(why), "{said:?} does not say {why:?}"),
            other => panic!("{other:?} instead of {why}"),
        }
    }
}

/// Memory that is named bounds the pictures, and a copy that could not draw the smallest is not begun.
#[test]
fn pictures_are_as_large_as_the_memory_allows() {
    let (said, folder) = folder("first");
    let spec = |bytes: u64| ModelSpec { memory_bytes: Some(bytes), ..ModelSpec::new("draw", folder.path()) };
    let asked =
        |side: u32| ModelRequest::TextToImage(ImagePrompt { size: Some((side, side)), ..draw(&said) });
    let ample = Diffusion.prepare(&spec(4 << 30)).unwrap();
    assert!(ample.prepare(asked(2048)).is_ok() && ample.prepare(asked(2056)).is_err());
    let scarce = Diffusion.prepare(&spec(300 << 20)).unwrap();
    assert!(scarce.prepare(asked(256)).is_ok() && scarce.prepare(asked(1024)).is_err());
    let refused = Diffusion.inspect(&spec(1 << 20)).unwrap_err();
    assert!(matches!(refused, LoadError::Memory { .. }), "{refused}");
}

/// Faults: T3. The decoder of a large picture is silent for longer than that of a small one, and does not hang.
#[test]
fn who_draws_larger_pictures_may_be_silent_for_longer() {
    let (_, folder) = folder("first");
    let spec = ModelSpec::new("draw", folder.path());
    let usual = Diffusion.stall_max(&spec).unwrap();
    let ample = Diffusion.stall_max(&ModelSpec { memory_bytes: Some(4 << 30), ..spec }).unwrap();
    assert!(usual >= ModelPoolSettings::default().stall_max, "{usual:?}");
    assert!(usual < Duration::from_secs(31), "tiny pictures take no time: {usual:?}");
    assert!(ample > Duration::from_secs(40), "2048 x 2048 in 8 channels: {ample:?}");
}

fn loaded(folder: &TempDir) -> (LoadedModel, RequestPart) {
    let spec = ModelSpec::new("draw", folder.path());
    let golden = Diffusion.prepare(&spec).unwrap().golden();
    (Diffusion.load(&spec, &Beacon::default()).unwrap(), golden)
}

#[test]
fn a_copy_proves_itself_by_the_same_answer_every_time() {
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
fn progress_is_told_after_every_step_and_life_within_each() {
    let (said, folder) = folder("first");
    let (mut model, _) = loaded(&folder);
    let beacon = Beacon::default();
    let mut told = Vec::new();
    let asked = RequestPart::GenerateImage(draw(&said));
    let mut say = |piece| match piece {
        AnswerUpdate::Progress(part) => told.push((part, beacon.steps())),
        AnswerUpdate::Text(text) => panic!("{text}"),
    };
    model.answer(&[asked], &beacon, &mut say).unwrap();
    let parts: Vec<f32> = told.iter().map(|(part, _)| *part).collect();
    assert_eq!(parts, [0.25, 0.5, 0.75, 1.0]);
    assert!(told.windows(2).all(|pair| pair[1].1 - pair[0].1 >= 10), "few signs of life: {told:?}");
}

/// Whoever is told to stop does so at the next sign of life, of which every denoising step has many.
#[test]
fn a_drawing_stops_within_one_step() {
    let (said, folder) = folder("first");
    let (mut model, _) = loaded(&folder);
    let asked = [RequestPart::GenerateImage(draw(&said))];
    let counted = Beacon::default();
    let mut pieces = Vec::new();
    model.answer(&asked, &counted, &mut |piece| pieces.push(piece)).unwrap();
    assert!(
        pieces.len() > 2 && counted.steps() > 10 * pieces.len() as u64,
        "it tells, and is seen to work between: {pieces:?} {}",
        counted.steps()
    );
    for at in 1..pieces.len() {
        let (stopping, mut said, mut told) = (Beacon::default(), 0, 0);
        let answer = model.answer(&asked, &stopping, &mut |_| {
            said += 1;
            if said == at {
                stopping.stop();
                told = stopping.steps();
            }
        });
        assert_eq!(answer, Err(InferenceError::Stopped), "told at {at} of {} pieces", pieces.len());
        assert_eq!(stopping.steps(), told + 1, "it went on after it was told");
    }
}

#[test]
fn a_load_stops_when_it_is_told_to() {
    let (_, folder) = folder("first");
    let told = Beacon::default();
    told.stop();
    let stopped = Diffusion.load(&ModelSpec::new("draw", folder.path()), &told).unwrap_err();
    assert_eq!((stopped, told.steps()), (LoadError::Stopped, 1));
}

/// What is done to a folder, and what is said of it: which file, and what is wrong with it.
#[test]
fn folders_that_are_not_whole_are_refused_by_the_name_of_the_file() {
    type TinyDamage = fn(&Path);
    let cases: [(TinyDamage, &str, &str); 14] = [
        (|at| remove(at, "model_index.json"), "model_index.json", "there is no configuration here"),
        (
            |at| set(at, "model_index.json", "_class_name", json!("StableDiffusionXLPipeline")),
            "model_index.json",
            "a StableDiffusionXLPipeline",
        ),
        (|at| remove(at, "vae/config.json"), "vae/config.json", "there is no configuration here"),
        (|at| put(at, "vae/config.json", b"{\"block_out"), "vae/config.json", "not what it should be"),
        (
            |at| remove(at, "unet/diffusion_pytorch_model.safetensors"),
            "unet",
            "there is no diffusion_pytorch_model.safetensors here",
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
            "no safetensors file",
        ),
        (
            |at| cut(at, "vae/diffusion_pytorch_model.safetensors"),
            "diffusion_pytorch_model.safetensors",
            "cut short",
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
        (|at| remove(at, "tokenizer/merges.txt"), "tokenizer", "nor vocab.json with merges.txt"),
    ];
    for (damage, file, why) in cases {
        let (_, folder) = folder("first");
        damage(folder.path());
        let refused = Diffusion.inspect(&ModelSpec::new("draw", folder.path())).unwrap_err().to_string();
        assert!(refused.contains(file) && refused.contains(why), "{refused:?} does not say {file}: {why}");
    }
}

/// Headers may be well while what they hold is of another model: that is seen when the tensors are read.
#[test]
fn weights_of_another_model_are_refused_by_the_name_of_the_tensor() {
    type TinyDamage = fn(&Path);
    let cases: [(TinyDamage, &str); 4] = [
        (
            |at| set(at, "unet/config.json", "layers_per_block", json!(2)),
            "there is no tensor down_blocks.0.resnets.1.norm1.weight here",
        ),
        (
            |at| set(at, "unet/config.json", "block_out_channels", json!([16, 32, 64])),
            "and config.json makes it",
        ),
        (
            |at| set(at, "text_encoder/config.json", "intermediate_size", json!(1 << 20)),
            "mlp.fc1.weight has the shape [32, 16], and config.json makes it [1048576, 16]",
        ),
        (
            |at| set(at, "vae/config.json", "layers_per_block", json!(3)),
            "there is no tensor decoder.up_blocks.0.resnets.2",
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
fn a_checkpoint_in_one_file_is_told_how_to_become_a_folder() {
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

/// Weights that are no numbers give no picture of noise, but say so.
#[test]
fn damaged_weights_draw_nothing() {
    let (said, folder) = folder("second");
    let path = folder.path().join("unet/diffusion_pytorch_model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4096..].fill(0xFF);
    fs::write(&path, bytes).unwrap();
    let (mut model, _) = loaded(&folder);
    let answer = model.answer(&[RequestPart::GenerateImage(draw(&said))], &Beacon::default(), &mut |_| {});
    assert!(matches!(&answer, Err(InferenceError::Engine(why)) if why.contains("step 1 of 4")), "{answer:?}");
}

/// Files are what others made: whatever byte of a header or a configuration is another, there is an answer and no panic.
#[test]
fn no_byte_of_a_file_ends_the_process() {
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
