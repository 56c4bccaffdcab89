//! Other model families, and GPUs, through candle.
//!
//! Known limits of candle, handled here or by the supervisor:
//!
//! - Quantised products share one pool of spinning threads behind one mutex per process, and a panic inside poisons it
//!   permanently. A copy should therefore be a process with `CANDLE_NUM_THREADS` set to its threads.
//! - Q4_1, Q5_0 and Q5_1 have no SIMD kernel on x86 and are 10 to 50 times slower: they are converted to Q8_0 when
//!   loaded.
//! - The attention mask of every prompt length is cached forever: prompts are read in runs whose lengths are powers of
//!   two, so there are few.
//! - Its llama supports 4,096 positions and fails beyond.
//! - Token embeddings are kept in 32 bits, whatever the file has.
//!
//! The limits on a card are in [`candle_device`](crate::engine::candle_device).

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek};

use candle_core::Tensor;
use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_transformers::models::{
    quantized_gemma3, quantized_llama, quantized_phi3, quantized_qwen2, quantized_qwen3,
};

use super::generation::LanguageModel;
use crate::beacon::Beacon;
use crate::engine::candle_device;
use crate::engine::gguf::{Gguf, TensorType};
use crate::failure::{InferenceError, LoadError};
use crate::spec::Device;

pub(super) const POSITIONS_MAX: u64 = 4096;
pub(super) const FAMILIES: [&str; 7] = ["llama", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3"];
/// The longest run of prompt tokens read at once.
const RUN: usize = 64;
const SLOW: [TensorType; 3] = [TensorType::Q4_1, TensorType::Q5_0, TensorType::Q5_1];

pub(super) struct CandleModel {
    weights: CandleWeights,
    device: candle_core::Device,
    tokens: usize,
    logits: Vec<f32>,
}

enum CandleWeights {
    Llama(quantized_llama::ModelWeights),
    Qwen2(quantized_qwen2::ModelWeights),
    Qwen3(quantized_qwen3::ModelWeights),
    Phi3(quantized_phi3::ModelWeights),
    Gemma3(quantized_gemma3::ModelWeights),
}

/// Tensor types that are converted when a file is loaded.
pub(super) fn slow(gguf: &Gguf, device: Device) -> Vec<TensorType> {
    if device != Device::Cpu {
        return Vec::new();
    }
    gguf.kinds().into_iter().map(|(kind, _)| kind).filter(|kind| SLOW.contains(kind)).collect()
}

impl CandleModel {
    /// Loads onto a device with this much memory for it.
    pub(super) fn load(
        gguf: &Gguf,
        architecture: &str,
        (on, need_bytes): (Device, u64),
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let device = candle_device::open(on, need_bytes)?;
        let wrong = |error: &candle_core::Error| match candle_device::failure(error) {
            InferenceError::Engine(detail) => LoadError::Wrong { path: gguf.path.clone(), detail },
            _ => candle_device::load_error(&device, need_bytes, error),
        };
        let file = File::open(&gguf.path).map_err(|error| wrong(&candle_core::Error::wrap(error)))?;
        let mut file = BufReader::new(file);
        let content = Content::read(&mut file).map_err(|error| wrong(&error))?;
        beacon.step()?;
        let weights = if slow(gguf, on).is_empty() {
            CandleWeights::read(architecture, content, &mut file, &device)
        } else {
            let rewritten = rewrite(&content, &mut file, beacon)?;
            drop(content);
            let mut rewritten = Cursor::new(rewritten);
            let content = Content::read(&mut rewritten).map_err(|error| wrong(&error))?;
            CandleWeights::read(architecture, content, &mut rewritten, &device)
        };
        beacon.step()?;
        let weights = weights.map_err(|error| wrong(&error))?;
        let mut candle = CandleModel { weights, device, tokens: 0, logits: Vec::new() };
        if on != Device::Cpu {
            candle.warm(beacon).map_err(|failure| candle_device::failed(on, need_bytes, failure))?;
        }
        Ok(candle)
    }

    /// Runs several tokens and a single token, which use different kernels.
    fn warm(&mut self, beacon: &Beacon) -> Result<(), InferenceError> {
        self.read(&[0; RUN + 1], beacon)?;
        self.keep_prefix(0);
        Ok(())
    }
}

impl LanguageModel for CandleModel {
    /// Candle's caches can only restart at position 0.
    fn keep_prefix(&mut self, _: usize) -> usize {
        self.tokens = 0;
        if let CandleWeights::Qwen3(weights) = &mut self.weights {
            weights.clear_kv_cache();
        }
        0
    }

    fn read(&mut self, tokens: &[u32], beacon: &Beacon) -> Result<&[f32], InferenceError> {
        let mut rest = tokens;
        while !rest.is_empty() {
            let (run, later) = rest.split_at(RUN.min(1 << rest.len().ilog2()));
            let logits = Tensor::new(run, &self.device)
                .and_then(|run| run.unsqueeze(0))
                .and_then(|run| self.weights.forward(&run, self.tokens))
                .and_then(|logits| logits.flatten_all()?.to_vec1::<f32>())
                .map_err(|error| candle_device::failure(&error))?;
            self.tokens += run.len();
            self.logits = logits;
            rest = later;
            beacon.step()?;
        }
        Ok(&self.logits)
    }
}

impl CandleWeights {
    fn read<R: Read + Seek>(
        architecture: &str,
        content: Content,
        from: &mut R,
        device: &candle_core::Device,
    ) -> candle_core::Result<Self> {
        Ok(match architecture {
            "qwen2" => CandleWeights::Qwen2(quantized_qwen2::ModelWeights::from_gguf(content, from, device)?),
            "qwen3" => CandleWeights::Qwen3(quantized_qwen3::ModelWeights::from_gguf(content, from, device)?),
            "phi3" => {
                CandleWeights::Phi3(quantized_phi3::ModelWeights::from_gguf(false, content, from, device)?)
            }
            "gemma" | "gemma2" | "gemma3" => {
                CandleWeights::Gemma3(quantized_gemma3::ModelWeights::from_gguf(content, from, device)?)
            }
            _ => CandleWeights::Llama(quantized_llama::ModelWeights::from_gguf(content, from, device)?),
        })
    }

    fn forward(&mut self, tokens: &Tensor, at: usize) -> candle_core::Result<Tensor> {
        match self {
            CandleWeights::Llama(weights) => weights.forward(tokens, at),
            CandleWeights::Qwen2(weights) => weights.forward(tokens, at),
            CandleWeights::Qwen3(weights) => weights.forward(tokens, at),
            CandleWeights::Phi3(weights) => weights.forward(tokens, at),
            CandleWeights::Gemma3(weights) => weights.forward(tokens, at),
        }
    }
}

/// The same file with its slow tensors in Q8_0.
fn rewrite<R: Read + Seek>(content: &Content, from: &mut R, beacon: &Beacon) -> Result<Vec<u8>, LoadError> {
    let engine = |error: candle_core::Error| LoadError::Engine(error.to_string());
    let mut tensors = Vec::new();
    for name in content.tensor_infos.keys() {
        beacon.step()?;
        let mut tensor = content.tensor(from, name, &candle_core::Device::Cpu).map_err(engine)?;
        if matches!(tensor.dtype(), GgmlDType::Q4_1 | GgmlDType::Q5_0 | GgmlDType::Q5_1) {
            let numbers = tensor.dequantize(&candle_core::Device::Cpu).map_err(engine)?;
            tensor = QTensor::quantize(&numbers, GgmlDType::Q8_0).map_err(engine)?;
        }
        tensors.push((name.as_str(), tensor));
    }
    let metadata: Vec<_> = content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut written = Cursor::new(Vec::new());
    gguf_file::write(&mut written, &metadata, &tensors).map_err(engine)?;
    Ok(written.into_inner())
}

#[cfg(test)]
mod tests;
