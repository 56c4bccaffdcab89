//! A served model: requests in, answers out.

use remuda_models::fake::FakeEngine;
use remuda_models::{
    CallOptions, Engines, ModelError, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer,
};

fn embedding(folder: &tempfile::TempDir) -> ModelSpec {
    let path = folder.path().join("embed.fake");
    std::fs::write(&path, "text_embedding").unwrap();
    ModelSpec::new("embed", path)
}

#[test]
fn texts_become_unit_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(FakeEngine));
    pool.add(embedding(&folder)).unwrap();
    let request = ModelRequest::TextEmbedding { texts: vec!["a".to_owned(), "b".to_owned()] };
    let answer = pool.call("embed", request, CallOptions::default()).unwrap().wait().unwrap();
    let [PartAnswer::Vector(a), PartAnswer::Vector(b)] = &answer.parts[..] else { panic!("{answer:?}") };
    assert!((a.iter().map(|number| number * number).sum::<f32>() - 1.0).abs() < 1e-6);
    assert_ne!(a, b);
}

#[test]
fn unknown_model_error_lists_the_models() {
    let folder = tempfile::tempdir().unwrap();
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(FakeEngine));
    pool.add(embedding(&folder)).unwrap();
    let request = ModelRequest::TextEmbedding { texts: vec![] };
    let refused = pool.call("embde", request, CallOptions::default()).unwrap_err();
    assert_eq!(refused, ModelError::UnknownModel { model: "embde".to_owned(), known: "embed".to_owned() });
}

#[test]
fn request_without_parts_is_answered_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(FakeEngine));
    pool.add(embedding(&folder)).unwrap();
    let request = ModelRequest::TextEmbedding { texts: vec![] };
    assert!(pool.call("embed", request, CallOptions::default()).unwrap().wait().unwrap().parts.is_empty());
}

#[test]
fn duplicate_model_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pool = ModelPool::start(ModelPoolSettings::default(), Engines::default().with(FakeEngine));
    pool.add(embedding(&folder)).unwrap();
    let refused = pool.add(embedding(&folder)).unwrap_err();
    assert!(refused.to_string().contains("another name"), "{refused}");
}
