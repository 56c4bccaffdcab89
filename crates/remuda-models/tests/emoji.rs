//! The model in this repository, `models/emoji`, generates what the prompt asks for.

#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "a failed expectation fails the test")]

use std::path::Path;

use remuda_models::request::ImagePrompt;
use remuda_models::{
    CallOptions, Device, Isolation, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer,
    engines,
};

fn pool(device: Option<Device>) -> ModelPool {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/emoji/weights");
    let pool = ModelPool::start(ModelPoolSettings::default(), engines());
    pool.add(ModelSpec { isolation: Isolation::Thread, device, ..ModelSpec::new("draw", folder) }).unwrap();
    pool
}

fn drawn(pool: &ModelPool, prompt: &str) -> image::RgbImage {
    let draw = ImagePrompt {
        prompt: prompt.to_owned(),
        negative_prompt: String::new(),
        size: None,
        steps: Some(8),
        guidance: Some(4.0),
        seed: Some(1),
    };
    let answer =
        pool.call("draw", ModelRequest::TextToImage(draw), CallOptions::default()).unwrap().wait().unwrap();
    let [PartAnswer::Image(file)] = &answer.parts[..] else { panic!("{answer:?}") };
    let picture = image::load_from_memory(file).unwrap().to_rgb8();
    assert_eq!(picture.dimensions(), (64, 64));
    picture
}

/// The colour of each corner.
fn corners(pool: &ModelPool, prompt: &str) -> Vec<[u8; 3]> {
    let picture = drawn(pool, prompt);
    [(0, 0), (63, 0), (0, 63), (63, 63)].map(|(x, y)| picture.get_pixel(x, y).0).to_vec()
}

#[test]
fn background_colour_follows_the_prompt() {
    let pool = pool(None);
    let blue = corners(&pool, "a cat face on a blue background");
    assert!(blue.iter().all(|[r, _, b]| *b > r.saturating_add(60)), "{blue:?}");
    let yellow = corners(&pool, "a dolphin on a yellow background");
    assert!(yellow.iter().all(|[r, _, b]| *r > b.saturating_add(60)), "{yellow:?}");
}

/// Builds for cards are tested where there is one.
#[cfg(feature = "cuda")]
#[test]
fn card_and_cpu_generate_the_same_image() {
    let prompt = "a rocket on a black background";
    let [cpu, card] = [Device::Cpu, Device::Cuda(0)].map(|device| drawn(&pool(Some(device)), prompt));
    let apart = cpu.as_raw().iter().zip(card.as_raw()).map(|(cpu, card)| cpu.abs_diff(*card)).max();
    assert!(apart <= Some(8), "{apart:?} of 255 levels");
}

/// A build for CPUs refuses a card before anything is loaded.
#[cfg(not(feature = "cuda"))]
#[test]
fn cards_are_refused_by_cpu_builds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/emoji/weights");
    let spec = ModelSpec { device: Some(Device::Cuda(0)), ..ModelSpec::new("draw", folder) };
    let error = ModelPool::start(ModelPoolSettings::default(), engines()).add(spec).unwrap_err().to_string();
    assert!(error.contains("text_to_image on cuda") && error.contains("the feature cuda"), "{error}");
}
