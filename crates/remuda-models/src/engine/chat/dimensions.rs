//! The dimensions of a model from its metadata, its context size and its memory.

use crate::engine::gguf::Gguf;
use crate::failure::LoadError;
use crate::spec::ModelSpec;

/// The default limit of a copy's context: contexts of 128 thousand tokens cost more memory than the model.
const CONTEXT_DEFAULT: u64 = 8192;
/// Too small for a conversation otherwise.
const CONTEXT_MIN: u64 = 256;
/// Scratch memory, besides weights and cache.
const WORK_BYTES: u64 = 48 << 20;

/// The variant of the llama architecture. Families not listed here are candle's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RopeFamily {
    /// Also Mistral, SmolLM and everything converted as `llama`.
    Llama,
    /// Biases on queries, keys and values; positions rotate the halves of a head instead of adjacent pairs.
    Qwen2,
    /// No biases, but a norm per head.
    Qwen3,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dimensions {
    pub(super) family: RopeFamily,
    pub(super) layers: usize,
    pub(super) width: usize,
    pub(super) inner: usize,
    pub(super) heads: usize,
    pub(super) heads_kv: usize,
    pub(super) head: usize,
    pub(super) vocabulary: usize,
    pub(super) epsilon: f32,
    pub(super) rope_base: f32,
    /// Positions are divided by this.
    pub(super) rope_stretch: f32,
}

/// The architecture name in the metadata.
pub(super) fn architecture(gguf: &Gguf) -> Result<&str, LoadError> {
    gguf.text("general.architecture").ok_or_else(|| LoadError::Wrong {
        path: gguf.path.clone(),
        detail: "its metadata has no general.architecture".to_owned(),
    })
}

impl Dimensions {
    /// `None` for a family that only candle supports, an error if the metadata is inconsistent.
    pub(super) fn of(gguf: &Gguf) -> Result<Option<Self>, LoadError> {
        let name = architecture(gguf)?;
        let family = match name {
            "llama" => RopeFamily::Llama,
            "qwen2" => RopeFamily::Qwen2,
            "qwen3" => RopeFamily::Qwen3,
            _ => return Ok(None),
        };
        let has = |key: &str| gguf.metadata.contains_key(&format!("{name}.{key}"));
        let stretched = gguf.text(&format!("{name}.rope.scaling.type"));
        if has("expert_count") || !matches!(stretched, None | Some("none" | "linear")) {
            return Ok(None);
        }
        let number = |key: &str| gguf.number(&format!("{name}.{key}")).map(|number| number as f32);
        let (width, heads) = (size(gguf, "embedding_length")?, size(gguf, "attention.head_count")?);
        let optional = |key: &str, or: usize| if has(key) { size(gguf, key) } else { Ok(or) };
        let dimensions = Dimensions {
            family,
            layers: size(gguf, "block_count")?,
            width,
            inner: size(gguf, "feed_forward_length")?,
            heads,
            heads_kv: optional("attention.head_count_kv", heads)?,
            head: optional("attention.key_length", width / heads.max(1))?,
            vocabulary: usize::try_from(gguf.tensor("token_embd.weight")?.shape.last().copied().unwrap_or(0))
                .unwrap_or(0),
            epsilon: number("attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
            rope_base: number("rope.freq_base").unwrap_or(10_000.0),
            rope_stretch: number("rope.scaling.factor").unwrap_or(1.0),
        };
        dimensions.checked(gguf).map(Some)
    }

    fn checked(self, gguf: &Gguf) -> Result<Self, LoadError> {
        let turned = size(gguf, "rope.dimension_count").unwrap_or(self.head);
        let checks = [
            (self.heads.is_multiple_of(self.heads_kv), "its heads do not share keys evenly"),
            (self.head.is_multiple_of(2) && turned == self.head, "its rotary dimension is not the head size"),
            (
                [self.width, self.inner, self.heads * self.head].iter().all(|it| it.is_multiple_of(32)),
                "its rows are not multiples of 32",
            ),
            (self.epsilon >= 0.0 && self.epsilon < 1.0, "its norm epsilon is out of range"),
            (self.rope_base > 1.0 && self.rope_base.is_finite(), "its rope base is out of range"),
            (self.rope_stretch > 0.0 && self.rope_stretch.is_finite(), "its rope factor is out of range"),
        ];
        match checks.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(LoadError::Wrong { path: gguf.path.clone(), detail: (*what).to_owned() }),
            None => Ok(self),
        }
    }

    /// Cache bytes per token: a key and a value of each key-value head in each layer, in 32 bits.
    fn cache_bytes(&self) -> u64 {
        let head = (self.head * 2 * size_of::<f32>()) as u64;
        head.saturating_mul(self.layers as u64).saturating_mul(self.heads_kv as u64)
    }
}

/// How many tokens a copy can hold, and the memory it takes then.
pub(super) fn fit_context(
    gguf: &Gguf,
    dimensions: Option<&Dimensions>,
    besides_bytes: u64,
    tokens_max: u64,
    spec: &ModelSpec,
) -> Result<(u64, u64), LoadError> {
    let weights: u64 = gguf.tensors.values().map(super::super::gguf::TensorInfo::elements).sum();
    let (weights, each) = match dimensions {
        // One byte per weight, and two for the scale of 32 weights.
        Some(dimensions) => (weights + weights / 16, dimensions.cache_bytes()),
        None => (gguf.bytes() + embedding_bytes(gguf)?, cache_bytes(gguf)?),
    };
    let weights = weights.saturating_add(besides_bytes);
    let able = (size(gguf, "context_length")? as u64).min(tokens_max);
    let context = match spec.memory_bytes {
        None => able.min(CONTEXT_DEFAULT),
        Some(given) => able.min(given.saturating_sub(weights + WORK_BYTES) / each.max(1)),
    };
    if context < CONTEXT_MIN.min(able) {
        let need_bytes = (weights + WORK_BYTES).saturating_add(each.saturating_mul(CONTEXT_MIN.min(able)));
        let hint = format!("give {} that much memory, or use a smaller model", spec.name);
        return Err(LoadError::Memory { need_bytes, free_bytes: spec.memory_bytes.unwrap_or(0), hint });
    }
    Ok((context, (weights + WORK_BYTES).saturating_add(each.saturating_mul(context))))
}

/// For models that candle computes: keys and values of every layer, plus those of one layer repeated for each query
/// head, twice while they are concatenated.
fn cache_bytes(gguf: &Gguf) -> Result<u64, LoadError> {
    let (layers, heads) = (size(gguf, "block_count")?, size(gguf, "attention.head_count")?);
    let head = match size(gguf, "attention.key_length") {
        Ok(head) => head,
        Err(_) => size(gguf, "embedding_length")? / heads,
    };
    let heads_kv = size(gguf, "attention.head_count_kv").unwrap_or(heads);
    Ok(((layers * heads_kv + 2 * heads) * head * 2 * size_of::<f32>()) as u64)
}

/// Candle keeps the token embeddings in 32 bits in addition to the file's.
fn embedding_bytes(gguf: &Gguf) -> Result<u64, LoadError> {
    Ok(gguf.tensor("token_embd.weight")?.elements().saturating_mul(size_of::<f32>() as u64))
}

/// A dimension of the architecture: at least 1, and small enough that three of them can be multiplied.
fn size(gguf: &Gguf, key: &str) -> Result<usize, LoadError> {
    const MAX: u64 = 1 << 20;
    let key = format!("{}.{key}", architecture(gguf)?);
    match gguf.integer(&key) {
        Some(number) if (1..=MAX).contains(&number) => Ok(usize::try_from(number).unwrap_or(1)),
        Some(number) => Err(LoadError::Wrong {
            path: gguf.path.clone(),
            detail: format!("its {key} is {number}, outside 1 to {MAX}"),
        }),
        None => {
            Err(LoadError::Wrong { path: gguf.path.clone(), detail: format!("its metadata has no {key}") })
        }
    }
}
