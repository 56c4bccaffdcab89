//! Pictures on real weights: as vectors, and read. What they are held to was computed by ONNX Runtime and by RapidOCR.

use std::path::Path;

use remuda_models::request::{ImageQuery, RecognizedText, TextLine};
use remuda_models::{
    CallOptions, Capability, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer, engine,
};

fn picture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/models/images").join(name)).unwrap()
}

fn served(name: &str, capability: Capability) -> Option<ModelPool> {
    let folder = remuda_testkit::model(name)?;
    let pool = ModelPool::start(ModelPoolSettings::default(), engine::engines());
    let found = pool.add(ModelSpec::new("it", folder)).unwrap();
    assert_eq!((found.engine, found.capability), ("rten", capability));
    Some(pool)
}

fn ask(pool: &ModelPool, request: ModelRequest) -> PartAnswer {
    let answer = pool.call("it", request, CallOptions::default()).unwrap().wait().unwrap();
    answer.parts.into_iter().next().unwrap()
}

fn embedded(pool: &ModelPool, name: &str) -> Vec<f32> {
    match ask(pool, ModelRequest::ImageEmbedding { images: vec![picture(name)] }) {
        PartAnswer::ImageVector(embedded) => embedded.vector,
        other => panic!("{other:?}"),
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn image_embedding_matches_reference() {
    let Some(pool) = served("dinov2-small", Capability::ImageEmbedding) else { return };
    let expected = |name: &str| serde_json::from_slice::<Vec<f32>>(&picture(name)).unwrap();
    // Decoders of JPEG round differently; everything else is bit for bit as it was there.
    for (name, reference, distance_max) in
        [("scene.png", "scene-png.json", 1e-8), ("scene.jpg", "scene-jpg.json", 1e-4)]
    {
        let vector = embedded(&pool, name);
        let distance = 1.0 - cosine(&vector, &expected(reference));
        eprintln!("{name}: distance to the reference {distance:.1e}");
        assert!(vector.len() == 384 && distance < distance_max, "{name}: {distance:e}");
    }
    let lines = embedded(&pool, "lines.png");
    assert!(cosine(&lines, &expected("scene-png.json")) < 0.9, "another picture has another vector");
}

#[test]
fn ocr_reads_rotated_and_placed_text() {
    let Some(pool) = served("ppocr-v4", Capability::Vision) else { return };
    let PartAnswer::Recognized(RecognizedText { text, lines }) =
        ask(&pool, ModelRequest::Vision(ImageQuery { image: picture("lines.png"), question: None }))
    else {
        panic!("it was asked to read")
    };
    let told: Vec<_> = lines.iter().map(|line| (line.text.as_str(), line.confidence)).collect();
    // With spaces or without: the model was trained on Chinese, and the reference leaves out the same.
    let bare = |text: &str| text.replace(' ', "");
    let read: Vec<_> = lines.iter().map(|line| bare(&line.text)).collect();
    let expected =
        ["Freshhorsesforeveryrider", "Account2026-11-16", "EUR1,234.56", "turnedby12degrees", "upsidedown"];
    assert_eq!(read, expected, "{told:?}");
    assert_eq!(bare(&text), expected.join("\n"));
    assert!(lines.iter().all(|line| line.confidence > 0.9), "{told:?}");
    let begins = |line: &TextLine, x: f32, y: f32| {
        let (left, top) = line.corners[0];
        (left - x).abs() < 8.0 && (top - y).abs() < 8.0
    };
    assert!(begins(&lines[0], 31.0, 27.0), "{:?}", lines[0].corners);
    assert!(begins(&lines[3], 29.0, 182.0), "{:?}", lines[3].corners);
    assert!(begins(&lines[4], 458.0, 220.0), "what stands upside down begins below: {:?}", lines[4].corners);
}
