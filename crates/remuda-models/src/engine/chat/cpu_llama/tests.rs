use super::super::dimensions::{Dimensions, RopeFamily};
use super::super::generation::LanguageModel;
use super::CpuLlama;
use crate::beacon::Beacon;
use crate::engine::gguf::sample::{Sample, TOKENS};
use crate::engine::gguf::{Gguf, TensorType};
use crate::failure::{InferenceError, LoadError};

const PROMPT: [u32; 9] = [256, 104, 258, 108, 111, 32, 116, 257, 10];

struct Loaded {
    gguf: Gguf,
    dimensions: Dimensions,
    lean: CpuLlama,
    /// The reference reads the file again.
    _folder: tempfile::TempDir,
}

fn loaded(sample: &Sample, threads: u32) -> Result<Loaded, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let gguf = Gguf::open(&sample.write(folder.path()))?;
    let dimensions = Dimensions::of(&gguf)?.unwrap();
    let lean = CpuLlama::load(&gguf, &dimensions, threads, &Beacon::default())?;
    Ok(Loaded { gguf, dimensions, lean, _folder: folder })
}

/// The textbook algorithm: token by token, in 64 bits, without quantisation.
struct ReferenceLlama<'a> {
    gguf: &'a Gguf,
    it: &'a Dimensions,
}

/// Keys and values of earlier tokens.
type Past = Vec<(Vec<f64>, Vec<f64>)>;

impl ReferenceLlama<'_> {
    fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let embedding = self.numbers("token_embd.weight").unwrap();
        let mut past: Vec<Past> = vec![Vec::new(); self.it.layers];
        let mut x = Vec::new();
        for token in tokens {
            x = embedding[*token as usize * self.it.width..][..self.it.width].to_vec();
            for (layer, past) in past.iter_mut().enumerate() {
                let name = |part: &str| format!("blk.{layer}.{part}");
                let seen = self.attended(&self.norm(&name("attn_norm.weight"), &x), past, &name);
                add(&mut x, &self.times(&name("attn_output.weight"), &seen));
                let normed = self.norm(&name("ffn_norm.weight"), &x);
                let (gate, up) = (
                    self.times(&name("ffn_gate.weight"), &normed),
                    self.times(&name("ffn_up.weight"), &normed),
                );
                let inner: Vec<f64> =
                    gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                add(&mut x, &self.times(&name("ffn_down.weight"), &inner));
            }
        }
        self.times("token_embd.weight", &self.norm("output_norm.weight", &x))
    }

    fn attended(&self, normed: &[f64], past: &mut Past, name: &dyn Fn(&str) -> String) -> Vec<f64> {
        let [mut q, mut k, v] = ["attn_q", "attn_k", "attn_v"].map(|part| {
            let mut out = self.times(&name(&format!("{part}.weight")), normed);
            add(&mut out, &self.numbers(&name(&format!("{part}.bias"))).unwrap_or_default());
            out
        });
        for (x, part) in [(&mut q, "attn_q_norm.weight"), (&mut k, "attn_k_norm.weight")] {
            for head in x.chunks_mut(self.it.head) {
                if self.gguf.tensors.contains_key(&name(part)) {
                    head.copy_from_slice(&self.norm(&name(part), head));
                }
                self.turn(head, past.len());
            }
        }
        past.push((k, v));
        let head = |(head, q): (usize, &[f64])| {
            let shared = head * self.it.heads_kv / self.it.heads * self.it.head;
            let score = |k: &[f64]| {
                (q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (self.it.head as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = past.iter().map(|(k, _)| score(&k[shared..])).collect();
            let sum: f64 = scores.iter().sum();
            let seen = |place: usize| {
                past.iter().zip(&scores).map(|((_, v), score)| v[shared + place] * score / sum).sum()
            };
            (0..self.it.head).map(seen).collect::<Vec<f64>>()
        };
        q.chunks(self.it.head).enumerate().flat_map(head).collect()
    }

    fn turn(&self, x: &mut [f64], at: usize) {
        for pair in 0..self.it.head / 2 {
            let part = -2.0 * pair as f64 / self.it.head as f64;
            let (sin, cos) = (at as f64 * f64::from(self.it.rope_base).powf(part)).sin_cos();
            let (a, b) = match self.it.family {
                RopeFamily::Llama => (2 * pair, 2 * pair + 1),
                RopeFamily::Qwen2 | RopeFamily::Qwen3 => (pair, pair + self.it.head / 2),
            };
            (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
        }
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let size = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + f64::from(self.it.epsilon);
        x.iter().zip(self.numbers(name).unwrap()).map(|(x, weight)| x / size.sqrt() * weight).collect()
    }

    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.numbers(name).unwrap();
        rows.chunks(x.len()).map(|row| row.iter().zip(x).map(|(weight, x)| weight * x).sum()).collect()
    }

    fn numbers(&self, name: &str) -> Option<Vec<f64>> {
        let (tensor, bytes) = self.gguf.read(name).ok()?;
        assert_eq!(tensor.kind, TensorType::F32);
        Some(bytes.as_chunks().0.iter().map(|it| f64::from(f32::from_le_bytes(*it))).collect())
    }
}

fn add(to: &mut [f64], what: &[f64]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += what);
}

#[test]
fn logits_match_the_reference() {
    for family in ["llama", "qwen2", "qwen3"] {
        let mut model = loaded(&Sample::model(family), 1).unwrap();
        let right = ReferenceLlama { gguf: &model.gguf, it: &model.dimensions }.logits(&PROMPT);
        let ours = model.lean.read(&PROMPT, &Beacon::default()).unwrap();
        let size = (right.iter().map(|it| it * it).sum::<f64>() / right.len() as f64).sqrt();
        let off = right.iter().zip(ours).map(|(right, ours)| (right - f64::from(*ours)).powi(2)).sum::<f64>();
        let off = (off / right.len() as f64).sqrt() / size;
        // The cost of int8: twice 1/254 of a block's maximum, through two layers.
        assert!(off < 0.03, "{family}: off by {off} of {size}");
    }
}

#[test]
fn chunks_threads_and_history_do_not_change_logits() {
    let long: Vec<u32> = (0..150).map(|token| token * 7 % TOKENS as u32).collect();
    let beacon = Beacon::default();
    let mut model = loaded(&Sample::model("llama"), 1).unwrap().lean;
    let whole = model.read(&long, &beacon).unwrap().to_vec();
    assert_eq!(model.keep_prefix(0), 0);
    let mut last = Vec::new();
    for token in &long {
        last = model.read(&[*token], &beacon).unwrap().to_vec();
    }
    assert_eq!(whole, last, "one by one");
    assert_eq!(model.keep_prefix(40), 40);
    assert_eq!(whole, model.read(&long[40..], &beacon).unwrap(), "from the middle on");
    let mut other = loaded(&Sample::model("llama"), 2).unwrap().lean;
    assert_eq!(whole, other.read(&long, &beacon).unwrap(), "by two threads");
    other.keep_prefix(149);
    assert_eq!(whole, other.read(&long[149..], &beacon).unwrap(), "the last by two threads");
}

#[test]
fn stopped_prompt_leaves_no_state() {
    let beacon = Beacon::default();
    let mut model = loaded(&Sample::model("llama"), 1).unwrap().lean;
    let right = model.read(&PROMPT, &beacon).unwrap().to_vec();
    model.keep_prefix(0);
    beacon.stop();
    assert_eq!(model.read(&PROMPT, &beacon).unwrap_err(), InferenceError::Stopped);
    assert_eq!(beacon.steps(), 2 + 1 + 1, "within one layer");
    beacon.resume();
    model.keep_prefix(0);
    assert_eq!(model.read(&PROMPT, &beacon).unwrap(), right);
}

#[test]
fn inconsistent_weights_are_refused() {
    let model = Sample::model("llama");
    let wrong_shape = model.clone().tensor("blk.1.ffn_up.weight", &[64, 64], 0, vec![0; 64 * 64 * 4]);
    let not_numbers =
        model.clone().tensor("blk.0.ffn_norm.weight", &[64], 0, f32::NAN.to_le_bytes().repeat(64));
    let poisoned = model.clone().tensor(
        "blk.0.attn_k.weight",
        &[64, 32],
        0,
        f32::INFINITY.to_le_bytes().repeat(64 * 32),
    );
    let missing = model.clone().without("blk.1.attn_v.weight");
    let uneven = model.clone().number("llama.attention.head_count", 3);
    let absurd = model.number("llama.block_count", u32::MAX);
    for sample in [wrong_shape, not_numbers, poisoned, missing, uneven, absurd] {
        let result = loaded(&sample, 1).map(|_| ());
        assert!(matches!(result, Err(LoadError::Wrong { .. })), "{result:?}");
    }
}

#[test]
fn unknown_tokens_are_refused() {
    let mut model = loaded(&Sample::model("llama"), 1).unwrap().lean;
    for tokens in [vec![], vec![TOKENS as u32]] {
        assert!(matches!(model.read(&tokens, &Beacon::default()), Err(InferenceError::Input(_))));
    }
    assert!(model.bytes() > 64 * TOKENS);
}
