//! The llama family on CPUs without a graph: int8 weights, one pass per token. Hand-written because it is faster than
//! candle on CPUs and cannot poison the process.
//!
//! ```text
//!  token ─▶ embedding ─▶ ┌ norm ─▶ queries, keys, values ─▶ RoPE ─▶ cache ─▶ attention ─▶ + ┐ × layers
//!                        └ norm ─▶ gate × up ─▶ down ─▶ + ──────────────────────────────────────────────┘
//!                                                                        norm ─▶ logits of the next token
//! ```
//!
//! A prompt is processed in chunks, so that weights are fetched once for many tokens. The result for a token depends
//! only on the tokens before it, not on the chunks or on earlier requests.
//!
//! There is no state outside the copy and no spinning thread: unlike candle, it can run as one thread among others.

mod attention;
mod cache;
mod kernel;
mod matrix;

use fearless_simd::Level;

use self::cache::Cache;
use self::matrix::{Activations, CpuResources, Matrix};
use super::dimensions::Dimensions;
use super::generation::LanguageModel;
use crate::beacon::Beacon;
use crate::engine::gguf::Gguf;
use crate::failure::{InferenceError, LoadError};

/// Prompt tokens that go through a layer at once: enough to fetch weights rarely, few enough to stay in the core's
/// cache and to notice a cancellation quickly.
const CHUNK: usize = 32;

pub(super) struct CpuLlama {
    dimensions: Dimensions,
    cpu: CpuResources,
    embedding: Matrix,
    layers: Vec<LlamaLayer>,
    norm: Vec<f32>,
    /// `None` if the embedding matrix is also the output matrix.
    output: Option<Matrix>,
    /// The rotation per position of each pair in a head.
    rope_frequencies: Vec<f32>,
    cache: Cache,
    tokens: usize,
    work: LlamaBuffers,
}

struct LlamaLayer {
    attention_norm: Vec<f32>,
    /// Query, key and value projections, each with an optional bias.
    projections: [(Matrix, Vec<f32>); 3],
    /// Norms of every query head and key head.
    head_norms: Option<[Vec<f32>; 2]>,
    attention_out: Matrix,
    inner_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

/// Scratch buffers of a chunk, reused so that a token allocates nothing.
#[derive(Default)]
struct LlamaBuffers {
    x: Vec<f32>,
    normed: Vec<f32>,
    activations: Activations,
    /// Queries, keys and values.
    projected: [Vec<f32>; 3],
    seen: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    scores: Vec<f32>,
    angles: Vec<(f32, f32)>,
    logits: Vec<f32>,
}

impl CpuLlama {
    pub(super) fn load(
        gguf: &Gguf,
        dimensions: &Dimensions,
        threads: u32,
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let it = dimensions.clone();
        let embedding = Matrix::read(gguf, "token_embd.weight", it.vocabulary, it.width, beacon)?;
        let output = match gguf.tensors.contains_key("output.weight") {
            true => Some(Matrix::read(gguf, "output.weight", it.vocabulary, it.width, beacon)?),
            false => None,
        };
        let mut layers = Vec::new();
        for layer in 0..it.layers {
            layers.push(LlamaLayer::load(gguf, layer, &it, beacon)?);
        }
        let threads = (threads > 1).then(|| threads_of(threads)).transpose()?;
        Ok(CpuLlama {
            cpu: CpuResources { level: Level::new(), threads },
            norm: vector(gguf, "output_norm.weight", it.width)?,
            rope_frequencies: rope_frequencies(gguf, &it)?,
            cache: Cache::new(it.layers, it.heads_kv, it.head),
            embedding,
            layers,
            output,
            tokens: 0,
            work: LlamaBuffers::default(),
            dimensions: it,
        })
    }

    /// The size of the weights.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let layers = self.layers.iter().map(|layer| {
            let projections = layer.projections.iter().map(|(matrix, _)| matrix.bytes()).sum::<usize>();
            projections
                + [&layer.attention_out, &layer.gate, &layer.up, &layer.down]
                    .map(Matrix::bytes)
                    .iter()
                    .sum::<usize>()
        });
        self.embedding.bytes() + layers.sum::<usize>() + self.output.as_ref().map_or(0, Matrix::bytes)
    }

    fn chunk(&mut self, tokens: &[u32], beacon: &Beacon) -> Result<(), InferenceError> {
        let (it, work) = (&self.dimensions, &mut self.work);
        work.x.resize(tokens.len() * it.width, 0.0);
        for (token, x) in tokens.iter().zip(work.x.chunks_exact_mut(it.width)) {
            self.embedding.row(*token as usize, x);
        }
        let positions = self.tokens..self.tokens + tokens.len();
        work.angles.clear();
        work.angles.extend(
            positions
                .flat_map(|at| self.rope_frequencies.iter().map(move |turn| (at as f32 * turn).sin_cos())),
        );
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attend(index, it, &self.cpu, &mut self.cache, self.tokens, work)?;
            layer.feed_forward(it, &self.cpu, work);
            if tokens.len() > 1 {
                beacon.step()?;
            }
        }
        self.tokens += tokens.len();
        beacon.step()?;
        Ok(())
    }
}

impl LanguageModel for CpuLlama {
    fn keep_prefix(&mut self, tokens: usize) -> usize {
        self.tokens = self.tokens.min(tokens);
        self.tokens
    }

    fn read(&mut self, tokens: &[u32], beacon: &Beacon) -> Result<&[f32], InferenceError> {
        if tokens.is_empty() || tokens.iter().any(|token| *token as usize >= self.dimensions.vocabulary) {
            return Err(InferenceError::Input(
                "the prompt has tokens outside the model's vocabulary".to_owned(),
            ));
        }
        self.cache.cut(self.tokens);
        for chunk in tokens.chunks(CHUNK) {
            self.chunk(chunk, beacon)?;
        }
        let (it, work, level) = (&self.dimensions, &mut self.work, self.cpu.level);
        let last = &work.x[work.x.len() - it.width..];
        work.normed.resize(it.width, 0.0);
        attention::norm(level, last, &self.norm, it.epsilon, &mut work.normed[..it.width]);
        work.activations.quantize(level, &work.normed[..it.width], it.width);
        work.logits.resize(it.vocabulary, 0.0);
        let output = self.output.as_ref().unwrap_or(&self.embedding);
        output.multiply(&self.cpu, &work.activations, &mut work.logits);
        Ok(&work.logits)
    }
}

impl LlamaLayer {
    fn load(gguf: &Gguf, layer: usize, it: &Dimensions, beacon: &Beacon) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let matrix =
            |part: &str, rows: usize, columns: usize| Matrix::read(gguf, &name(part), rows, columns, beacon);
        let projection = |part: &str, rows: usize| {
            let bias = format!("blk.{layer}.{part}.bias");
            let bias = if gguf.tensors.contains_key(&bias) { vector(gguf, &bias, rows)? } else { Vec::new() };
            Ok::<_, LoadError>((matrix(part, rows, it.width)?, bias))
        };
        let head_norms = match gguf.tensors.contains_key(&name("attn_q_norm")) {
            true => Some([
                vector(gguf, &name("attn_q_norm"), it.head)?,
                vector(gguf, &name("attn_k_norm"), it.head)?,
            ]),
            false => None,
        };
        Ok(LlamaLayer {
            attention_norm: vector(gguf, &name("attn_norm"), it.width)?,
            projections: [
                projection("attn_q", it.heads * it.head)?,
                projection("attn_k", it.heads_kv * it.head)?,
                projection("attn_v", it.heads_kv * it.head)?,
            ],
            head_norms,
            attention_out: matrix("attn_output", it.width, it.heads * it.head)?,
            inner_norm: vector(gguf, &name("ffn_norm"), it.width)?,
            gate: matrix("ffn_gate", it.inner, it.width)?,
            up: matrix("ffn_up", it.inner, it.width)?,
            down: matrix("ffn_down", it.width, it.inner)?,
        })
    }

    fn attend(
        &self,
        index: usize,
        it: &Dimensions,
        cpu: &CpuResources,
        cache: &mut Cache,
        read: usize,
        work: &mut LlamaBuffers,
    ) -> Result<(), InferenceError> {
        let (level, tokens) = (cpu.level, work.x.len() / it.width);
        work.normed.resize(work.x.len(), 0.0);
        attention::norm(level, &work.x, &self.attention_norm, it.epsilon, &mut work.normed);
        work.activations.quantize(level, &work.normed, it.width);
        for ((matrix, bias), out) in self.projections.iter().zip(&mut work.projected) {
            out.resize(tokens * matrix.rows, 0.0);
            matrix.multiply(cpu, &work.activations, out);
            if !bias.is_empty() {
                out.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
            }
        }
        if let Some(norms) = &self.head_norms {
            for (norm, out) in norms.iter().zip(&mut work.projected) {
                work.normed.clone_from(out);
                attention::norm(level, &work.normed, norm, it.epsilon, out);
            }
        }
        let [queries, keys, values] = &mut work.projected;
        work.seen.resize(queries.len(), 0.0);
        let (wide, narrow) = (it.heads * it.head, it.heads_kv * it.head);
        for token in 0..tokens {
            let angles = &work.angles[token * it.head / 2..(token + 1) * it.head / 2];
            let query = &mut queries[token * wide..(token + 1) * wide];
            let key = &mut keys[token * narrow..(token + 1) * narrow];
            attention::turn(it.family, query, it.head, angles);
            attention::turn(it.family, key, it.head, angles);
            cache.push(index, key, &values[token * narrow..(token + 1) * narrow])?;
            let seen = work.seen[token * wide..(token + 1) * wide].chunks_exact_mut(it.head);
            for (head, (query, seen)) in query.chunks_exact(it.head).zip(seen).enumerate() {
                let (keys, values) = cache.up_to(index, head * it.heads_kv / it.heads, read + token + 1);
                attention::attend(level, query, keys, values, &mut work.scores, seen);
            }
        }
        work.activations.quantize(level, &work.seen, wide);
        work.normed.resize(work.x.len(), 0.0);
        self.attention_out.multiply(cpu, &work.activations, &mut work.normed);
        add(&mut work.x, &work.normed);
        Ok(())
    }

    fn feed_forward(&self, it: &Dimensions, cpu: &CpuResources, work: &mut LlamaBuffers) {
        let (level, tokens) = (cpu.level, work.x.len() / it.width);
        work.normed.resize(work.x.len(), 0.0);
        attention::norm(level, &work.x, &self.inner_norm, it.epsilon, &mut work.normed);
        work.activations.quantize(level, &work.normed, it.width);
        for (matrix, out) in [(&self.gate, &mut work.gate), (&self.up, &mut work.up)] {
            out.resize(tokens * it.inner, 0.0);
            matrix.multiply(cpu, &work.activations, out);
        }
        attention::gated(level, &mut work.gate, &work.up);
        work.activations.quantize(level, &work.gate, it.inner);
        self.down.multiply(cpu, &work.activations, &mut work.normed);
        add(&mut work.x, &work.normed);
    }
}

fn add(to: &mut [f32], what: &[f32]) {
    for (to, what) in to.iter_mut().zip(what) {
        *to += what;
    }
}

/// Reads weights that stay in 32 bits.
fn vector(gguf: &Gguf, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
    let (tensor, bytes) = gguf.read(name)?;
    let mut numbers = Vec::new();
    if tensor.elements() != length as u64
        || !tensor.kind.numbers(&bytes, &mut numbers)
        || numbers.iter().any(|number| !number.is_finite())
    {
        let detail = format!("{name} has shape {:?} instead of {length} values", tensor.shape);
        return Err(LoadError::Wrong { path: gguf.path.clone(), detail });
    }
    Ok(numbers)
}

/// The rotation per position of each pair; some models slow down the slow ones further.
fn rope_frequencies(gguf: &Gguf, it: &Dimensions) -> Result<Vec<f32>, LoadError> {
    let pairs = it.head / 2;
    let factors = match gguf.tensors.contains_key("rope_freqs.weight") {
        true => vector(gguf, "rope_freqs.weight", pairs)?,
        false => vec![1.0; pairs],
    };
    let turn = |(pair, factor): (usize, f32)| {
        it.rope_base.powf(-2.0 * pair as f32 / it.head as f32) / (factor * it.rope_stretch)
    };
    Ok(factors.into_iter().enumerate().map(turn).collect())
}

fn threads_of(count: u32) -> Result<rayon::ThreadPool, LoadError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(count as usize)
        .thread_name(|index| format!("chat-{index}"))
        .build()
        .map_err(|error| LoadError::Engine(format!("compute threads could not be started: {error}")))
}

#[cfg(test)]
mod tests;
