//! Sentence embeddings with models of the BERT family, from the folder they are published in.
//!
//! ```text
//!  texts ─▶ BertTokenizer (caller's thread) ─▶ tokens ─▶ EmbedThreads: texts packed row after row, no padding ─▶ BertNet ─▶ pool, normalize
//! ```
//!
//! Hand-written instead of a graph: padding costs 3.6 times the work at mixed lengths, more than any choice of engine,
//! and a graph has to pad. Here every row is a real token; only attention looks at where a text begins and ends. The
//! matrix products are rten-gemm's, float or int8, so nothing here is tied to one processor.
//!
//! Reads `config.json`, `tokenizer.json` and `model.safetensors`, and the files of sentence-transformers if they exist,
//! which define pooling and truncation.

mod attention;
mod config;
mod elementwise;
mod int8;
mod int8_check;
mod layer;
mod linear;
mod net;
mod thread_pool;
mod tokenizer;
mod weights;

use std::path::Path;
use std::sync::Arc;

use self::config::Config;
use self::net::BertNet;
use self::thread_pool::EmbedThreads;
use self::tokenizer::BertTokenizer;
use self::weights::BertWeights;
use crate::backend::{Backend, ModelInfo, Prepare};
use crate::beacon::Beacon;
use crate::failure::LoadError;
use crate::model::LoadedModel;
use crate::spec::{Capability, Device, Isolation, ModelSpec, Precision};

/// The most memory the packed rows of one thread take besides the weights: a text of maximal length with its scores.
const WORK_BYTES: u64 = 32 << 20;

/// Embeds texts with BERT, RoBERTa, XLM-RoBERTa and DistilBERT.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bert;

impl Backend for Bert {
    fn name(&self) -> &'static str {
        "bert"
    }

    fn inspect(&self, spec: &ModelSpec) -> Result<Option<ModelInfo>, LoadError> {
        if spec.capability.is_some_and(|qkv| qkv != Capability::TextEmbedding) || !is_ours(&spec.path) {
            return Ok(None);
        }
        let config = Config::read(&spec.path)?;
        let weights = BertWeights::open(&config.weights_file()?)?;
        let mut files = config.files.clone();
        files.push(weights.path().to_owned());
        files.push(tokenizer::file(&config)?);
        Ok(Some(ModelInfo {
            engine: self.name(),
            capability: Capability::TextEmbedding,
            architecture: config.to_string(),
            files,
            device: Device::Cpu,
            device_bytes: None,
            memory_bytes: memory_bytes(&config, spec),
            isolation: Isolation::Thread,
            notes: config.notes(),
        }))
    }

    fn load(&self, spec: &ModelSpec, beacon: &Beacon) -> Result<LoadedModel, LoadError> {
        let config = Config::read(&spec.path)?;
        let mut weights = BertWeights::open(&config.weights_file()?)?;
        let threads = EmbedThreads::new(spec.threads.max(1) as usize)?;
        let net = match spec.precision {
            Precision::Native => BertNet::load(&config, &mut weights, beacon)?,
            Precision::Int8 => threads.run(|| int8_check::load(&config, &mut weights, beacon))?,
        };
        Ok(LoadedModel::TextEmbedding(Box::new(threads.with(net))))
    }

    fn prepare(&self, spec: &ModelSpec) -> Result<Arc<dyn Prepare>, LoadError> {
        Ok(Arc::new(BertTokenizer::read(&Config::read(&spec.path)?)?))
    }
}

/// Whether the folder holds a model of this family. Folders with only an ONNX file belong to the ONNX engine.
fn is_ours(path: &Path) -> bool {
    config::family(path).is_some() && config::has_weights(path)
}

fn memory_bytes(config: &Config, spec: &ModelSpec) -> u64 {
    let per_weight = match spec.precision {
        Precision::Native => size_of::<f32>(),
        Precision::Int8 => size_of::<i8>(),
    } as u64;
    let tables = config.table_weights() * size_of::<f32>() as u64;
    let layer = config.layer_weights();
    // During int8 conversion one layer exists in both formats.
    let made = if spec.precision == Precision::Int8 { layer * size_of::<f32>() as u64 } else { 0 };
    tables + layer * config.layers as u64 * per_weight + made + WORK_BYTES * u64::from(spec.threads.max(1))
}

#[cfg(test)]
mod tests;
