//! ONNX files through the pool: small graphs made for this, and invalid graphs, images and texts.
#![cfg(feature = "rten")]
#![expect(clippy::unwrap_used, reason = "a failed expectation fails the test")]

use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::{ImageFormat, Rgb, RgbImage};
use remuda_models::engine::onnx::Onnx;
use remuda_models::request::ImageQuery;
use remuda_models::{
    Backend, Beacon, CallOptions, Capability, Engines, LoadError, ModelAnswer, ModelError, ModelPool,
    ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx").join(name)
}

fn pool(path: &Path) -> ModelPool {
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(Onnx));
    pool.add(ModelSpec::new("it", path)).unwrap();
    pool
}

fn ask(pool: &ModelPool, request: ModelRequest) -> Result<ModelAnswer, ModelError> {
    pool.call("it", request, CallOptions::default())?.wait()
}

fn picture(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    RgbImage::from_pixel(width, height, Rgb([200, 100, 50])).write_to(&mut file, format).unwrap();
    file.into_inner()
}

fn embed_image(pool: &ModelPool, image: Vec<u8>) -> Result<Vec<f32>, ModelError> {
    let answer = ask(pool, ModelRequest::ImageEmbedding { images: vec![image] })?;
    let [PartAnswer::ImageVector(embedded)] = &answer.parts[..] else { panic!("{answer:?}") };
    Ok(embedded.vector.clone())
}

fn near(vector: &[f32], expected: &[f32]) -> bool {
    vector.len() == expected.len() && vector.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3)
}

/// What ONNX Runtime returns for a uniform colour.
const COLOUR_VECTOR: [f32; 4] = [0.420494, 0.194809, -0.521154, -0.716682];

#[test]
fn image_vectors_match_the_reference_in_any_size_and_format() {
    let pool = pool(&fixture("picture.onnx"));
    for (width, height) in [(16, 16), (1, 1), (300, 20), (3, 4000)] {
        let vector = embed_image(&pool, picture(width, height, ImageFormat::Png)).unwrap();
        assert!(near(&vector, &COLOUR_VECTOR), "{width} x {height}: {vector:?}");
    }
    let vector = embed_image(&pool, picture(64, 48, ImageFormat::Jpeg)).unwrap();
    let cosine: f32 = vector.iter().zip(COLOUR_VECTOR).map(|(a, b)| a * b).sum();
    assert!(cosine > 0.999, "{vector:?}");
}

#[test]
fn transparent_pixels_are_white() {
    let pool = pool(&fixture("picture.onnx"));
    let file = |picture: image::DynamicImage| {
        let mut file = Cursor::new(Vec::new());
        picture.write_to(&mut file, ImageFormat::Png).unwrap();
        file.into_inner()
    };
    let nothing = image::RgbaImage::from_pixel(20, 20, image::Rgba([200, 100, 50, 0]));
    let white = RgbImage::from_pixel(20, 20, Rgb([255; 3]));
    let seen = embed_image(&pool, file(nothing.into())).unwrap();
    assert_eq!(seen, embed_image(&pool, file(white.into())).unwrap());
    assert!(!near(&seen, &COLOUR_VECTOR));
}

/// Only oversized files and files that are not images are refused before computing.
#[test]
fn no_image_harms_the_copy() {
    let pool = pool(&fixture("picture.onnx"));
    let (png, jpeg) = (picture(60, 60, ImageFormat::Png), picture(60, 60, ImageFormat::Jpeg));
    for whole in [&png, &jpeg] {
        for end in (0..whole.len()).step_by(7) {
            // A JPEG truncated near its end may still decode.
            if let Err(error) = embed_image(&pool, whole[..end].to_vec()) {
                let message = error.to_string();
                assert!(message.contains("image"), "{end}: {message}");
            }
        }
        assert!(embed_image(&pool, whole.clone()).is_ok(), "the copy still works");
    }
    assert!(embed_image(&pool, png[..png.len() / 2].to_vec()).is_err());
    // 100,000 pixels each way, by its header alone.
    let mut huge = png.clone();
    huge[16..24].copy_from_slice(&[0, 1, 0x86, 0xa0, 0, 1, 0x86, 0xa0]);
    for (image, why) in
        [(huge, "image 1"), (b"GIF89a...".to_vec(), "PNG or JPEG"), (Vec::new(), "PNG or JPEG")]
    {
        let refused = embed_image(&pool, image).unwrap_err();
        assert!(matches!(&refused, ModelError::Input(message) if message.contains(why)), "{refused}");
    }
    assert!(embed_image(&pool, png).is_ok(), "the copy still works");
}

#[test]
fn other_kinds_of_requests_are_refused() {
    let pool = pool(&fixture("picture.onnx"));
    let look = ModelRequest::Vision(ImageQuery { image: picture(9, 9, ImageFormat::Png), question: None });
    let refused = ask(&pool, look).unwrap_err();
    assert!(
        matches!(refused, ModelError::WrongCapability { can: Capability::ImageEmbedding, .. }),
        "{refused}"
    );
}

/// Texts of many lengths in one request, one of them longer than the model's limit.
#[test]
fn text_vectors_match_the_reference_at_any_length() {
    let pool = pool(&fixture("text"));
    let texts = ["fresh horse", "a", "The rider takes a fresh horse from the remuda", "Fresh horse"];
    let expected = [
        [-0.354717, 0.011371, -0.793436, -0.494476],
        [-0.299062, -0.067977, -0.951111, -0.036457],
        [-0.346669, 0.051151, -0.802690, -0.482590],
        [-0.354717, 0.011371, -0.793436, -0.494476],
    ];
    let answer =
        ask(&pool, ModelRequest::TextEmbedding { texts: texts.map(str::to_owned).to_vec() }).unwrap();
    assert_eq!(answer.parts.len(), expected.len());
    for (part, expected) in answer.parts.iter().zip(expected) {
        let PartAnswer::Vector(vector) = part else { panic!("{part:?}") };
        assert!(vector.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{vector:?} {expected:?}");
    }
}

/// Truncated at every position, and with every byte changed.
#[test]
fn truncated_or_damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(fixture("picture.onnx")).unwrap();
    let path = folder.path().join("model.onnx");
    let spec = ModelSpec::new("it", &path);
    for end in 0..whole.len() {
        std::fs::write(&path, &whole[..end]).unwrap();
        let error = match Onnx.inspect(&spec) {
            // The very end of the file may be something that is not needed.
            Ok(_) => continue,
            Err(error) => error,
        };
        let is_told = matches!(&error, LoadError::Truncated { path: at, .. } | LoadError::Wrong { path: at, .. } if *at == path);
        assert!(is_told, "{end}: {error}");
        assert!(Onnx.load(&spec, &Beacon::default()).is_err());
    }
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(matches!(Onnx.inspect(&spec), Err(LoadError::Truncated { .. })));
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0xff;
        std::fs::write(&path, &damaged).unwrap();
        // Either an error or a different model, and never a crash.
        drop(Onnx.inspect(&spec));
        drop(Onnx.load(&spec, &Beacon::default()));
    }
}

#[test]
fn missing_or_foreign_files_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let spec = |name: &str| ModelSpec::new("it", folder.path().join(name));
    assert_eq!(
        Onnx.inspect(&ModelSpec::new("it", folder.path())),
        Ok(None),
        "a folder without graphs is not claimed"
    );
    std::fs::create_dir(folder.path().join("text")).unwrap();
    std::fs::copy(fixture("text/model.onnx"), folder.path().join("text/model.onnx")).unwrap();
    let error = Onnx.inspect(&spec("text")).unwrap_err();
    assert!(matches!(&error, LoadError::Missing { what, .. } if what == "tokenizer.json"), "{error}");
    for name in ["a.onnx", "b.onnx"] {
        std::fs::copy(fixture("picture.onnx"), folder.path().join(name)).unwrap();
    }
    let error = Onnx.inspect(&ModelSpec::new("it", folder.path())).unwrap_err();
    assert!(matches!(&error, LoadError::Unsupported { hint, .. } if hint.contains("name one")), "{error}");
    std::fs::rename(folder.path().join("a.onnx"), folder.path().join("x_det.onnx")).unwrap();
    std::fs::rename(folder.path().join("b.onnx"), folder.path().join("x_rec.onnx")).unwrap();
    let error = Onnx.inspect(&ModelSpec::new("it", folder.path())).unwrap_err();
    assert!(error.to_string().contains("list of characters"), "{error}");
    let asked = ModelSpec {
        capability: Some(Capability::TextToText),
        ..ModelSpec::new("it", fixture("picture.onnx"))
    };
    assert_eq!(Onnx.inspect(&asked), Ok(None), "the requested capability is not supported");
}

#[test]
fn loading_can_be_stopped() {
    let beacon = Beacon::default();
    beacon.stop();
    let error = Onnx.load(&ModelSpec::new("it", fixture("picture.onnx")), &beacon).unwrap_err();
    assert_eq!(error, LoadError::Stopped);
}

/// A classifier with a `labels.txt` next to it names what it sees; a list of the wrong length is refused.
#[test]
fn classifier_labels_are_returned_likeliest_first() {
    let folder = tempfile::tempdir().unwrap();
    let graph = folder.path().join("model.onnx");
    std::fs::copy(fixture("picture.onnx"), &graph).unwrap();
    std::fs::write(folder.path().join("labels.txt"), "cat\ndog\nhorse\nowl\n").unwrap();
    let request = ModelRequest::ImageEmbedding { images: vec![picture(9, 9, ImageFormat::Png)] };
    let answer = ask(&pool(&graph), request).unwrap();
    let [PartAnswer::ImageVector(image)] = &answer.parts[..] else { panic!("{answer:?}") };
    assert!(near(&image.vector, &COLOUR_VECTOR), "{:?}", image.vector);
    let names: Vec<_> = image.labels.iter().map(|label| label.name.as_str()).collect();
    assert_eq!(names, ["cat", "dog", "horse", "owl"], "in the order of the scores");
    let sum: f32 = image.labels.iter().map(|label| label.confidence).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{:?}", image.labels);
    std::fs::write(folder.path().join("labels.txt"), "cat\ndog\n").unwrap();
    let error = Onnx.inspect(&ModelSpec::new("it", &graph)).unwrap_err();
    assert!(error.to_string().contains("another number of classes"), "{error}");
}
