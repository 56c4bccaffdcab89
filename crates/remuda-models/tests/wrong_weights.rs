//! Weights of an image model that change on the disk unnoticed: the golden image reveals it.

#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "a failed expectation fails the test")]

#[path = "reference/tiny.rs"]
mod tiny;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use half::f16;
use remuda_models::engine::diffusion::Diffusion;
use remuda_models::request::ImagePrompt;
use remuda_models::{
    CallOptions, Engines, Isolation, ModelError, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec,
};
use tempfile::TempDir;
use tiny::{TinyStyle, reference, write};

/// A model, and the folder with its golden answer.
struct StoredImageModel {
    folder: TempDir,
    known: TempDir,
}

impl StoredImageModel {
    /// Started once, so that the golden image is stored.
    fn new(name: &str) -> Self {
        let drawer =
            StoredImageModel { folder: tempfile::tempdir().unwrap(), known: tempfile::tempdir().unwrap() };
        write(&reference()[name], drawer.folder.path(), TinyStyle::default());
        drawer.draw().unwrap();
        assert_eq!(fs::read_dir(drawer.known.path()).unwrap().count(), 1, "the golden answer is stored");
        drawer
    }

    /// In a new pool, as after a restart.
    fn draw(&self) -> Result<(), ModelError> {
        let golden_folder = Some(self.known.path().to_owned());
        let settings = ModelPoolSettings {
            golden_folder,
            copy_wait_max: Duration::ZERO,
            ..ModelPoolSettings::default()
        };
        let pool = ModelPool::start(settings, Engines::default().with(Diffusion));
        let spec = ModelSpec::new("draw", self.folder.path());
        pool.add(ModelSpec { isolation: Isolation::Thread, ..spec }).unwrap();
        let draw = ImagePrompt {
            prompt: "a cat".to_owned(),
            negative_prompt: String::new(),
            size: None,
            steps: Some(1),
            guidance: None,
            seed: None,
        };
        let drawn = pool
            .call("draw", ModelRequest::TextToImage(draw), CallOptions::default())
            .and_then(|it| it.wait());
        pool.close(Duration::ZERO);
        drawn.map(drop)
    }

    fn weights(&self, part: &str) -> PathBuf {
        let stem = if part == "text_encoder" { "model" } else { "diffusion_pytorch_model" };
        self.folder.path().join(part).join(format!("{stem}.safetensors"))
    }
}

/// Changes every value in a file, but neither its length nor its modification time.
fn change(path: &Path, number: impl Fn(usize, f32) -> f32) {
    let changed = fs::metadata(path).unwrap().modified().unwrap();
    let mut bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for (place, four) in bytes[8 + header..].chunks_exact_mut(4).enumerate() {
        let old = f32::from_le_bytes((&*four).try_into().unwrap());
        four.copy_from_slice(&number(place, old).to_le_bytes());
    }
    fs::write(path, bytes).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(changed).unwrap();
}

/// Faults: T9. For each part of the model: all of its weights, or one in a hundred.
#[test]
fn changed_weights_are_detected_before_serving() {
    type TinyDamage = fn(usize, f32) -> f32;
    let damages: [(&str, TinyDamage); 2] = [
        ("turned around", |_, number| -number),
        ("partly lost", |place, number| if place % 100 == 0 { 0.0 } else { number }),
    ];
    for name in ["first", "second"] {
        for part in ["text_encoder", "unet", "vae"] {
            for (what, damage) in damages {
                let drawer = StoredImageModel::new(name);
                change(&drawer.weights(part), damage);
                let refused = drawer.draw().unwrap_err();
                let ModelError::NoWorkers { why, .. } = refused else { panic!("{what} {part}: {refused:?}") };
                assert!(
                    why.contains("golden request wrongly: an image that differs by"),
                    "{what} {part}: {why}"
                );
            }
        }
    }
}

/// Other threads, SIMD widths or a GPU change far less than this rounding.
#[test]
fn weights_rounded_to_half_precision_pass_the_test() {
    for name in ["first", "second"] {
        let drawer = StoredImageModel::new(name);
        for part in ["text_encoder", "unet", "vae"] {
            change(&drawer.weights(part), |_, number| f16::from_f32(number).to_f32());
        }
        drawer.draw().unwrap();
    }
}
