//! Headers of model files, which are downloaded and may be hostile. Besides not panicking:
//!
//! - a model that is recognised says which files it consists of and how much memory it takes;
//! - what a header of a few kilobytes claims is never allocated: libFuzzer's `-malloc_limit_mb` is the judge.

use std::sync::Arc;

use remuda_models::{Backend, Beacon, ModelSpec, engines};

use crate::input_file::folder_with;

/// A model of the BERT family with one layer of eight values, so that the weights of a seed fit into a few kilobytes.
const BERT_CONFIG: &[u8] = br#"{"model_type":"bert","vocab_size":8,"hidden_size":8,"num_hidden_layers":1,
"num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":8,"type_vocab_size":2,"pad_token_id":0}"#;

pub(crate) fn run_gguf(bytes: &[u8]) -> bool {
    inspect("model.gguf", bytes)
}

pub(crate) fn run_onnx(bytes: &[u8]) -> bool {
    inspect("model.onnx", bytes)
}

fn inspect(name: &str, bytes: &[u8]) -> bool {
    let folder = folder_with(&[(name, bytes)]);
    find(&ModelSpec::new("fuzzed", folder.path().join(name))).is_some()
}

fn find(spec: &ModelSpec) -> Option<Arc<dyn Backend>> {
    let (backend, info) = engines().find(spec).ok()?;
    assert!(!info.files.is_empty() && info.memory_bytes > 0, "{info:?}");
    Some(backend)
}

/// The header is read by inspecting, the tensors by loading.
pub(crate) fn run_safetensors(bytes: &[u8]) -> bool {
    let folder =
        folder_with(&[("config.json", BERT_CONFIG), ("tokenizer.json", b"{}"), ("model.safetensors", bytes)]);
    let spec = ModelSpec::new("fuzzed", folder.path());
    find(&spec).is_some_and(|backend| backend.load(&spec, &Beacon::default()).is_ok())
}
