//! Pictures on real weights: as vectors, and read. What they are held to was computed by ONNX Runtime and by RapidOCR.

use std::path::Path;

use remuda_pool::request::{Line, Look, Seen};
use remuda_pool::{Call, Capability, ModelSpec, PartAnswer, Pool, PoolSettings, Request, engine};

fn picture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/models/sight").join(name)).unwrap()
}

fn served(name: &str, capability: Capability) -> Pool {
    let pool = Pool::start(PoolSettings::default(), engine::engines());
    let found = pool.add(ModelSpec::new("it", super::folder(name))).unwrap();
    assert_eq!((found.engine, found.capability), ("rten", capability));
    pool
}

fn ask(pool: &Pool, request: Request) -> PartAnswer {
    let answer = pool.call("it", request, Call::default()).unwrap().wait().unwrap();
    answer.parts.into_iter().next().unwrap()
}

fn embedded(pool: &Pool, name: &str) -> Vec<f32> {
    match ask(pool, Request::ImageEmbedding { images: vec![picture(name)] }) {
        PartAnswer::Picture(embedded) => embedded.vector,
        other => panic!("{other:?}"),
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn a_picture_becomes_the_vector_that_the_reference_has_for_it() {
    let pool = served("dinov2-small", Capability::ImageEmbedding);
    let expected: Vec<f32> = serde_json::from_slice(&picture("scene.json")).unwrap();
    let (scene, lines) = (embedded(&pool, "scene.jpg"), embedded(&pool, "lines.png"));
    let distance = 1.0 - cosine(&scene, &expected);
    eprintln!("distance to the reference: {distance:.2e}");
    assert!(scene.len() == 384 && distance < 1e-4, "{distance:e}");
    assert!(cosine(&lines, &expected) < 0.9, "another picture has another vector");
}

#[test]
fn text_is_read_wherever_and_however_it_stands() {
    let pool = served("ppocr-v4", Capability::Vision);
    let PartAnswer::Seen(Seen { text, lines }) =
        ask(&pool, Request::Vision(Look { image: picture("lines.png"), question: None }))
    else {
        panic!("it was asked to read")
    };
    let told: Vec<_> = lines.iter().map(|line| (line.text.as_str(), line.confidence)).collect();
    // With spaces or without: the model was trained on Chinese, and the reference leaves out the same.
    let bare = |text: &str| text.replace(' ', "");
    let read: Vec<_> = lines.iter().map(|line| bare(&line.text)).collect();
    let expected =
        ["Freshhorsesforeveryrider", "Invoice2026-11-16", "EUR1,234.56", "turnedby12degrees", "upsidedown"];
    assert_eq!(read, expected, "{told:?}");
    assert_eq!(bare(&text), expected.join("\n"));
    assert!(lines.iter().all(|line| line.confidence > 0.9), "{told:?}");
    let begins = |line: &Line, x: f32, y: f32| {
        let (left, top) = line.corners[0];
        (left - x).abs() < 8.0 && (top - y).abs() < 8.0
    };
    assert!(begins(&lines[0], 31.0, 27.0), "{:?}", lines[0].corners);
    assert!(begins(&lines[3], 29.0, 182.0), "{:?}", lines[3].corners);
    assert!(begins(&lines[4], 458.0, 220.0), "what stands upside down begins below: {:?}", lines[4].corners);
}
