//! Which implementation computes a model, its context size, and its memory.

#[cfg(feature = "candle")]
use super::super::candle_device;
#[cfg(feature = "candle")]
use super::candle::{self, CandleModel};
use super::cpu_llama::CpuLlama;
use super::dimensions::{Dimensions, architecture, fit_context};
use super::generation::LanguageModel;
use super::template::is_chatml;
use crate::beacon::Beacon;
use crate::engine::gguf::{Gguf, TensorType};
use crate::failure::LoadError;
use crate::spec::{Device, Isolation, ModelSpec};

pub(super) struct ChatPlan {
    engine: ChatRunner,
    pub(super) context: usize,
    pub(super) memory_bytes: u64,
}

enum ChatRunner {
    CpuLlama(Dimensions),
    #[cfg(feature = "candle")]
    CandleModel(Device),
}

impl ChatPlan {
    pub(super) fn of(gguf: &Gguf, spec: &ModelSpec) -> Result<Self, LoadError> {
        let engine = ChatRunner::of(gguf, spec)?;
        let (dimensions, tokens_max) = match &engine {
            ChatRunner::CpuLlama(dimensions) => (Some(dimensions), u64::MAX),
            #[cfg(feature = "candle")]
            ChatRunner::CandleModel(_) => (None, candle::POSITIONS_MAX),
        };
        let (context, memory_bytes) =
            fit_context(gguf, dimensions, engine.besides_bytes(), tokens_max, spec)?;
        let context = usize::try_from(context).unwrap_or(usize::MAX);
        Ok(ChatPlan { engine, context, memory_bytes })
    }

    pub(super) fn load(
        &self,
        gguf: &Gguf,
        spec: &ModelSpec,
        beacon: &Beacon,
    ) -> Result<Box<dyn LanguageModel>, LoadError> {
        match &self.engine {
            ChatRunner::CpuLlama(dimensions) => {
                Ok(Box::new(CpuLlama::load(gguf, dimensions, spec.threads, beacon)?))
            }
            #[cfg(feature = "candle")]
            ChatRunner::CandleModel(device) => {
                let on = (*device, self.memory_bytes);
                Ok(Box::new(CandleModel::load(gguf, architecture(gguf)?, on, beacon)?))
            }
        }
    }

    pub(super) fn device(&self) -> Device {
        match &self.engine {
            ChatRunner::CpuLlama(_) => Device::Cpu,
            #[cfg(feature = "candle")]
            ChatRunner::CandleModel(device) => *device,
        }
    }

    /// The memory of the device, if it is a card.
    pub(super) fn device_bytes(&self) -> Result<Option<u64>, LoadError> {
        match &self.engine {
            ChatRunner::CpuLlama(_) => Ok(None),
            #[cfg(feature = "candle")]
            ChatRunner::CandleModel(device) => candle_device::memory_bytes(*device),
        }
    }

    pub(super) fn isolation(&self) -> Isolation {
        match &self.engine {
            ChatRunner::CpuLlama(_) => Isolation::Thread,
            #[cfg(feature = "candle")]
            ChatRunner::CandleModel(_) => Isolation::Process,
        }
    }

    /// Remarks for the user.
    pub(super) fn notes(&self, gguf: &Gguf, kinds: &[(TensorType, u64)]) -> Vec<String> {
        let mut notes = Vec::new();
        match &self.engine {
            ChatRunner::CpuLlama(_) => {
                let others = kinds
                    .iter()
                    .map(|(kind, _)| *kind)
                    .filter(|kind| !matches!(kind, TensorType::Q8_0 | TensorType::F32));
                let others: Vec<String> = others.map(|kind| kind.to_string()).collect();
                if !others.is_empty() {
                    notes.push(format!(
                        "{} is converted to Q8_0 when loaded: one byte per weight",
                        others.join(", ")
                    ));
                }
            }
            #[cfg(feature = "candle")]
            ChatRunner::CandleModel(device) => {
                for kind in candle::slow(gguf, *device) {
                    notes.push(format!(
                        "{kind} has no SIMD kernel in candle and would be 10 to 50 times slower: it is converted to Q8_0 when loaded"
                    ));
                }
            }
        }
        let able = architecture(gguf).ok().and_then(|name| gguf.integer(&format!("{name}.context_length")));
        if let Some(able) = able.filter(|able| *able > self.context as u64) {
            notes.push(format!(
                "the model supports {able} tokens of context, the copy gets {}; raise memory_bytes for more",
                self.context
            ));
        }
        if is_chatml(gguf) {
            notes.push("the file has no chat template; using ChatML".to_owned());
        }
        notes
    }
}

impl ChatRunner {
    /// Memory besides the weights and the cache.
    fn besides_bytes(&self) -> u64 {
        match self {
            ChatRunner::CpuLlama(_) => 0,
            #[cfg(feature = "candle")]
            ChatRunner::CandleModel(device) => candle_device::besides_bytes(*device),
        }
    }

    /// On a CPU our own implementation comes first: it is faster and cannot poison the process.
    fn of(
        gguf: &Gguf,
        #[cfg_attr(not(feature = "candle"), expect(unused))] spec: &ModelSpec,
    ) -> Result<Self, LoadError> {
        #[cfg(feature = "candle")]
        if candle::FAMILIES.contains(&architecture(gguf)?) {
            let device = candle_device::device(spec)?;
            if device != Device::Cpu {
                return Ok(ChatRunner::CandleModel(device));
            }
        }
        if let Some(dimensions) = Dimensions::of(gguf)? {
            return Ok(ChatRunner::CpuLlama(dimensions));
        }
        let name = architecture(gguf)?;
        #[cfg(feature = "candle")]
        if candle::FAMILIES.contains(&name) {
            return Ok(ChatRunner::CandleModel(Device::Cpu));
        }
        Err(LoadError::Unsupported {
            path: gguf.path.clone(),
            what: format!("the {name} architecture"),
            hint: match cfg!(feature = "candle") {
                true => "; this build runs llama, qwen2, qwen3, phi3 and gemma".to_owned(),
                false => "; this build runs llama, qwen2 and qwen3 without experts; build with `--features candle` for phi3, gemma and experts".to_owned(),
            },
        })
    }
}
