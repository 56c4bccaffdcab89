//! Weights of a model that draws, changed on the disk behind everybody's back: the known picture tells.

#![cfg(feature = "candle")]
#![expect(clippy::unwrap_used, reason = "what a test does not expect may end it")]

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

/// A model, and what a pool remembers of it.
struct Drawer {
    folder: TempDir,
    known: TempDir,
}

impl Drawer {
    /// Started once, so that its picture is known.
    fn new(name: &str) -> Self {
        let drawer = Drawer { folder: tempfile::tempdir().unwrap(), known: tempfile::tempdir().unwrap() };
        write(&reference()[name], drawer.folder.path(), TinyStyle::default());
        drawer.draw().unwrap();
        assert_eq!(fs::read_dir(drawer.known.path()).unwrap().count(), 1, "it is remembered");
        drawer
    }

    /// In a new pool, as after a new start.
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

/// Changes every number that a file holds, and neither its length nor its time: nobody was told.
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

/// Faults: T9. Of each part of the model: all of its weights, or one in a hundred.
#[test]
fn other_weights_draw_another_picture_and_nobody_gets_it() {
    type TinyDamage = fn(usize, f32) -> f32;
    let damages: [(&str, TinyDamage); 2] = [
        ("turned around", |_, number| -number),
        ("partly lost", |place, number| if place % 100 == 0 { 0.0 } else { number }),
    ];
    for name in ["first", "second"] {
        for part in ["text_encoder", "unet", "vae"] {
            for (what, damage) in damages {
                let drawer = Drawer::new(name);
                change(&drawer.weights(part), damage);
                let refused = drawer.draw().unwrap_err();
                let ModelError::NoWorkers { why, .. } = refused else { panic!("{what} {part}: {refused:?}") };
                assert!(why.contains("known question wrongly: a picture that is"), "{what} {part}: {why}");
            }
        }
    }
}

/// What other threads, SIMD registers or a GPU make of the same weights differs by far less.
#[test]
fn the_same_weights_rounded_to_sixteen_bits_draw_the_same_picture() {
    for name in ["first", "second"] {
        let drawer = Drawer::new(name);
        for part in ["text_encoder", "unet", "vae"] {
            change(&drawer.weights(part), |_, number| f16::from_f32(number).to_f32());
        }
        drawer.draw().unwrap();
    }
}
